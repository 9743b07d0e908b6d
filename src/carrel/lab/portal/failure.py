"""The failure of a job: the numbers of its end, the last it said, and what its owner may try. Pure."""

from __future__ import annotations

import math
import signal
from dataclasses import dataclass

from carrel.core.control.ports import AttemptRow
from carrel.core.domain.job import Job, JobState
from carrel.core.domain.units import MIB, format_duration
from carrel.lab.portal.words import size

#: Lines of the log that are shown.
_LINES = 12
_FAILED = frozenset({JobState.FAILED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY, JobState.NODE_FAIL})
#: Amounts of memory that are proposed are multiples of it.
_GRAIN = 512 * MIB
#: Signals that compiled code dies of.
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
_AGAIN = "That is not the fault of its code: run it again. With `--retries` the lab does so by itself."
#: What to try, by the code of the reason.
_TRIES = {
    "EnvironmentFailed": "Correct the packages that it asks for; what the tools said is in its log.",
    "InputFailed": "Check the addresses of its inputs, and the secrets that they need.",
    "DiskLimit": "Remove what it needs no more while it runs, or write large intermediate files compressed.",
    "StorageFull": "Ask an administrator for room, or give up outputs of old jobs (`carrel outputs ID --remove`).",
    "RunnerLost": _AGAIN,
    "NodeLost": _AGAIN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The part of a job's page about its failure."""

    #: Names and values.
    facts: tuple[tuple[str, str], ...]
    #: The end of its log.
    lines: str
    #: One sentence each; what stands between backticks is code.
    tries: tuple[str, ...]


def failure_of(job: Job, row: AttemptRow | None, log: str) -> Failure | None:
    """Return why the job failed, of which `row` is the last attempt and `log` ends with what it said last; None: it did not."""
    if job.state not in _FAILED:
        return None
    said = [line for line in log.splitlines() if line.strip()][-_LINES:]
    return Failure(facts=tuple(_facts(job, row)), lines="\n".join(said), tries=tuple(_tries(job, row)))


def _facts(job: Job, row: AttemptRow | None) -> list[tuple[str, str]]:
    asked, found = job.resources, list[tuple[str, str]]()
    if job.exit_code is not None:
        found.append(("Exit code", str(job.exit_code)))
    if job.signal is not None:
        found.append(("Signal", _name(job.signal)))
    match job.reason.code:
        case "TimeLimit":
            found.append(("Limit", f"time: {format_duration(asked.time)}"))
        case "OutOfMemory":
            found.append(("Limit", f"memory: {size(asked.memory)}"))
        case "DiskLimit":
            found.append(("Limit", "room on the disk"))
        case _:
            pass
    if row is not None and row.usage.memory_peak:
        found.append(("Most memory", f"{size(row.usage.memory_peak)} of {size(asked.memory * asked.nodes)}"))
    return found


def _tries(job: Job, row: AttemptRow | None) -> list[str]:
    asked, code = job.resources, job.reason.code
    if code == "TimeLimit":
        more = f"Ask for more time than {format_duration(asked.time)} (`--time`)."
        return [more, "A task that writes checkpoints can go on by itself after its walltime (`--requeue`)."]
    if code == "OutOfMemory":
        peak = row.usage.memory_peak // asked.nodes if row is not None else 0
        return [
            f"Ask for more memory, {size(_GRAIN * math.ceil(2 * max(asked.memory, peak) / _GRAIN))} to begin with (`--memory`).",
            "Read data in pieces, or start fewer worker processes: each has its own copy.",
        ]
    if code == "RaisedSignal" and job.signal in _CRASHES:
        crashed = "Compiled code crashed, often in an extension or for want of a matching driver."
        return [f"{crashed} With the variable `PYTHONFAULTHANDLER=1` Python prints where."]
    if code == "RaisedSignal":
        return ["The program ended itself, or another process ended it; its log says more if it wrote anything."]
    if code == "NonZeroExitCode" and job.exit_code == 127:
        return ["Check the name of the program, and that its package is in the environment."]
    if code == "NonZeroExitCode":
        again = "run the project again (`carrel run --from` this step)" if job.pipeline else "run it with changes"
        return [f"The last lines of its log say what went wrong. Correct the code, then {again}."]
    return [_TRIES[code]] if code in _TRIES else []


def _name(number: int) -> str:
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)
