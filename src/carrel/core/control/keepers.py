"""The keeper of each noun that has one. A new noun is a line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from carrel.core.control.announcements import Announcements
from carrel.core.control.keeper import Keeper, RecordStore
from carrel.core.control.reservations import Reservations
from carrel.core.control.rules import RuleBook
from carrel.core.control.secrets import Seal, Secrets
from carrel.core.control.user_port import UserStore
from carrel.core.domain.node import Node
from carrel.core.domain.noun import Noun
from carrel.core.domain.nouns import ANNOUNCEMENTS, RESERVATIONS, SECRETS
from carrel.core.domain.ports import Clock

T = TypeVar("T")


class Memory(Protocol):
    """Where records are; `carrel.lab.store.Store` is one."""

    def of(self, noun: Noun[T]) -> RecordStore[T]:
        """The records of a noun."""
        ...


def keepers(
    memory: Memory,
    people: UserStore,
    rules: RuleBook,
    clock: Clock,
    *,
    nodes: Callable[[], Sequence[Node]],
    look_again: Callable[[], None],
    seal: Seal,
) -> Sequence[Keeper[Any]]:
    """All of a lab; `nodes` are its machines, and `look_again` asks for a placement under what has changed."""
    return (
        Announcements(noun=ANNOUNCEMENTS, records=memory.of(ANNOUNCEMENTS), clock=clock),
        Reservations(
            noun=RESERVATIONS,
            records=memory.of(RESERVATIONS),
            clock=clock,
            people=people,
            rules=rules,
            nodes=nodes,
            look_again=look_again,
        ),
        Secrets(noun=SECRETS, records=memory.of(SECRETS), clock=clock, seal=seal),
    )
