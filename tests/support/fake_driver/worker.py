"""A program that uses the fake driver as frameworks do, driven line by line: worker.c says which lines."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from types import TracebackType
from typing import Literal

from carrel.core.transport.channel import Channel
from carrel.core.transport.framing import Ended, Lines
from carrel.testing.waiting import PATIENCE
from support.fake_driver.build import FakeDriver

#: Bytes of an answer at most.
_LONGEST = 1 << 20


class Worker:
    """The parent's side. An order that fails raises `RuntimeError` with the code and the name of the driver's call."""

    def __init__(self, words: list[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(words, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self._owed = 1  # it says a line when it has its context
        assert self._process.stdout is not None
        self._channel = Channel(Lines(_LONGEST), self._process.stdout)

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def order(self, line: str, seconds: float = PATIENCE) -> str:
        """Give an order and return the answer, without its "ok". Raises `TimeoutError`; then the answer comes later."""
        self.begin(line)
        return self.finish(seconds)

    def begin(self, line: str) -> None:
        """Give an order without waiting for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._owed += 1

    def finish(self, seconds: float = PATIENCE) -> str:
        """Return the answer to the last order; answers that are owed from earlier ones are passed over, but not their errors."""
        answer = ""
        while self._owed:
            answer = self._line(seconds)
            self._owed -= 1
            if not answer.startswith("ok"):
                raise RuntimeError(answer)
        return answer.removeprefix("ok").strip()

    def _line(self, seconds: float) -> str:
        try:
            line = self._channel.receive(seconds)
        except Ended as error:
            raise RuntimeError(f"Process {self.pid} ended with {self._process.wait()}.") from error
        if line is None:
            raise TimeoutError(f"Process {self.pid} has not answered.")
        return line.decode()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def start_worker(
    driver: FakeDriver, *, lookup: Literal["new", "old", "names"] = "new", environment: Mapping[str, str] | None = None
) -> Worker:
    """Start one on `driver`; it has a context when its first answer comes. `environment`: more variables (LD_PRELOAD, say).

    `lookup`: how it finds the driver's calls: as libcudart does ("new": cuGetProcAddress_v2, "old": cuGetProcAddress), or by
    names with versions ("names", as numba does).
    """
    return Worker([str(driver.libraries / "worker"), lookup], {**driver.environment(), **(environment or {})})
