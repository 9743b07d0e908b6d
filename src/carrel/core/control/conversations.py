"""Requests that are being answered: event streams, uploads, websockets. Each ends when its caller is let in no more.

A request is let in once, at its beginning. What puts a user or a token out says so (`Tokens.subscribe`), and then all callers of
what is open are looked at again; a token that ends by itself has a timer. Nothing is asked as long as nothing changes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from carrel.core.domain.errors import CarrelError, Unavailable
from carrel.core.domain.ports import Clock
from carrel.core.domain.user import Caller

T = TypeVar("T")
#: What takes the messages of an answer (ASGI).
Send = Callable[[Any], Awaitable[None]]
#: Seconds that a request still has when its caller was put out: a caller who ends their own token has the answer by then.
_GRACE = 1.0
#: Seconds until callers are looked at again whom the lab could not look at.
_RETRY = 1.0


class PutOut(Exception):
    """The caller of a request is let in no more. `begun`: something of the answer was sent already."""

    def __init__(self, why: CarrelError, *, begun: bool) -> None:
        super().__init__(str(why))
        self.why = why
        self.begun = begun


@dataclass(eq=False, slots=True)
class _Open:
    caller: Caller
    limit: asyncio.Timeout
    timer: asyncio.TimerHandle | None = None
    #: Why it ends.
    why: CarrelError | None = None


class Conversations:
    """What is open with the lab. Belongs to one event loop; `look` may be called from any thread."""

    def __init__(self, still: Callable[[Caller], Caller], *, clock: Clock) -> None:
        """`still` gives a caller as they are now, and raises when they are let in no more; it may block."""
        self._still = still
        self._clock = clock
        self._open: set[_Open] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looking: asyncio.Task[None] | None = None
        self._again = False
        #: Another object after each change of who is let in: what was found out before is then to be found out again.
        self.version = object()

    def look(self) -> None:
        """Look at all callers again: somebody was put out."""
        self.version = object()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is open any more
                self._loop.call_soon_threadsafe(self._begin_to_look)

    async def hold(self, caller: Caller, version: object, talk: Callable[[Send], Awaitable[T]], send: Send) -> T:
        """Return what `talk` does, which answers by what it is given in the place of `send`.

        Raises `PutOut` as soon as the caller is let in no more. `version` is of before it was asked whether they are.
        """
        self._loop = asyncio.get_running_loop()
        begun = False

        async def sending(message: Any) -> None:
            nonlocal begun
            begun = True
            await send(message)

        one = _Open(caller, asyncio.timeout(None))
        try:
            async with one.limit:
                self._open.add(one)
                self._watch_end(one, caller)
                if version is not self.version:
                    self._begin_to_look()
                try:
                    return await talk(sending)
                finally:
                    self._open.discard(one)
                    if one.timer is not None:
                        one.timer.cancel()
        except TimeoutError:
            if one.why is None:
                raise
            raise PutOut(one.why, begun=begun) from None

    def _watch_end(self, one: _Open, caller: Caller) -> None:
        if one.timer is not None:
            one.timer.cancel()
        if caller.until is not None:
            self._look_again_in(one, max(0.0, caller.until - self._clock()))

    def _look_again_in(self, one: _Open, seconds: float) -> None:
        if one.timer is not None:
            one.timer.cancel()
        one.timer = asyncio.get_running_loop().call_later(seconds, self._begin_to_look)

    def _begin_to_look(self) -> None:
        self._again = True
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while self._again:
            self._again = False
            found: dict[tuple[int | None, ...], list[_Open]] = {}
            for one in self._open:
                if one.why is None:
                    found.setdefault((one.caller.token_id, one.caller.job_id, one.caller.attempt), []).append(one)
            for same in found.values():
                now = await asyncio.to_thread(self._ask, same[0].caller)
                for one in self._open.intersection(same):
                    if isinstance(now, Caller):
                        self._watch_end(one, now)
                    elif isinstance(now, Unavailable):  # not known is not put out
                        self._look_again_in(one, _RETRY)
                    else:
                        one.why = now
                        one.limit.reschedule(asyncio.get_running_loop().time() + _GRACE)

    def _ask(self, caller: Caller) -> Caller | CarrelError:
        try:
            return self._still(caller)
        except CarrelError as error:
            return error
