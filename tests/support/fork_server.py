"""`carrel` from a process that has imported it already: reading the code is most of what a command or the start of a lab costs.

A suite runs hundreds of labs and commands. Their processes are as separate as others: they end by signals, have exit codes and
write where their caller says; only their words in /proc are those of the server that forked them.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.context import ForkServerContext
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from carrel.cli.main import COMMANDS

#: What a command or a lab imports on its way: it would be for each anew.
_PRELOADED = (
    *(f"carrel.cli.{module}" for module in dict.fromkeys(COMMANDS.values())),
    "carrel.lab.server.up",
    "sqlalchemy.dialects.sqlite",
    "uvicorn.protocols.http.h11_impl",
)
#: Read when an interpreter starts, so that a fork comes too late for them.
_FOR_THE_INTERPRETER = ("LC_ALL", "LC_CTYPE", "LANG", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONPATH", "PYTHONHASHSEED", "TZ")


class ForkedCarrel:
    """One `carrel` as a child process, with the part of `subprocess.Popen` that tests use."""

    def __init__(
        self, words: Sequence[str], stdout: int, stderr: int, variables: Mapping[str, str], directory: Path | None = None
    ) -> None:
        """`carrel` with these words, descriptors, variables and working directory (ours if None); it has nothing to read."""
        context = _context()
        arguments = (DupFd(stdout), DupFd(stderr), list(words), dict(variables), str(directory or Path.cwd()), _search_path())
        # A daemon for multiprocessing: nobody waits for it when the tests end.
        self._process = context.Process(target=_run, args=arguments, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or minus the signal; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """As `returncode`, asked now."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises `subprocess.TimeoutExpired`."""
        self._process.join(timeout)
        if (ended := self.returncode) is None:
            raise subprocess.TimeoutExpired(["carrel"], timeout or 0.0)
        return ended

    def send_signal(self, number: int) -> None:
        """A signal, unless it has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # the fork server has reaped it, and has not said so yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run_carrel(
    words: Sequence[str], *, variables: Mapping[str, str], directory: Path | None = None, timeout: float
) -> subprocess.CompletedProcess[bytes]:
    """Run one command to its end. Raises `subprocess.TimeoutExpired`, after its SIGKILL."""
    if any(variables.get(name) != os.environ.get(name) for name in _FOR_THE_INTERPRETER):
        command = [sys.executable, "-m", "carrel.cli.main", *words]
        return subprocess.run(command, capture_output=True, env=variables, timeout=timeout, cwd=directory, check=False)
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = ForkedCarrel(words, stdout.fileno(), stderr.fileno(), variables, directory)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(["carrel", *words], code, stdout.read(), stderr.read())


_made: ForkServerContext | None = None


def _context() -> ForkServerContext:
    global _made
    if _made is None:
        _made = multiprocessing.get_context("forkserver")
        _made.set_forkserver_preload(list(_PRELOADED))
    return _made


@cache
def _search_path() -> list[str]:
    """`sys.path` of a process that is no test: pytest has put directories of tests on ours."""
    code = "import json, sys; print(json.dumps(sys.path[1:]))"
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", code], env=bare, capture_output=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


def _run(stdout: Any, stderr: Any, words: list[str], variables: dict[str, str], directory: str, search: list[str]) -> None:
    for received, place in ((stdout, 1), (stderr, 2)):
        descriptor = received.detach()
        os.dup2(descriptor, place)
        os.close(descriptor)
    # What multiprocessing has given us came without close-on-exec. A broker outlives its lab, and must not keep the server there.
    for one in Path("/proc/self/fd").iterdir():
        if int(one.name) > 2:
            with contextlib.suppress(OSError):
                os.set_inheritable(int(one.name), False)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(directory)
    sys.argv, sys.path[:] = ["carrel", *words], [directory, *search]
    from carrel.cli.main import main

    code = main(words)
    sys.stdout.flush()
    sys.exit(code)
