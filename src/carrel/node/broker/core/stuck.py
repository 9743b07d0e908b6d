"""Who waits although nothing that can be done now helps: a job is placed elsewhere, a cell stops waiting after a while."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from carrel.core.domain.lease import GiveUp, Lending, Queued
from carrel.core.domain.node import Device
from carrel.core.domain.units import format_duration, format_size
from carrel.core.policy.lend_reasons import HOST_MEMORY, REMEDIES
from carrel.node.broker.core.host import HostRoom
from carrel.node.broker.core.ledger import Ledger
from carrel.node.broker.core.messages import named
from carrel.node.broker.core.rows import RequestRow
from carrel.node.leases.protocol import BLOCKED


class Stuck:
    """Dismisses requests, each with what is in its way and what would help."""

    def __init__(self, ledger: Ledger, devices: Mapping[str, Device], host: HostRoom, refuse: Callable[..., None]) -> None:
        self._ledger = ledger
        self._devices = devices
        self._host = host
        self._refuse = refuse

    def review(self, lending: Lending, now: float) -> tuple[Queued, ...]:
        """Dismiss whom waiting does not help; return who waits on, and remember since when nothing helps them."""
        for given_up in lending.gives_up:
            self._give_up(self._ledger.requests[given_up.request], given_up, now)
        left = []
        for entry in lending.queue:
            asked = self._ledger.requests[entry.request]
            if entry.stuck and asked.elsewhere:
                self._send_elsewhere(asked, entry)
                continue
            left.append(entry)
            if entry.stuck != bool(asked.stuck_since):
                asked.stuck_since = now if entry.stuck else 0.0
                self._ledger.touch(asked)
        return tuple(left)

    def _send_elsewhere(self, asked: RequestRow, entry: Queued) -> None:
        self._ledger.drop_request(asked)
        where = named(asked.devices, self._devices)
        text = f"{where[0].upper()}{where[1:]} cannot be had for it now: {entry.cause}{self._room(entry.reason.code)}."
        self._refuse(asked, code=BLOCKED, message=text, remedy="Place it elsewhere.")

    def _give_up(self, asked: RequestRow, given_up: GiveUp, now: float) -> None:
        self._ledger.drop_request(asked)
        waited, room = format_duration(now - asked.stuck_since), self._room(given_up.code)
        text = f"The cell stopped waiting for a GPU: for {waited} nothing could be done for it ({given_up.cause}{room})."
        remedy = REMEDIES.get(given_up.code, "Run the cell again later.")
        self._refuse(asked, code=given_up.code, message=text, remedy=remedy)

    def _room(self, code: str) -> str:
        left = self._host.left()
        return f"; {format_size(left)} of it are left" if code == HOST_MEMORY and left is not None else ""
