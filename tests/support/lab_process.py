"""A real lab in a process of its own, for tests and benchmarks."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from carrel.client import Client
from carrel.core.domain.job import ACTIVE
from carrel.testing.waiting import PATIENCE
from support.fork_server import ForkedCarrel
from support.ports import kept_port

#: Labs of tests touch no memory ahead of need: many run at once. One client asks there as often as a crowd does elsewhere.
#: Their notebooks begin without packages, which would have to be fetched.
_QUIET = {"CARREL_HOST_MEMORY_READY": "0", "CARREL_RATE_LIMIT": "0", "CARREL_DEFAULT_ENVIRONMENT": "pip"}


@dataclass(slots=True)
class LabProcess:
    """`carrel up` as a child process. `kill` is SIGKILL: what a test of "nothing is lost" needs."""

    home: Path
    process: subprocess.Popen[bytes] | ForkedCarrel
    #: What it says: the other end of its standard output.
    output: IO[bytes]
    url: str
    #: Seconds from the start of the process until it listened and said so.
    seconds_to_ready: float
    variables: Mapping[str, str] = field(default_factory=dict)
    #: What it had said until then; the rest is in `output`.
    said: str = ""

    @property
    def token(self) -> str:
        """The administrator's token."""
        return (self.home / "token").read_text().strip()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self._wait()

    def stop(self) -> int:
        """SIGTERM, as a service manager would; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self._wait()

    def end_jobs(self) -> None:
        """End every job: they would outlive the lab, as they should, and a test should leave nothing behind."""
        with Client(home=self.home) as client:
            active = list(client.jobs("all", states=sorted(ACTIVE), limit=None))
            for job in active:
                client.cancel(job.id)
            for job in active:
                client.wait(job.id, timeout=PATIENCE)

    def _wait(self) -> int:
        code = self.process.wait(timeout=PATIENCE)
        self.output.close()
        return code


def start_lab(
    home: Path,
    *options: str,
    tracking: bool = False,
    simulate_gpus: int = 4,
    variables: Mapping[str, str] | None = None,
    python: Sequence[str] | None = None,
) -> LabProcess:
    """Start a lab in `home` on a free port and wait until it is ready. Raises `RuntimeError` with its output when it ends.

    `python` are the words of the interpreter, or of what runs it as somebody else. Without it, and after `fork_labs`, it is
    forked from a process that has imported it.
    """
    words: Sequence[str] = (
        *("up", "--home", str(home), "--port", str(_port(home))),
        *(("--simulate-gpus", str(simulate_gpus)) if simulate_gpus else ()),
        *(() if tracking else ("--no-tracking",)),
        *options,
    )
    address = home / "address.json"
    address.unlink(missing_ok=True)
    began = time.monotonic()
    reading, writing = os.pipe()
    environment = {**os.environ, **_QUIET, **_walls(home), **(variables or {})}
    process: subprocess.Popen[bytes] | ForkedCarrel
    if _forked and python is None:
        process = ForkedCarrel(words, writing, writing, environment)
    else:
        interpreter = (*(python or (sys.executable,)), "-m", "carrel.cli.main")
        process = subprocess.Popen((*interpreter, *words), stdout=writing, stderr=subprocess.STDOUT, env=environment)
    os.close(writing)
    said = _read_until_ready(process, reading, address, began + PATIENCE)
    # The pipe stays open unread: what a lab says after its start is a few lines, and the rest is in its log file.
    output = os.fdopen(reading, "rb", buffering=0)
    if not address.exists():
        process.kill()
        process.wait()
        output.close()
        raise RuntimeError(f"The lab in {home} did not start:\n{said}")
    seconds = time.monotonic() - began
    return LabProcess(home, process, output, str(json.loads(address.read_text())["url"]), seconds, variables or {}, said)


_forked = False


def fork_labs() -> None:
    """From now on, labs of this process are forked from one that has imported them: for tests, not for what is measured."""
    global _forked
    _forked = True


def _walls(home: Path) -> Mapping[str, str]:
    """Users of tests are trusted with the whole lab, unless its file says something of walls, as where walls are the subject."""
    file = home / "carrel.toml"
    return {} if file.exists() and "isolation" in file.read_text() else {"CARREL_ISOLATION": "none"}


#: Ports of labs, which come back to the one that they had: nobody else gets it while this process lives.
_kept = ExitStack()
_homes: set[Path] = set()
atexit.register(_kept.close)


def logs_since(moment: float, lines: int = 60) -> dict[str, str]:
    """The last lines of what labs of this process have written into their logs since `moment` (Unix seconds), by file."""
    found = {}
    for home in sorted(_homes):
        for file in sorted((home / "logs").glob("*.log")):
            with suppress(OSError):
                if file.stat().st_mtime >= moment:
                    text = file.read_text(errors="replace").splitlines(keepends=True)
                    found[str(file)] = "".join(text[-lines:])
    return found


def _port(home: Path) -> int:
    """A port of its own for a new lab; 0 for one that was started before, which looks for the one that it had."""
    if home in _homes:
        return 0
    _homes.add(home)
    return _kept.enter_context(kept_port())


def _read_until_ready(process: subprocess.Popen[bytes] | ForkedCarrel, descriptor: int, address: Path, deadline: float) -> str:
    """What the lab says until its address is written: it says something right after that, which wakes this up."""
    said = b""
    while time.monotonic() < deadline and not address.exists():
        if select.select([descriptor], [], [], 0.2)[0]:
            piece = os.read(descriptor, 65536)
            if not piece:
                break
            said += piece
        elif process.poll() is not None:
            break
    return said.decode(errors="replace")
