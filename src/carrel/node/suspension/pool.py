"""Helper processes, each for one request at a time; as many as are asked at once."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from carrel.node.suspension.lines import Conversation, Ended, Silent

_CUDA = {"state", "lock", "checkpoint", "restore", "unlock"}


class _Helper:
    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self.conversation = Conversation(words, environment)
        #: It has said hello; it has attached to the driver.
        self.ready = False
        self.initialised = False


class HelperPool:
    """Starts helpers when they are needed, keeps a few, and replaces those that do not answer."""

    def __init__(
        self, *, environment: Mapping[str, str], start_seconds: float, keep: int = 4, python: str = sys.executable
    ) -> None:
        """`start_seconds`: how long attaching to the driver may take. `keep`: idle helpers that stay for the next request."""
        # A helper looks at processes on all devices, also on those that our own process may not use.
        self._environment = {name: value for name, value in environment.items() if name != "CUDA_VISIBLE_DEVICES"}
        self._words = (python, "-P", "-m", "carrel.node.suspension.helper")
        self._start_seconds = start_seconds
        self._keep = keep
        self._guard = threading.Lock()
        self._idle: list[_Helper] = []
        self._closed = False
        #: How many helpers have been ended because they did not answer.
        self.replaced = 0

    def ask(self, op: str, seconds: float, **values: Any) -> dict[str, Any]:
        """Let a helper do `op`. Raises `Silent` or `Ended` when it does not answer within `seconds`; it has been ended then."""
        helper = self._take(cuda=op in _CUDA)
        try:
            if not helper.ready:
                helper.conversation.ask({"op": "hello", "seconds": self._start_seconds}, self._start_seconds)
                helper.ready = True
            if op in _CUDA and not helper.initialised:
                begun = helper.conversation.ask({"op": "init", "seconds": self._start_seconds}, self._start_seconds)
                if begun.get("code") != 0:
                    self._give(helper)
                    return {"unavailable": begun.get("unavailable") or f"cuInit: {begun['name']}"}
                helper.initialised = True
            answer = helper.conversation.ask({"op": op, "seconds": seconds, **values}, seconds)
            helper.initialised |= op == "init" and answer.get("code") == 0
        except BaseException as error:
            helper.conversation.kill()  # what it would still say is nobody's
            with self._guard:
                self.replaced += isinstance(error, (Silent, Ended))
            raise
        self._give(helper)
        return answer

    def warm(self) -> None:
        """Have a helper that has attached to the driver, so that the first operation need not wait for that."""
        with contextlib.suppress(Silent, Ended):  # an operation will find out, and say so
            self.ask("init", self._start_seconds)

    def close(self) -> None:
        """End the idle helpers, and the others when they have answered."""
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for helper in idle:
            helper.conversation.close()

    def _take(self, *, cuda: bool) -> _Helper:
        """An idle helper, one that has CUDA already if there is; for other requests rather one that has not."""
        with self._guard:
            ended = [helper for helper in self._idle if helper.conversation.ended()]
            for helper in ended:
                helper.conversation.close()
                self._idle.remove(helper)
            if self._idle:
                best = max(self._idle, key=lambda helper: helper.initialised == cuda)
                self._idle.remove(best)
                return best
        return _Helper(self._words, self._environment)

    def _give(self, helper: _Helper) -> None:
        with self._guard:
            if not self._closed and len(self._idle) < self._keep:
                self._idle.append(helper)
                return
        helper.conversation.close()
