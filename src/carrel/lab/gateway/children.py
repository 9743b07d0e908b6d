"""Programs of the lab's own that answer a question in a process of their own, with a time limit."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from typing import Any

from carrel.core.domain.errors import Unavailable


class Child:
    """Runs one module at a time, on the loop of its callers. It can take neither the lab's time nor its memory."""

    def __init__(
        self,
        what: str,
        module: str,
        *arguments: str,
        time_limit: float,
        ends: frozenset[int] = frozenset({0}),
        remedy: str = "Try again.",
    ) -> None:
        """`what` it is, for errors; `ends`: its exit codes when it has answered."""
        self._what = what
        self._command = (sys.executable, "-P", "-m", module, *arguments)
        self._time_limit = time_limit
        self._ends = ends
        self._remedy = remedy
        self._busy = False

    async def ask(self, question: bytes = b"") -> Any:
        """Return what it prints, which is JSON. Raises `Unavailable` if that takes too long, or another one runs."""
        if self._busy:
            raise Unavailable(f"Another {self._what} is under way.", remedy="Try again in a minute.")
        self._busy = True
        try:
            return await self._ask(question)
        finally:
            self._busy = False

    async def _ask(self, question: bytes) -> Any:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe, stderr=pipe)
        try:
            told, failed = await asyncio.wait_for(process.communicate(question), self._time_limit)
        except TimeoutError:
            raise Unavailable(f"The {self._what} took longer than {self._time_limit:g} s.", remedy=self._remedy) from None
        finally:  # also when the caller has gone
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if process.returncode not in self._ends:
            last = failed.decode(errors="replace").strip().rpartition("\n")[2][:200]
            raise Unavailable(f"The {self._what} failed ({last or process.returncode}).", remedy=self._remedy)
        return json.loads(told)
