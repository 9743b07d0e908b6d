"""Moves under way: how far each is, as far as it says, and when it should be done."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from carrel.core.domain.lease import MoveMethod
from carrel.node.broker.core.rates import EXCHANGE, OUT, TELLING, Rates
from carrel.node.broker.core.rows import TenantRow
from carrel.node.suspension.ports import Ending, Moved


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A state that moves now."""

    tenant: str
    #: "out", to host memory, or "back"; "to_disk" or "from_disk".
    direction: str
    way: str
    devices: tuple[str, ...]
    #: Bytes to be moved in all, and that have moved; None: this way of moving does not say.
    of: int
    done: int | None = None
    #: When it began, and when it said last how far it is (Unix seconds).
    since: float
    at: float

    def ends(self, rate: float | None) -> float | None:
        """When it should be done (Unix seconds), by its own pace, else at `rate` bytes a second; None: nobody knows."""
        if self.done and self.at > self.since:
            return self.at + (self.of - self.done) * (self.at - self.since) / self.done
        return self.since + self.of / rate if rate else None


@dataclass(slots=True)
class _Exchange:
    """One state comes in while others leave: what that took says how fast both directions are at once."""

    since: float
    #: Tenants that still move; bytes of those that are done; and that all of these have moved as they should.
    left: set[str] = field(default_factory=set)
    bytes: int = 0
    good: bool = True


class UnderWay:
    """The moves that have begun and have not ended, by tenant."""

    def __init__(self, rates: Rates, way: str) -> None:
        """`way`: how this node moves states for which none was chosen."""
        self.moves: dict[str, Move] = {}
        #: Grows with each news.
        self.version = 0
        self._rates = rates
        self._way = way
        self._exchanges: list[_Exchange] = []

    def begun(self, row: TenantRow, direction: str, now: float) -> None:
        """The tenant's state begins to move."""
        size = sum(row.state.values())
        way = row.moved_by if row.moved_by == MoveMethod.BUS else self._way
        self.moves[row.id] = Move(tenant=row.id, direction=direction, way=way, devices=row.home, of=size, since=now, at=now)
        self.version += 1

    def exchanged(self, tenant: str, now: float) -> None:
        """The tenant's state, whose move has begun, comes in while those of others leave the same devices."""
        devices = set(self.moves[tenant].devices)
        others = {move.tenant for move in self.moves.values() if move.direction == OUT and devices & set(move.devices)}
        self._exchanges.append(_Exchange(now, {tenant, *others}))

    def progress(self, tenant: str, done: int, of: int, now: float) -> None:
        """So many bytes of the tenant's state have moved."""
        move = self.moves.get(tenant)
        if move is not None and of > 0:
            self.moves[tenant] = replace(move, done=max(0, min(done, of)), of=of, at=now)
            self.version += 1

    def ended(self, tenant: str, moved: Moved, now: float) -> None:
        """The move is over; what it took is what the next one is expected to take."""
        move = self.moves.pop(tenant, None)
        self.version += 1
        if move is None:
            return
        exchange = next((one for one in self._exchanges if tenant in one.left), None)
        if exchange is None:
            self._rates.note(move.way, move.direction, moved)
            return
        exchange.left.discard(tenant)
        exchange.bytes += moved.bytes
        exchange.good = exchange.good and moved.ending is Ending.DONE
        if not exchange.left:
            self._exchanges.remove(exchange)
            if exchange.good and exchange.bytes >= TELLING and now > exchange.since:
                self._rates.measured(move.way, EXCHANGE, exchange.bytes, now - exchange.since)

    def ends(self, move: Move) -> float | None:
        """When the move should be done (Unix seconds); None: nobody knows."""
        return move.ends(self._rates.of(move.way, move.direction))
