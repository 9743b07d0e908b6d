"""What administrators do: rules, and which nodes take whose jobs. Users are in `users`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from carrel.core.control.keeper import RecordStore
from carrel.core.control.reservations import Reservations
from carrel.core.control.rules import RuleBook
from carrel.core.control.user_port import UserStore
from carrel.core.domain.errors import Invalid, NotFound
from carrel.core.domain.node import Drain, Node
from carrel.core.domain.nodelist import check_nodelist
from carrel.core.domain.ports import Clock
from carrel.core.domain.reservation import Reservation
from carrel.core.domain.user import Caller, User
from carrel.core.policy.access import Action, Resource, allowed

#: Characters of the reason for which a node is drained or reserved.
LONGEST_REASON = 200
#: Names of reservations, so that they can be typed.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Administration:
    """Everything that an administrator can do. Thread-safe; raises the errors of `carrel.core.domain.errors`."""

    people: UserStore
    rules: RuleBook
    drains: RecordStore[Drain]
    reservations: Reservations
    #: The machines of the lab.
    nodes: Callable[[], Sequence[Node]]
    #: Asks for a placement under what has changed.
    look_again: Callable[[], None]
    clock: Clock

    # ---- users

    def users(self, caller: Caller) -> Sequence[User]:
        """All users."""
        allowed(caller, Action.MANAGE_USERS).check()
        return self.people.list()

    # ---- rules

    def reload_rules(self, caller: Caller) -> bool:
        """Put in force what the administrator has written now; return whether it differs. Raises `Invalid`, changing nothing."""
        allowed(caller, Action.RELOAD).check()
        return self.apply_rules()

    def apply_rules(self) -> bool:
        """The same, asked for by the lab's own process."""
        changed = self.rules.reload()
        if changed:
            self.look_again()
        return changed

    # ---- nodes

    def drain(self, caller: Caller, node: str, reason: str) -> bool:
        """Start nothing new on a node from now on; what runs there goes on. Returns whether that was otherwise before.

        Raises `NotFound`, and `Invalid` without a reason.
        """
        allowed(caller, Action.DRAIN).check()
        reason = _reason(reason)
        self._check_node(node)
        known = self.drains.get(node)
        if known is not None and known.reason == reason:
            return False
        self.drains.put(Drain(node=node, reason=reason, by=caller.user.subject, since=self.clock()))
        self.look_again()
        return True

    def undrain(self, caller: Caller, node: str) -> bool:
        """Let a node take jobs again; return whether it was drained. Raises `NotFound`."""
        allowed(caller, Action.DRAIN).check()
        removed = self.drains.remove(node)
        if not removed:  # a node that is gone may be drained still
            self._check_node(node)
        self.look_again()
        return removed

    def _check_node(self, node: str) -> None:
        names = self._node_names()
        if node not in names:
            raise NotFound(f'There is no node "{node}".', remedy=f"There are: {', '.join(names)}.")

    def _node_names(self) -> list[str]:
        return sorted(known.name for known in self.nodes())

    # ---- reservations

    def reserve(self, caller: Caller, asked: Reservation) -> bool:
        """Keep nodes for some people, or for nobody, between two moments. Returns whether there was no such reservation.

        One of the same name is replaced. Raises `Invalid` for what would keep nothing, and `NotFound` for nodes, users and
        accounts that do not exist.
        """
        allowed(caller, Action.RESERVE).check()
        if not _NAME.fullmatch(asked.name):
            raise Invalid(f'"{asked.name[:80]}" cannot be the name of a reservation.', remedy="Use letters, digits, . _ and -.")
        if not asked.begin < asked.end:
            raise Invalid("The reservation ends before it begins.", remedy="Let it end later.")
        if asked.end <= self.clock():
            raise Invalid("The reservation is over already.", remedy="Let it end later than now.")
        check_nodelist(asked.nodes)
        names = self._node_names()
        if not any(asked.covers(name) for name in names):
            raise NotFound(f"No node is called {' or '.join(asked.nodes)}.", remedy=f"There are: {', '.join(names)}.")
        self._check_people(asked.users, asked.accounts)
        reservation = replace(asked, reason=_reason(asked.reason), by=caller.user.subject)
        changed = self.reservations.put(reservation, now=self.clock())
        self.look_again()
        return changed

    def _check_people(self, users: Iterable[str], accounts: Iterable[str]) -> None:
        for user in sorted(users):
            if self.people.get(user) is None:
                raise NotFound(f'There is no user "{user}".', remedy="`carrel user list` shows all.")
        known = self.rules.current.accounts or {user.account for user in self.people.list()}
        for account in sorted(accounts):
            if account not in known:
                raise NotFound(f'There is no account "{account}".', remedy=f"There are: {', '.join(known)}.")

    def release(self, caller: Caller, name: str) -> None:
        """End a reservation, or take back one that is to come. Raises `NotFound`."""
        allowed(caller, Action.RELEASE).check()
        now = self.clock()
        if not self.reservations.remove(name, now=now):
            names = ", ".join(one.name for one in self.reservations.all() if one.end > now) or "none"
            raise NotFound(f'There is no reservation "{name}".', remedy=f"There are: {names}.")
        self.look_again()

    def list_reservations(self, caller: Caller) -> Sequence[Reservation]:
        """Those that are in force and those to come. Only those whom they are for, operators and administrators see for whom."""
        now = self.clock()
        shown = []
        for one in self.reservations.all():
            if one.end > now:
                among = allowed(caller, Action.SEE_RESERVATION, Resource(users=one.users))
                shown.append(one if among else replace(one, users=frozenset(), by=""))
        return shown


def _reason(text: str) -> str:
    reason = " ".join(text.split())
    if not reason or len(reason) > LONGEST_REASON:
        raise Invalid(
            f"The reason has {len(reason)} characters.",
            remedy=f"Say in 1 to {LONGEST_REASON} why: everybody who waits reads it.",
        )
    return reason
