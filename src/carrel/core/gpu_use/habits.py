"""What a task asks for, beside what the last ones of its name took; and whether they failed alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from carrel.core.domain.job import JobState
from carrel.core.domain.resources import Resources
from carrel.core.domain.units import GIB, format_duration, format_size

#: So many of a name are looked at, and so many say something.
LOOKED_AT, ENOUGH_OF_NAME = 12, 3
#: What is asked for is much more than what was taken from this factor on; what is proposed has this room.
_MUCH, _ROOM = 2.5, 1.25
#: Less memory and time than this is nobody's loss.
_LITTLE_MEMORY, _LITTLE_TIME = 4 * GIB, 3600
#: Endings of programs that would end so again.
_OWN_FAULTS = (JobState.FAILED, JobState.OUT_OF_MEMORY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """A task of the same name and owner that is over."""

    job: int
    state: JobState
    #: Why it ended, as `Reason.code`, and in words.
    code: str = ""
    words: str = ""
    #: Seconds for which its command ran.
    seconds: float = 0.0
    #: Bytes of host memory, and of the fullest GPU's memory, at most; 0: not measured.
    memory: int = 0
    gpu_memory: int = 0


def habits(past: Sequence[Past], asked: Resources) -> tuple[str, ...]:
    """Return what to say to one who asks for `asked`; `past` are the last ones of the name, the newest first."""
    if failing := _failing(past):
        return (failing,)
    done = _done(past)
    if len(done) < ENOUGH_OF_NAME:
        return ()
    who = f"The last {len(done)} of this name"
    return tuple(filter(None, (_memory(who, done, asked), _gpu_memory(who, done, asked), _time(who, done, asked))))


def gpu_memory_taken(past: Sequence[Past]) -> int:
    """Return the bytes of a GPU that the next task of the name should have: what the last ones took, and room; 0: not known."""
    return _rounded(peak * _ROOM) if (peak := max((one.gpu_memory for one in _done(past)), default=0)) else 0


def _done(past: Sequence[Past]) -> Sequence[Past]:
    return [one for one in past if one.state is JobState.COMPLETED]


def _failing(past: Sequence[Past]) -> str:
    if not past or past[0].state not in _OWN_FAULTS:
        return ""
    alike = 0
    for one in past:
        if (one.state, one.code, one.words) != (past[0].state, past[0].code, past[0].words):
            break
        alike += 1
    if alike < ENOUGH_OF_NAME:
        return ""
    alike_words = f"The last {alike} of this name ended alike: {past[0].words.rstrip('.')}."
    return f"{alike_words} `carrel logs {past[0].job}` has the newest one's words."


def _memory(who: str, done: Sequence[Past], asked: Resources) -> str:
    peak = max(one.memory for one in done)
    if not peak or asked.memory < max(_LITTLE_MEMORY, _MUCH * peak) or any(not one.memory for one in done):
        return ""
    enough = format_size(_rounded(peak * _ROOM))
    instead = f"`--memory {enough}` instead of {format_size(asked.memory)} is enough."
    return f"{who} took at most {format_size(peak)} of memory: {instead}"


def _gpu_memory(who: str, done: Sequence[Past], asked: Resources) -> str:
    peak = max(one.gpu_memory for one in done)
    if not asked.gpus or not peak or any(not one.gpu_memory for one in done):
        return ""
    if not asked.gpu_memory and asked.gpu_type is None:
        return ""
    enough = _rounded(peak * _ROOM)
    if asked.gpu_memory and asked.gpu_memory < _MUCH * peak:
        return ""
    instead = f"a GPU with {format_size(asked.gpu_memory)}" if asked.gpu_memory else f"--gpu-type {asked.gpu_type}"
    return (
        f"{who} took at most {format_size(peak)} of their GPU: `--gpu-memory {format_size(enough)}` instead of {instead} "
        "may start sooner."
    )


def _time(who: str, done: Sequence[Past], asked: Resources) -> str:
    longest = max(one.seconds for one in done)
    if asked.time <= _LITTLE_TIME or asked.time < _MUCH * max(longest, _LITTLE_TIME / _MUCH / 2):
        return ""
    enough = max(600, -(-int(longest * _ROOM) // 600) * 600)
    if asked.time < _MUCH * enough:
        return ""
    instead = f"`--time {format_duration(enough).replace(' ', '')}` instead of {format_duration(asked.time)}"
    return f"{who} ran for at most {format_duration(max(1, round(longest)))}: {instead} can be placed before others."


def _rounded(size: float) -> int:
    """Up to whole GiB, so that it reads like what people ask for."""
    return max(1, -(-int(size) // GIB)) * GIB
