"""Runs a job under several seeds and in several ways, and says how far its results move.

Nothing is kept beside the jobs: a run is known by a key that follows from what it is, as those of `carrel why` are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import isfinite
from typing import Any

from carrel.core.comparison import UNTRACKED, Side, agree
from carrel.core.comparison.matrix import DEVICE, ORDER, SEED, MatrixRow, MatrixRun, check_cases, row, run_task, runs_of, title_of
from carrel.core.comparison.pointers import number_at, numbers_in
from carrel.core.domain.comparison import Agreement, Kind
from carrel.core.domain.errors import CarrelError, Invalid
from carrel.core.domain.job import Job, JobState
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.domain.serial import to_plain
from carrel.core.domain.task import ORDER as ORDER_FILES
from carrel.core.domain.task import TaskSpec
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action
from carrel.core.snapshots import SnapshotStore
from carrel.core.tasks import describe
from carrel.lab.gateway.comparing import CUT_SHORT, Comparing
from carrel.lab.gateway.submission import with_order
from carrel.lab.gateway.views import view_of
from carrel.wire.v1 import MatrixRequest, MatrixRowView, MatrixRunView, MatrixView

#: The parameter that has the seed of a program which takes one.
_PARAMETER = "seed"
#: Bytes of an output in which a value is looked for.
_LARGEST = 4 * 1024**2
#: Metrics that a message names.
_NAMED = 8


@dataclass(slots=True)
class _Stands:
    """Where each run stands; a run without a job says why, or is to be submitted."""

    jobs: dict[MatrixRun, Job]
    keys: dict[MatrixRun, str]
    impossible: dict[MatrixRun, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrices:
    """The matrices of jobs that the caller may repeat."""

    comparing: Comparing
    snapshots: SnapshotStore

    def look(self, caller: Caller, job_id: int, asked: MatrixRequest) -> MatrixView:
        """Where it stands. Raises `Invalid` for a job that is not a COMPLETED task of the caller's own code."""
        job, task = self._job(caller, job_id)
        return self._view(caller, job, asked, self._stand(caller, job, task, asked))

    def go_on(self, caller: Caller, job_id: int, asked: MatrixRequest) -> MatrixView:
        """Submit the runs that can be submitted now, and say where it stands then. Twice is harmless: a run has one job."""
        job, task = self._job(caller, job_id)
        stands = self._stand(caller, job, task, asked)
        for run, key in stands.keys.items():
            if run not in stands.jobs:
                spec, resources = self._spec(job, task, run, stands.jobs)
                spec = replace(
                    spec, notes=(f"For `carrel matrix {job.id}`: {title_of(run.case, job.resources.gpus)}, seed {run.seed}.",)
                )
                stands.jobs[run] = self.comparing.lab.repeating.vary(caller, job.id, spec, resources, key=key)
        return self._view(caller, job, asked, self._stand(caller, job, task, asked))

    def _job(self, caller: Caller, job_id: int) -> tuple[Job, TaskSpec]:
        lab = self.comparing.lab
        job = lab.job(caller, job_id, Action.REPEAT_JOB)
        if job.kind is not JobKind.TASK or job.state is not JobState.COMPLETED:
            raise Invalid(f"Job {job_id} is a {job.kind} that is {job.state}.", remedy="Name a task that is COMPLETED.")
        task = lab.task(caller, job_id)
        if not lab.has_snapshot(caller, task.snapshot):
            raise Invalid(f"The code of job {job_id} is not yours, or not kept.", remedy="Whoever has uploaded it can ask.")
        lock = next((one.get("environment_lock_text") for one in lab.produced.record(caller, job_id)["attempts"][-1:]), None)
        return job, replace(task, environment=replace(task.environment, lock=lock or task.environment.lock))

    def _stand(self, caller: Caller, job: Job, task: TaskSpec, asked: MatrixRequest) -> _Stands:
        stands, lab = _Stands({}, {}, {}), self.comparing.lab
        for run in runs_of(check_cases(asked.cases), _seeds(task, asked)):
            if run.case == DEVICE and not job.resources.gpus and not any(node.devices for node in lab.engine.nodes()):
                stands.impossible[run] = "The lab has no GPUs."
                continue
            if run.case == ORDER:
                other = stands.jobs.get(MatrixRun(SEED, run.seed + 1))
                if other is None or not other.state.ended:
                    continue  # its order is not known yet
                if not self._has_order(caller, other):
                    stands.impossible[run] = (
                        "It kept no order of samples: it has no DataLoader of PyTorch's, and does not call carrel.order."
                    )
                    continue
            spec, resources = self._spec(job, task, run, stands.jobs)
            about = json.dumps([job.partition, to_plain(spec), to_plain(resources), run.case], sort_keys=True)
            key, found = lab.repeating.varied(caller, f"matrix {about}", lambda one: one.state in CUT_SHORT)
            stands.keys[run] = key
            if found is not None:
                stands.jobs[run] = found
        return stands

    def _has_order(self, caller: Caller, job: Job) -> bool:
        outputs = self.comparing.lab.produced.outputs(caller, job.id)
        return any(f"/{ORDER_FILES}/" in f"/{file.path}" for file in outputs)

    def _spec(self, job: Job, task: TaskSpec, run: MatrixRun, jobs: Mapping[MatrixRun, Job]) -> tuple[TaskSpec, Resources]:
        other = jobs.get(MatrixRun(SEED, run.seed + 1))
        made, resources = run_task(task, job.resources, run, order_of=None if other is None else other.id)
        made = replace(made, outputs=with_order(made.outputs))
        if _PARAMETER not in task.parameters or not task.entry_point:
            return made, resources
        files = self.snapshots.files(task.snapshot, task.directory)

        def command(parameters: Mapping[str, str]) -> str:
            return describe(files, entry_point=task.entry_point, parameters=dict(parameters)).command

        parameters = {**task.parameters, _PARAMETER: str(run.seed)}
        if command(task.parameters) != task.command:
            return made, resources  # it had arguments of its own: only what is random has the seed
        return replace(made, command=command(parameters), parameters=parameters), resources

    # ---- in the words of the API

    def _view(self, caller: Caller, job: Job, asked: MatrixRequest, stands: _Stands) -> MatrixView:
        cases = check_cases(asked.cases)
        _, _, pointer = asked.metric.partition("#")
        if pointer and not pointer.startswith("/"):
            raise Invalid(f'"{pointer}" is no JSON Pointer.', remedy="Begin it with a slash: outputs/metrics.json#/loss.")
        seeds = _seeds(self.comparing.lab.task(caller, job.id), asked)
        done = {run: one for run, one in stands.jobs.items() if one.state is JobState.COMPLETED}
        sides = {run: self.comparing.results_of(caller, one) for run, one in done.items()}
        metric = asked.metric or next((name for side in sides.values() for name in sorted(side.section(Kind.METRIC).values)), "")
        values = {run: self._value(caller, done[run], side, metric) for run, side in sides.items()}
        ignore = [*asked.ignore, f"{ORDER_FILES}/*", f"outputs/{ORDER_FILES}/*"]
        base = [values.get(MatrixRun(SEED, seed)) for seed in seeds]
        message = ""
        if not any(value is not None for value in values.values()):
            # Before there are runs, the job itself tells what they will have.
            last, side = next(((done[run], side) for run, side in sides.items()), (job, None))
            side = side or self.comparing.results_of(caller, job)
            known = metric or next(iter(sorted(side.section(Kind.METRIC).values)), "")
            message = "" if self._value(caller, last, side, known) is not None else self._lacks(caller, last, side, metric)

        def agreement(case: str, seed: int) -> Agreement | None:
            mine, theirs = sides.get(MatrixRun(SEED, seed)), sides.get(MatrixRun(case, seed))
            return None if case == SEED or mine is None or theirs is None else agree([mine, theirs], ignore=ignore).agreement

        rows = [
            row(
                case,
                title_of(case, job.resources.gpus),
                [values.get(MatrixRun(case, seed)) for seed in seeds],
                base,
                [agreement(case, seed) for seed in seeds],
                done=sum(MatrixRun(case, seed) in done for seed in seeds),
                message=next((why for run, why in stands.impossible.items() if run.case == case), ""),
            )
            for case in (SEED, *cases)
        ]
        wanted = runs_of(cases, seeds)
        ended = [run in stands.impossible or (run in stands.jobs and stands.jobs[run].state.ended) for run in wanted]
        return MatrixView(
            job=job.id,
            metric=metric,
            seeds=list(seeds),
            rows=[_row_view(one) for one in rows],
            runs=[_run_view(run, stands) for run in wanted],
            message=message,
            done=all(ended),
            seconds=max(0.0, (job.ended_at or 0.0) - (job.started_at or job.ended_at or 0.0)),
            gpus=job.resources.total_gpus,
        )

    def _value(self, caller: Caller, job: Job, side: Side, metric: str) -> float | None:
        """The value of a metric at its end, or of an output: `metrics.json#/loss`, a JSON Pointer (RFC 6901) behind its name."""
        path, mark, pointer = metric.partition("#")
        if mark:
            return number_at(self._document(caller, job, path), pointer)
        text = side.section(Kind.METRIC).values.get(metric)
        return None if text is None or not isfinite(float(text)) else float(text)

    def _document(self, caller: Caller, job: Job, path: str) -> Any:
        """What is in an output that is JSON; None where it is not there, is something else, or is too large."""
        try:
            file = self.comparing.lab.produced.blob_path(caller, job.id, path)
            return json.loads(file.read_bytes()) if file.stat().st_size <= _LARGEST else None
        except (CarrelError, OSError, ValueError, RecursionError):
            return None

    def _lacks(self, caller: Caller, job: Job, side: Side, metric: str) -> str:
        """Why the job has no value of the metric, with those that it has."""
        metrics, outputs = side.section(Kind.METRIC), sorted(side.section(Kind.OUTPUT).values)
        path, mark, pointer = metric.partition("#")
        if mark:
            fact = f"Output {path} of job {job.id} has no number at {pointer}." if path in outputs else ""
            fact = fact or f"Job {job.id} has no output {path}."
        elif metrics.missing and metrics.missing != UNTRACKED:
            return f"The metrics of job {job.id} are not known: {metrics.missing}"
        else:
            fact = f'Job {job.id} logged no metric "{metric}".' if metric else f"Job {job.id} logged no metrics."
        documents = [one for one in outputs if one.endswith(".json") and path in (one, "", metric)][:_NAMED]
        told = [f"{one}#{at}" for one in documents for at in islice(numbers_in(self._document(caller, job, one)), _NAMED)]
        there = ", ".join([*sorted(metrics.values), *told][:_NAMED] or outputs[:_NAMED])
        return f"{fact} It has: {there}." if there else fact


def _seeds(task: TaskSpec, asked: MatrixRequest) -> Sequence[int]:
    first = task.deterministic_seed or 0
    return range(first, first + asked.seeds)


def _row_view(one: MatrixRow) -> MatrixRowView:
    return view_of(MatrixRowView, one)


def _run_view(run: MatrixRun, stands: _Stands) -> MatrixRunView:
    job = stands.jobs.get(run)
    failed = job is not None and job.state.ended and job.state is not JobState.COMPLETED
    return MatrixRunView(
        case=run.case,
        seed=run.seed,
        job=None if job is None else job.id,
        state="" if job is None else job.state.value,
        message=stands.impossible.get(run, "") or (job.reason.message if failed and job is not None else ""),
    )
