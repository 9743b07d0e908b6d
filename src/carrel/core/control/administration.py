"""What administrators do: rules, and which nodes take whose jobs. Users are in `users`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from carrel.core.control.keeper import RecordStore
from carrel.core.control.rules import ChangedRules, RuleBook, RuleChanges
from carrel.core.control.user_port import UserStore
from carrel.core.domain.errors import Conflict, Invalid, NotFound
from carrel.core.domain.node import Drain, Node, checked_reason
from carrel.core.domain.ports import Clock
from carrel.core.domain.user import Caller, User
from carrel.core.policy.access import Action, allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Administration:
    """Everything that an administrator can do. Thread-safe; raises the errors of `carrel.core.domain.errors`."""

    people: UserStore
    rules: RuleBook
    drains: RecordStore[Drain]
    #: The machines of the lab.
    nodes: Callable[[], Sequence[Node]]
    #: Asks for a placement under what has changed.
    look_again: Callable[[], None]
    clock: Clock

    # ---- users

    def users(self, caller: Caller, *, programs: bool = False) -> Sequence[User]:
        """All people; with `programs` also the users as whom the programs of challenges run."""
        allowed(caller, Action.MANAGE_USERS).check()
        return [user for user in self.people.list() if programs or user.person]

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

    def changed_rules(self, caller: Caller, changes: RuleChanges) -> ChangedRules:
        """Make changes to what is written, and write nothing. Raises `Invalid`, also where nothing would change."""
        allowed(caller, Action.CHANGE_RULES).check()
        changed = self.rules.written.changed(changes)
        if changed.rules == self.rules.current:
            raise Invalid("That changes nothing: these rules are in force.", remedy="Write another value.")
        return changed

    def change_rules(self, caller: Caller, changes: RuleChanges, *, seen: str | None = None) -> Mapping[str, str]:
        """Write rules down and put them in force; return what has changed, in words.

        `seen`: the digest of what was written when the caller looked. Raises `Conflict` where something else is written now.
        """
        changed = self.changed_rules(caller, changes)
        if seen not in (None, changed.digest):
            raise Conflict("carrel.toml was changed since you looked.", remedy="Look at it again, then repeat the change.")
        self.rules.change(changed)
        self.look_again()
        return changed.told

    # ---- nodes

    def drain(self, caller: Caller, node: str, reason: str) -> bool:
        """Start nothing new on a node or a GPU from now on; what runs there goes on. Returns whether that was otherwise before.

        A GPU is named by its UUID, or by node and position ("node1:3"). Raises `NotFound`, and `Invalid` without a reason.
        """
        allowed(caller, Action.DRAIN).check()
        reason = checked_reason(reason)
        node = self._checked(node)
        known = self.drains.get(node)
        if known is not None and known.reason == reason and not known.returned:
            return False
        self.drains.put(Drain(node=node, reason=reason, by=caller.user.subject, since=self.clock()))
        self.look_again()
        return True

    def undrain(self, caller: Caller, node: str) -> bool:
        """Let a node or a GPU take jobs again; return whether it was drained. Raises `NotFound`."""
        allowed(caller, Action.DRAIN).check()
        known = self.drains.get(node)
        if known is None:  # a node that is gone may be drained still
            node = self._checked(node)
            known = self.drains.get(node)
        if known is None or known.returned:
            return False
        if known.by:
            self.drains.remove(node)
        else:  # the fault may be there still, and the administrator knows it
            self.drains.put(replace(known, by=caller.user.subject, since=self.clock(), returned=True))
        self.look_again()
        return True

    def _checked(self, name: str) -> str:
        """The name of a node, or the UUID of a GPU. Raises `NotFound`."""
        nodes = self.nodes()
        names = sorted(known.name for known in nodes)
        gpus = {f"{one.name}:{device.index}": device.uuid for one in nodes for device in one.devices}
        if name not in names and name not in gpus.values() and name not in gpus:
            raise NotFound(f'There is no node "{name}".', remedy=f"There are: {', '.join(names)}.")
        return gpus.get(name, name)
