"""What Slurm's commands answer, as values. Pure: text in, values out, `Garbage` for everything else.

Names and comments of jobs are free text, with separators and line ends where their owners put them. So nothing is believed
that could stand in somebody's free text: lines of squeue begin with a mark that changes with every call, free text stands behind
another one or is the last field of a line, and accounting is asked about the user's own jobs only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from carrel.core.domain.errors import Unavailable
from carrel.engines.slurm.numbers import read_numbers, shown


class Garbage(Unavailable):
    """A command of Slurm answered something that cannot be read: nothing follows from it."""

    def __init__(self, what: str, text: str) -> None:
        start = text if len(text) <= 200 else f"{text[:200]}…"
        super().__init__(f"{what} cannot be read: {start!r}.", remedy="It is asked again; nothing is concluded from this.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """One job as one answer of Slurm's has it."""

    #: Of an element of an array, the array's.
    id: int
    #: The element's index; None where the job is no element.
    task: int | None = None
    #: The first word of the state, in full ("CANCELLED", not "CA" or "CANCELLED by 0").
    state: str
    name: str = ""
    #: Which job of ours it is, where it is one (`identity`). Accounting does not have it.
    comment: str = ""
    #: Where it works. Only accounting says it here.
    directory: str = ""
    user: str = ""
    #: Why it is in that state; "None" and "" mean nothing.
    reason: str = ""
    #: As Slurm writes lists of nodes ("node[1-2]"); "" while there are none.
    nodes: str = ""
    exit_code: int = 0
    #: The signal that ended it, or 0.
    signal: int = 0
    #: Who cancelled it, by number or by name, or "".
    cancelled_by: str = ""
    #: Unix seconds: when it started, or should start; None when nobody knows.
    starts_at: int | None = None

    @property
    def shown(self) -> str:
        """Its number as Slurm shows it: "12", or "12_3" of an element."""
        return shown(self.id, self.task)

    @property
    def identity(self) -> str:
        """What the lab calls the job: its comment."""
        return self.comment


#: Bytes of a job's name in Slurm: accounting has room for 255.
_LONGEST_NAME = 200
_STATE = re.compile(r"[A-Z][A-Z_]{2,}")
_SQUEUE_FIELDS = ("%i", "%T", "%r", "%N", "%S", "%u", "%k")
#: The fields of sacct that `parse_sacct` reads; the free ones are the last.
SACCT_FIELDS = ("JobID", "State", "ExitCode", "Reason", "NodeList", "Start", "User", "JobName", "WorkDir")
_LARGEST = 2**63
_NOTHING_FOUND = 9003


def squeue_format(mark: str) -> str:
    """Return the format (squeue(1), --format) that `parse_squeue` reads. `mark` is a new random word for every call."""
    return "|".join((mark, *_SQUEUE_FIELDS, _inner(mark), "%j"))


def _inner(mark: str) -> str:
    """What stands between two fields of free text. No line begins with it, wherever free text ends its own."""
    return f"~{mark}"


def slurm_name(name: str) -> str:
    """Return a task's name as a job's name in Slurm, by which its owner finds it (``squeue --name``).

    Commas, "|" and all that is not printable ASCII would be read as something else by one of Slurm's programs or by accounting.
    """
    return re.sub(r"[^ -~]|[,|%\"'\\\\`]", "_", name)[:_LONGEST_NAME].strip() or "task"


def parse_squeue(text: str, mark: str) -> tuple[SlurmJob, ...]:
    """Return the jobs of an answer in `squeue_format(mark)`, with its line of titles and SLURM_TIME_FORMAT=%s.

    Raises `Garbage` without that line: an answer of nothing at all is not an empty list.
    """
    # Only "\n" ends a line of squeue's; str.splitlines knows many more, which may stand in names.
    lines = [line for line in text.split("\n") if line.startswith(f"{mark}|")]
    if not lines or not lines[0].startswith(f"{mark}|JOBID|STATE|REASON|") or not text.startswith(lines[0]):
        raise Garbage("What squeue answered", text)
    return tuple(job for line in lines[1:] for job in _squeue_line(line))


def _squeue_line(line: str) -> list[SlurmJob]:
    mark = line.partition("|")[0]
    # A comment with a line end is cut there, and the name with it.
    known, _, name = line.partition(f"|{_inner(mark)}|")
    fields = known.split("|", len(_SQUEUE_FIELDS))
    if len(fields) != len(_SQUEUE_FIELDS) + 1:
        raise Garbage("A line of squeue", line)
    _, number, state, reason, nodes, start, user, comment = fields
    word, by = _state(state)
    job = SlurmJob(
        id=0,
        state=word,
        cancelled_by=by,
        reason=reason,
        nodes=_nodes(nodes),
        starts_at=_time(start),
        user=user,
        name=name,
        comment="" if comment == "(null)" else comment,
    )
    return _each(job, number, line)


def parse_sacct(text: str) -> tuple[SlurmJob, ...]:
    """Return the jobs of an answer of `sacct -X -D --parsable2 --format=<SACCT_FIELDS>`, titles included.

    A job that was requeued is there several times, oldest first. It is for asking about one's own jobs: then nobody else's free
    text is in the answer. A name with "|" in it makes the directory another one.
    """
    lines = text.split("\n")
    if lines[0] != "|".join(SACCT_FIELDS) or lines[-1]:
        raise Garbage("What sacct answered", text)
    return tuple(job for line in lines[1:-1] for job in _sacct_line(line))


def _sacct_line(line: str) -> list[SlurmJob]:
    fields = line.split("|", len(SACCT_FIELDS) - 1)
    if len(fields) != len(SACCT_FIELDS):
        raise Garbage("A line of sacct", line)
    number, state, ending, reason, nodes, start, user, name, directory = fields
    word, by = _state(state)
    code, signal = _exit(ending, line)
    job = SlurmJob(
        id=0,
        state=word,
        cancelled_by=by,
        exit_code=code,
        signal=signal,
        reason=reason,
        nodes=_nodes(nodes),
        starts_at=_time(start),
        user=user,
        name=name,
        directory=directory,
    )
    return _each(job, number, line)


def _pairs(text: str) -> dict[str, str]:
    """Return NAME=VALUE pairs; the first of a name counts, as free text comes later."""
    found: dict[str, str] = {}
    for word in text.split(" "):
        key, equals, value = word.partition("=")
        if equals:
            found.setdefault(key, value.rstrip("\n"))
    return found


def parse_records(text: str, first: str) -> tuple[Mapping[str, str], ...]:
    """Return the records of `scontrol --oneliner show node|partition|reservation`, each of which begins with `first`=."""
    found = []
    for line in text.split("\n"):
        if not line:
            continue
        if not line.startswith(f"{first}="):
            raise Garbage(f"What scontrol answered about {first}", text)
        found.append(_pairs(line))
    if not found:
        raise Garbage(f"What scontrol answered about {first}", text)
    return tuple(found)


def parse_out_of_use(text: str) -> dict[str, str]:
    """Return why nodes take no jobs, by name, from `scontrol --oneliner show node`; nodes that do take some are left out."""
    records = parse_records(text, "NodeName")
    lines = [line for line in text.split("\n") if line]
    found = {}
    for record, line in zip(records, lines, strict=True):
        if re.search(r"DOWN|DRAIN|FAIL|NOT_RESPONDING", record.get("State", "")):
            said = re.search(r" Reason=(.*?)(?: \[\S+\])?(?: [A-Z]\w*=.*)?$", line)
            found[record["NodeName"]] = (said[1] if said else "") or record["State"]
    return found


def parse_events(text: str, since: int, until: int) -> dict[str, str]:
    """Return why nodes were first taken out of use in a span of time, by name.

    The text is that of `sacctmgr --noheader --parsable2 show event format=NodeName,Start,State,Reason` with SLURM_TIME_FORMAT=%s.
    """
    found: dict[str, tuple[int, str]] = {}
    for line in text.split("\n"):
        fields = line.split("|", 3)
        if len(fields) == 4 and (at := _time(fields[1])) is not None and since <= at <= until:
            event = (at, fields[3] or fields[2])
            found[fields[0]] = min(found.get(fields[0], event), event)
    return {node: why for node, (_, why) in found.items()}


def parse_submitted(text: str) -> int:
    """Return the number of the job from an answer of `sbatch --parsable`: "<number>" or "<number>;<cluster>"."""
    match = re.fullmatch(r"([0-9]{1,18})(;[^\n]*)?\n?", text)
    if match is None:
        raise Garbage("What sbatch answered", text)
    return int(match[1])


def parse_granted(text: str) -> int | None:
    """Return the number of the allocation from what `srun --verbose` has said so far, None before it has one."""
    found = re.search(r"^srun: (?:jobid |launching StepId=)([0-9]{1,18})\b[^\n]*\n", text, re.MULTILINE)
    return None if found is None else int(found[1])


# --- JSON -------------------------------------------------------------------------------------------------------------------


def parse_json(text: str, *, accounting: bool = False) -> tuple[SlurmJob, ...]:
    """Return the jobs of an answer of `squeue --json`, or of `sacct --json` with `accounting`; of 22.05 and of later versions.

    Later versions have lists of states and wrap numbers: ``{"set": true, "infinite": false, "number": 7}``.
    """
    what = "What sacct answered" if accounting else "What squeue answered"
    try:
        answer = json.loads(text)
        # sacct of 22.05 calls an empty list an error.
        errors = [error for error in answer.get("errors") or () if error.get("error_number") != _NOTHING_FOUND]
        if errors:
            raise Garbage(what, json.dumps(errors))
        jobs = answer["jobs"]
        if accounting:
            return tuple(_sacct_object(job) for job in _list(jobs))
        return tuple(found for job in _list(jobs) for found in _squeue_object(job))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, IndexError) as error:
        raise Garbage(what, text) from error


def _squeue_object(job: Mapping[str, Any]) -> list[SlurmJob]:
    array, task = _optional(job.get("array_job_id")), _optional(job.get("array_task_id"))
    number = f"{array or _whole(job['job_id'])}"
    if array and task is not None:
        number = f"{array}_{task}"
    elif array and (waiting := _text(job.get("array_task_string"))):
        number = f"{array}_[{waiting}]"
    word, by = _state(_words(job["job_state"]))
    code, signal = _wait_status(job.get("exit_code"))
    found = SlurmJob(
        id=0,
        name=_text(job.get("name")),
        comment=_text(job.get("comment")),
        user=_text(job.get("user_name")),
        state=word,
        cancelled_by=by,
        reason=_text(job.get("state_reason")),
        nodes=_nodes(_text(job.get("nodes"))),
        exit_code=code,
        signal=signal,
        starts_at=_optional(job.get("start_time")) or None,
    )
    return _each(found, number, number)


def _sacct_object(job: Mapping[str, Any]) -> SlurmJob:
    state = job["state"]
    word, by = _state(_words(state["current"]))
    code, signal = _wait_status(job.get("exit_code"))
    killer = _text(job.get("kill_request_user"))
    return SlurmJob(
        id=_whole(job["job_id"]),
        name=_text(job.get("name")),
        user=_text(job.get("user")) or _text((job.get("association") or {}).get("user")),
        state=word,
        cancelled_by=by or killer,
        reason=_text(state.get("reason")),
        nodes=_nodes(_text(job.get("nodes"))),
        exit_code=code,
        signal=signal,
        starts_at=_optional((job.get("time") or {}).get("start")) or None,
    )


def _wait_status(value: Any) -> tuple[int, int]:
    """Exit code and signal: of the number of wait(2) (squeue of 22.05), or of an object."""
    if value is None:
        return 0, 0
    if isinstance(value, int):
        return (value >> 8) & 0xFF, value & 0x7F
    signal = value.get("signal") or {}
    # 22.05 names the signal "signal_id", later versions "id".
    number = signal.get("signal_id") if "signal_id" in signal else signal.get("id")
    return _optional(value.get("return_code")) or 0, _optional(number) or 0


def _words(value: Any) -> str:
    # A list has the state first, and then flags such as COMPLETING.
    words = [value] if isinstance(value, str) else _list(value)
    live = [word for word in words if word in ("COMPLETING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESIZING", "SIGNALING")]
    return str((live or words)[0])


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"a list was expected, not {type(value).__name__}")
    return value


def _whole(value: Any) -> int:
    number = _optional(value)
    if number is None:
        raise TypeError("a number was expected")
    return number


def _optional(value: Any) -> int | None:
    if isinstance(value, Mapping):
        value = value["number"] if value.get("set") and not value.get("infinite") else None
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _LARGEST:
        raise TypeError(f"{value!r} is not a number")
    return value


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


# --- fields -----------------------------------------------------------------------------------------------------------------


def _state(text: str) -> tuple[str, str]:
    """Return the state's word, and who cancelled it: sacct says "CANCELLED by 1000"."""
    word, _, by = text.partition(" by ")
    word = word.rstrip("+")
    if not _STATE.fullmatch(word):
        raise Garbage("A state of Slurm", text)
    return word, by if by.isascii() and by.isdigit() else ""


def _exit(text: str, line: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,5}):([0-9]{1,5})", text)
    if match is None:
        raise Garbage("An exit code of Slurm", line)
    return int(match[1]), int(match[2])


def _each(job: SlurmJob, number: str, line: str) -> list[SlurmJob]:
    """Return `job` under its number; once for each element where they wait together."""
    try:
        return [replace(job, id=found, task=task) for found, task in read_numbers(number)]
    except ValueError as error:
        raise Garbage("A job's number", line) from error


def _time(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def _nodes(text: str) -> str:
    return "" if text in ("(null)", "None assigned", "None", "n/a") else text


def find(jobs: Iterable[SlurmJob], identity: str, user: str = "", task: int | None = None) -> tuple[SlurmJob, ...]:
    """Return those of `jobs` with the identity that belong to `user` where one is given: anybody can call a job anything.

    An array has one identity; `task` says which of its elements is meant.
    """
    return tuple(job for job in jobs if job.identity == identity and job.task == task and (not user or job.user == user))
