"""Passes on what a call prints while it runs. What a short call prints comes with its end."""

from __future__ import annotations

import threading
import time

from carrel_worker.connection import Lab, Over
from carrel_worker.frames import encode

#: Seconds between two looks; most bytes that wait to be sent.
_PAUSE = 0.1
_MOST = 1024 * 1024


class Live:
    """A thread that sends in the background. Nothing waits for it."""

    def __init__(self, pool: str) -> None:
        self._path = "/pools/" + pool + "/output"
        self._guard = threading.Lock()
        #: Held while something is on its way, so that it arrives in its order.
        self._sending = threading.Lock()
        self._something = threading.Event()
        self._call: int | None = None
        self._waiting: list[bytes] = []
        self._size = 0
        threading.Thread(target=self._run, name="output", daemon=True).start()

    def start(self, call: int) -> None:
        """What is told from now on is of this call."""
        with self._guard:
            self._call, self._waiting, self._size = call, [], 0

    def finish(self) -> None:
        """The call has ended: its end has what was printed."""
        with self._guard:
            self._call, self._waiting, self._size = None, [], 0

    def flush(self) -> None:
        """Pass on what waits, and return when the lab has it: what was shown keeps its place between what was printed."""
        self._pass_on(Lab())

    def told(self, stream: str, offset: int, data: bytes) -> None:
        """A piece was printed."""
        with self._guard:
            if self._call is None or self._size > _MOST:
                return
            header = {"type": "output", "call": self._call, "stream": stream, "offset": offset}
            self._waiting.append(encode(header, data))
            self._size += len(data)
        self._something.set()

    def _run(self) -> None:
        lab = Lab()
        while True:
            self._something.wait()
            time.sleep(_PAUSE)
            self._something.clear()
            try:
                self._pass_on(lab)
            except Over:
                return

    def _pass_on(self, lab: Lab) -> None:
        with self._sending:
            with self._guard:
                data, self._waiting, self._size = b"".join(self._waiting), [], 0
            if data:
                lab.ask("POST", self._path, [data])
