"""Lines as `sacct --parsable2 --allocations --duplicates` of Slurm 22.05 writes them (sacct(1)), in UTC.

The columns are those that the shredder of Open XDMoD wants (docs/resource-manager-slurm.md of ubccr/xdmod), which has no header.
"""

from __future__ import annotations

from math import floor

from carrel.core.domain.exported_attempt import ExportedAttempt

#: With JobName last: Slurm does not mark a "|" in it, and so a reader can find it.
SACCT_COLUMNS = (
    "JobID", "JobIDRaw", "Cluster", "Partition", "QOS", "Account", "Group", "GID", "User", "UID", "Submit", "Eligible",
    "Start", "End", "Elapsed", "ExitCode", "State", "NNodes", "NCPUS", "ReqCPUS", "ReqMem", "ReqTRES", "AllocTRES",
    "Timelimit", "NodeList", "JobName",
)  # fmt: skip
#: "nobody": the lab does not know users by numbers.
_NO_ID = "65534"
_UNKNOWN = "Unknown"
_DAY = 86400


def sacct_line(attempt: ExportedAttempt, *, cluster: str, now: float) -> str:
    """One attempt as a line, without its end. `now`: until when one has run that is not over; Unix seconds."""
    account = _word(attempt.account)
    asked = _resources(attempt)
    cpus = str(attempt.cpus * attempt.nodes)
    # In a lab without partitions all of it is one.
    partition = _word(attempt.partition) or _word(cluster)
    return "|".join(
        (
            str(attempt.job) if attempt.array is None else f"{attempt.array}_{attempt.index}",
            str(attempt.job), _word(cluster), partition, _word(attempt.qos), account,
            # Open XDMoD takes the group for the project, which here is the account.
            account, _NO_ID, _word(attempt.owner), _NO_ID, *_moments(attempt, now), _exit_code(attempt), attempt.slurm_state,
            str(attempt.nodes), cpus, cpus, slurm_size(attempt.memory * attempt.nodes), asked, asked if attempt.had_place else "",
            slurm_duration(attempt.time), _word(attempt.node) if attempt.had_place and attempt.node else "None assigned",
            plain_name(attempt.name),
        )
    )  # fmt: skip


def plain_name(name: str) -> str:
    """A job's name as it is written: line ends and what else cannot be printed become spaces, spaces at the end are left out."""
    return _printable(name, " ").rstrip()


def slurm_moment(at: float) -> str:
    """ "2026-11-27T02:20:51", the second that had begun, in UTC."""
    days, seconds = divmod(floor(at), _DAY)
    year, month, day = date_of(days)
    return f"{year:04}-{month:02}-{day:02}T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def slurm_duration(seconds: float) -> str:
    """ "1-02:03:00", the days where there are any."""
    days, rest = divmod(max(0, floor(seconds)), _DAY)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def slurm_size(size: int) -> str:
    """ "1000M", "1G", "1.50G": whole megabytes, in the largest unit of which there is one."""
    found = float(max(1, -(-size // 1024**2)))
    for unit in "MGTP":
        if found < 1024:
            break
        if unit != "P":
            found /= 1024
    return f"{found:.0f}{unit}" if found == int(found) else f"{found:.2f}{unit}"


def _moments(attempt: ExportedAttempt, now: float) -> tuple[str, str, str, str, str]:
    """Submit, Eligible, Start, End and Elapsed."""
    submitted = slurm_moment(attempt.submitted_at)
    # When what it waited for had happened the lab has not written down.
    eligible = _UNKNOWN if attempt.depends else submitted
    begin, end = attempt.since, attempt.ended_at
    if begin is None:
        start, over = (_UNKNOWN, _UNKNOWN) if end is None else ("None", slurm_moment(end))
        return submitted, eligible, start, over, slurm_duration(0)
    until = max(floor(now if end is None else end), floor(begin))
    elapsed = max(0.0, until - floor(begin) - attempt.stopped)
    return submitted, eligible, slurm_moment(begin), _UNKNOWN if end is None else slurm_moment(until), slurm_duration(elapsed)


def _exit_code(attempt: ExportedAttempt) -> str:
    if attempt.signal:
        return f"0:{attempt.signal}"
    return f"{attempt.exit_code or 0}:0"


def _resources(attempt: ExportedAttempt) -> str:
    """Of all nodes together. Slurm bills processors where nobody says otherwise."""
    cpus, gpus = attempt.cpus * attempt.nodes, attempt.gpus * attempt.nodes
    counted = f"gres/gpu={gpus}," if gpus else ""
    return f"billing={cpus},cpu={cpus},{counted}mem={slurm_size(attempt.memory * attempt.nodes)},node={attempt.nodes}"


def _word(text: str) -> str:
    """A value of a column that is not the last."""
    return _printable(text, "_").replace("|", "_").strip()


def _printable(text: str, instead: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else instead for char in text)


def date_of(days: int) -> tuple[int, int, int]:
    """Year, month and day so many days after 1 January 1970, in the Gregorian calendar."""
    # Years begin in March here, so that a leap day is the last one. An era has 400 years.
    era, of_era = divmod(days + 719_468, 146_097)
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month += 3 if month < 10 else -9
    return year + era * 400 + (month <= 2), month, day
