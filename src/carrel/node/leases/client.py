"""A blocking client of the node's broker, for runners and for the lab itself. Standard library only.

    with Broker(path, token) as broker:
        lease = broker.acquire(devices=["GPU-…"], on_wait=lambda wait: print(wait.message))
        ...
        broker.release(lease)

A broker may be restarted at any moment: calls connect again, a request keeps its place, and a lease is kept by the process
that holds it, connected or not.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from carrel.core.domain import errors
from carrel.node.leases.link import ANSWER, FIRST_PAUSE, LONGEST_PAUSE, LOOK, Link, Lost, refusal
from carrel.node.leases.protocol import OBSERVER, RUNNER, VERSION, Message
from carrel.node.leases.watch import Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to use devices, until it is released or this process ends."""

    id: str
    fence: int
    request: str
    #: UUIDs.
    devices: tuple[str, ...]
    #: Seconds that it took to get it.
    waited: float
    message: str
    #: True where its devices are made up.
    simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Why a request waits."""

    #: 1 for the next in line.
    position: int
    #: Seconds, or None when nobody can say.
    estimate: float | None
    #: One of `carrel.core.policy.lend_reasons.LENDING_REASONS`.
    code: str
    message: str


class Broker:
    """A process' connection to its node's broker. One thread at a time, except for `watch`; closing it gives all leases back."""

    def __init__(
        self, path: str | Path, token: str, role: str = RUNNER, *, patience: float | None = 60.0, attempt: str = ""
    ) -> None:
        """Nothing is connected yet. `patience`: seconds to try to connect before a call raises `Unavailable`; None: for ever.

        `attempt`: where the files of the attempt are, for a broker that does not find them in the lab's spool.
        """
        self._path = str(path)
        self._hello: dict[str, Any] = {"v": VERSION, "role": role, "token": token, **({"attempt": attempt} if attempt else {})}
        self._role = role
        self._patience = patience
        self._link: Link | None = None
        self._held: dict[str, Lease] = {}
        #: How each of them was asked for, by its request.
        self._asked_so: dict[str, Message] = {}
        #: What leases are by now that a broker had forgotten, by their first ids.
        self._renewed: dict[str, Lease] = {}
        #: Ids of the leases whose devices others are to have, and of those of them that a broker has forgotten.
        self._aside: set[str] = set()
        self._forgotten: set[str] = set()
        self._asked: str | None = None
        self._ids = itertools.count(1)
        self._guard = threading.RLock()

    def acquire(
        self,
        *,
        devices: Sequence[str] = (),
        gpus: int = 0,
        cell: str = "",
        ends_by: float | None = None,
        on_wait: Callable[[Wait], None] | None = None,
        stop: Callable[[], bool] | None = None,
        elsewhere: bool = False,
        lends: bool = False,
    ) -> Lease | None:
        """Wait for a lease and return it, or None when `stop` said so (looked at five times in a second).

        A runner names its `devices`; `ends_by` (Unix seconds) tells the others when they are free at the latest. Raises an error
        of `carrel.core.domain.errors` when it is refused, and `Unavailable` when there is no broker. With `elsewhere` it is
        refused, with the detail code `BLOCKED`, where nothing that can be done now would clear the devices. With `lends` cells
        may have the devices for a while: `hear` then says "paused", and "resumed" when they are back.
        """
        with self._guard:
            request = f"{time.time_ns():x}.{next(self._ids)}"
            asking = {"request": request, "devices": list(devices), "gpus": gpus, "cell": cell, "ends_by": ends_by}
            asking |= {"elsewhere": elsewhere, "lends": lends}
            self._asked = request
            try:
                lease = self._wait_for(request, asking, on_wait, stop or (lambda: False))
                if lease is not None:
                    self._asked_so[request] = asking
                return lease
            finally:
                self._asked = None

    def fileno(self) -> int | None:
        """A descriptor that is readable when `hear` has something to say; None while there is no connection."""
        return None if self._link is None else self._link.fileno()

    def hear(self) -> Sequence[Message]:
        """What the broker has said by itself since the last call ("paused", "resumed", "notice"); does not wait.

        Where the connection is gone it tries once to make another: what the welcome then says of our leases is among the
        messages, as "paused" or "resumed", or "lost" if their GPU state is. A broker that has lost its journal is asked for
        them again: they are "paused" until it grants them. It is to be called again after a while where `fileno` is None.
        """
        with self._guard:
            if self._link is None:
                return self._again()
            found: list[Message] = []
            try:
                while (message := self._link.receive(0.0)) is not None:
                    found.append(self._renew(message))
            except Lost:
                self._drop()
            return found

    def _again(self) -> Sequence[Message]:
        try:
            self._link = Link(self._path, self._hello)
        except (Lost, errors.CarrelError):
            return ()
        self._give_back(self._link)
        if self._link.welcome.get("lost"):  # it happened while nobody was connected
            return [{"op": "lost", "message": self._link.welcome["lost"]}]
        known = [self._renew({**message, "op": "granted"}) for message in self._link.welcome.get("leases", ())]
        found = [{**ours, "op": "paused"} if ours.get("state") == "paused" else ours for ours in known if ours["op"] == "resumed"]
        for lease in self._held.values():
            there = next((message for message in found if message["lease"] == lease.id), None)
            if there is None:
                found.append(self._ask_again(self._link, lease))
            elif bool(there.get("aside")) != (lease.id in self._aside):
                self._tell_aside(self._link, lease)
        return found

    def _ask_again(self, link: Link, lease: Lease) -> Message:
        """The broker has forgotten a lease. One that is set aside is asked for when it goes on."""
        aside = lease.id in self._aside
        if aside:
            self._forgotten.add(lease.id)
        else:
            with suppress(Lost):
                link.send("acquire", **self._asked_so[lease.request] | {"elsewhere": False})
        return {"op": "paused", "lease": lease.id, "aside": aside, "message": "The broker has forgotten it."}

    def set_aside(self, lease: Lease) -> None:
        """Others are to have the devices of the task: `hear` says "paused", with `aside`, once it is paused. Does not wait.

        Said again to a broker that comes back, so that nothing is lost with a connection.
        """
        self._set(lease, aside=True)

    def go_on(self, lease: Lease) -> None:
        """The place of the task is free again: `hear` says "resumed" once its devices are its own. Does not wait."""
        self._set(lease, aside=False)

    def _set(self, lease: Lease, *, aside: bool) -> None:
        with self._guard:
            lease = self._renewed.get(lease.id, lease)
            (self._aside.add if aside else self._aside.discard)(lease.id)
            if self._link is not None:
                self._tell_aside(self._link, lease)

    def _tell_aside(self, link: Link, lease: Lease) -> None:
        with suppress(Lost):  # `hear` makes another connection, and compares
            if lease.id not in self._forgotten:
                link.send("set_aside" if lease.id in self._aside else "go_on", lease=lease.id)
            elif lease.id not in self._aside:
                self._forgotten.discard(lease.id)
                self._ask_again(link, lease)

    def _renew(self, message: Message) -> Message:
        """What was granted, or refused, for a lease that we had before is "resumed" for who has it; all else is as it is.

        Refused: these devices are lent to nobody any more, so nobody else gets them either.
        """
        if message["op"] not in ("granted", "refused"):
            return message
        held = next((lease for lease in self._held.values() if lease.request == message.get("request")), None)
        if held is None:
            return message
        if message["op"] == "granted" and message["lease"] != held.id:
            first = next((name for name, lease in self._renewed.items() if lease.id == held.id), held.id)
            del self._held[held.id]
            self._renewed[first] = self._held[str(message["lease"])] = _lease(message)
        return {**message, "op": "resumed"}

    def release(self, lease: Lease, *, outcome: str = "ok") -> None:
        """Give a lease back; it is over when this returns. Raises `Unavailable` when there is no broker to tell."""
        with self._guard:
            lease = self._renewed.pop(lease.id, lease)
            self._held.pop(lease.id, None)
            self._asked_so.pop(lease.request, None)
            while True:
                # A new connection gives back by itself what is not held any more; the second time does no harm.
                link = self._connected(lambda: False)
                assert link is not None
                with suppress(Lost):
                    link.send("release", lease=lease.id, fence=lease.fence, outcome=outcome)
                    self._answer(link, "released")
                    return
                self._drop()

    def status(self) -> Message:
        """Who has what, as far as this client may see it. Raises `Unavailable` when there is no broker."""
        with self._guard:
            while True:
                link = self._connected(lambda: False)
                assert link is not None
                with suppress(Lost):
                    link.send("status")
                    return self._answer(link, "status")
                self._drop()

    def watch(
        self,
        callback: Callable[[Message | None], None],
        *,
        past: Callable[[str, Sequence[Message]], bool] | None = None,
        drained: Callable[[], Mapping[str, str]] | None = None,
    ) -> Watch:
        """Call back with each new status, from a thread, until the returned watch is closed; with None when the broker is gone.

        It has a connection of its own, as an observer, and connects again by itself. `past` is called in the same thread with the
        broker's id and leases that are over: True when they are written down; else they are sent again later. `drained` is asked
        there for what the lab has drained.
        """
        return Watch(self._path, {**self._hello, "role": OBSERVER}, callback, past, drained)

    def close(self) -> None:
        """Close the connection: leases that are held are over."""
        with self._guard:
            self._held.clear()
            self._drop()

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _wait_for(
        self, request: str, asking: Message, on_wait: Callable[[Wait], None] | None, stop: Callable[[], bool]
    ) -> Lease | None:
        cancelled = False
        while True:
            link = self._connected(stop)
            if link is None:
                return None
            try:
                link.send("cancel" if cancelled else "acquire", **({"request": request} if cancelled else asking))
                while True:
                    if not cancelled and stop():
                        cancelled = True
                        link.send("cancel", request=request)
                    message = link.receive(LOOK)
                    if message is None or message.get("request", request) != request:
                        continue
                    if message["op"] == "queued" and on_wait is not None and not cancelled:
                        on_wait(_wait(message))
                    elif message["op"] == "refused":
                        raise refusal(message)
                    elif message["op"] == "granted":
                        lease = _lease(message)
                        if not cancelled:
                            self._held[lease.id] = lease
                            return lease
                        link.send("release", lease=lease.id, fence=lease.fence, outcome="aborted")
                    elif message["op"] == "cancelled":
                        return None
            except Lost:
                self._drop()

    def _answer(self, link: Link, op: str) -> Message:
        deadline = time.monotonic() + ANSWER
        while True:
            message = link.receive(deadline - time.monotonic())
            if message is None:
                raise Lost("the broker does not answer")
            if message["op"] == op:
                return message
            if message["op"] == "refused":
                raise refusal(message)

    def _connected(self, stop: Callable[[], bool]) -> Link | None:
        """The connection, made anew when there is none; None when `stop` said so first."""
        if self._link is None:
            deadline = None if self._patience is None else time.monotonic() + self._patience
            pause = FIRST_PAUSE
            while self._link is None:
                try:
                    self._link = Link(self._path, self._hello)
                except Lost as error:
                    if stop():
                        return None
                    if deadline is not None and time.monotonic() + pause > deadline:
                        raise errors.Unavailable(
                            f"The GPUs' broker does not answer at {self._path}: {error}.",
                            remedy="Is the lab up? `carrel doctor`.",
                        ) from error
                    time.sleep(pause)
                    pause = min(LONGEST_PAUSE, 2 * pause)
            self._give_back(self._link)
        return self._link

    def _give_back(self, link: Link) -> None:
        """What the broker thinks that we hold, and we do not: a release that it did not hear of."""
        for message in link.welcome.get("leases", ()):
            lease = _lease(message)
            ours = {self._asked, *(held.request for held in self._held.values())}
            if lease.request not in ours:
                with suppress(Lost):
                    link.send("release", lease=lease.id, fence=lease.fence, outcome="aborted")

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


def _lease(message: Message) -> Lease:
    return Lease(
        id=str(message["lease"]),
        fence=int(message["fence"]),
        request=str(message["request"]),
        devices=tuple(str(device["uuid"]) for device in message["devices"]),
        waited=float(message.get("waited", 0.0)),
        message=str(message.get("message", "")),
        simulated=any(device.get("simulated") is True for device in message["devices"]),
    )


def _wait(message: Message) -> Wait:
    estimate = message.get("estimate")
    return Wait(
        position=int(message["position"]),
        estimate=None if estimate is None else float(estimate),
        code=str(message.get("code", "")),
        message=str(message.get("message", "")),
    )
