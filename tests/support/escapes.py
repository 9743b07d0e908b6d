"""The table of attempts to get out: which kind is made in which place, how many at least, and why one is left out."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from carrel.node.containment import calls
from support.attacks import NOTHING
from support.inside import outside
from support.tricks import KINDS, MORE
from support.unix_users import run_as

#: The version of Landlock that keeps a job from abstract sockets outside (`entering`).
_SCOPES = 6
#: Attempts that each place must at least have made.
FEWEST = 60
#: Directories where everybody may write.
_SHARED = ("/tmp", "/var/tmp", "/dev/shm")
#: A process that has what the kernel lets others of its user take, and looks at its end whether somebody did.
_NEIGHBOUR = r"""
import ctypes, json, os, resource, socket, sys
libc, word = ctypes.CDLL(None, use_errno=True), os.environ["WORD"].encode()
segment = libc.shmget(0, 4096, 0o1600)
libc.shmat.restype = ctypes.c_void_p
shared = libc.shmat(segment, None, 0)
ctypes.memmove(shared, word, len(word))
queue, kept = f"/carrel-{os.getpid()}", ctypes.create_string_buffer(word)
libc.mq_open(queue.encode(), os.O_CREAT | os.O_RDWR, 0o600, None)
listener = socket.socket(socket.AF_UNIX)
listener.bind(f"\0carrel-neighbour-{os.getpid()}")
listener.listen()
def state():
    return [
        ctypes.string_at(shared, len(word)).decode(), kept.value.decode(), os.path.exists(f"/dev/mqueue{queue}") or None,
        os.getpriority(os.PRIO_PROCESS, 0), libc.syscall(252 if os.uname().machine == "x86_64" else 31, 1, 0),
        sorted(os.sched_getaffinity(0)), os.sched_getscheduler(0), open("/proc/self/oom_score_adj").read(),
        [resource.getrlimit(kind) for kind in range(16)], os.getpgid(0), os.uname().nodename,
    ]
before = state()
about = {"segment": segment, "queue": queue, "abstract": f"carrel-neighbour-{os.getpid()}", "address": ctypes.addressof(kept)}
print(json.dumps(about), flush=True)
input()
print(json.dumps([before, state()]))
libc.shmctl(segment, 0, None)
libc.mq_unlink(queue.encode())
"""


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
    #: What the neighbour has.
    has: Mapping[str, object]

    def about(self) -> dict[str, object]:
        """The part of it that the program of attacks gets."""
        return {
            **NOTHING,
            **MORE,
            **outside(),
            "victim": self.has,
            "scoped": calls.landlock_version() >= _SCOPES,
            "word": self.word,
            "scratch": list(self.scratch),
            "processes": [self.neighbour, os.getpid()],
        }

    def check(self) -> None:
        """All of it is as it was."""
        assert all(sorted(path.name for path in Path(place).iterdir()) == ["kept"] for place in self.scratch)
        assert self.word.encode() in Path(f"/proc/{self.neighbour}/environ").read_bytes()


@contextmanager
def victims(user: str = "") -> Iterator[Victims]:
    """Have a neighbour and its scratch directories, of another Unix user if one is named."""
    word = f"word-{os.getpid()}-{secrets.token_hex(8)}"
    with ExitStack() as stack:
        places = [stack.enter_context(tempfile.TemporaryDirectory(prefix="scratch-", dir=at)) for at in _SHARED]
        for place in places:
            Path(place, "kept").touch()
        if user:
            for place in places:
                shutil.chown(place, user)
        # Another user may not enter the directory of a developer's Python.
        command = [*run_as(user), "/usr/bin/python3"] if user else [sys.executable]
        environment = {**os.environ, "WORD": word}
        process = subprocess.Popen(
            [*command, "-I", "-c", _NEIGHBOUR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd="/"
        )
        try:
            assert process.stdout is not None
            found = Victims(process.pid, word, tuple(places), json.loads(process.stdout.readline()))
            yield found
            found.check()
        except BaseException:
            process.kill()
            process.communicate()
            raise
        said, _ = process.communicate(b"\n")
        before, after = json.loads(said)
        assert before == after


def limits_processes() -> bool:
    """Whether this kernel limits the processes of a job of the user who runs the tests (docs/isolation.md)."""
    major, minor = os.uname().release.split(".")[:2]
    return os.geteuid() != 0 or (int(major), int(minor)) >= (6, 14)
