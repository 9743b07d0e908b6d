"""What an observation means for its job: pure, so that every ending is a table row in a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from carrel.core.control.event_ports import NewEvent
from carrel.core.control.ports import AttemptChange
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.launch import (
    Advised,
    Continued,
    Damaged,
    Ended,
    EnvironmentReady,
    InputsReady,
    Journaled,
    Observation,
    Paused,
    Preparing,
    Resumed,
    Sampled,
    Started,
    Suspended,
)
from carrel.core.domain.placement import Wait
from carrel.core.domain.qos import PreemptMode
from carrel.core.domain.submit_limits import SUBMIT_LIMITS

#: Attempts in a row that may come to an end that is not the job's fault without costing it a retry.
OFTEN = 3
_STATE_LOST = "GpuStateLost"
#: Code of an attempt that failed on a GPU with a fault.
DEVICE_FAULT = "DeviceFault"
#: Characters of a reason code that are kept: a journal on a cluster is in its owner's hands, and may say anything.
_LONGEST_CODE = 64
_RUNNING = Reason(code="Running", message="Its command is running.")
_PAUSED = Reason(code="GpuLent", message="Cells of notebooks have its GPUs for a while; it goes on where it was.")
#: Endings that another attempt may turn into a success; a walltime or a memory limit would only be met again.
_RETRIED = frozenset({JobState.FAILED, JobState.NODE_FAIL})


def state_event(job: Job) -> NewEvent:
    """The event that tells the present state of a job."""
    data: dict[str, Any] = {
        "state": job.state.value,
        "reason": job.reason.code,
        "message": job.reason.message,
        "attempt": job.attempt,
    }
    if job.state.ended:
        data |= {"exit_code": job.exit_code, "signal": job.signal}
    return NewEvent(job_id=job.id, owner=job.owner, type="state", data=data)


def progress_event(job: Job) -> NewEvent:
    """The event that tells what happens to a job that stays in its state."""
    return _event(job, "progress", {"message": job.reason.message, "reason": job.reason.code})


def log_event(job: Job, size: int) -> NewEvent:
    """The event that tells of the log, of so many bytes, of what was done for the job before it had a place."""
    return _event(job, "log", {"attempt": 0, "offset": 0, "size": size})


def queue_event(job: Job, wait: Wait) -> NewEvent:
    """The event that tells where a waiting job stands."""
    data = {
        "position": wait.position,
        "reason": wait.reason.code,
        "message": wait.reason.message,
        "estimated_start": wait.estimated_start,
    }
    return NewEvent(job_id=job.id, owner=job.owner, type="queue", data=data)


@dataclass(slots=True)
class _Draft:
    """What the entries of one observation add up to."""

    fields: dict[str, Any] = field(default_factory=dict)
    events: list[NewEvent] = field(default_factory=list)
    end: tuple[Ended, float] | None = None


def interpret(
    job: Job, observation: Observation, *, log_size: int, now: float, unlucky: int = 0, fault: str = ""
) -> AttemptChange:  # fmt: skip
    """Return what changes for `job`, of which `log_size` bytes of log are known already.

    `unlucky` says how many of its last attempts in a row ended as this one does, by no fault of the job's: their runners were
    lost before their commands began, or their GPU state on its way back, or a GPU of theirs had a fault. `fault` is that of a
    GPU of this attempt; "": none is known.

    Everything in one observation becomes one change, so that a job that starts and ends within a moment costs one write;
    the states that it went through are events all the same.
    """
    draft = _Draft(fields={"offset": observation.offset} if observation.entries else {})
    present = job
    for entry in observation.entries:
        # A node's clock may be wrong, and a journal on a cluster is in its owner's hands.
        at = min(max(entry.at, job.submitted_at), now)
        present = _add_entry(draft, present, replace(entry, at=at))
    if observation.log_size is not None and observation.log_size > log_size:
        draft.fields["log_size"] = observation.log_size
        data = {"attempt": job.attempt, "offset": log_size, "size": observation.log_size}
        draft.events.append(_event(job, "log", data))
    if draft.end is not None:
        draft.fields |= _after_end(present, *draft.end, unlucky, fault)
    elif observation.gone:
        draft.fields |= _after_end(present, lost := _lost(present), now, unlucky, fault)
        if observation.unbegun and lost.state is JobState.NODE_FAIL and unlucky < OFTEN:
            draft.fields |= _begin_again(job)
    return AttemptChange(job_id=job.id, attempt=job.attempt, events=tuple(draft.events), **draft.fields)


def _add_entry(draft: _Draft, job: Job, entry: Journaled) -> Job:
    record = entry.record
    match record:
        case Preparing():
            own = (record.reason or "")[:_LONGEST_CODE]
            job = replace(job, reason=Reason(code=own or "Preparing", message=record.message))
            draft.fields |= {"state": job.state, "reason": job.reason}
            told = {"message": record.message} | ({"reason": own} if own else {})
            draft.events.append(_event(job, "progress", told))
        case EnvironmentReady():
            draft.fields |= {
                "environment": record.digest,
                "environment_lock": record.lock,
                "environment_built": record.built,
                "python": record.python,
            }
        case InputsReady():
            draft.fields |= {"inputs": record.digests, "input_sources": record.sources}
        case Started():
            job = replace(job, state=JobState.RUNNING, reason=_RUNNING, started_at=entry.at)
            draft.fields |= {
                "state": job.state,
                "reason": job.reason,
                "started_at": entry.at,
                "hardware": record.hardware,
                "seeds": record.seeds,
            }
            draft.events.append(state_event(job))
        case Sampled():
            job = _as_running(draft, job, entry)
            draft.fields["usage"] = record.usage
        case Advised():
            draft.fields["advice"] = record.message
            told = {"message": record.message, "reason": "LowGpuUse", "cause": record.code[:_LONGEST_CODE]}
            draft.events.append(_event(job, "progress", told))
        case Suspended():
            job = _as_running(draft, job, entry)
            message = _why_suspended(job)
            job = replace(job, state=JobState.SUSPENDED, reason=Reason(code="Suspended", message=message), suspended_at=entry.at)
            draft.fields |= {"state": job.state, "reason": job.reason, "suspended_at": entry.at}
        case Resumed():
            seconds = job.suspended_seconds + record.seconds
            job = replace(job, state=JobState.RUNNING, reason=_RUNNING, suspended_at=None, suspended_seconds=seconds)
            job = _goes_on(draft, job, 0)
            draft.events.append(state_event(job))
        case Paused():
            job = replace(_as_running(draft, job, entry), reason=_PAUSED, suspended_at=entry.at)
            draft.fields |= {"state": job.state, "reason": job.reason, "suspended_at": entry.at}
        case Continued():
            seconds = job.suspended_seconds + record.seconds
            job = replace(_as_running(draft, job, entry), reason=_RUNNING, suspended_at=None, suspended_seconds=seconds)
            job = _goes_on(draft, job, record.people or 0)
        case Ended():
            record = replace(record, reason=replace(record.reason, code=record.reason.code[:_LONGEST_CODE]))
            draft.fields |= {"usage": record.usage, "outputs": record.outputs, "uncollected": record.uncollected}
            draft.end = (record, entry.at)
        case Damaged():
            said = f"{record.size} bytes of its journal are damaged, from byte {record.offset} on. What they said is not known."
            draft.events.append(_event(job, "progress", {"message": said, "reason": "JournalDamaged"}))
        case _:
            pass  # Claimed says nothing that the store keeps
    return job


def _why_suspended(job: Job) -> str:
    what, wish = job.place_in_words, job.preemption
    if wish is None:
        return f"Another job took this job's {what}. This job resumes by itself when they are free."
    if wish.waits_for == wish.by:
        taker = f"Job {wish.by}, which this job submitted and waits for,"
        return f"{taker} took its {what}. This job resumes by itself when job {wish.by} ends."
    if wish.waits_for is not None:
        taker = f"Job {wish.by} took this job's {what}, as it waits for job {wish.waits_for}."
        return f"{taker} It resumes by itself when that one has ended and they are free."
    return f'Job {wish.by} of QoS "{wish.qos}" took this job\'s {what}. This job resumes by itself when they are free.'


def _goes_on(draft: _Draft, job: Job, people: int) -> Job:
    """It was stopped once more, for so many people in all as far as its runner knows."""
    job = replace(job, pauses=job.pauses + 1, pause_people=max(job.pause_people, people))
    draft.fields |= {
        "state": job.state,
        "reason": job.reason,
        "suspended_at": None,
        "suspended_seconds": job.suspended_seconds,
        "pauses": job.pauses,
        "pause_people": job.pause_people,
    }
    return job


def _as_running(draft: _Draft, job: Job, entry: Journaled) -> Job:
    """Where the line is damaged that said that the command runs, later ones say it, too."""
    if job.state is not JobState.CONFIGURING:
        return job
    job = replace(job, state=JobState.RUNNING, reason=_RUNNING, started_at=entry.at)
    draft.fields |= {"state": job.state, "reason": job.reason, "started_at": entry.at}
    draft.events.append(state_event(job))
    return job


def _after_end(job: Job, ended: Ended, at: float, unlucky: int, fault: str) -> Mapping[str, Any]:
    if _state_was_lost(ended) and unlucky + 1 >= OFTEN:
        ended = _lost_too_often(ended, unlucky + 1)
    fields: dict[str, Any] = {
        "attempt_state": ended.state,
        "state": ended.state,
        "reason": ended.reason,
        "attempt_reason": ended.reason,
        "exit_code": ended.exit_code,
        "signal": ended.signal,
        "ended_at": at,
    }
    if job.suspended_at is not None:
        fields["suspended_seconds"] = job.suspended_seconds + max(0.0, at - job.suspended_at)
        fields["pauses"] = job.pauses + 1
    if is_given_back(ended):
        return fields | _after_refusal(job, ended)
    if ended.state is JobState.PREEMPTED:
        return fields | _after_preemption(job, ended)
    failed = ended.state in _RETRIED and not _only_lacks_outputs(ended)
    if fault and failed and job.cancelled_by is None and unlucky < OFTEN:
        return fields | _after_fault(job, ended, fault)
    if job.cancelled_by is None and job.requeues_left > 0:
        fields |= _after_walltime(job, ended)
    elif ended.checkpointed and _at_walltime(ended):
        said = f"{ended.reason.message} It has gone on as often as it asked for."
        fields["reason"] = Reason(code=ended.reason.code, message=said)
    if job.cancelled_by is None and job.retries_left > 0 and failed:
        left = job.retries_left - 1
        fields |= {
            "state": JobState.PENDING,
            "retries_left": left,
            "reason": Reason(
                code="Requeued",
                message=f"Attempt {job.attempt} ended {ended.state}: {ended.reason.message} "
                f"It is tried again; {left} {'retry' if left == 1 else 'retries'} left after that.",
            ),
        }
    return fields


def _after_fault(job: Job, ended: Ended, fault: str) -> dict[str, Any]:
    """A GPU of the attempt had a fault, and takes no jobs now: the job is tried elsewhere, and has as many retries as before."""
    said = f"{ended.reason.message} A GPU that it had is drained: {fault}."
    again = f"Attempt {job.attempt} ended {ended.state}: {said} It is tried elsewhere, at no cost of a retry."
    return {
        "state": JobState.PENDING,
        "reason": Reason(code="Requeued", message=again),
        "attempt_reason": Reason(code=DEVICE_FAULT, message=said),
        "retries_left": job.retries_left,
        "requeues_left": job.requeues_left,
    }


def _after_walltime(job: Job, ended: Ended) -> dict[str, Any]:
    """What becomes of a job that may go on: from its checkpoint after its walltime, as it was when it lost its node."""
    left = job.requeues_left - 1
    times = f"{left} more time{'' if left == 1 else 's'}"
    if _at_walltime(ended) and not ended.checkpointed:
        said = f"{ended.reason.message} It does not go on: this attempt changed nothing in its checkpoint directory."
        return {"reason": Reason(code=ended.reason.code, message=said)}
    if not (_at_walltime(ended) or (ended.state is JobState.NODE_FAIL and job.retries_left == 0)):
        return {}
    how = "goes on from its checkpoint" if ended.checkpointed else "begins again"
    said = f"Attempt {job.attempt} ended {ended.state}: {ended.reason.message} It {how}; it may do so {times}."
    return {"state": JobState.PENDING, "requeues_left": left, "reason": Reason(code="Requeued", message=said)}


def _only_lacks_outputs(ended: Ended) -> bool:
    """True when the command did its work and the outputs wait to be collected: another attempt would only do it again."""
    return ended.uncollected and ended.exit_code == 0


def misfortune(observation: Observation) -> str:
    """What ended the attempt by no fault of the job's, where it must not begin again for ever; "" for all else."""
    if observation.unbegun:
        return "RunnerLost"
    lost = any(isinstance(entry.record, Ended) and _state_was_lost(entry.record) for entry in observation.entries)
    return _STATE_LOST if lost else ""


def _state_was_lost(ended: Ended) -> bool:
    """Its GPU state did not come back after others had its GPUs."""
    return ended.state is JobState.PREEMPTED and ended.reason.code == _STATE_LOST


def _lost_too_often(ended: Ended, times: int) -> Ended:
    """The next attempt would come to the same end; so it is one that retries are for."""
    said = f"{ended.reason.message} That happened {times} times in a row. With --no-preempt others do not get its GPUs."
    return replace(ended, state=JobState.FAILED, reason=Reason(code=ended.reason.code, message=said))


def _begin_again(job: Job) -> dict[str, Any]:
    """Nothing of the job was done, so nothing is repeated: that is not one of its retries."""
    said = (
        f"Attempt {job.attempt}: the process that watches over it was killed before its command began. "
        "It is started again, at no cost of a retry."
    )
    reason = Reason(code="Requeued", message=said)
    return {"state": JobState.PENDING, "reason": reason, "retries_left": job.retries_left, "requeues_left": job.requeues_left}


def _at_walltime(ended: Ended) -> bool:
    """True for the walltime; a deadline that was set for the job is another end."""
    return ended.state is JobState.TIMEOUT and ended.reason.code == "TimeLimit"


def _after_preemption(job: Job, ended: Ended) -> dict[str, Any]:
    """Nobody's fault: the job is in line again, and has as many retries as before. Unless somebody wanted its end meanwhile.

    It gave way to another, its GPU could not be cleared of others' state before it began, or its own state was lost on the way.
    """
    if job.cancelled_by is not None:
        reason = Reason(code="Cancelled", message=f"Cancelled by {job.cancelled_by} while it gave way to another job.")
        return {"state": JobState.CANCELLED, "reason": reason}
    reason = Reason(code=ended.reason.code, message=f"{ended.reason.message} It is in line again.")
    return {"state": JobState.PENDING, "reason": reason}


def is_given_back(ended: Ended) -> bool:
    """True of an attempt that Slurm took no job for, because of a limit of submitted jobs: nothing of it ever was."""
    return ended.state is JobState.PREEMPTED and ended.reason.code in SUBMIT_LIMITS


def _after_refusal(job: Job, ended: Ended) -> dict[str, Any]:
    if job.cancelled_by is not None:
        reason = Reason(code="Cancelled", message=f"Cancelled by {job.cancelled_by} before it started.")
        return {"state": JobState.CANCELLED, "reason": reason}
    return {"state": JobState.PENDING, "reason": ended.reason}


def after_stops(job: Job, change: AttemptChange) -> Job:
    """Return `job`, which is in the state that `change` says, with what is left of being stopped and of giving way."""
    seconds = job.suspended_seconds if change.suspended_seconds is None else change.suspended_seconds
    pauses = job.pauses if change.pauses is None else change.pauses
    people = job.pause_people if change.pause_people is None else change.pause_people
    if change.ended_at is not None:
        if job.state is JobState.PENDING:
            seconds, pauses, people = 0.0, 0, 0
        job = replace(job, suspended_seconds=seconds, pauses=pauses, pause_people=people)
        return replace(job, preemption=None, suspended_at=None)
    job = replace(job, pauses=pauses, pause_people=people)
    if change.suspended_at is not None:
        return replace(job, suspended_at=change.suspended_at)
    if job.state is JobState.SUSPENDED:
        return job
    if change.suspended_seconds is not None:
        return replace(job, suspended_at=None, suspended_seconds=seconds)
    return job


def _lost(job: Job) -> Ended:
    if job.preemption is not None and job.preemption.mode is PreemptMode.REQUEUE and job.cancelled_by is None:
        message = f'A job of QoS "{job.preemption.qos}" took its place; its runner was gone already.'
        return Ended(state=JobState.PREEMPTED, reason=Reason(code="Preempted", message=message))
    if job.cancelled_by is not None:
        reason = Reason(code="Cancelled", message=f"Cancelled by {job.cancelled_by}; its runner was gone already.")
        return Ended(state=JobState.CANCELLED, reason=reason)
    message = (
        "The process that watched over it was killed, so how the command would have ended is not known. "
        "Its output until then is kept."
    )
    return Ended(state=JobState.NODE_FAIL, reason=Reason(code="RunnerLost", message=message))


def _event(job: Job, kind: str, data: Mapping[str, Any]) -> NewEvent:
    return NewEvent(job_id=job.id, owner=job.owner, type=kind, data=data)
