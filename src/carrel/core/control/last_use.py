"""When tokens were used last, written down beside the requests and not in them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from carrel.core.domain.errors import CarrelError

#: Seconds for which a use that was written down stands for all that follow.
ENOUGH = 60.0

_log = logging.getLogger("carrel.tokens")


class LastUse:
    """Writes at most once a minute for each token, in a thread of its own that starts with the first use. Thread-safe."""

    def __init__(self, write: Callable[[Mapping[int, float]], None]) -> None:
        self._write = write
        self._written: dict[int, float] = {}
        self._pending: dict[int, float] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def note(self, token_id: int, now: float) -> None:
        """The token was used."""
        # Read without the lock, which only those take who have something to write: a late reader writes once more.
        if now - self._written.get(token_id, -ENOUGH) < ENOUGH:
            return
        with self._changed:
            if self._closing:
                return
            self._written[token_id] = self._pending[token_id] = now
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="last use of tokens", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Write what is left, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout=30)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closing)
                moments, self._pending = self._pending, {}
                if not moments:
                    return
            try:
                self._write(moments)
            except CarrelError as error:
                # It is for people to look at, and the next use comes: not worth a second try.
                _log.warning("When tokens were used last could not be written down: %s", error)
