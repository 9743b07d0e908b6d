"""Jobs repeated from their records, and whether they came to what these say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from carrel.core.domain.errors import Invalid
from carrel.wire import v1

if TYPE_CHECKING:
    from carrel.client.recorded import Changes, Recorded
    from carrel.client.transport import Transport
    from carrel.core.comparison import Comparison, Metrics, Results
    from carrel.core.crates import Crate


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """What is repeated: a record that was checked, with its metrics, and where it is from."""

    recorded: Recorded
    #: None: it has none.
    metrics: Metrics | None
    #: For people: "job 12 of the lab 2d23d8fa769d".
    called: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """How a repetition came out."""

    results: Results
    #: All that differs besides.
    comparison: Comparison


class ReplayCalls:
    """The part of a `carrel.Client` that is about repeating jobs from their records."""

    _http: Transport
    record: Callable[[int], dict[str, Any]]
    metrics: Callable[[int], v1.MetricsView]
    lab: Callable[[], v1.LabView]
    submit: Callable[..., v1.JobView]
    _upload: Callable[..., str]

    @contextmanager
    def original(self, source: int | str | Path) -> Iterator[tuple[Original, Crate | None]]:
        """Read what is to be repeated: a job of this lab by its number, or the file of a crate, which stays open.

        A crate is hostile until it was read. Raises `Invalid` for one that is not what `carrel export` writes, and for a job
        that did not complete.
        """
        from carrel.core.crates import open_crate

        if isinstance(source, int):
            plain = self.record(source)
            found = self.metrics(source) if plain["job"].get("run_id") else None
            # What cannot be read now is unknown, and not nothing.
            yield _original(plain, None if found is None else found.model_dump(), f"Job {source}"), None
            return
        with open_crate(Path(source)) as crate:
            yield _original(crate.record, crate.metrics, f"{crate.path}: the record"), crate

    def replay(self, original: Original, crate: Crate | None, changes: Changes | None = None) -> tuple[v1.JobView, list[str]]:
        """Submit the same task: code, command, parameters, lock, resources, seeds, inputs by digest. Returns the job, and notes.

        The code and the outputs of a crate are checked against its record before anything is sent, and it gets no secrets but
        those that `changes` name: whoever wrote the crate has chosen their names.
        """
        from carrel.client.recorded import Changes, task_again

        recorded, changes = original.recorded, changes or Changes()
        request, notes = task_again(recorded, self.lab().lab_id, changes)
        if crate is not None:
            if kept := [name for name in recorded.task.secrets if name not in changes.secrets]:
                raise Invalid(
                    f"The record asks for your secrets {', '.join(kept)}, and the code of {original.called} would have them.",
                    remedy=f"If you trust it with them: {' '.join(f'--secret {name}' for name in kept)}.",
                )
            crate.check_outputs(recorded.output_digests)
            self._upload(crate.code(recorded.task.snapshot))
        return self.submit(request), notes

    def compare_replay(self, original: Original, job_id: int, *, tolerance: float = 0.0, ignore: Sequence[str] = ()) -> Replayed:
        """Say whether a job came to the results of the record, and what it had otherwise. Arguments as of `compare_results`."""
        from carrel.core.comparison import Code, Metrics, agree, compare, side_of

        record = self.record(job_id)
        recorded = original.recorded
        if record["task"].get("replay_of") != {"lab": recorded.lab, "job": recorded.job.id}:
            raise Invalid(f"Job {job_id} does not replay {original.called}.", remedy="Any two jobs: `carrel compare`.")
        known = metrics = Metrics()
        # Where the record has no metrics, or none that counts, there is nothing to compare them with.
        if original.metrics is not None and not _all_ignored(original.metrics, ignore):
            known, metrics = original.metrics, read_metrics(self.metrics(job_id).model_dump(), f"Job {job_id}")
        plain = recorded.plain
        sides = [
            side_of(plain, plain["attempts"][-1]["number"], label="the record", code=Code(), metrics=known),
            side_of(record, record["job"]["attempt"], label=str(job_id), code=Code(), metrics=metrics),
        ]
        return Replayed(results=agree(sides, tolerance=tolerance, ignore=ignore), comparison=compare(sides))


def _all_ignored(metrics: Metrics, ignore: Sequence[str]) -> bool:
    return bool(metrics.last) and all(any(fnmatchcase(name, one) for one in ignore) for name in metrics.last)


def _original(plain: Mapping[str, Any], metrics: Mapping[str, Any] | None, where: str) -> Original:
    from carrel.client.recorded import read_recorded

    recorded = read_recorded(plain, where)
    job = recorded.job
    if job.state != "COMPLETED":
        raise Invalid(f"{where}: the job is {job.state}.", remedy="Replay a job that is COMPLETED.")
    return Original(
        recorded=recorded,
        metrics=None if metrics is None else read_metrics(metrics, where),
        called=f"job {job.id} of the lab {recorded.lab}",
    )


def read_metrics(plain: Mapping[str, Any], where: str) -> Metrics:
    """Return metrics as they are compared. Raises `Invalid` for what is no such thing."""
    from carrel.core.comparison import Metrics

    try:
        view = v1.MetricsView.model_validate(plain)
        last = {name: float(one.last) for name, one in view.metrics.items()}
        curves = {
            name: dict(zip(one.steps, map(float, one.values), strict=True))
            for name, one in view.metrics.items()
            if one.steps is not None
        }
    except (ValidationError, ValueError) as error:
        raise Invalid(f"{where}: its metrics are not to be read: {str(error)[:200]}.") from None
    return Metrics(last=last, curves=curves, parameters=view.parameters, missing=view.missing)
