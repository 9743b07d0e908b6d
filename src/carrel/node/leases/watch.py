"""What the node's broker says by itself, for one who watches it: each new status, and leases that are over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from carrel.core.domain import errors
from carrel.node.leases.link import ANSWER, FIRST_PAUSE, LONGEST_PAUSE, LOOK, Link, Lost
from carrel.node.leases.protocol import Message


class Watch:
    """Calls back with each status, from a thread of its own."""

    def __init__(
        self,
        path: str,
        hello: dict[str, Any],
        callback: Callable[[Message | None], None],
        past: Callable[[str, Sequence[Message]], bool] | None = None,
        drained: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        """`drained` is asked often for what the lab has drained, which each broker is told."""
        self._path = path
        self._hello = hello
        self._callback = callback
        self._past = past
        self._drained = drained
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="broker watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """No more calls after this returns (unless it is called by the callback itself)."""
        self._closing.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=ANSWER)

    def _run(self) -> None:
        pause = FIRST_PAUSE
        there = True
        while not self._closing.is_set():
            try:
                link = Link(self._path, self._hello)
            except (Lost, errors.CarrelError):
                if there:
                    self._callback(None)
                there = False
                self._closing.wait(pause)
                pause = min(LONGEST_PAUSE, 2 * pause)
                continue
            there, pause = True, FIRST_PAUSE
            with suppress(Lost):
                link.send("watch", **({} if self._past is None else {"past": True}))
                told: Mapping[str, str] | None = None
                while not self._closing.is_set():
                    if self._drained is not None and (drained := self._drained()) != told:
                        link.send("drained", devices=dict(drained))
                        told = drained
                    message = link.receive(LOOK)
                    if message is not None and message["op"] == "status":
                        self._callback(message)
                    elif message is not None and message["op"] == "past" and self._past is not None:
                        leases = message["leases"]
                        taken = self._past(str(link.welcome["broker"]), leases)
                        link.send("took", until=int(leases[-1]["n"]) if taken else 0)
            link.close()
