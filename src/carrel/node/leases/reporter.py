"""`python -m carrel.node.leases.reporter`: writes what a node's broker says into a file of the lab's home. Standard library only.

A process of its own, with the rights of the home's owner: a file system that hangs holds up no cell, and root writes nothing
where others may have put links. The first line of its input has, as JSON, what it needs (`ReporterSettings`); at the input's end
it ends. After a line "end" it says first that the broker has ended.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from carrel.core.domain.errors import in_words
from carrel.node.leases.client import Broker
from carrel.node.leases.protocol import OBSERVER, Message
from carrel.node.leases.report import HEARTBEAT, Report, read_report, report_bytes

#: Seconds between two reports at least.
PAUSE = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReporterSettings:
    """What to watch and where to write."""

    #: The broker's socket, and the token of an observer who sees all.
    socket: str
    token: str
    #: Directory of the reports, made when it is missing, and the key for them (hexadecimal).
    directory: str
    key: str
    node: str

    def line(self) -> bytes:
        """The first line of the input."""
        return json.dumps(asdict(self)).encode() + b"\n"


class Reporter:
    """Writes reports from the thread that calls `run`."""

    def __init__(self, settings: ReporterSettings) -> None:
        self._settings = settings
        self._key = bytes.fromhex(settings.key)
        self._directory = Path(settings.directory)
        #: What the broker said last, and whether it is there.
        self._status: Message | None = None
        self._there = False
        self._news = threading.Event()
        self._over = threading.Event()
        self._ended = False
        self._number = 0
        self._trouble = ""

    def heard(self, status: Message | None) -> None:
        """The broker said this, or is gone."""
        self._there = status is not None
        self._status = self._status if status is None else status
        self._news.set()

    def stop(self, *, ended: bool) -> None:
        """Write no more but, when the broker has `ended`, that it has."""
        self._ended = ended
        self._over.set()
        self._news.set()

    def run(self) -> None:
        """Write until `stop`: what is new at once, at most each second, and every few seconds that nothing is new."""
        while not self._over.is_set():
            self._news.wait(HEARTBEAT)
            self._news.clear()
            if not self._over.is_set() and self._there:
                self._write()
                self._over.wait(PAUSE)
        if self._ended:
            self._write()

    def _write(self) -> None:
        if self._status is None:
            return
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            status = {name: value for name, value in self._status.items() if name not in ("op", "broker", "history")}
            report = Report(
                node=self._settings.node,
                broker=str(self._status["broker"]),
                number=self._next(self._directory / f"{self._status['broker']}.json"),
                at=time.time(),
                ended=self._ended,
                status=status,
            )
            _replace(self._directory / report.file, report_bytes(report, self._key))
        except OSError as error:
            trouble = f"The lab does not hear of this node: {in_words(error)}. It is tried again."
            if trouble != self._trouble:
                print(trouble, file=sys.stderr, flush=True)
            self._trouble = trouble
            self._news.set()
        else:
            self._trouble = ""

    def _next(self, file: Path) -> int:
        """A number beyond those of all earlier reports, of any writer."""
        if not self._number:
            try:
                self._number = read_report(file.read_bytes(), self._key).number
            except (OSError, ValueError):
                self._number = 0
        self._number = max(self._number + 1, int(time.time() * 1000))
        return self._number


def _replace(file: Path, data: bytes) -> None:
    """Write `file`, all at once, so that it survives the node."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def main() -> int:
    """Report until the input ends. Returns the exit code."""
    settings = ReporterSettings(**json.loads(sys.stdin.buffer.readline()))
    reporter = Reporter(settings)
    watch = Broker(settings.socket, settings.token, OBSERVER).watch(reporter.heard)

    def wait() -> None:
        reporter.stop(ended=sys.stdin.buffer.readline().strip() == b"end")

    threading.Thread(target=wait, name="input", daemon=True).start()
    reporter.run()
    watch.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
