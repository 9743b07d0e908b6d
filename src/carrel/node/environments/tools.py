"""Running uv and its like: interruptible, bounded in time, listened to."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, BinaryIO

from carrel.core.domain.errors import StorageFull
from carrel.core.spool.disk import full_at
from carrel.node.containment.program import REFUSED, Program, start_program
from carrel.node.environments.confinement import Confinement
from carrel.node.environments.errors import EnvironmentFailed
from carrel.node.environments.guards import WaitLimit
from carrel.node.environments.words import INDEX_REMEDY, Redactor, essence, is_progress, says_full, without_index

#: Seconds between two looks at the caller's wish to stop.
_POLL = 0.1
#: Seconds between SIGTERM and SIGKILL.
_GRACE = 2.0
#: Lines of output that are remembered for an error message.
_REMEMBERED = 2000
#: Seconds between two progress lines for the job's owner.
_REPORT_INTERVAL = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A tool that ended: its exit status (negative: the signal), standard output, and the cleaned lines of the other stream."""

    status: int
    output: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What every tool of one preparation shares: variables, patience, ears."""

    variables: Mapping[str, str]
    patience: WaitLimit
    redactor: Redactor
    report: Callable[[str], None]
    #: File that gets everything the tools say, or None.
    log: Path | None
    #: Where builds are kept apart: what the tools see.
    confinement: Confinement | None = None

    def run(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        doing: str,
        guard: int | None = None,
        extra: Mapping[str, str] | None = None,
        writable: Mapping[Path, Path] = MappingProxyType({}),
    ) -> str:
        """Run a tool and return its standard output.

        `doing` completes "… failed" in the error; `guard` is a descriptor that the tool inherits, so that a lock lives as long
        as the tool. Where builds are kept apart, `writable` says what it may change beyond its workroom, and as what it sees
        that; it then dies with this process. Raises `EnvironmentFailed` with the tool's words, `StorageFull`, or what
        `WaitLimit.check` raises; the tool's whole process group is gone then.
        """
        finished = self.attempt(arguments, cwd=cwd, guard=guard, extra=extra, writable=writable)
        if finished.status == 0:
            return finished.output
        words = essence(finished.lines) or essence(self.redactor.clean(finished.output).splitlines())
        if says_full("\n".join(finished.lines[-50:])):
            raise StorageFull(
                f"{doing} failed: {full_at(cwd)}\n{words}",
                remedy="Remove unused environments with `carrel env gc`, or free the disk, and submit again.",
            )
        how = f"signal {-finished.status}" if finished.status < 0 else f"exit code {finished.status}"
        message = f"{doing} failed ({Path(arguments[0]).name}, {how}):\n{words or '(it said nothing)'}"
        if without_index(" ".join(words.split())):
            raise EnvironmentFailed(f"{message}.", remedy=INDEX_REMEDY)
        raise EnvironmentFailed(message)

    def attempt(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        guard: int | None = None,
        extra: Mapping[str, str] | None = None,
        writable: Mapping[Path, Path] = MappingProxyType({}),
    ) -> Finished:
        """Run a tool and return how it ended, well or not."""
        self.patience.check()
        try:
            process, program = self._start(arguments, cwd, guard, {**self.variables, **(extra or {})}, writable)
        except OSError as error:
            raise EnvironmentFailed(f"{arguments[0]} cannot be started: {error.strerror}.") from error
        with process, contextlib.ExitStack() as stack:
            log = stack.enter_context(self.log.open("ab", buffering=0)) if self.log else None
            try:
                output, lines = self._listen(process, log)
            except BaseException:
                _end_group(process, program)
                raise
            if program is not None:
                program.end()
            if process.wait() == REFUSED and self.confinement is not None:
                self.confinement.empty()
            return Finished(status=process.wait(), output=output, lines=tuple(lines))

    def _start(
        self, arguments: Sequence[str], cwd: Path, guard: int | None, variables: Mapping[str, str], writable: Mapping[Path, Path]
    ) -> tuple[subprocess.Popen[bytes], Program | None]:
        if self.confinement is not None:
            walls = self.confinement.walls(writable=writable)
            program = start_program(walls, arguments, directory=str(cwd), variables=variables)
            return program.process, program
        process = subprocess.Popen(
            arguments,
            cwd=cwd,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=() if guard is None else (guard,),
            process_group=0,
        )
        return process, None

    def take(self, target: Path) -> None:
        """Have what the tools built as `target` there, where they work elsewhere."""
        if self.confinement is not None:
            self.confinement.take(target)

    def discard(self, target: Path) -> None:
        """Remove what a failed build of `target` has left elsewhere."""
        if self.confinement is not None:
            self.confinement.discard(target)

    def tidy(self) -> None:
        """Remove what a preparation has needed elsewhere."""
        if self.confinement is not None:
            self.confinement.tidy()

    def _listen(self, process: subprocess.Popen[bytes], log: BinaryIO | None) -> tuple[str, deque[str]]:
        output: list[bytes] = []
        lines: deque[str] = deque(maxlen=_REMEMBERED)
        reported = 0.0
        for stream, chunk in _chunks(process, self.patience):
            if stream is process.stdout:
                output.append(chunk)
                continue
            line = self.redactor.clean(chunk.decode(errors="replace"))
            lines.append(line)
            if log is not None:
                log.write(line.encode() + b"\n")
            if is_progress(line) and time.monotonic() - reported >= _REPORT_INTERVAL:
                reported = time.monotonic()
                self.report(line.strip())
        return b"".join(output).decode(errors="replace"), lines


def _chunks(process: subprocess.Popen[bytes], patience: WaitLimit) -> Iterator[tuple[IO[bytes], bytes]]:
    """Yield what the process says: raw pieces of its standard output, whole lines of its standard error.

    Ends when both are closed, or when the process is gone and silent: a left-over child may keep them open for ever.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(process.stderr, selectors.EVENT_READ)
        while selector.get_map():
            patience.check()
            # Asked before: what it has said until its end is there to be read then.
            gone = _exited(process)
            ready = selector.select(0 if gone else _POLL)
            if gone and not ready:
                break
            for key, _ in ready:
                stream = process.stdout if key.fileobj is process.stdout else process.stderr
                data = os.read(key.fd, 65536)
                if not data:
                    selector.unregister(stream)
                elif stream is process.stdout:
                    yield stream, data
                else:
                    *whole, pending = (pending + data).replace(b"\r", b"\n").split(b"\n")
                    for line in whole:
                        yield stream, line
    if pending:
        yield process.stderr, pending
    while not _exited(process):
        patience.check()
        time.sleep(0.01)


def _exited(process: subprocess.Popen[bytes]) -> bool:
    """True when the process has ended. It stays a zombie, so that its process group id cannot be somebody else's yet."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end_group(process: subprocess.Popen[bytes], program: Program | None) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    end = time.monotonic() + _GRACE
    while time.monotonic() < end and not _exited(process):
        time.sleep(0.02)
    if program is not None:
        program.end()
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
