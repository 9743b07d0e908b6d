"""A function that is called: its name for people, and what travels, made once however often it is called."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from carrel.client.executor import pickling
from carrel.client.executor.digest import digest as content_of


class Function:
    """One function, for one call or for many."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.label = _label(fn)
        #: Of what is pickled; of `pickled` before.
        self.digest = ""
        self._fn = fn
        self._parts: list[Any] = []
        self._content = b""

    def pickled(self) -> list[Any]:
        """The parts that travel. Raises what the function raises when it is pickled."""
        if not self._parts:
            self._parts = pickling.dump(self._fn)
            self.digest = digest_of(self._parts)
        return self._parts

    def content(self) -> bytes:
        """Digest of what it does, the same in every process."""
        self._content = self._content or content_of(self._fn)
        return self._content


def digest_of(parts: Sequence[Any]) -> str:
    """Digest of the parts of a pickle."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return "sha256:" + found.hexdigest()


def _label(fn: Callable[..., Any]) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", type(fn).__name__)
    return name if module in (None, "__main__") else f"{module}.{name}"
