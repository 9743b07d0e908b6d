"""The rules that are in force, which may be replaced while the lab runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from carrel.core.domain.errors import NotFound
from carrel.core.domain.rules import LabRules

#: Rules by where they stand in carrel.toml ("qos.batch.priority"), with their new values; None: not there any more.
RuleChanges = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleField:
    """One rule as an administrator writes it into a form."""

    #: Where it stands in carrel.toml.
    path: str
    label: str
    #: Its value in words; "": none.
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSection:
    """The rules of one class of service or account, or those of priority."""

    #: The table in carrel.toml ("qos.batch").
    path: str
    fields: Sequence[RuleField]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedRules:
    """The written rules, with changes that are not written yet."""

    rules: LabRules
    #: The whole text with the changes, and a digest of the text that it was made of.
    text: str
    digest: str
    #: By path, the value before and the new one, in words.
    told: Mapping[str, str]


class WrittenRules(Protocol):
    """The rules as an administrator writes them. Every method raises `Invalid` for what is wrong there, or in the changes.

    `carrel.lab.server.rules_file.RulesFile` is one, and has the promises.
    """

    def changed(self, changes: RuleChanges) -> ChangedRules: ...
    def write(self, changed: ChangedRules) -> None: ...
    def sections(self, rules: LabRules) -> Sequence[RuleSection]: ...
    def changes(self, table: str, texts: Mapping[str, str]) -> RuleChanges: ...


class RuleBook:
    """Holds the rules that are in force. Thread-safe: a reader of `current` has one whole set of them."""

    def __init__(
        self, rules: LabRules, *, reread: Callable[[], LabRules] | None = None, written: WrittenRules | None = None
    ) -> None:
        """`reread` makes the rules anew from where the administrator wrote them, and raises `Invalid` for what is wrong."""
        self._current = rules
        self._reread = reread
        self._written = written
        #: Held until what was written or read is in force: else an older set could follow a newer one.
        self._lock = threading.Lock()

    @property
    def current(self) -> LabRules:
        """The rules that are in force now."""
        return self._current

    @property
    def written(self) -> WrittenRules:
        """The place in which they are written. Raises `NotFound` in a lab whose rules are written nowhere (tests)."""
        if self._written is None:
            raise NotFound("The rules of this lab are written nowhere.")
        return self._written

    def reload(self) -> bool:
        """Put in force what is written now; return whether it differs. Raises `Invalid`, and then nothing has changed."""
        if self._reread is None:
            return False
        with self._lock:
            before, self._current = self._current, self._reread()
            return before != self._current

    def change(self, changed: ChangedRules) -> None:
        """Write the changes down, then put them in force. Raises as `WrittenRules.write`, and then nothing has changed."""
        with self._lock:
            self.written.write(changed)
            self._current = changed.rules
