"""When the leases in a request's way end, and what a request that waits for them is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from carrel.core.domain.lease import Expire, LeaseState, LendingSnapshot, Lent, Request, Residency, Suspend
from carrel.core.policy import lend_reasons as reasons
from carrel.core.policy.lend_order import InLine, patience
from carrel.core.policy.lend_places import Places
from carrel.core.policy.lend_plan import Obstacle
from carrel.core.policy.lend_room import Rooms
from carrel.core.policy.lend_tasks import back_by, can_take_back, lends_from, owed_from
from carrel.core.policy.lend_times import MoveTimes

_OBSTACLES = {
    Obstacle.FIXED: (reasons.NO_ROOM, "state that cannot be moved fills it"),
    Obstacle.HOST: (reasons.HOST_MEMORY, "host memory has no room for the state that would have to make way"),
    Obstacle.FOREIGN: (reasons.NO_ROOM, "programs outside of the lab fill it"),
}
_NEVER = float("inf")
#: A cell that was paused lets the one before it compute for as long as it has computed itself, up to so many time slices.
LONGEST_TURN = 3


@dataclass(slots=True)
class Clearing:
    """How the leases in a request's way can end."""

    #: Host memory and disk, once their states are there.
    places: Places
    #: Decisions that clear them, all due now.
    suspends: list[Suspend] = field(default_factory=list)
    expires: list[Expire] = field(default_factory=list)
    #: Unix seconds at which the last of them can be cleared; infinite when time alone does not clear them.
    due: float = 0.0
    #: Some of them are being cleared already.
    leaving: bool = False
    #: A whole task is among them, which nothing but its end clears.
    task: bool = False
    code: str = reasons.IN_USE
    cause: str = ""


class Turns:
    """The turns of those who have devices, during one walk through the line."""

    def __init__(
        self,
        snapshot: LendingSnapshot,
        rooms: Rooms,
        times: MoveTimes,
        held: Mapping[str, int],
        lent: Mapping[str, Lent],
        now: float,
    ) -> None:
        """`held`: how many devices each owner has; `lent`: the tasks that are paused since they lent theirs, by their lease."""
        self._snapshot = snapshot
        self._rooms = rooms
        self._times = times
        self._held = held
        self._lent = lent
        self._now = now
        self._patience = patience(snapshot)
        #: Leases that end by a decision of this walk.
        self.ending: set[str] = set()

    def clearing(self, place: InLine, leases: Sequence[Lent]) -> Clearing:
        """Return how `leases`, which are in the way of a request, can end."""
        found = Clearing(self._rooms.places.trial())
        seen: set[str] = set()
        own = self._snapshot.tenants[place.request.tenant].owner
        for lease in leases:
            if lease.id in seen:
                continue
            seen.add(lease.id)
            holder = self._snapshot.tenants[lease.tenant]
            if self._rooms.is_leaving(holder.id) or lease.pausing or lease.id in self.ending:
                found.leaving = True
                found.code, found.cause = reasons.MOVING, "GPU state is being moved to make room"
                continue
            due = self.due(place, lease)
            found.due = max(found.due, due)
            found.task = found.task or (lease.exclusive and due == _NEVER and not self._ends_soon(lease))
            mine = holder.owner == own
            found.code, found.cause = _words(place.request, lease, mine, "" if lease.by_choice else holder.stays, due)
            if due <= self._now and lease.state is LeaseState.HELD:
                found.expires.append(Expire(lease=lease.id, request=place.request.id))
            elif due <= self._now and self._stays(place, lease):
                found.suspends.append(Suspend(tenant=holder.id, request=place.request.id, pauses=lease.id, in_place=True))
            elif due <= self._now:
                asking, places = self._snapshot.tenants[place.request.tenant], found.places
                if not places.put(holder, sum(holder.state.values())) or not self._rooms.may_return(
                    holder, asking, lease.devices
                ):
                    found.due = _NEVER
                    found.task = found.task or lease.exclusive
                    found.code, found.cause = self.obstacle(Obstacle.HOST)
                straight = holder.id in places.straight
                found.suspends.append(Suspend(tenant=holder.id, request=place.request.id, pauses=lease.id, straight=straight))
        return found

    def _ends_soon(self, lease: Lent) -> bool:
        return lease.ends_by is not None and lease.ends_by - self._now <= self._patience

    def due(self, place: InLine, lease: Lent) -> float:
        """Unix seconds from which `lease` may be ended for this request; infinite when only its holder can end it."""
        lent = self._lent.get(place.request.resumes or "")
        back = _NEVER if lent is None else back_by(lent, self._snapshot.rules, self._times.return_takes(lent))
        if lease.state is LeaseState.HELD:
            return min(_NEVER if lease.held_until is None else lease.held_until, back if lease.by_choice else _NEVER)
        holder = self._snapshot.tenants[lease.tenant]
        if lease.exclusive:
            cell, rules = self._snapshot.tenants[place.request.tenant], self._snapshot.rules
            if place.request.exclusive or not can_take_back(lease, cell, rules, self._now):
                return _NEVER
            moves, begins = not self._stays(place, lease), place.request.resumes is None
            visit = self._times.visit_takes(cell, lease.devices) + self._times.return_takes(lease)
            return lends_from(lease, holder, rules, moves=moves, begins=begins, visit=visit)
        slice_ = self._snapshot.rules.time_slice
        if (
            slice_ <= 0
            or lease.tenant == place.request.tenant
            or not holder.suspendable
            or holder.residency is not Residency.RESIDENT
        ):
            return _NEVER
        # Paused, it asks again at once: a request that would not come before it then gains nothing by its pause.
        again = self._patience * (self._held[holder.owner] - len(lease.devices) + 1)
        due = max(lease.since + quantum(place, self._snapshot.rules.time_slice), place.turn - again)
        return due if lent is None else min(max(due, owed_from(lent, self._snapshot.rules)), back)

    def _stays(self, place: InLine, lease: Lent) -> bool:
        """True when the request finds its room beside the state of the lease's holder, which then need not move for it."""
        asking = self._snapshot.tenants[place.request.tenant]
        gated = self._snapshot.rules.pause_in_place or self._snapshot.tenants[lease.tenant].gated
        if not gated or (place.request.exclusive and not asking.elastic):
            return False
        wanted = place.request.devices or asking.home or lease.devices
        return self._rooms.fits_beside(asking, [uuid for uuid in lease.devices if uuid in wanted])

    def obstacle(self, obstacle: Obstacle, devices: Sequence[str] = ()) -> tuple[str, str]:
        """Return the code and the cause of a wait for room that cannot be made on `devices`."""
        if obstacle is Obstacle.FOREIGN and (contexts := self._rooms.contexts_that_stay(devices)):
            return reasons.NO_ROOM, contexts
        if obstacle is Obstacle.HOST and self._snapshot.rules.state_disk:
            return reasons.HOST_MEMORY, "neither host memory nor the disk has room for the state that would have to make way"
        return _OBSTACLES[obstacle]


def quantum(place: InLine, time_slice: float) -> float:
    """Seconds that a cell may compute before it is suspended for this request.

    One time slice for a cell that begins: it may be short. Two that have both proved to be long gain little by pauses, each of
    which costs two moves of state: their turns grow with what they have computed.
    """
    if place.request.resumes is None or place.expected is None:
        return time_slice
    return max(time_slice, min(place.expected, LONGEST_TURN * time_slice))


def _words(request: Request, lease: Lent, mine: bool, stays: str, due: float) -> tuple[str, str]:
    if lease.tenant == request.tenant:
        return reasons.OWN_CELL, "another cell of this notebook has it"
    if lease.exclusive:
        task = f"a task of {'your own' if mine else 'another user'}"
        alone = f"{task} has it{f' and cannot be paused: {stays}' if stays else ''}"
        return reasons.TASK, alone if due == _NEVER else f"{task} has its turn, then lends the GPU"
    # One session may have several notebooks.
    whose = "another of your notebooks" if mine else "another session"
    if lease.state is LeaseState.HELD:
        why = f" and cannot be moved: {stays}" if stays else ""
        return reasons.HELD, f"GPU state of {whose} is held on it{why}"
    return reasons.IN_USE, f"a cell of {whose} computes"
