"""Jobs that start after others, in a lab that runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel import Client
from carrel.core.domain.errors import Impossible, Invalid, NotFound
from carrel.testing.waiting import PATIENCE
from carrel.wire.v1 import ResourceRequest
from support.lab_process import LabProcess, start_lab


class Lab:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.start()

    def start(self) -> None:
        self.process: LabProcess = start_lab(self.home, "--cpus", "4", simulate_gpus=0)
        self.client = Client(url=self.process.url, token=self.process.token)

    def kill(self) -> None:
        self.client.close()
        self.process.kill()

    def submit(self, script: str, dependency: str | None = None) -> int:
        directory = self.home.parent / "work"
        directory.mkdir(exist_ok=True)
        (directory / "work.sh").write_text(script)
        resources = ResourceRequest(memory="64M")
        return self.client.submit_project(directory / "work.sh", resources=resources, dependency=dependency).id

    def ended(self, *jobs: int) -> list[tuple[str, str]]:
        return [((job := self.client.wait(number, timeout=PATIENCE)).state, job.reason) for number in jobs]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "lab")
    yield lab
    lab.process.end_jobs()
    lab.client.close()
    lab.process.stop()


@pytest.mark.gate
def test_each_starts_when_its_conditions_hold_also_across_a_restart(lab: Lab, tmp_path: Path) -> None:
    go, order = tmp_path / "go", tmp_path / "order"
    wait = f"while [ ! -e {go} ]; do sleep 0.05; done"
    first = lab.submit(f"{wait}; echo first >> {order}")
    second = lab.submit(f"echo second >> {order}", f"afterok:{first}")
    third = lab.submit(f"echo third >> {order}", f"afterany:{second}")
    started = lab.submit(f"echo started >> {order}", f"after:{first}")
    assert lab.ended(started) == [("COMPLETED", "Completed")]
    for number in (second, third):
        job = lab.client.job(number)
        assert (job.state, job.reason, job.queue) == ("PENDING", "Dependency", None)
    assert lab.client.job(second).message == f"It starts when job {first} has ended with exit code 0."
    assert lab.client.job(second).dependency == f"afterok:{first}"
    lab.kill()
    lab.start()
    assert lab.client.job(second).state == "PENDING"
    go.touch()
    assert lab.ended(first, second, third) == [("COMPLETED", "Completed")] * 3
    assert order.read_text().split() == ["started", "first", "second", "third"]


def test_what_can_never_be_is_ended_and_refused_and_the_others_go_on(lab: Lab, tmp_path: Path) -> None:
    go = tmp_path / "go"
    fails = lab.submit(f"while [ ! -e {go} ]; do sleep 0.05; done; exit 3")
    needs = lab.submit("true", f"afterok:{fails}")
    needs_that = lab.submit("true", f"afterok:{needs}")
    cleans = lab.submit("true", f"afternotok:{fails}")
    gone = lab.submit("true", f"afterany:{fails}")
    lab.client.cancel(gone)
    assert lab.ended(gone) == [("CANCELLED", "Cancelled")]
    go.touch()
    assert lab.ended(fails, needs, needs_that, cleans) == [
        ("FAILED", "NonZeroExitCode"),
        ("CANCELLED", "DependencyNeverSatisfied"),
        ("CANCELLED", "DependencyNeverSatisfied"),
        ("COMPLETED", "Completed"),
    ]
    assert lab.client.job(needs).message.endswith("That can never be any more.")
    with pytest.raises(Impossible, match=f"Job {fails} has ended FAILED"):
        lab.submit("true", f"afterok:{fails}")
    with pytest.raises(NotFound):
        lab.submit("true", "afterok:999")
    with pytest.raises(Invalid, match="afternotok"):
        lab.submit("true", "soon")
    # Nobody who waited holds back those who come later.
    assert lab.ended(lab.submit("true")) == [("COMPLETED", "Completed")]
