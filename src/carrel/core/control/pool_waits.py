"""Calls that wait for other calls: for those whose results they need, and for one that is equal and under way.

A call needs only calls that the lab has already, so there are no circles. What waits holds no worker. All of it follows from what
is written down of calls, so a server that was killed finds it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from carrel.core.control.pool_ports import CallStore
from carrel.core.domain.call import Body, CachedResult, Call, CallState, Ending

#: Files of the lab's are named once more, for a second owner; None when the content is not there any more.
Share: TypeAlias = Callable[[Body], Body | None]


@dataclass(slots=True, kw_only=True)
class Waiting:
    """A call that was submitted and has not begun."""

    call_id: int
    pool_id: int
    owner: str
    #: Calls whose results it needs.
    dependencies: tuple[int, ...] = ()
    #: Digest of function, code and arguments; None: its result is not shared.
    cache: str | None = None
    #: Those of the dependencies that have not ended.
    missing: set[int] = field(default_factory=set)
    #: An equal call that is under way.
    equal: int | None = None


class Waits:
    """Which calls wait for which. Not thread-safe: `carrel.core.control.pools.Pools` has the lock."""

    def __init__(
        self,
        *,
        store: CallStore,
        share: Share,
        begin: Callable[[int, Sequence[int]], None],
        end: Callable[[int, Sequence[Ending]], None],
        now: Callable[[], float],
    ) -> None:
        """`begin` puts calls of a pool in line for its workers, `end` writes endings down and tells `ended` of them."""
        self._store = store
        self._share = share
        self._begin = begin
        self._end = end
        self._now = now
        self._held: dict[int, Waiting] = {}
        #: Those that wait for a call, by it; and how many are held of each pool.
        self._then: dict[int, list[int]] = {}
        self._of_pool: dict[int, int] = {}
        #: Of equal calls, the one that is carried out.
        self._first: dict[tuple[str, str], int] = {}
        self._shared: dict[int, tuple[str, str]] = {}
        self._news: deque[Ending] = deque()
        self._busy = False

    # ---- looking

    def waits_for(self, call_id: int) -> Sequence[int]:
        """The calls that a call waits for, smallest number first."""
        held = self._held.get(call_id)
        return [] if held is None else sorted({*held.missing, *([] if held.equal is None else [held.equal])})

    def of_pool(self, pool_id: int) -> Sequence[int]:
        """Calls of the pool that wait for others."""
        return [one.call_id for one in self._held.values() if one.pool_id == pool_id] if self.any_of(pool_id) else []

    def any_of(self, pool_id: int) -> bool:
        """True while calls of the pool wait for others."""
        return pool_id in self._of_pool

    def kept(self, ending: Ending) -> Body | None:
        """The cache's own body of what a call returned; None when that is not for equal calls."""
        fresh = ending.state is CallState.COMPLETED and ending.cached_from is None
        return self._share(ending.body) if fresh and ending.call_id in self._shared else None

    # ---- what happens

    def runs(self, call: Call, owner: str) -> None:
        """A call is being carried out, as the last server left it."""
        if call.cache is not None:
            self._lead(call.id, (owner, call.cache))

    def place(self, calls: Sequence[Waiting]) -> None:
        """Calls of one owner were submitted, or have lost what they waited for: each begins, waits or ends."""
        if not calls:
            return
        owner = calls[0].owner
        cached = self._cached(owner, calls)
        states = self._states(owner, calls)
        begin: dict[int, list[int]] = {}
        end: dict[int, list[Ending]] = {}
        for call in calls:
            ending = self._found(call, cached) or self._failed(call, states)
            if ending is not None:
                end.setdefault(call.pool_id, []).append(ending)
            elif not self._hold(call, states):
                begin.setdefault(call.pool_id, []).append(call.call_id)
        for pool_id, numbers in begin.items():
            self._begin(pool_id, numbers)
        for pool_id, endings in end.items():
            self._end(pool_id, endings)

    def drop(self, call_id: int) -> None:
        """A call waits no more: it ends."""
        held = self._held.pop(call_id, None)
        if held is not None:
            left = self._of_pool[held.pool_id] = self._of_pool[held.pool_id] - 1
            if not left:
                del self._of_pool[held.pool_id]

    def ended(self, endings: Sequence[Ending]) -> None:
        """Calls have ended: those that wait for them go on, and so on. One after the other, however long the chain is."""
        self._news.extend(endings)
        if self._busy:
            return
        self._busy = True
        try:
            while self._news:
                self._hear(self._news.popleft())
        finally:
            self._busy = False

    # ---- inside

    def _cached(self, owner: str, calls: Sequence[Waiting]) -> Mapping[str, CachedResult]:
        digests = {call.cache for call in calls if call.cache is not None}
        return self._store.cached(owner, digests, now=self._now()) if digests else {}

    def _states(self, owner: str, calls: Sequence[Waiting]) -> Mapping[int, CallState]:
        needed = {one for call in calls for one in call.dependencies}
        return self._store.states(owner, needed) if needed else {}

    def _found(self, call: Waiting, cached: Mapping[str, CachedResult]) -> Ending | None:
        found = cached.get(call.cache) if call.cache is not None else None
        body = None if found is None else self._share(found.body)
        if found is None or body is None:
            return None
        return Ending(call_id=call.call_id, state=CallState.COMPLETED, body=body, cached_from=found.call_id)

    def _failed(self, call: Waiting, states: Mapping[int, CallState]) -> Ending | None:
        over = (CallState.FAILED, CallState.CANCELLED)
        failed = next((one for one in call.dependencies if states.get(one) in over), None)
        found = None if failed is None else self._store.call(failed)
        if found is None:
            return None
        cause = Ending(
            call_id=found.id, state=found.state, error=found.error, message=found.message, body=self._store.result(found.id)
        )
        return self._because(call.call_id, cause, found)

    def _because(self, call_id: int, cause: Ending, found: Call | None) -> Ending:
        """The ending of a call that needs one which gave no result. The message and the body are of the first that failed."""
        words = cause.message
        if cause.error != "dependency_failed":
            name = f" ({found.label})" if found is not None else ""
            verb = "was cancelled" if cause.state is CallState.CANCELLED else f"failed: {cause.message}"
            words = f"It needs the result of call {cause.call_id}{name}, which {verb}"
        # A large exception stays where it is: the message has its words.
        body = cause.body if cause.body.path is None else Body(size=0, data=b"")
        return Ending(call_id=call_id, state=CallState.FAILED, error="dependency_failed", message=words, body=body)

    def _hold(self, call: Waiting, states: Mapping[int, CallState]) -> bool:
        call.missing = {one for one in call.dependencies if one in states and not states[one].ended}
        call.equal = None
        if call.cache is not None:
            key = (call.owner, call.cache)
            first = self._first.get(key)
            if first is None:
                self._lead(call.call_id, key)
            elif first != call.call_id:
                call.equal = first
        for one in self.missing_of(call):
            self._then.setdefault(one, []).append(call.call_id)
        if not call.missing and call.equal is None:
            return False
        if call.call_id not in self._held:
            self._of_pool[call.pool_id] = self._of_pool.get(call.pool_id, 0) + 1
        self._held[call.call_id] = call
        return True

    @staticmethod
    def missing_of(call: Waiting) -> set[int]:
        """All that a call waits for."""
        return call.missing if call.equal is None else call.missing | {call.equal}

    def _lead(self, call_id: int, key: tuple[str, str]) -> None:
        self._first[key] = call_id
        self._shared[call_id] = key

    def _hear(self, ending: Ending) -> None:
        key = self._shared.pop(ending.call_id, None)
        if key is not None:
            self._first.pop(key, None)
        held = [self._held[one] for one in dict.fromkeys(self._then.pop(ending.call_id, ())) if one in self._held]
        well = ending.state is CallState.COMPLETED
        end: dict[int, list[Ending]] = {}
        begin: dict[int, list[int]] = {}
        again: list[Waiting] = []
        failed = self._store.call(ending.call_id) if held and not well else None
        for call in held:
            if call.equal == ending.call_id:
                body = self._share(ending.body) if well else None
                if body is None:
                    again.append(call)
                else:
                    hit = replace(ending, call_id=call.call_id, body=body, stdout=b"", stderr=b"")
                    end.setdefault(call.pool_id, []).append(replace(hit, cached_from=ending.cached_from or ending.call_id))
            elif not well:
                end.setdefault(call.pool_id, []).append(self._because(call.call_id, ending, failed))
            else:
                call.missing.discard(ending.call_id)
                if not self.missing_of(call):
                    begin.setdefault(call.pool_id, []).append(call.call_id)
        for call in again:
            self.drop(call.call_id)
        self._go_on(begin, end)
        self.place(again)

    def _go_on(self, begin: Mapping[int, Sequence[int]], end: Mapping[int, Sequence[Ending]]) -> None:
        for pool_id, numbers in begin.items():
            for call_id in numbers:
                self.drop(call_id)
            self._begin(pool_id, numbers)
        for pool_id, endings in end.items():
            self._end(pool_id, endings)
