"""Watches over an srun on its own machine, and gives its allocation back where srun could not.

An srun that ends by itself has given its allocation back. One that is killed leaves that to its helper, a process that it has
only from the moment in which there is a step, and that may be killed, too. The keeper is the parent of srun. It asks Slurm
nothing unless srun was killed; then it looks for the allocation, and cancels it when no runner lives in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: A shell: it costs two milliseconds and a megabyte. What srun is spoken to through is srun's alone, so the keeper closes it; and
#: it exits at once when srun was killed, since the lab waits for that. bash says on its standard error that a signal has killed a
#: child; the exit code does not tell, which may be the step's. It looks five times in ten seconds: srun's helper may do its work,
#: and Slurm may still make an allocation for an srun that is gone. A runner that lives goes on to its end: `flock` waits for
#: that, and the note lets the runner's guardian give the allocation back.
_KEEP = """\
identity=$1 script=$2 lock=$3 detached=$4 said=$5
shift 5
look() {
    tries=0
    while [ $tries -lt 5 ]; do
        tries=$((tries + 1))
        sleep 2
        job=$(squeue --noheader --user="$(id -u)" --states=PD,CF,R,S --format="%A %k" |
            while read -r number comment; do [ "$comment" != "$identity" ] || echo "$number"; done)
        [ -n "$job" ] || continue
        if [ -e "$lock" ] && ! flock --shared --nonblock 9 9< "$lock"; then
            [ -z "$detached" ] || : > "$detached"
            flock --shared 9 9< "$lock" || return
            tries=0
            continue
        fi
        scancel --quiet $job
    done
}
exec 3<&0
"$@" <&3 3<&- {said}>&- &
srun=$!
exec < /dev/null > /dev/null 2>&$said 3<&- {said}>&-
wait $srun
code=$?
if [ -s /dev/fd/2 ] && { [ -z "$detached" ] || [ ! -e "$detached" ]; }; then
    [ ! -e "$script" ] || : > "$script.released"
    look &
fi
exit $code
"""
#: How it exits where srun cannot be started (POSIX, Shell Command Language, 2.8.2); what the shell says begins with its name.
NOT_STARTED = (126, 127)


@dataclass(frozen=True, slots=True)
class KeptAllocation:
    """An allocation that a keeper knows."""

    #: Its comment.
    identity: str
    #: What runs in it; a note beside it says that it was given back by us.
    script: Path
    #: What the runner holds a lock on while it lives (flock(2)).
    lock: Path
    #: The note that its srun was ended on purpose; None where that is not done.
    detached: Path | None = None


def kept(allocation: KeptAllocation, words: Sequence[str], said: int) -> list[str]:
    """Return what runs srun, as `words`, with a keeper beside it, which exits like srun. `said` is an empty file that is open."""
    detached = "" if allocation.detached is None else str(allocation.detached)
    return [
        "/bin/bash",
        "-c",
        _KEEP,
        "carrel-keeper",
        allocation.identity,
        str(allocation.script),
        str(allocation.lock),
        detached,
        str(said),
        *words,
    ]


def srun_of(keeper: int) -> int:
    """Return the process id of the srun that a keeper has started; 0 where it is gone."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()[0])
    return 0
