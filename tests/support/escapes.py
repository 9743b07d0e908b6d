"""The table of attempts to get out: which kind is made in which place, how many at least, and why one is left out."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from carrel.testing.waiting import wait_until
from support.attacks import KINDS, NOTHING
from support.inside import outside

#: Attempts that each place must at least have made.
FEWEST = 60
#: Directories where everybody may write.
_SHARED = ("/tmp", "/var/tmp", "/dev/shm")


@dataclass(frozen=True, slots=True)
class Escapes:
    """What `read_table` read."""

    #: Place -> kind -> how many attempts at least; None: left out.
    places: Mapping[str, Mapping[str, int | None]]
    #: (place, kind) -> why it is left out.
    reasons: Mapping[tuple[str, str], str]

    def judge(self, place: str, said: str, allowed: Collection[str] = ()) -> int:
        """Check the answer of the program of attacks: nothing got through, and nothing was left out that the table does not name.

        `allowed` may come through by its whole name: what is there, and empty. Returns how many attempts there were.
        """
        lines = said.strip().splitlines()
        assert len(lines) >= 2, f"{place}: {said}"
        tried, through = json.loads(lines[-2]), json.loads(lines[-1])
        got = {name: what for name, what in through.items() if name not in allowed}
        assert not got, f"{place}: {got}"
        assert set(tried) <= set(KINDS), place
        for kind, fewest in self.places[place].items():
            made = len(tried.get(kind, ()))
            if kind == "fork bomb" and not limits_processes():
                continue
            if fewest is None:
                assert made == 0, f"{place}: {kind} is attempted, and the table says that it is left out"
            else:
                assert made >= fewest, f"{place}: {kind} is attempted {made} times, and {fewest} times in the table"
        total = sum(map(len, tried.values()))
        assert total >= FEWEST, f"{place}: {total} attempts"
        return total


def read_table(file: Path) -> Escapes:
    """Read a table: a line of places, a line for each kind with a number or a letter, and what each letter means."""
    lines = [line for line in file.read_text().splitlines() if line.strip() and not line.startswith("#")]
    head, *rows = [line for line in lines if "|" in line]
    notes = {line[0]: line[2:].strip() for line in lines if "|" not in line}
    names = [word.strip() for word in head.split("|")[1:]]
    places: dict[str, dict[str, int | None]] = {name: {} for name in names}
    reasons = {}
    for row in rows:
        kind, *cells = (word.strip() for word in row.split("|"))
        for name, cell in zip(names, cells, strict=True):
            places[name][kind] = int(cell) if cell.isdigit() else None
            if not cell.isdigit():
                reasons[name, kind] = notes[cell]
    return Escapes(places, reasons)


@dataclass(frozen=True, slots=True)
class Victims:
    """What belongs to somebody else on this machine, outside of all walls."""

    #: A process of the same Unix user with a word in its environment, and the word.
    neighbour: int
    word: str
    #: Directories of mode 0700 where everybody may write.
    scratch: tuple[str, ...]

    def about(self) -> dict[str, object]:
        """The part of it that the program of attacks gets."""
        return {
            **NOTHING,
            **outside(),
            "word": self.word,
            "scratch": list(self.scratch),
            "processes": [self.neighbour, os.getpid()],
        }

    def check(self) -> None:
        """All of it is as it was."""
        assert all(sorted(path.name for path in Path(place).iterdir()) == ["kept"] for place in self.scratch)
        assert self.word.encode() in Path(f"/proc/{self.neighbour}/environ").read_bytes()


@contextmanager
def victims() -> Iterator[Victims]:
    """Have a neighbour and its scratch directories."""
    word = f"word-{os.getpid()}-{secrets.token_hex(8)}"
    with ExitStack() as stack:
        places = [stack.enter_context(tempfile.TemporaryDirectory(prefix="scratch-", dir=at)) for at in _SHARED]
        for place in places:
            Path(place, "kept").touch()
        command = [sys.executable, "-I", "-c", "input()"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "WORD": word})
        try:
            found = Victims(process.pid, word, tuple(places))
            wait_until(lambda: word.encode() in Path(f"/proc/{process.pid}/environ").read_bytes())
            yield found
            found.check()
        finally:
            process.communicate(b"\n")


def limits_processes() -> bool:
    """Whether this kernel limits the processes of a job of the user who runs the tests (docs/isolation.md)."""
    major, minor = os.uname().release.split(".")[:2]
    return os.geteuid() != 0 or (int(major), int(minor)) >= (6, 14)
