"""Starting and driving a process with CUDA state of known value."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from carrel.core.domain.errors import Unavailable
from carrel.node.suspension.identity import start_of
from carrel.node.suspension.lines import Conversation, Ended, Silent
from carrel.node.suspension.ports import Target

#: Seconds until such a process has CUDA: attaching to the driver takes seconds on large machines.
START_SECONDS = 90.0


class Specimen:
    """The parent's side. Orders that use CUDA raise `TimeoutError` while the process is locked or suspended."""

    def __init__(self, *, size: int, device: str | None, managed: int, environment: Mapping[str, str], python: str) -> None:
        words = [python, "-P", "-m", "carrel.node.suspension.specimen_main", "--size", str(size), "--managed", str(managed)]
        self._conversation = Conversation([*words, *(("--device", device) if device else ())], environment)
        self._owed = 0
        self.target = Target(pid=self._conversation.pid, start=start_of(self._conversation.pid) or 0)

    def order(self, do: str, seconds: float = 30.0, **values: Any) -> dict[str, Any]:
        """Give an order and return the answer. Raises `TimeoutError` (its answer comes later) and `RuntimeError`."""
        self.begin(do, **values)
        return self.finish(seconds)

    def begin(self, do: str, **values: Any) -> None:
        """Give an order without waiting for the answer."""
        try:
            self._conversation.send({"do": do, **values})
        except Ended as error:
            raise RuntimeError(str(error)) from error
        self._owed += 1

    def finish(self, seconds: float = 30.0) -> dict[str, Any]:
        """Return the answer to the last order; answers that are owed from earlier ones are passed over."""
        answer: dict[str, Any] = {}
        while self._owed:
            try:
                answer = self._conversation.receive(seconds)
            except Silent as error:
                raise TimeoutError(str(error)) from error
            except Ended as error:
                raise RuntimeError(str(error)) from error
            self._owed -= 1
        if "error" in answer:
            raise RuntimeError(str(answer["error"]))
        return answer

    def ready(self, seconds: float) -> None:
        """Wait until it has its state. Raises `Unavailable` when it cannot get it."""
        try:
            answer = self._conversation.receive(seconds)
        except (Silent, Ended) as error:
            raise Unavailable(f"A process with CUDA state could not be started: {error}.") from error
        if "error" in answer:
            raise Unavailable(f"A process with CUDA state could not be started: {answer['error']}.")

    def alive(self) -> bool:
        """Return True while the process is there."""
        return not self._conversation.ended()

    def kill(self) -> None:
        """SIGKILL."""
        self._conversation.kill()

    def close(self) -> None:
        """Let it end by itself, or kill it when it cannot (it is suspended, say)."""
        self._conversation.close(seconds=5.0)


def start(
    *,
    size: int,
    environment: Mapping[str, str],
    device: str | None = None,
    managed: int = 0,
    python: str = sys.executable,
    seconds: float = START_SECONDS,
) -> Specimen:
    """Start a process with `size` bytes of a pattern on `device` (default: its first) and `managed` bytes of managed memory.

    `environment` is all that it gets. Raises `Unavailable` with the driver's words.
    """
    specimen = Specimen(size=size, device=device, managed=managed, environment=environment, python=python)
    try:
        specimen.ready(seconds)
    except Unavailable:
        specimen.kill()
        raise
    return specimen
