"""What the node's broker says, for the pages of one session: an observer's connection that is there while somebody looks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from carrel.core.domain.errors import in_words
from carrel.node.leases.protocol import LONGEST, OBSERVER, VERSION, Message, decode, encode

#: Seconds between attempts to connect.
_PAUSE = 2.0
#: Seconds that a broker has to answer.
_ANSWER = 5.0

Listener = Callable[[Mapping[str, Any]], None]


class Lending:
    """The broker, seen by one session. Belongs to one event loop."""

    def __init__(
        self, path: str | None, token: str, *, attempt: Path | None = None, why: str = "This lab lends no GPUs."
    ) -> None:
        """`path` is the broker's socket, or None where devices are not lent; then `why` says so.

        `attempt` is the directory of the session's attempt, on a node of a cluster.
        """
        self._path = path
        self._hello: Message = {"v": VERSION, "role": OBSERVER, "token": token}
        if attempt is not None:
            self._hello["attempt"] = str(attempt)
        self._listeners: set[Listener] = set()
        self._task: asyncio.Task[None] | None = None
        self._connected = False
        self._why = "" if path else why
        self._welcome: Message = {}
        self._status: Message = {}
        self._news = asyncio.Event()

    def state(self) -> Mapping[str, Any]:
        """What is known now; ``broker`` is "absent", "unreachable" or "connected"."""
        broker = "absent" if self._path is None else "connected" if self._connected else "unreachable"
        welcome = self._welcome
        return {
            "type": "state",
            "broker": broker,
            "why": self._why,
            "tier": welcome.get("tier", ""),
            "simulated": bool(self._status.get("simulated", welcome.get("tier") == "simulated")),
            "status": self._status if self._connected else {},
        }

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with each state and notice from now on, until the result is called."""
        self._listeners.add(listener)
        self._keep_going()

        def end() -> None:
            self._listeners.discard(listener)
            if not self._listeners and self._task is not None:
                self._task.cancel()
                self._task = None
                self._connected = False

        return end

    async def look(self) -> Mapping[str, Any]:
        """The state, after the broker had a moment to answer."""
        end = self.listen(lambda _news: None)
        try:
            if self._path and not self._connected:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), _ANSWER)
            return self.state()
        finally:
            end()

    def _keep_going(self) -> None:
        if self._task is None and self._path is not None:
            self._task = asyncio.get_running_loop().create_task(self._run(self._path))

    async def _run(self, path: str) -> None:
        while True:
            before = (self._connected, self._why)
            try:
                await self._follow(path)
            except _Refused as error:
                why = str(error)
            except (OSError, EOFError, ValueError, TimeoutError) as error:
                why = f"The node's broker does not answer: {in_words(error)}. This page asks it again every few seconds."
            self._connected, self._why = False, why
            if before != (False, why):
                self._tell(self.state())
            await asyncio.sleep(_PAUSE)

    async def _follow(self, path: str) -> NoReturn:
        """One connection, from its beginning to its end."""
        reader, writer = await asyncio.wait_for(asyncio.open_unix_connection(path, limit=LONGEST), _ANSWER)
        try:
            writer.write(encode("hello", **self._hello))
            welcome = await asyncio.wait_for(_next(reader), _ANSWER)
            if welcome["op"] != "welcome":
                raise _Refused(welcome.get("message") or "The node's broker refused this session.")
            self._welcome = welcome
            writer.write(encode("watch"))
            while True:
                message = await _next(reader)
                if message["op"] == "status":
                    self._status, self._connected, self._why = message, True, ""
                    self._tell(self.state())
                elif message["op"] == "notice":
                    self.notice(message.get("level", "info"), message.get("message", ""))
        finally:
            writer.close()

    def notice(self, level: str, message: str) -> None:
        """Tell whoever listens something: "info", "warning" or "error"."""
        self._tell({"type": "notice", "level": level, "message": message})

    def _tell(self, news: Mapping[str, Any]) -> None:
        self._news.set()
        self._news.clear()
        for listener in list(self._listeners):
            listener(news)


class _Refused(Exception):
    """The broker knows the session and does not want it."""


async def _next(reader: asyncio.StreamReader) -> Message:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError("it closed the connection")
    return decode(line)
