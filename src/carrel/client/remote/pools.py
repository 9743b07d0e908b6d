"""The warm pools of this process: one for each set of resources, made when it is first needed."""

from __future__ import annotations

import atexit
import sys
from pathlib import Path
from typing import Any

from carrel.client.executor import Executor
from carrel.client.executor.environment import own_modules


class WarmPools:
    """Executors by what they were asked for."""

    def __init__(self) -> None:
        self._open: dict[str, Executor] = {}
        #: Names of all modules when it was looked last which are the caller's own, and those: looking takes a while.
        self._looked: tuple[str, ...] = ()
        self._own: dict[str, Path] = {}

    def get(self, options: dict[str, Any]) -> Executor:
        """The pool for these options of `carrel.Executor`, with the caller's own modules and packages as they are now.

        When one of them was imported, installed or changed since, the pool before takes no more calls, and a new one is made.
        """
        wanted = {"name": "notebook", **options}
        base = repr(sorted(wanted.items(), key=lambda item: item[0]))
        key = base + ("" if wanted.get("modules") is not None else self._modules())
        key += repr(_installed()) if wanted.get("requirements") is None and wanted.get("image") is None else ""
        executor = self._open.get(key)
        if executor is None:
            for other in [name for name in self._open if name.startswith(base)]:
                self._open.pop(other).shutdown(wait=False)
            if not self._open:
                atexit.register(self.close)
            executor = self._open[key] = Executor(**wanted)
        return executor

    def _modules(self) -> str:
        loaded = tuple(sys.modules)
        if loaded != self._looked:
            self._looked, self._own = loaded, own_modules()
        return repr([(name, str(path), _changed(path)) for name, path in sorted(self._own.items())])

    def drop(self, executor: Executor) -> None:
        """The lab has closed it."""
        self._open = {key: one for key, one in self._open.items() if one is not executor}

    def list(self) -> list[Executor]:
        """Those that are open."""
        return list(self._open.values())

    def close(self) -> int:
        """Close all; return how many there were. Calls that wait do not begin."""
        found, self._open = self._open, {}
        for executor in found.values():
            executor.shutdown(wait=False, cancel_futures=True)
        atexit.unregister(self.close)
        return len(found)


def _installed() -> list[str]:
    """What is installed here, with versions, as pip names its directories."""
    places = [Path(entry) for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    return sorted(found.name for place in places for found in place.glob("*-info"))


def _changed(path: Path) -> float:
    files = [path] if path.is_file() else [*path.rglob("*.py")]
    return max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)


#: Those of this process.
POOLS = WarmPools()
