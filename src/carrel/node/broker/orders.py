"""What the broker does with one process that has the residency library, step by step: orders to it, and work in between."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from carrel.node.broker.pool import Piece
from carrel.node.leases.protocol import Message
from carrel.node.suspension.ports import Ending, Moved


@dataclass(frozen=True, slots=True)
class Order:
    """An order to a process. It is answered with the process' message, or None when it gave none."""

    member: str
    op: str
    #: The op of its answer.
    answer: str
    fields: Mapping[str, Any]
    pieces: Sequence[Piece] = ()


@dataclass(frozen=True, slots=True)
class Work:
    """What takes a while and is done in a thread of its own. It is answered with what `do` returns, which never raises."""

    do: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of the orders to one process."""

    ok: bool
    why: str = ""
    #: Bytes that it has on the side where it is now, and seconds that they took to move.
    bytes: int = 0
    seconds: float = 0.0
    #: Its state is not anywhere any more.
    lost: bool = False
    #: It got an order, and gave no answer: unknown.
    silent: bool = False


#: Steps one after the other; each is answered before the next.
Script = Generator[Order | Work, Any, Outcome]


def why_of(message: Message | None, otherwise: str) -> str:
    """Why an order was not carried out, in the words of the process."""
    if message is None:
        return f"{otherwise}: its library does not answer"
    return f"{otherwise}: {str(message.get('why', ''))[:200]}"


def moved_of(outcomes: Mapping[str, Outcome], ending: Ending) -> Moved:
    """What came of a tenant's move, in which its processes took part at once."""
    return Moved(
        ending=ending,
        message="; ".join(dict.fromkeys(one.why for one in outcomes.values() if one.why)),
        bytes=sum(one.bytes for one in outcomes.values()),
        seconds=max((one.seconds for one in outcomes.values()), default=0.0),
    )


def total_of(sizes: object) -> int:
    """The sum of a list of sizes, as a process says them."""
    return sum(size for size in sizes if type(size) is int and size > 0) if isinstance(sizes, list) else 0
