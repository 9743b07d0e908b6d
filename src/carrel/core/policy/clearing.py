"""Which devices jobs are offered, where GPU state of idle sessions lies on them. Pure.

A job has its devices to itself: such state goes to host memory before the job begins. What host memory has no room for now, and
what cannot be moved at all, stays where it is, so its devices are offered to nobody: a job that was placed on one would wait
there while others are free. What is offered can be moved away all together, since several jobs may start at once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from carrel.core.domain.node import Device
from carrel.core.domain.placement import GpuState, IdleState
from carrel.core.domain.units import format_size


@dataclass(frozen=True, slots=True)
class Offer:
    """What placement may give away now."""

    #: Devices that cannot be cleared now, with the reason: a few words with numbers.
    blocked: dict[str, str] = field(default_factory=dict)
    #: Bytes that move first, for each of the others on which state lies.
    moves: dict[str, int] = field(default_factory=dict)
    #: Those of the blocked that could be offered if others that are offered were not.
    instead: tuple[str, ...] = ()


def offer(found: GpuState, devices: Sequence[Device], taken: Collection[str], *, first: Collection[str] = ()) -> Offer:
    """Return which of `devices` jobs may be given: as many as can be cleared together, the cheapest first.

    Jobs have those in `taken`, whose state is on its way out or will be; room in host memory is kept for it. Those in `first` are
    offered before others.
    """
    if not found.states:
        return Offer()
    answer = _Offering(found, taken)
    free = [device for device in devices if device.uuid not in taken and answer.on(device.uuid)]
    alone = {device.uuid for device in free if answer.fits(device.uuid)}
    for device in sorted(free, key=lambda device: (device.uuid not in first, answer.bytes(device.uuid), device.index)):
        answer.consider(device.uuid)
    instead = tuple(sorted(alone & answer.blocked.keys()))
    return Offer(blocked=answer.blocked, moves=answer.moves, instead=instead)


class _Offering:
    """One walk over the devices with state on them."""

    def __init__(self, found: GpuState, taken: Collection[str]) -> None:
        self.blocked: dict[str, str] = {}
        self.moves: dict[str, int] = {}
        self._on: dict[str, list[IdleState]] = {}
        for state in found.states:
            for uuid in state.devices:
                self._on.setdefault(uuid, []).append(state)
        #: States that move in any case.
        self._going = {state for state in found.states if not set(state.devices).isdisjoint(taken) and not state.stays}
        self._left = found.host_left
        self._spend(self._going)

    def on(self, uuid: str) -> bool:
        """True when state lies on the device that has to be moved for a job there."""
        return any(state not in self._going for state in self._on.get(uuid, ()))

    def bytes(self, uuid: str) -> int:
        """Bytes that would have to move off the device."""
        return sum(state.bytes for state in self._on[uuid] if state not in self._going)

    def fits(self, uuid: str) -> bool:
        """True when all of that can move now."""
        stays = any(state.stays for state in self._on[uuid])
        return not stays and (self._left is None or self.bytes(uuid) <= self._left)

    def consider(self, uuid: str) -> None:
        """Offer the device, or say why not."""
        size, here = self.bytes(uuid), self._on[uuid]
        if self.fits(uuid):
            self.moves[uuid] = size
            fresh = {state for state in here if state not in self._going}
            self._going |= fresh
            self._spend(fresh)
            return
        stays = next((state.stays for state in here if state.stays), "")
        if stays:
            self.blocked[uuid] = f"GPU state of an idle session is on it that cannot be moved: {stays}"
            return
        room = "no room" if not self._left or self._left < 0 else f"room for {format_size(self._left)} more"
        self.blocked[uuid] = f"{format_size(size)} of idle sessions' GPU state would have to move, host memory has {room}"

    def _spend(self, states: Collection[IdleState]) -> None:
        if self._left is not None:
            self._left -= sum(state.bytes for state in states)
