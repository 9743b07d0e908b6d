"""Compares attempts of jobs that the caller may read: gathers records, code and metrics, and hands them to what compares them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from carrel.core.comparison import UNTRACKED, Code, Curve, Metrics, Side, agree, compare, side_of, side_of_run
from carrel.core.control.lab import Lab
from carrel.core.domain.comparison import Kind, Verification
from carrel.core.domain.errors import CarrelError, Invalid, NotFound
from carrel.core.domain.job import Job, JobState
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, Resource, allowed
from carrel.core.snapshots import Entry, SnapshotStore
from carrel.core.snapshots import Kind as EntryKind
from carrel.lab.gateway.views import view_of
from carrel.wire.v1 import (
    ChangeView,
    ComparedJob,
    ComparedValue,
    ComparisonView,
    DifferenceView,
    MetricsView,
    MetricView,
    NotKnownView,
    ResultDifferenceView,
    ResultsView,
)

#: A job, the number of its attempt, and what it is called.
Chosen = tuple[Job, int, str]
#: A job that ended so says nothing about its results,
CUT_SHORT = (JobState.CANCELLED, JobState.NODE_FAIL, JobState.PREEMPTED)
#: nor does one that ended for a reason with one of these codes.
NEVER_RAN = ("EnvironmentFailed", "InputFailed", "LaunchFailed", "StorageFull", "OutputFailed", "RunnerLost", "NodeLost")
#: JSON has no infinite numbers.
_FARTHEST = 1e308
#: Jobs that are compared at once.
MOST_JOBS = 8
#: Bytes of a file up to which its lines are compared.
_LONGEST = 128 * 1024
#: What the name of a run begins with, and its id.
_RUN = "run:"
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_NAMED = re.compile(r"([1-9][0-9]{0,17})(?:_([0-9]{1,9}))?(?::([1-9][0-9]{0,8}))?")


def no_metrics(_owner: str, _run_id: str) -> Metrics:
    """The metrics of a lab without a tracking server."""
    return Metrics(missing=UNTRACKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparing:
    """What the lab has of jobs, side by side. Whoever may read the record of each job may compare them."""

    lab: Lab
    snapshots: SnapshotStore
    #: What the tracking server has of the run of an owner's.
    metrics: Callable[[str, str], Metrics]

    def compare(self, caller: Caller, names: Sequence[str]) -> ComparisonView:
        """Compare what is named: attempts ("12", "12_3" of an array, "12:1"), and runs of the caller's from elsewhere ("run:…").

        Raises `Invalid` for names that are none or too many, `NotFound` and `Denied` as looking at a record does.
        """
        jobs, sides = self._named(caller, names)
        found = compare(sides)
        return ComparisonView(
            jobs=jobs,
            summary=list(found.summary),
            differences=[
                view_of(
                    DifferenceView,
                    one,
                    values=[ComparedValue(known=value.known.value, text=value.text) for value in one.values],
                    changes=[view_of(ChangeView, change, job=change.label) for change in one.changes],
                )
                for one in found.differences
            ],
            not_known=[
                NotKnownView(kinds=list(one.kinds), path=one.path, jobs=list(one.labels), why=one.why) for one in found.not_known
            ],
        )

    def results(self, caller: Caller, names: Sequence[str], *, tolerance: float, ignore: Sequence[str]) -> ResultsView:
        """Say whether the others came to the results of the first. Raises as `compare` does."""
        jobs, sides = self._named(caller, names)
        found = agree(sides, tolerance=tolerance, ignore=ignore)
        return ResultsView(
            jobs=jobs,
            agreement=found.agreement,
            outputs=found.outputs,
            metrics=found.metrics,
            distance=min(found.distance, _FARTHEST),
            differences=[view_of(ResultDifferenceView, one, job=one.label) for one in found.differences],
            not_known=list(found.not_known),
        )

    def verify(
        self, caller: Caller, job_id: int, repetitions: Sequence[int], *, tolerance: float, ignore: Sequence[str]
    ) -> ResultsView:
        """Compare a job of the caller's with jobs that repeat it, and keep with it what came of it. Raises as `results` does."""
        job = self.lab.job(caller, job_id, Action.CHANGE_JOB)
        for number in repetitions:
            if self.lab.task(caller, number).rerun_of != job.id:
                raise Invalid(f"Job {number} does not repeat job {job.id}.", remedy=f"Repeat it: carrel rerun {job.id}.")
        found = self.results(caller, [str(job.id), *map(str, repetitions)], tolerance=tolerance, ignore=ignore)
        kept = Verification(
            at=self.lab.clock(),
            by=caller.user.subject,
            repetitions=tuple(repetitions),
            agreement=found.agreement,
            outputs=found.outputs,
            metrics=found.metrics,
            step=min((one.step for one in found.differences if one.step is not None), default=None),
            tolerance=tolerance,
            ignored=tuple(ignore),
        )
        self.lab.verifications.keep(job, self.lab.task(caller, job.id), kept)
        return found

    def of_run(self, caller: Caller, job_id: int) -> MetricsView:
        """The metrics of the job's run, or why there are none. Raises as looking at a record does."""
        job = self.lab.job(caller, job_id, Action.READ_JOB)
        found = self._metrics(job, self.lab.produced.record(caller, job_id), job.attempt)
        return MetricsView(
            metrics={name: _metric(value, found.curves.get(name)) for name, value in sorted(found.last.items())},
            parameters=dict(sorted(found.parameters.items())),
            missing=found.missing,
        )

    def sides(self, caller: Caller, names: Sequence[str]) -> tuple[list[Chosen], list[Side]]:
        """The attempts that are named, and what is known of them. Raises as `compare` does."""
        _check_number(names)
        return self._attempts(caller, names)

    def _named(self, caller: Caller, names: Sequence[str]) -> tuple[list[ComparedJob], list[Side]]:
        """The same of attempts and runs, in their order."""
        _check_number(names)
        chosen, sides = self._attempts(caller, [name for name in names if not name.startswith(_RUN)])
        attempts = iter(zip(compared_jobs(chosen), sides, strict=True))
        parameters = {path for side in sides for path in side.section(Kind.PARAMETER).values}
        found = [self._run(caller, name, parameters) if name.startswith(_RUN) else next(attempts) for name in names]
        return [job for job, _ in found], [side for _, side in found]

    def _run(self, caller: Caller, name: str, parameters: Collection[str]) -> tuple[ComparedJob, Side]:
        """A run in the caller's own workspace of the tracking server."""
        run_id = name.removeprefix(_RUN)
        if not _RUN_ID.fullmatch(run_id):
            raise Invalid(f'"{name[:60]}" names no run.', remedy="Write run: and the 32 digits of MLflow's run id.")
        allowed(caller, Action.TRACK, Resource(owner=caller.user.subject)).check()
        found = self.metrics(caller.user.subject, run_id)
        if found.missing:
            raise NotFound(
                f"There is no run {run_id} of yours. {found.missing}", remedy="MLflow's page shows the ids of your runs."
            )
        if job := found.tags.get("carrel.job_id"):
            raise Invalid(f"The run {run_id} is that of job {job}.", remedy=f"Name the job, of which more is known: {job}.")
        label = f"{_RUN}{run_id[:8]}"
        told = ComparedJob(
            label=label, id=0, attempt=0, name=found.tags.get("mlflow.runName", ""), owner=caller.user.subject, state=""
        )
        return told, side_of_run(found, label=label, parameters=parameters)

    def _attempts(self, caller: Caller, names: Sequence[str]) -> tuple[list[Chosen], list[Side]]:
        chosen = [self._find(caller, name) for name in names]
        twice = next((label for index, (_, _, label) in enumerate(chosen) if chosen[index][:2] in _before(chosen, index)), None)
        if twice is not None:
            raise Invalid(f"Job {twice} is named twice.", remedy="Name different jobs, or different attempts (12:1 12:2).")
        codes: dict[str, Code] = {}
        return chosen, [self._side(caller, one, codes) for one in chosen]

    def _find(self, caller: Caller, name: str) -> Chosen:
        """The job, the number of the attempt, and what it is called."""
        match = _NAMED.fullmatch(name)
        if match is None:
            raise Invalid(
                f'"{name[:40]}" names no attempt.', remedy='Write the number of a job, or "12:1" for its first attempt.'
            )
        job_id, index, attempt = (None if text is None else int(text) for text in match.groups())
        assert job_id is not None
        if index is not None:
            job_id = self.lab.array(caller, job_id, index, Action.READ_JOB)[0].id
        job = self.lab.job(caller, job_id, Action.READ_JOB)
        number = attempt or job.attempt
        if number > job.attempt:
            raise NotFound(f"Job {job.id} has no attempt {number}.", remedy=f"It had {job.attempt}.")
        called = str(job.id) if job.element is None else f"{job.element.array_id}_{job.element.index}"
        return job, number, f"{called}:{number}" if attempt else called

    def _side(self, caller: Caller, chosen: Chosen, codes: dict[str, Code]) -> Side:
        """One attempt; `codes` has what was read before, by digest."""
        job, number, label = chosen
        record = self.lab.produced.record(caller, job.id)
        digest = record["task"].get("snapshot", "")
        if digest not in codes:
            codes[digest] = self._code(caller, digest)
        return side_of(record, number, label=label, code=codes[digest], metrics=self._metrics(job, record, number))

    def results_of(self, caller: Caller, job: Job, metrics: Metrics | None = None) -> Side:
        """What is known of a job's last attempt, its code apart. With `metrics` the tracking server is not asked."""
        record = self.lab.produced.record(caller, job.id)
        code = Code(missing="It is not looked at.")
        return side_of(
            record, job.attempt, label=str(job.id), code=code, metrics=metrics or self._metrics(job, record, job.attempt)
        )

    def _code(self, caller: Caller, digest: str) -> Code:
        if not digest:
            return Code(missing="A session has no code of its own.")
        if not self.lab.has_snapshot(caller, digest):
            here = self.lab.files.code.has(digest)
            return Code(
                missing="It is shown to who has uploaded it, with a token that may submit."
                if here
                else "Its code is not kept any more."
            )
        entries = {entry.path: entry for entry in self.snapshots.entries(digest)}
        files = self.snapshots.files(digest)

        def read(path: str) -> str | None:
            entry = entries.get(path)
            if entry is None or entry.size > _LONGEST:
                return None
            if entry.kind is EntryKind.LINK:
                return f"-> {entry.target}\n"
            try:
                text = files.read(path, _LONGEST).decode()
            except (UnicodeDecodeError, CarrelError):
                return None
            return None if "\0" in text else text

        return Code(files={path: _described(entry) for path, entry in entries.items()}, read=read)

    def _metrics(self, job: Job, record: dict[str, Any], number: int) -> Metrics:
        if self.metrics is no_metrics:
            return Metrics(missing=UNTRACKED)
        elsewhere = record["task"].get("tracking") or {}
        if number != job.attempt:
            return Metrics(missing="Metrics are kept of a job, not of each of its attempts.")
        if elsewhere.get("uri"):
            return Metrics(missing="Its run is on another tracking server.")
        if job.run_id is None:
            return Metrics(missing="It has no run on the tracking server.")
        return self.metrics(job.owner, job.run_id)


def _check_number(names: Sequence[str]) -> None:
    if not 2 <= len(names) <= MOST_JOBS:
        raise Invalid(f"{len(names)} jobs are named.", remedy=f"Name 2 to {MOST_JOBS} jobs.")


def _metric(last: float, curve: Curve | None) -> MetricView:
    steps = None if curve is None else sorted(curve)
    return MetricView(last=repr(last), steps=steps, values=[] if curve is None else [repr(curve[step]) for step in sorted(curve)])


def compared_jobs(chosen: Sequence[Chosen]) -> list[ComparedJob]:
    """The attempts, as the API names them."""
    return [
        ComparedJob(label=label, id=job.id, attempt=number, name=job.name, owner=job.owner, state=job.state.value)
        for job, number, label in chosen
    ]


def _before(chosen: Sequence[Chosen], index: int) -> list[tuple[Job, int]]:
    return [(job, number) for job, number, _ in chosen[:index]]


def _described(entry: Entry) -> str:
    """Equal for equal files."""
    if entry.kind is EntryKind.LINK:
        return f"-> {entry.target}"
    return f"sha256:{entry.sha256}{' executable' if entry.executable else ''}"
