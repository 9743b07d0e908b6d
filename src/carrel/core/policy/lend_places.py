"""Where states go that leave their devices: host memory, and behind it the disk."""

from __future__ import annotations

from collections.abc import Sequence

from carrel.core.domain.lease import LendingSnapshot, Residency, Tenant

_UNLIMITED = float("inf")


class Places:
    """Bytes that are left in host memory and on the disk, and whose states can go on from the one to the other.

    Nothing is decided here: a plan takes its room in a `trial`, and the caller that carries the plan out goes on with that.
    """

    __slots__ = (
        "_asking",
        "_coming",
        "_disk",
        "_host",
        "_idle",
        "_limit",
        "_passing",
        "_past_host",
        "later",
        "now",
        "spills",
        "straight",
    )

    def __init__(self) -> None:
        self._limit = self._host = _UNLIMITED
        self._disk = 0
        #: Bytes of host memory that come free by states which go on to the disk.
        self._coming = 0
        self._past_host = False
        #: In host memory and movable, the longest idle first; and who of them asks for its devices.
        self._idle: list[Tenant] = []
        self._asking: frozenset[str] = frozenset()
        #: Sizes of states that this trial sends to host memory and that can go on from there, for others after them.
        self._passing: list[int] = []
        #: What this trial has found: who can leave now, and who of them straight to the disk; who goes on to the disk from host
        #: memory; and that somebody has to wait for that.
        self.now: set[str] = set()
        self.straight: set[str] = set()
        self.spills: list[Tenant] = []
        self.later = False

    @classmethod
    def of(cls, snapshot: LendingSnapshot) -> Places:
        """What is left at the beginning of a walk; for states that are leaving their devices see `take`."""
        places, rules = cls(), snapshot.rules
        places._asking = frozenset(request.tenant for request in snapshot.requests)
        if rules.host_memory is not None:
            places._limit, places._host = rules.host_memory, rules.host_memory - snapshot.host_used
        places._disk = max(0, rules.state_disk - snapshot.disk_used)
        places._past_host = rules.past_host and rules.state_disk > 0
        there = snapshot.tenants.values()
        places._coming = sum(one.moved for one in there if one.residency is Residency.SPILLING and not one.straight)
        if rules.state_disk:
            idle = (one for one in there if one.residency is Residency.SUSPENDED and one.spillable)
            places._idle = sorted(idle, key=lambda tenant: (tenant.last_used, tenant.id))
        return places

    def trial(self) -> Places:
        """A copy in which something can be tried. What it finds is counted from here on."""
        other = Places()
        other._limit, other._host, other._disk = self._limit, self._host, self._disk
        other._coming, other._past_host = self._coming, self._past_host
        other._idle, other._asking = self._idle, self._asking  # neither is ever changed in place
        return other

    def take(self, tenant: Tenant, size: int) -> None:
        """A state is on its way off its devices: it has its room, wherever it goes."""
        if not tenant.straight:
            self._host -= size

    def keep(self, tenant: Tenant) -> None:
        """A state comes back to its devices: it does not go on to the disk meanwhile."""
        self._idle = [one for one in self._idle if one.id != tenant.id]

    def put(self, tenant: Tenant, size: int) -> bool:
        """Find room for a state of `size` bytes; False, and nothing changes, where there is none.

        In host memory; else there, once those that have lain idle longest have gone on to the disk; else on the disk, where it
        can go there straight. Who asks for its devices itself is sent to the disk last. At the very last, it goes to host memory
        once those have passed through that this trial sends there.
        """
        if size <= self._host:
            self._host -= size
            self.now.add(tenant.id)
            found = True
        else:
            found = (
                self._make_room(size, [one for one in self._idle if one.id not in self._asking])
                or self._send_straight(tenant, size)
                or self._make_room(size, [one for one in self._idle if one.id != tenant.id])
                or self._make_room(size, [one for one in self._idle if one.id != tenant.id], passing=True)
            )
        if found and tenant.spillable and tenant.id not in self.straight:
            self._passing.append(size)
        return found

    def covers(self, size: float) -> bool:
        """True when states of `size` bytes in all would find room, one after the other."""
        free = self._host + self._coming
        if size <= free:
            return True
        passing = self._past_host or size <= self._limit
        return passing and size <= max(self._disk, free + min(self._disk, sum(one.moved for one in self._idle)))

    def _make_room(self, size: int, idle: Sequence[Tenant], *, passing: bool = False) -> bool:
        """Host memory has room once some of `idle` have gone on; with `passing` also those that this trial sends there."""
        if size > self._limit:
            return False
        short, disk, chosen = size - self._host - self._coming, self._disk, list[Tenant]()
        for tenant in idle:
            if short <= 0:
                break
            if tenant.moved <= disk:
                chosen.append(tenant)
                short -= tenant.moved
                disk -= tenant.moved
        left = list(self._passing)
        while passing and left and short > 0 and left[0] <= disk:
            short -= left[0]
            disk -= left.pop(0)
        if short > 0:
            return False
        self._passing = left
        gone = {tenant.id for tenant in chosen}
        self._idle = [tenant for tenant in self._idle if tenant.id not in gone]
        self._coming += self._disk - disk
        self._disk = disk
        self._host -= size
        self.spills.extend(chosen)
        self.later = True
        return True

    def _send_straight(self, tenant: Tenant, size: int) -> bool:
        if not self._past_host or not tenant.spillable or size > self._disk:
            return False
        self._disk -= size
        self.now.add(tenant.id)
        self.straight.add(tenant.id)
        return True
