"""From what happened to a state with a reason: every ending, with its numbers."""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from carrel.core.domain.job import JobState, Preemption, Reason, how_to_collect
from carrel.core.domain.launch import Launch
from carrel.core.domain.units import format_duration, format_size
from carrel.core.spool import AttemptDirectory
from carrel.core.spool.disk import disk_of, full_at, is_full
from carrel.core.spool.foreign import read_last
from carrel.node.runner.group.report import GroupEnd
from carrel.node.runner.outcome import Cause, Outcome

#: A disk of which less than this part is free counts as full when a command has failed.
_FULL_PART = 1000
#: Bytes of what tools said of a build that failed, in the job's log.
_SAID = 4 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an attempt ended."""

    state: JobState
    reason: Reason
    exit_code: int | None = None
    signal: int | None = None
    retryable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OomKills:
    """What the kernel's OOM killer did."""

    #: Processes of this job that it killed, when a cgroup counted them.
    here: int = 0
    #: Processes that it killed on the machine while the job ran, when no cgroup counted.
    machine: int = 0
    #: Most memory that the job ever had, in bytes.
    peak: int = 0


#: What shells mean by some exit codes (POSIX.1-2017, 2.8.2 Exit Status for Commands).
_SHELL_CODES = {126: "what it names could not be executed", 127: "the shell did not find a command that it names"}


def command_ending(
    outcome: Outcome, launch: Launch, *, cancelled_by: str | None, killings: OomKills, group: GroupEnd | None = None
) -> Ending:
    """Return how an attempt ended whose command was started; `group` is what is known of its processes where it is several."""
    exit_code = outcome.status if outcome.status is not None and outcome.status >= 0 else None
    number = -outcome.status if outcome.status is not None and outcome.status < 0 else None
    state, code, message = _judge(outcome, launch, cancelled_by, killings)
    if group is not None and code in ("NonZeroExitCode", "RaisedSignal"):
        state, code, message = _judge_group(group, launch, state, code, message)
        exit_code = None if group.error else exit_code
    if outcome.left_behind:
        left = "a process" if outcome.left_behind == 1 else f"{outcome.left_behind} processes"
        message += f" It left {left} behind; Carrel ended what was left."
    if outcome.stuck:
        message += f" The kernel did not let go of processes {', '.join(map(str, outcome.stuck))}."
    return Ending(state=state, reason=Reason(code=code, message=message), exit_code=exit_code, signal=number)


def _killed(outcome: Outcome) -> str:
    """What the message of a walltime adds where SIGTERM was not enough."""
    return f", and was killed after {format_duration(outcome.seconds)}" if outcome.status in (None, -signal.SIGKILL) else ""


def _judge(outcome: Outcome, launch: Launch, cancelled_by: str | None, killings: OomKills) -> tuple[JobState, str, str]:
    asked, walltime = format_size(launch.resources.memory), format_duration(launch.resources.time)
    if outcome.cause is Cause.CANCELLED:
        return JobState.CANCELLED, "Cancelled", f"Cancelled by {cancelled_by} after {format_duration(outcome.seconds)}."
    if outcome.cause is Cause.MEMORY:
        return (
            JobState.OUT_OF_MEMORY,
            "OutOfMemory",
            f"It used {format_size(outcome.memory)} of memory and had asked for {asked}.",
        )
    if outcome.cause is Cause.DISK:
        size, files = outcome.disk
        had, most, setting = format_size(size), format_size(launch.limits.disk), "disk_limit"
        if not 0 < launch.limits.disk < size:
            had, most, setting = f"{files} files", f"{launch.limits.files}", "disk_files"
        where = "in its working directory, its checkpoints, /tmp and its owner's home"
        remedy = f"Let it write less, or ask an administrator to raise {setting}."
        return JobState.FAILED, "DiskLimit", f"It had {had} {where}, and a job may have {most} here ({setting}). {remedy}"
    if outcome.cause is Cause.STATE_LOST:
        said = "Its GPU state could not be brought back after others had its GPUs, so it was ended"
        return JobState.PREEMPTED, "GpuStateLost", f"{said} after {format_duration(outcome.seconds)}."
    if outcome.cause is Cause.PREEMPTED and outcome.status != 0 and not killings.here:
        return JobState.PREEMPTED, "Preempted", f"{_taken(outcome.preemption)} after {format_duration(outcome.seconds)}."
    if outcome.cause is Cause.TIME:
        return JobState.TIMEOUT, "TimeLimit", f"It reached its walltime of {walltime}{_killed(outcome)}."
    if outcome.warned and outcome.status != 0:
        ran = format_duration(outcome.seconds)
        return JobState.TIMEOUT, "TimeLimit", f"It ended after {ran}, warned that its walltime of {walltime} would end."
    if outcome.status == 0:
        lost = f" The kernel killed {killings.here} of its processes at its memory limit of {asked}." if killings.here else ""
        return JobState.COMPLETED, "Completed", f"Exit code 0 after {format_duration(outcome.seconds)}.{lost}"
    if killings.here:
        peak = f" (peak {format_size(killings.peak)})" if killings.peak else ""
        return (
            JobState.OUT_OF_MEMORY,
            "OutOfMemory",
            f"It reached the {asked} of memory that it had asked for{peak}, and the kernel ended it.",
        )
    if outcome.status is not None and outcome.status > 0:
        hint = _SHELL_CODES.get(outcome.status, "")
        if 128 < outcome.status <= 128 + 64:
            hint = f"the shell's word for {_signal_name(outcome.status - 128)}"
        return JobState.FAILED, "NonZeroExitCode", f"Exit code {outcome.status}{f' ({hint})' if hint else ''}."
    number = -(outcome.status or 0)
    if number == signal.SIGKILL and killings.machine:
        return (
            JobState.OUT_OF_MEMORY,
            "OutOfMemory",
            f"Killed by SIGKILL while the machine was out of memory (peak {format_size(killings.peak)}, asked for {asked}).",
        )
    return JobState.FAILED, "RaisedSignal", f"Ended by {_signal_name(number)}, which was not sent by Carrel."


def _judge_group(group: GroupEnd, launch: Launch, state: JobState, code: str, message: str) -> tuple[JobState, str, str]:
    """Whose end it was."""
    if group.error:
        return JobState.FAILED, "LaunchFailed", group.error
    if group.culprit is None:
        return state, code, message
    if group.culprit.memory:
        used, asked = format_size(group.culprit.memory), format_size(launch.resources.memory)
        said = f"On {group.culprit.node} it used {used} of memory and had asked for {asked} on each node."
        return JobState.OUT_OF_MEMORY, "OutOfMemory", said
    if group.culprit.lost:
        node = group.culprit.node
        return JobState.NODE_FAIL, "NodeLost", f"Node {node} does not answer any more; the processes on the others were ended."
    return state, code, f"{message} That was {group.culprit.where}, and the others were ended."


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} ({signal.strsignal(number)})"
    except ValueError:
        return f"signal {number}"


def cancelled_before_start(by: str) -> Ending:
    """Return the ending of an attempt that was cancelled while it was being prepared."""
    return Ending(
        state=JobState.CANCELLED, reason=Reason(code="Cancelled", message=f"Cancelled by {by} before its command started.")
    )


def preempted_before_start(preemption: Preemption | None) -> Ending:
    """Return the ending of an attempt that was preempted while it was being prepared."""
    return Ending(
        state=JobState.PREEMPTED, reason=Reason(code="Preempted", message=f"{_taken(preemption)} before its command started.")
    )


def blocked_before_start(message: str, code: str = "GpuBlocked") -> Ending:
    """Return the ending of an attempt that could not begin for want of what others have, mostly its GPU: it is placed again."""
    return Ending(state=JobState.PREEMPTED, reason=Reason(code=code, message=message))


def _taken(preemption: Preemption | None) -> str:
    return f'A job of QoS "{preemption.qos}" took its place' if preemption is not None else "Another job took its place"


def failed(code: str, message: str, *, retryable: bool = False) -> Ending:
    """Return the ending of an attempt that failed with reason `code`."""
    return Ending(state=JobState.FAILED, reason=Reason(code=code, message=message), retryable=retryable)


def storage_full(message: str) -> Ending:
    """Return the ending of an attempt that met a full disk: not its fault, so it may be tried again."""
    return failed("StorageFull", message, retryable=True)


def without_outputs(ending: Ending, why: Reason, job_id: int) -> Ending:
    """Return the ending of an attempt whose outputs could not be kept, which makes a failure of a success.

    Where that was cancelled, the job was. How the command ended is still said, and where the outputs are.
    """
    remedy = how_to_collect(job_id)
    if ending.state is not JobState.COMPLETED:
        return replace(ending, reason=replace(ending.reason, message=f"{ending.reason.message} {why.message} {remedy}"))
    message = f"{why.message} {remedy} Its command had succeeded: {ending.reason.message}"
    state = JobState.CANCELLED if why.code == "Cancelled" else JobState.FAILED
    return replace(ending, state=state, reason=Reason(code=why.code, message=message))


def disk_notes(ending: Ending, directory: Path) -> list[str]:
    """A command that fails on a full disk mostly says so in a way that nobody understands; return what there is to add."""
    if ending.state is not JobState.FAILED or ending.reason.code in ("StorageFull", "OutputFailed"):
        return []
    try:
        disk = disk_of(directory)
    except OSError:
        return []
    if disk.takes_files and disk.free >= disk.total // _FULL_PART:
        return []
    return [f"At its end the disk of its working directory was full ({disk.describe()})."]


def said_of_build(log: Path, *, beyond: str) -> bytes:
    """Return what the tools said that build environments, the last of it where that is long; b"" if all of it is in `beyond`."""
    with suppress(OSError):
        said = read_last(log, _SAID)
        return b"" if said.strip() in beyond.encode() else said
    return b""


def unexpected(error: Exception, directory: AttemptDirectory) -> Ending:
    """The runner itself failed, or the disk is full."""
    if isinstance(error, OSError) and is_full(error):
        return storage_full(full_at(error.filename or directory.path, error))
    return failed("LaunchFailed", f"The runner failed: {type(error).__name__}: {error}.")
