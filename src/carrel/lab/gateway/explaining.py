"""Finds why two attempts differ, by running variants: looks at the jobs that are there, and submits what is needed next.

Nothing is kept beside the jobs: a variant is known by a key that follows from what it is, so a search that was left off goes on
where it stood, and one that needs the same run as another takes that one's.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from carrel.core.comparison import UNTRACKED, Agreement, Difference, Side, agree, compare
from carrel.core.comparison.command_text import mix_commands
from carrel.core.comparison.facts import Known
from carrel.core.comparison.line_diff import LineChange, line_changes
from carrel.core.comparison.packages import mix_locks
from carrel.core.domain.comparison import Cause, Kind
from carrel.core.domain.errors import Conflict, Invalid, Unavailable
from carrel.core.domain.job import Job, JobState
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.domain.serial import to_plain
from carrel.core.domain.task import EnvironmentKind, TaskSpec, VariantOf
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action
from carrel.core.snapshots import SnapshotStore
from carrel.core.snapshots.composing import compose
from carrel.core.why import (
    FAILED,
    FIRST,
    SECOND,
    Answer,
    Change,
    Composition,
    Half,
    Search,
    Variant,
    changes_of,
    most_runs,
    search,
    variant_task,
)
from carrel.core.why.changes import Material
from carrel.core.why.words import Told, names_of, sentences
from carrel.lab.gateway.comparing import CUT_SHORT, NEVER_RAN, Chosen, Comparing, compared_jobs
from carrel.wire.v1 import CandidateView, ExplainRequest, VariantView, WhyView

#: Kinds of environments whose locks are lists of requirements.
_LISTED = (EnvironmentKind.REQUIREMENTS, EnvironmentKind.UV_LOCK)
#: Addresses below which a file of a directory can be named.
_OPEN_SCHEMES = ("", "file", "job", "s3", "gs", "gcs", "sftp", "hf")
#: Composed codes whose digests are remembered, and answers that were told.
_REMEMBERED = 500
#: Seconds after its end in which a run may still come to the tracking server.
_LATEST = 600
_NO_SUCH_GPU = "The lab has no GPUs of both types now."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """Two attempts, and all that follows from their records."""

    caller: Caller
    asked: ExplainRequest
    chosen: Sequence[Chosen]
    sides: Sequence[Side]
    halves: tuple[Half, Half]
    changes: tuple[Change, ...]
    left: tuple[str, ...]


@dataclass(slots=True)
class _Run:
    """One run: its job, if there is one; why there cannot be one; or what is to be submitted."""

    job: Job | None = None
    impossible: str = ""
    spec: TaskSpec | None = None
    resources: Resources | None = None
    #: What its code is made of, where it is not that of a job.
    code: Composition | None = None
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explaining:
    """Answers why attempts of jobs that the caller may read and repeat came to different results."""

    comparing: Comparing
    snapshots: SnapshotStore
    #: Digests of codes that were composed, by what they are made of.
    composed: dict[Hashable, str] = field(default_factory=dict)
    #: Answers that the tracking server was told, by the last job of each search.
    told: dict[int, str] = field(default_factory=dict)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def look(self, caller: Caller, asked: ExplainRequest) -> WhyView:
        """Where the search stands. Raises `Invalid` where there is nothing to explain, and as comparing jobs does."""
        question = self._question(caller, asked)
        return self._view(question, *self._stand(question))

    def go_on(self, caller: Caller, asked: ExplainRequest) -> WhyView:
        """Submit the runs that are needed next, and say where it stands then. Twice is harmless: a run has one job."""
        question = self._question(caller, asked)
        found, runs, _ = self._stand(question)
        lab = self.comparing.lab
        for variant in found.wanted:
            run = runs[variant]
            if run.job is None and run.spec is not None and run.resources is not None:
                if run.code is not None:
                    lab.retention.check_room(caller)
                    self._compose(question, run.code, keep=True)
                    size = self.snapshots.size(run.spec.snapshot)
                    lab.people.add_snapshot(caller.user.subject, run.spec.snapshot, now=lab.clock(), size=size)
                job = question.chosen[1 if variant.second else 0][0]
                lab.repeating.vary(caller, job.id, run.spec, run.resources, key=run.key)
        return self._view(question, *self._stand(question))

    # ---- the question

    def _question(self, caller: Caller, asked: ExplainRequest) -> _Question:
        chosen, sides = self.comparing.sides(caller, [asked.first, asked.second])
        lab = self.comparing.lab
        for job, _, label in chosen:
            lab.job(caller, job.id, Action.REPEAT_JOB)
            if job.kind is not JobKind.TASK:
                raise Invalid(f"Job {label} is a {job.kind}.", remedy="Name tasks: nothing else is run again.")
            if not job.state.ended:
                raise Invalid(f"Job {label} is {job.state}.", remedy="Ask when it has ended.")
            if not lab.has_snapshot(caller, lab.task(caller, job.id).snapshot):
                raise Invalid(f"The code of job {label} is not yours, or not kept.", remedy="Whoever has uploaded it can ask.")
        if chosen[0][0].state is not JobState.COMPLETED:
            raise Invalid(
                f"Job {chosen[0][2]} is {chosen[0][0].state}.", remedy="Name the job that went well first: it is run again."
            )
        second = chosen[1][0]
        if second.state in CUT_SHORT or second.reason.code in NEVER_RAN:
            raise Invalid(
                f"Job {chosen[1][2]} came to no results of its own: {second.reason.message}",
                remedy="Name one that ran to its end.",
            )
        self._check_results(chosen, sides, asked)
        halves = (self._half(caller, chosen[0], sides[0]), self._half(caller, chosen[1], sides[1]))
        found = compare(sides)
        changes, cannot = changes_of(found.differences, _material(found.differences, *halves, sides))
        left = [_cannot(one, why) for one, why in cannot]
        left += [f"{', '.join(one.kinds)} {one.path}".strip() + f" (not known: {one.why.rstrip('.')})" for one in found.not_known]
        return _Question(
            caller=caller, asked=asked, chosen=chosen, sides=sides, halves=halves, changes=changes, left=tuple(left)
        )  # fmt: skip

    def _check_results(self, chosen: Sequence[Chosen], sides: Sequence[Side], asked: ExplainRequest) -> None:
        if chosen[1][0].state is not JobState.COMPLETED:
            return  # how it ended is what differs
        found = agree(sides, tolerance=asked.tolerance, ignore=asked.ignore)
        names = f"Jobs {chosen[0][2]} and {chosen[1][2]}"
        if found.agreement is Agreement.UNKNOWN:
            why = " ".join(found.not_known) or "They left no outputs and logged no metrics that count."
            raise Invalid(f"{names}: too little is known of their results. {why}")
        if found.agreement is not Agreement.DIFFERENT:
            raise Invalid(f"{names} came to the same results.", remedy="There is nothing to explain.")

    def _half(self, caller: Caller, chosen: Chosen, side: Side) -> Half:
        job, number, _ = chosen
        record = self.comparing.lab.produced.record(caller, job.id)
        attempt: Mapping[str, Any] = next((one for one in record["attempts"] if one["number"] == number), {})
        gpus = [value for path, value in side.section(Kind.PLACEMENT).values.items() if path.startswith("gpu_")]
        python = str(attempt.get("python") or "").removeprefix("cpython-")
        return Half(
            task=self.comparing.lab.task(caller, job.id),
            resources=job.resources,
            lock=attempt.get("environment_lock_text"),
            python=python or None,
            inputs={path: digest for path, digest in attempt.get("inputs", {}).items() if digest},
            seeds=attempt.get("seeds", {}),
            gpu_type=self._gpu_type(gpus),
            read=side.code.read,
        )

    def _gpu_type(self, uuids: Sequence[str]) -> str | None:
        """The type of the first of these GPUs, by which people ask for it; None where the lab has it no more."""
        devices = [device for node in self.comparing.lab.engine.nodes() for device in node.devices]
        return next((device.type for device in devices if device.uuid in uuids), None)

    # ---- where it stands

    def _stand(self, question: _Question) -> tuple[Search, dict[Variant, _Run], dict[Variant, str]]:
        """The search, with every run that was looked at, and the results that are known."""
        runs: dict[Variant, _Run] = {}
        results: dict[Variant, str] = {}
        others: list[Side] = []
        weighted = [change.weighted for change in question.changes]
        while True:
            found = search(weighted, results)
            fresh = [variant for variant in found.wanted if variant not in runs]
            if not fresh:
                return found, runs, results
            for variant in fresh:
                runs[variant] = run = self._run(question, variant)
                result = FAILED if run.impossible else self._result(question, run.job, others)
                if result:
                    results[variant] = result

    def _run(self, question: _Question, variant: Variant) -> _Run:
        try:
            spec, resources, code = self._spec(question, variant)
        except (Invalid, Conflict) as error:
            return _Run(impossible=error.message)
        where = question.chosen[1 if variant.second else 0][0].partition
        about = json.dumps([where, to_plain(spec), to_plain(resources), variant.repetition], sort_keys=True)
        told = VariantOf(
            first=question.chosen[0][2], second=question.chosen[1][2], changes=tuple(names_of(variant.changes, question.changes))
        )
        changed = f"with {', '.join(told.changes)} as in job {told.second}" if told.changes else "as it was"
        note = f"For `carrel why {told.first} {told.second}`: job {told.second if variant.second else told.first}, {changed}."
        key, job = self.comparing.lab.repeating.varied(
            question.caller, f"why {about}", lambda one: one.state in CUT_SHORT or self._untracked(question, one)
        )
        spec = replace(spec, variant_of=told, notes=(note[:1000],))
        return _Run(job=job, spec=spec, resources=resources, code=code, key=key)

    def _untracked(self, question: _Question, job: Job) -> bool:
        """A run from when the lab had no tracking server has no metrics, and never will; the question's jobs have some."""
        tracked = all(chosen.run_id is not None for chosen, _, _ in question.chosen)
        ended = job.ended_at if job.state is JobState.COMPLETED else None
        return tracked and job.run_id is None and ended is not None and self.comparing.lab.clock() - ended > _LATEST

    def _spec(self, question: _Question, variant: Variant) -> tuple[TaskSpec, Resources, Composition | None]:
        """The task of a run, with the digest of its code, and what that is made of."""
        mine, theirs = question.halves
        if variant.second:
            made = variant_task(theirs, theirs, (), ())
            return replace(made.task, rerun_of=question.chosen[1][0].id, notes=()), made.resources, None
        made = variant_task(mine, theirs, question.changes, variant.changes)
        task = replace(made.task, rerun_of=None if variant.changes else question.chosen[0][0].id, notes=())
        if made.code is not None:
            task = replace(task, snapshot=self._compose(question, made.code))
        return task, made.resources, made.code

    def _compose(self, question: _Question, code: Composition, *, keep: bool = False) -> str:
        """The digest of code that is made of both. It is worked out once: a search looks at the same variants again and again."""
        first, second = (half.task.snapshot for half in question.halves)
        told = (first, second, code.taken, tuple(sorted(code.texts.items())))
        known = self.composed.get(told)
        if known is None or (keep and not self.snapshots.has(known)):
            known = compose(self.snapshots, first, second, taken=code.taken, texts=code.texts, keep=keep)
            with self.guard:
                self.composed[told] = known
                while len(self.composed) > _REMEMBERED:
                    self.composed.pop(next(iter(self.composed)))
        return known

    def _result(self, question: _Question, job: Job | None, others: list[Side]) -> str:
        """Whose results a job came to; "" while that is not known. `others` are results seen so far that are neither's."""
        if job is None or not job.state.ended:
            return ""
        second = question.chosen[1][0]
        if job.state is not JobState.COMPLETED:
            alike = _ending(job) == _ending(second) and job.reason.code not in NEVER_RAN
            return SECOND if alike else FAILED
        side = self.comparing.results_of(question.caller, job)
        known = [question.sides[0], *(question.sides[1:] if second.state is JobState.COMPLETED else ()), *others]
        for one in known:
            found = agree([one, side], tolerance=question.asked.tolerance, ignore=question.asked.ignore)
            if found.agreement in (Agreement.IDENTICAL, Agreement.WITHIN_TOLERANCE):
                number = next(at for at, other in enumerate(others) if other is one) if one not in question.sides else -1
                return FIRST if one is question.sides[0] else SECOND if number < 0 else f"other {number + 1}"
            if found.agreement is Agreement.UNKNOWN:
                if (why := side.section(Kind.METRIC).missing) not in ("", UNTRACKED):
                    raise Unavailable(why, remedy="Ask again later: the runs are kept.")
                return FAILED
        others.append(side)
        return f"other {len(others)}"

    # ---- in the words of the API

    def _view(self, question: _Question, found: Search, runs: Mapping[Variant, _Run], results: Mapping[Variant, str]) -> WhyView:
        first, second = question.halves
        answer = found.found
        jobs = {variant: str(run.job.id) for variant, run in runs.items() if run.job is not None}
        unintended: Sequence[str] = ()
        by = None if answer is None else answer.by
        if answer is not None and answer.answer in (Answer.NOT_DETERMINISTIC, Answer.NOT_REPEATED) and by is not None:
            unintended = tuple(self._unintended(question, by, runs[by].job))
        told = Told(
            first=question.chosen[0][2], second=question.chosen[1][2], changes=question.changes, jobs=jobs,
            reasons={variant: why for variant, run in runs.items() if (why := _message(run, results.get(variant, "")))},
            left=question.left, unintended=unintended,
        )  # fmt: skip
        words = () if answer is None else sentences(answer, told)
        if answer is not None:
            self._tell(question, answer.answer, " ".join(words), runs)
        return WhyView(
            jobs=compared_jobs(question.chosen),
            candidates=[
                CandidateView(
                    key=one.key, what=one.what, before=one.before, after=one.after, cause=one.cause, parts=max(1, len(one.parts))
                )
                for one in question.changes
            ],
            left=list(question.left),
            variants=[_variant_view(variant, runs[variant], results.get(variant, ""), question) for variant in runs],
            answer="" if answer is None else answer.answer.value,
            found=[] if answer is None else list(answer.changes),
            told=list(words),
            most_runs=most_runs([one.weighted for one in question.changes]),
            seconds=max(_seconds(job) for job, _, _ in question.chosen),
            gpus=max(first.resources.total_gpus, second.resources.total_gpus),
        )

    def _tell(self, question: _Question, answer: Answer, words: str, runs: Mapping[Variant, _Run]) -> None:
        """Have the run of the search in the tracking server say what was found. Looking again tells nothing twice."""
        last = max((run.job for run in runs.values() if run.job is not None), key=lambda job: job.id, default=None)
        if last is None or self.told.get(last.id) == words:
            return
        with self.guard:
            self.told[last.id] = words
            while len(self.told) > _REMEMBERED:
                self.told.pop(next(iter(self.told)))
        lab = self.comparing.lab
        search = VariantOf(first=question.chosen[0][2], second=question.chosen[1][2], changes=())
        lab.tell_search(last, lab.task(question.caller, last.id), search, answer.value, words)

    def _unintended(self, question: _Question, variant: Variant, job: Job | None) -> Iterator[str]:
        """What differs between a job and its repetition, although nothing was changed."""
        if job is None or variant.changes:
            return
        label = question.chosen[1 if variant.second else 0][2]
        _, sides = self.comparing.sides(question.caller, [label, str(job.id)])
        for one in compare(sides).differences:
            if one.cause in (Cause.LIKELY, Cause.POSSIBLE):
                yield f"Between job {label} and job {job.id} differs: {one.what}."


def _material(differences: Sequence[Difference], first: Half, second: Half, sides: Sequence[Side]) -> Material:
    kinds = (first.task.environment.kind, second.task.environment.kind)
    locks = first.lock is not None and second.lock is not None and mix_locks(first.lock, second.lock, ()) is not None
    places = sorted({item.path for half in (first, second) for item in half.task.all_inputs})
    both = {item.path for item in first.task.inputs} & {item.path for item in second.task.inputs}
    values = {
        one.path: (first.task.parameters[one.path], second.task.parameters[one.path])
        for one in differences
        if one.kind is Kind.PARAMETER and one.path in first.task.parameters and one.path in second.task.parameters
    }
    _, unexplained = mix_commands(first.task.command, second.task.command, values, values, rest=False)

    def lines(path: str) -> Sequence[LineChange] | None:
        old, new = first.read(path), second.read(path)
        return None if old is None or new is None else line_changes(old, new)

    return Material(
        code=not any(side.code.missing for side in sides),
        packages=locks and kinds[0] is kinds[1] and kinds[0] in _LISTED,
        inputs=places,
        directories=[path for path in both if all(_is_open_directory(path, half) for half in (first, second))],
        lines=lines,
        variables=frozenset({*first.task.variables, *second.task.variables}),
        command=unexplained or first.task.directory != second.task.directory,
        gpu="" if first.gpu_type and second.gpu_type and first.gpu_type != second.gpu_type else _NO_SUCH_GPU,
    )


def _is_open_directory(path: str, half: Half) -> bool:
    uri = next(item.uri for item in half.task.inputs if item.path == path)
    scheme, colon, _ = uri.partition(":")
    inside = any(at.startswith(f"{path}/") for at in half.inputs)
    return inside and (scheme if colon else "") in _OPEN_SCHEMES


def _cannot(one: Difference, why: str) -> str:
    values = " and ".join(value.text if value.known is Known.VALUE else value.known.value for value in one.values)
    return f"{one.what} ({values}). {why}"[:300].rstrip(".")


def _ending(job: Job) -> tuple[object, ...]:
    return job.state, job.reason.code, job.exit_code, job.signal


def _seconds(job: Job) -> float:
    return max(0.0, (job.ended_at or 0.0) - (job.started_at or job.ended_at or 0.0))


def _variant_view(variant: Variant, run: _Run, result: str, question: _Question) -> VariantView:
    return VariantView(
        job=None if run.job is None else run.job.id,
        changes=names_of(variant.changes, question.changes),
        second=variant.second,
        state="" if run.job is None else run.job.state.value,
        results="" if not result else "none" if result == FAILED else result if result in (FIRST, SECOND) else "others",
        message=_message(run, result),
    )


def _message(run: _Run, result: str) -> str:
    """Why a run did not end well, or cannot be."""
    failed = run.job is not None and run.job.state.ended and result == FAILED
    return run.impossible or (run.job.reason.message if failed and run.job is not None else "")
