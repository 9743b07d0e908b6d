"""The keeper of each noun that has one, and keepers with few rules. A new noun is a line here."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from carrel.core.control.keeper import Keeper, RecordStore
from carrel.core.control.rules import RuleBook
from carrel.core.control.secrets import Seal, Secrets
from carrel.core.control.user_port import UserStore
from carrel.core.domain.announcement import LONGEST, Announcement
from carrel.core.domain.control_characters import visible
from carrel.core.domain.errors import Invalid, NotFound
from carrel.core.domain.node import Node, checked_reason
from carrel.core.domain.nodelist import check_nodelist
from carrel.core.domain.noun import Noun
from carrel.core.domain.nouns import ANNOUNCEMENTS, RESERVATIONS, SECRETS
from carrel.core.domain.ports import Clock
from carrel.core.domain.reservation import Reservation
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, Resource, allowed

#: Names of reservations, so that they can be typed.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservations(Keeper[Reservation]):
    """Reservations that are in force and those to come; one that is over is forgotten when the next is made."""

    people: UserStore
    rules: RuleBook
    #: The machines of the lab.
    nodes: Callable[[], Sequence[Node]]
    #: Asks for a placement under what has changed.
    look_again: Callable[[], None]

    def checked(self, caller: Caller, asked: Reservation) -> Reservation:
        """Raises `Invalid` for what would keep nothing, and `NotFound` for nodes, users and accounts that do not exist."""
        now = self.clock()
        value = replace(asked, begin=asked.begin or now, reason=checked_reason(asked.reason), by=caller.user.subject)
        if not _NAME.fullmatch(value.name):
            raise Invalid(f'"{value.name[:80]}" cannot be the name of a reservation.', remedy="Use letters, digits, . _ and -.")
        if not value.begin < value.end:
            raise Invalid("The reservation ends before it begins.", remedy="Let it end later.")
        if value.end <= now:
            raise Invalid("The reservation is over already.", remedy="Let it end later than now.")
        check_nodelist(value.nodes)
        names = self._node_names()
        if not any(value.covers(name) for name in names):
            raise NotFound(f"No node is called {' or '.join(value.nodes)}.", remedy=f"There are: {', '.join(names)}.")
        for user in sorted(value.users):
            if self.people.get(user) is None:
                raise NotFound(f'There is no user "{user}".', remedy="`carrel user list` shows all.")
        known = self.rules.current.accounts or {user.account for user in self.people.list()}
        for account in sorted(value.accounts):
            if account not in known:
                raise NotFound(f'There is no account "{account}".', remedy=f"There are: {', '.join(known)}.")
        return value

    def seen(self, caller: Caller, value: Reservation) -> Reservation | None:
        """The nodes by name. Only those whom it is for, operators and administrators see for whom."""
        if value.end <= self.clock():
            return None
        nodes = tuple(name for name in self._node_names() if value.covers(name))
        users = value.users if allowed(caller, Action.SEE_RESERVATION, Resource(users=value.users)) else frozenset[str]()
        return replace(value, nodes=nodes, users=users, admits_me=value.admits(caller.user.subject, caller.user.account))

    def changed(self) -> None:
        """Jobs that waited for it are placed at once."""
        for one in self.records.all():
            if one.end <= self.clock():
                self.records.remove(one.name)
        self.look_again()

    def _node_names(self) -> list[str]:
        return sorted(known.name for known in self.nodes())


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcements(Keeper[Announcement]):
    """Users see those that hold now; who may announce sees those to come as well."""

    def checked(self, caller: Caller, asked: Announcement) -> Announcement:
        """The text is plain from here on: terminals obey control characters. Raises `Invalid`."""
        text = visible(" ".join(asked.text.split()))
        if not 0 < len(text) <= LONGEST:
            raise Invalid(f"The announcement has {len(text)} characters.", remedy=f"Say it in 1 to {LONGEST}.")
        now = self.clock()
        made = replace(asked, text=text, begin=asked.begin or now, by=caller.user.subject)
        if made.until <= max(made.begin, now):
            raise Invalid("The announcement is over before anybody sees it.", remedy="Let it hold until later.")
        return made

    def seen(self, caller: Caller, value: Announcement) -> Announcement | None:
        """Nothing of one that is over, or of one to come for who may not announce."""
        now = self.clock()
        if value.until <= now or (value.begin > now and not allowed(caller, Action.ANNOUNCE)):
            return None
        return value

    def changed(self) -> None:
        """Those that are over go."""
        for one in self.records.all():
            if one.until <= self.clock():
                self.records.remove(one.id)


T = TypeVar("T")


class Memory(Protocol):
    """Where records are; `carrel.lab.store.Store` is one."""

    def of(self, noun: Noun[T]) -> RecordStore[T]:
        """The records of a noun."""


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
