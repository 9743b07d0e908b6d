"""Sweeps: trials are chosen, written down, started as jobs, pruned, and counted when their jobs end.

A trial is written down with its parameters before its job is submitted, and the job is submitted under a key that is made of
sweep and trial: whenever the lab is killed, the next one finds the trial, and the same job for it. A trial that is pruned is
written down as pruned before its job is asked to end.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from carrel.core.control.ports import JobStore
from carrel.core.control.sweep_board import Board, ending
from carrel.core.control.sweep_ports import Reported, Study, Suggestion, SweepStore, TrialJobs
from carrel.core.domain.errors import CarrelError, Conflict, Invalid, NotFound, Unavailable
from carrel.core.domain.ports import Clock
from carrel.core.domain.sweep import Pruner, Sampler, Sweep, SweepSpec, SweepState, Trial, TrialState
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, Resource, allowed
from carrel.core.policy.next_trial import last_step, next_in_grid, settled, standing

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepStatus:
    """A sweep with all that is known of it."""

    sweep: Sweep
    trials: Sequence[Trial]
    trouble: str = ""


class Sweeps:
    """All sweeps of a lab. Thread-safe; raises the errors of `carrel.core.domain.errors`."""

    def __init__(self, *, store: SweepStore, jobs: JobStore, trial_jobs: TrialJobs, study: Study, clock: Clock) -> None:
        self._store = store
        self._jobs = jobs
        self._trial_jobs = trial_jobs
        self._study = study
        self._clock = clock
        self._guard = threading.RLock()
        self._boards: dict[int, Board] = {}
        #: Of jobs that have not ended: sweep and trial.
        self._of_job: dict[int, tuple[int, int]] = {}
        #: Wakes `carrel.core.control.pool_loop`, which starts trials.
        self.changed: Callable[[], None] = lambda: None

    def load(self) -> None:
        """Take up what an earlier server left."""
        with self._guard:
            for sweep in self._store.unfinished():
                self._take_up(sweep)
            for board in list(self._boards.values()):
                # Written down before, and perhaps not done: asking for a job's end twice is asking once.
                self._end_jobs(board)

    def _take_up(self, sweep: Sweep) -> Board:
        board = self._boards[sweep.id] = Board(
            sweep=sweep,
            trials={one.number: one for one in self._store.trials(sweep.id)},
            reported={number: dict(values) for number, values in self._store.values(sweep.id).items()},
        )
        for one in board.trials.values():
            if one.ended_at is None and one.job_id is not None:
                self._of_job[one.job_id] = (sweep.id, one.number)
        return board

    # ---- what people do

    def start(self, caller: Caller, spec: SweepSpec) -> Sweep:
        """Begin a sweep. A trial of it could be submitted: otherwise that is said now."""
        allowed(caller, Action.SUBMIT).check()
        spec = replace(settled(spec), parent=caller.job_id)
        self._study.check(spec)
        self._trial_jobs.check(caller, spec)
        with self._guard:
            sweep = self._store.add(caller.user.subject, spec, now=self._clock())
            self._boards[sweep.id] = Board(sweep=sweep)
        self.changed()
        return sweep

    def list(self, caller: Caller, *, limit: int, before: int | None = None) -> Sequence[tuple[Sweep, Mapping[str, int]]]:
        """The caller's own, newest first, with how many of their trials are in each state; numbers smaller than `before`."""
        allowed(caller, Action.LOOK).check()
        found = self._store.list(owner=caller.user.subject, before=before, limit=limit)
        counts = self._store.counts([one.id for one in found])
        return [(one, counts[one.id]) for one in found]

    def status(self, caller: Caller, sweep_id: int) -> SweepStatus:
        """The sweep with its trials, in their order."""
        sweep = self._sweep(caller, sweep_id, Action.SEE_SWEEP)
        with self._guard:
            board = self._boards.get(sweep_id)
            if board is not None:
                return SweepStatus(sweep=board.sweep, trials=list(board.trials.values()), trouble=board.trouble)
        return SweepStatus(sweep=sweep, trials=self._store.trials(sweep_id))

    def removed(self, sweep_id: int) -> bool:
        """True when nothing is known of the sweep any more: it was old. Its jobs may still be kept."""
        return sweep_id not in self._boards and self._store.get(sweep_id) is None

    def stop(self, caller: Caller, sweep_id: int) -> Sweep:
        """Start no more trials, and end those that run. One that is over stays as it is."""
        sweep = self._sweep(caller, sweep_id, Action.CHANGE_SWEEP)
        with self._guard:
            board = self._boards.get(sweep_id)
            if board is None or board.sweep.state is not SweepState.RUNNING:
                return sweep if board is None else board.sweep
            self._end_sweep(board, SweepState.STOPPED, f"{caller.user.name} stopped it.")
            self._end_jobs(board)
            self._forget_if_over(board)
        self.changed()
        return board.sweep

    def resume(self, caller: Caller, sweep_id: int, *, trials: int | None = None) -> Sweep:
        """Go on with a sweep that was stopped or failed, or do more `trials` (altogether). What has ended is not repeated."""
        sweep = self._sweep(caller, sweep_id, Action.CHANGE_SWEEP)
        with self._guard:
            board = self._boards.get(sweep_id)
            sweep = sweep if board is None else board.sweep
            spec = sweep.spec if trials is None else settled(replace(sweep.spec, trials=trials))
            if spec.trials < sweep.spec.trials and trials is not None:
                raise Invalid(
                    f"Sweep {sweep_id} has {sweep.spec.trials} trials, and not {trials}.", remedy="Ask for more, not for fewer."
                )
            if sweep.state is SweepState.COMPLETED and spec.trials == sweep.spec.trials:
                raise Conflict(
                    f"Sweep {sweep_id} is over: its {spec.trials} trials have ended.",
                    remedy=f"`carrel sweep resume {sweep_id} --trials N` does more."
                    if spec.sampler is not Sampler.GRID
                    else "Its grid has no more combinations.",
                )
            if board is None:
                board = self._take_up(sweep)
            try:
                now = self._clock()
                self._write(board, replace(sweep, spec=spec, state=SweepState.RUNNING, message="", ended_at=None, resumed_at=now))
            except NotFound:  # it is so old that it was removed in this moment
                self._boards.pop(sweep_id, None)
                raise
        self.changed()
        return board.sweep

    def _sweep(self, caller: Caller, sweep_id: int, action: Action) -> Sweep:
        board = self._boards.get(sweep_id)
        sweep = board.sweep if board is not None else self._store.get(sweep_id)
        missing = NotFound(f"There is no sweep {sweep_id}.", remedy="`carrel sweep list` shows yours.")
        if sweep is None:
            raise missing
        allowed(caller, action, Resource(owner=sweep.owner)).check(missing)
        return sweep

    # ---- what trials do

    def report(self, caller: Caller, sweep_id: int, number: int, values: Mapping[int, float]) -> bool:
        """A trial tells values of its metric, by step. Returns True when it is pruned, and is about to be ended."""
        missing = NotFound(f"No trial {number} of a sweep {sweep_id} runs.", remedy="A trial reports for itself, while it runs.")
        board = self._boards.get(sweep_id)
        trial = None if board is None else board.trials.get(number)
        allowed(caller, Action.REPORT, Resource(job=None if trial is None else trial.job_id)).check(missing)
        if board is None or trial is None or trial.ended_at is not None:
            raise missing
        return self._keep(board, number, values)

    def hear_metrics(self, job_id: int, metrics: Iterable[tuple[str, int, float]]) -> None:
        """A job logs metrics (name, step, value) to its run: of a trial, those of the sweep's metric are what it reports."""
        found = self._of_job.get(job_id)
        board = None if found is None else self._boards.get(found[0])
        if found is not None and board is not None:
            values = {step: value for name, step, value in metrics if name == board.sweep.spec.metric}
            if values:
                self._keep(board, found[1], values)

    def is_trial(self, job_id: int) -> bool:
        """True when the job is a trial that has not ended."""
        return job_id in self._of_job

    def _keep(self, board: Board, number: int, values: Mapping[int, float]) -> bool:
        sweep = board.sweep
        # What is no number is the worst: a pruner sees that, and a trial that diverged has not its last good value.
        values = {step: value if math.isfinite(value) else sweep.spec.direction.worst for step, value in values.items()}
        with self._guard:
            if board.trials[number].state is TrialState.PRUNED:
                return True  # it keeps the value by which it was pruned, however long it takes to end
            self._store.add_values(sweep.id, number, values)
            board.reported.setdefault(number, {}).update(values)
            board.trials[number] = replace(board.trials[number], value=board.last_value(number))
            runs = board.trials[number].state is TrialState.RUNNING
        if not runs or sweep.spec.pruner is Pruner.NONE or not values:
            return False
        with board.judging:
            return self._prunes(board, number)

    def _prunes(self, board: Board, number: int) -> bool:
        """Decide whether a trial ends early, and write down what the pruner wants to know of it later."""
        with self._guard:
            trials, reported = list(board.trials.values()), board.judged_by(number)
            sweep = board.sweep
            if sweep.spec.pruner.has_rungs and sweep.last_step is None:
                sweep = board.sweep = replace(sweep, last_step=last_step(trials, board.reported))
                if sweep.last_step is not None:
                    self._store.change(sweep)
        try:
            found = self._study.judge(sweep, trials, reported, number)
        except Exception:  # noqa: BLE001 - what it reported is kept, and the trial goes on
            _log.exception("Whether trial %d of sweep %d is pruned cannot be said.", number, sweep.id)
            return False
        with self._guard:
            trial = board.trials[number]
            after = replace(trial, attributes=found.attributes)
            ends = found.pruned and trial.state is TrialState.RUNNING and trial.ended_at is None
            if ends:
                step = max(reported[number])
                message = f"It was pruned at step {step}, where {sweep.spec.metric} was {reported[number][step]:g}."
                after = replace(after, state=TrialState.PRUNED, message=message)
            if after != trial:
                self._change(board, after)
            if ends:
                self._end_jobs(board)
        return found.pruned

    # ---- jobs

    def jobs(self) -> Sequence[int]:
        """Jobs whose ends matter."""
        with self._guard:
            return list(self._of_job)

    def job_changed(self, job_id: int) -> None:
        """Something happened to a job: if it is a trial and has ended, so has the trial."""
        with self._guard:
            found = self._of_job.get(job_id)
            if found is None:
                return
            board, job = self._boards[found[0]], self._jobs.get(job_id)
            if job is not None and not job.state.ended:
                return
            trial = board.trials[found[1]]
            state, message = ending(board, trial, job)
            value = board.last_value(trial.number)
            self._change(board, replace(trial, state=state, message=message, value=value, ended_at=self._clock()))
            del self._of_job[job_id]
            self._forget_if_over(board)
        self.changed()

    def start_missing(self) -> bool:
        """Start the trials for which there is room. Returns False when one has to be tried again."""
        with self._guard:
            boards = list(self._boards.values())
        well = [self._start_for(board) for board in boards]
        return all(well)

    def _start_for(self, board: Board) -> bool:
        while (trial := self._next(board)) is not None:
            try:
                job_id = self._trial_jobs.start(board.sweep, trial)
            except Unavailable as error:
                board.trouble = str(error)
                return False
            except CarrelError as error:
                self._cannot_start(board, trial, str(error))
                continue
            with self._guard:
                board.trouble = ""
                self._change(board, replace(board.trials[trial.number], job_id=job_id))
                self._of_job[job_id] = (board.sweep.id, trial.number)
                if board.sweep.state is not SweepState.RUNNING:
                    self._write(board, board.sweep)  # of its run, which this trial may have made
                    self._end_jobs(board)
            self.job_changed(job_id)  # it may have ended in this moment
        return True

    def _next(self, board: Board) -> Trial | None:
        """The trial whose job is to be submitted now: one that is written down, or a new one. None: nothing is to do."""
        with self._guard:
            written = next((one for one in board.trials.values() if one.job_id is None and one.ended_at is None), None)
            if written is not None or board.sweep.state is not SweepState.RUNNING:
                return written
            found = standing(board.sweep.spec, board.trials.values(), since=board.sweep.resumed_at or 0.0)
            if found.state is not SweepState.RUNNING:
                self._end_sweep(board, found.state, found.message)
                self._forget_if_over(board)
            if not found.start:
                return None
            sweep = board.sweep
            trials, reported = board.snapshot
        try:
            chosen = self._choose(sweep, trials, reported)
        except Exception as error:  # noqa: BLE001 - the engine's own code must not end the thread that looks after all sweeps
            _log.exception("No parameters can be chosen for sweep %d.", sweep.id)
            self._give_up(board, f"Its next parameters cannot be chosen: {type(error).__name__}: {error}")
            return None
        with self._guard:
            if board.sweep.state is not SweepState.RUNNING:  # stopped meanwhile
                return None
            trial = Trial(
                number=len(board.trials) + 1,
                parameters=chosen.parameters,
                attributes=chosen.attributes,
                created_at=self._clock(),
            )
            self._store.add_trial(sweep.id, trial)
            board.trials[trial.number] = trial
            return trial

    def _choose(self, sweep: Sweep, trials: Sequence[Trial], reported: Reported) -> Suggestion:
        if sweep.spec.sampler is Sampler.GRID:
            return Suggestion(parameters=next_in_grid(sweep.spec, trials))
        return self._study.suggest(sweep, trials, reported)

    def _cannot_start(self, board: Board, trial: Trial, why: str) -> None:
        """The lab refuses the job, and would refuse the next."""
        with self._guard:
            now = self._clock()
            self._change(board, replace(trial, state=TrialState.CANCELLED, message=why, ended_at=now))
        self._give_up(board, f"No trial can be started: {why}")

    def _give_up(self, board: Board, why: str) -> None:
        with self._guard:
            if board.sweep.state is SweepState.RUNNING:
                self._end_sweep(board, SweepState.FAILED, why)
            self._forget_if_over(board)

    def _end_jobs(self, board: Board) -> None:
        """Ask for the ends of jobs that are not wanted any more: of pruned trials, and of all when the sweep is over."""
        for one in board.trials.values():
            if one.ended_at is not None or one.job_id is None:
                continue
            if one.state is TrialState.PRUNED:
                self._end_job(one.job_id, f"sweep {board.sweep.id} (trial {one.number} was pruned)")
            elif board.sweep.state is SweepState.STOPPED:
                self._end_job(one.job_id, f"sweep {board.sweep.id}, which was stopped,")

    def _end_job(self, job_id: int, by: str) -> None:
        try:
            self._trial_jobs.end(job_id, by=by)
        except CarrelError as error:  # it goes on to its own end
            _log.warning("Job %d of a sweep cannot be ended now: %s", job_id, error)

    def _end_sweep(self, board: Board, state: SweepState, message: str) -> None:
        self._write(board, replace(board.sweep, state=state, message=message, ended_at=self._clock()))

    def _write(self, board: Board, sweep: Sweep) -> None:
        """The sweep has this state: write it down, and that the tracking server is to be told of it."""
        job_id = board.first_job
        told = () if job_id is None else self._trial_jobs.describe(sweep, job_id)
        self._store.change(sweep, job_id=job_id, told=told, now=self._clock())
        board.sweep = sweep

    def _change(self, board: Board, trial: Trial) -> None:
        self._store.change_trial(board.sweep.id, trial)
        board.trials[trial.number] = trial

    def _forget_if_over(self, board: Board) -> None:
        if board.over:
            self._boards.pop(board.sweep.id, None)
