"""What the lab has in memory of a sweep, and what becomes of a trial whose job has ended."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from carrel.core.control.sweep_ports import Reported
from carrel.core.domain.job import Job, JobState
from carrel.core.domain.sweep import Sweep, SweepState, Trial, TrialState


@dataclass(slots=True, kw_only=True)
class Board:
    """What the lab has in memory of one sweep."""

    sweep: Sweep
    trials: dict[int, Trial] = field(default_factory=dict)
    reported: dict[int, dict[int, float]] = field(default_factory=dict)
    #: What keeps trials from being started, for those who wait.
    trouble: str = ""
    #: Held while it is decided who is pruned: each decision knows those before it.
    judging: threading.Lock = field(default_factory=threading.Lock)

    @property
    def over(self) -> bool:
        """True when nothing of it goes on."""
        return self.sweep.state is not SweepState.RUNNING and all(one.ended_at is not None for one in self.trials.values())

    @property
    def first_job(self) -> int | None:
        """The job of its first trial that has one: what is told of the sweep is told in order after what is told of that job."""
        return next((one.job_id for one in self.trials.values() if one.job_id is not None), None)

    def last_value(self, number: int) -> float | None:
        """What the trial reported for its last step; None where that is no finite number."""
        values = self.reported.get(number)
        last = values[max(values)] if values else None
        return last if last is not None and math.isfinite(last) else None

    @property
    def snapshot(self) -> tuple[Sequence[Trial], Reported]:
        """Its trials in their order and what they reported, as they are now."""
        return list(self.trials.values()), {number: dict(values) for number, values in self.reported.items()}

    def judged_by(self, number: int) -> Reported:
        """What a verdict on a trial goes by: all that it reported, and what the others did for its last step."""
        own = dict(self.reported[number])
        step = max(own)
        others = {other: {step: values[step]} for other, values in self.reported.items() if step in values}
        return {**others, number: own}


def ending(board: Board, trial: Trial, job: Job | None) -> tuple[TrialState, str]:
    """What becomes of a trial whose job has ended, and why."""
    if trial.state is TrialState.PRUNED:
        return TrialState.PRUNED, trial.message
    if job is None:
        return TrialState.FAILED, "Its job is not known any more."
    words = job.reason.message if job.reason is not None else ""
    if job.state is JobState.CANCELLED:
        return TrialState.CANCELLED, words
    if job.state is not JobState.COMPLETED:
        return TrialState.FAILED, f"Job {job.id} is {job.state.value}. {words}".strip()
    if board.last_value(trial.number) is None:
        metric = board.sweep.spec.metric
        if board.reported.get(trial.number):
            return TrialState.FAILED, f"The last {metric} that job {job.id} reported is no finite number."
        return TrialState.FAILED, (
            f"Job {job.id} reported no {metric}: log it with mlflow.log_metric({metric!r}, value), or call carrel.report(value)."
        )
    return TrialState.COMPLETED, ""
