"""Trouble with Slurm, on request: programs that go before the real ones on PATH, and are slow, down, silent or wrong."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

PROGRAMS = ("sbatch", "srun", "squeue", "sacct", "scontrol", "scancel")

#: What can be wrong with a program.
FAULTS: dict[str, str] = {
    "slow": "it never answers",
    "down": "it says that the controller cannot be reached",
    "busy": "it says that the controller did not answer in time",
    "fails": "it fails without a word",
    "silent": "it ends well, does nothing and says nothing",
    "garbage": "it ends well and says something that nobody can read",
    "late": "it does what it is asked to do, and never answers",
    "swallowed": "it does what it is asked to do, and says nothing",
    "loses": "it leaves out lines that hold a given text",
    "orphaned": "it does what it is asked to do, and the program that asked was killed before",
    "dies": "it is killed with the program that asked, once Slurm has a job of a given text in its comment",
    "dies with its keeper": "as above, and its keeper, too",
}

_SCRIPT = """\
#!/bin/sh
real={real}
here={here}
echo "$*" >> "$here.calls"
asker=$PPID keeper=
if grep --quiet --text carrel-keeper "/proc/$PPID/cmdline"; then
    keeper=$PPID
    asker=$(cut --delimiter=" " --fields=4 "/proc/$keeper/stat")
fi
case "$(cat "$here.fault" 2>/dev/null)" in
slow) exec sleep 86400 ;;
down) echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2; exit 1 ;;
busy) echo "slurm_load_jobs error: Socket timed out on send/recv operation" >&2; exit 1 ;;
fails) exit 1 ;;
silent) exit 0 ;;
garbage) printf '\\377\\376 {{"jobs": [ oops\\n'; exit 0 ;;
late) "$real" "$@" >/dev/null; exec sleep 86400 ;;
swallowed) exec "$real" "$@" >/dev/null 2>&1 ;;
loses) "$real" "$@" | grep --text --invert-match --fixed-strings --file="$here.text" ;;
orphaned) kill -KILL "$asker"; exec "$real" "$@" ;;
dies*)
    "$real" "$@" &
    until squeue -h -o "%k" | grep --quiet --fixed-strings --file="$here.text"; do sleep 0.01; done
    [ "$(cat "$here.fault")" = dies ] || kill -KILL "$keeper"
    kill -KILL $! "$asker" $$
    ;;
*) exec "$real" "$@" ;;
esac
"""


class SlurmFaults:
    """A directory of programs that pass everything on to the real ones until a test asks for a fault."""

    def __init__(self, directory: Path, environ: Mapping[str, str]) -> None:
        """Put the programs into `directory`; `environ` has the PATH on which the real ones are."""
        self._directory = directory
        self._environ = dict(environ)
        directory.mkdir(parents=True, exist_ok=True)
        for program in PROGRAMS:
            real = shutil.which(program, path=environ["PATH"])
            path = directory / program
            path.write_text(_SCRIPT.format(real=real, here=path))
            path.chmod(0o755)

    @property
    def environ(self) -> dict[str, str]:
        """Variables with which these programs are found first."""
        return {**self._environ, "PATH": f"{self._directory}:{self._environ['PATH']}"}

    def set(self, fault: str, *programs: str, text: str = "") -> None:
        """From now on, `programs` (all when none is named) have a fault of `FAULTS`; `text` is what "loses" loses."""
        if fault not in FAULTS:
            raise ValueError(f"There is no fault {fault!r}; there are {', '.join(FAULTS)}.")
        for program in programs or PROGRAMS:
            (self._directory / f"{program}.text").write_text(f"{text}\n")
            (self._directory / f"{program}.fault").write_text(fault)

    def clear(self) -> None:
        """From now on everything works."""
        for program in PROGRAMS:
            (self._directory / f"{program}.fault").unlink(missing_ok=True)

    def calls(self, program: str) -> list[str]:
        """With which arguments a program was called so far."""
        path = self._directory / f"{program}.calls"
        return path.read_text().splitlines() if path.exists() else []
