"""Passes on what a call prints while it runs. What a short call prints comes with its end.

A call that prints faster than the lab takes it waits, so that nothing is lost; but not for a lab that is away.
"""

from __future__ import annotations

import threading
import time

from carrel_worker.connection import Lab, Over
from carrel_worker.frames import encode

#: Seconds between two looks; most bytes that wait to be sent.
_PAUSE = 0.1
_MOST = 1024 * 1024
#: Bytes of one stream from which the next piece is one of its own.
_PIECE = 65536
#: Seconds in which the lab has to take a piece.
_PATIENCE = 30.0


class Live:
    """A thread that sends in the background. Nothing waits for it."""

    def __init__(self, pool: str) -> None:
        self.path = "/pools/" + pool + "/output"
        self.work = "/pools/" + pool + "/work?take=false"
        self._guard = threading.Lock()
        #: Held while something is on its way, so that it arrives in its order.
        self._sending = threading.Lock()
        self._something = threading.Event()
        self._call: int | None = None
        #: Stream, offset and content of each piece.
        self._waiting: list[tuple[str, int, bytearray]] = []
        self._size = 0
        #: The lab did not take something of this call.
        self._deaf = False

    def begin(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="output", daemon=True).start()

    def start(self, call: int) -> None:
        """What was told since the last call ended, and is told from now on, is of this call."""
        with self._guard:
            self._call, self._deaf = call, False
        if self._waiting:
            self._something.set()

    def finish(self) -> None:
        """The call has ended: its end has what was printed."""
        with self._guard:
            self._call, self._waiting, self._size = None, [], 0

    def flush(self) -> None:
        """Pass on what waits, and return when the lab has it: what was shown keeps its place between what was printed."""
        self._pass_on(Lab())

    def told(self, stream: str, offset: int, data: bytes) -> None:
        """A piece was printed."""
        if self._size > _MOST // 2 and not self._deaf:
            self.flush()
        with self._guard:
            if self._size > _MOST:
                return
            last = self._waiting[-1] if self._waiting else None
            if last is not None and stream != "display" and last[0] == stream and len(last[2]) < _PIECE:
                last[2].extend(data)
            else:
                self._waiting.append((stream, offset, bytearray(data)))
            self._size += len(data)
        if self._call is not None:
            self._something.set()

    def _run(self) -> None:
        lab = Lab()
        while True:
            self._something.wait()
            time.sleep(_PAUSE)
            self._something.clear()
            self._pass_on(lab)

    def _pass_on(self, lab: Lab) -> None:
        with self._sending:
            with self._guard:
                if self._call is None:
                    return
                header = {"type": "output", "call": self._call}
                pieces = [encode({**header, "stream": one[0], "offset": one[1]}, bytes(one[2])) for one in self._waiting]
                data, self._waiting, self._size = b"".join(pieces), [], 0
            if data:
                try:
                    lab.ask("POST", self.path, [data], patience=_PATIENCE)
                except Over:  # the end of the call has it
                    self._deaf = True
