"""Which jobs belong together, by their parent, what they wait for, and whose outputs or runs they take. No lab."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from scheduled import job

from carrel.core.control.pipelines import related_jobs
from carrel.core.domain.job import Job

pytestmark = pytest.mark.quick
RUN = "0123456789abcdef0123456789abcdef"


class Known:
    """A store of these jobs, with their entry points and inputs."""

    def __init__(self, *known: tuple[Job, str, tuple[str, ...]]) -> None:
        self._jobs = {one.id: one for one, _, _ in known}
        self._tasks = {one.id: (entry_point, inputs) for one, entry_point, inputs in known}

    def get(self, job_id: int) -> Job | None:
        return self._jobs.get(job_id)

    def list(self, which: Any, *, before: int | None, limit: int) -> list[Job]:
        return [one for one in self._jobs.values() if one.parent == which.parent]

    def task(self, job_id: int) -> Any:
        entry_point, inputs = self._tasks[job_id]
        return SimpleNamespace(entry_point=entry_point, all_inputs=[SimpleNamespace(uri=uri) for uri in inputs])


@pytest.mark.parametrize("uri", ["job:2/outputs", f"runs:/{RUN}/features", f"mlflow-artifacts:/w/1/{RUN}/artifacts/features"])
def test_what_a_program_runs_of_its_own_project_is_told_apart_and_drawn_in_its_order(uri: str) -> None:
    known = Known(
        (job(1, name="digits"), "main", ()),
        (job(2, name="digits", parent=1, run_id=RUN), "features", ()),
        (job(3, name="digits", parent=1), "train", (uri, f"runs:/{RUN[::-1]}/x")),
        (job(4, name="report", parent=1), "report", ()),
    )
    for number in (1, 2, 3, 4):
        shown = related_jobs(cast(Job, known.get(number)), cast(Any, known))
        assert [(one.key, one.name, one.after, one.parent) for one in shown] == [
            ("1", "digits", (), None),
            ("2", "features", (), "1"),
            ("3", "train", ("2",), None),
            ("4", "report", (), "1"),
        ]


def test_a_job_that_stands_alone_has_none() -> None:
    alone = job(1, name="digits")
    assert not related_jobs(alone, cast(Any, Known((alone, "train", ()))))
