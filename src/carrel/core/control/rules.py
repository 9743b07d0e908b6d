"""The rules that are in force, which may be replaced while the lab runs."""

from __future__ import annotations

from collections.abc import Callable

from carrel.core.domain.rules import LabRules


class RuleBook:
    """Holds the rules that are in force. Thread-safe: a reader of `current` has one whole set of them."""

    def __init__(self, rules: LabRules, *, reread: Callable[[], LabRules] | None = None) -> None:
        """`reread` makes the rules anew from where the administrator wrote them, and raises `Invalid` for what is wrong."""
        self._current = rules
        self._reread = reread

    @property
    def current(self) -> LabRules:
        """The rules that are in force now."""
        return self._current

    def reload(self) -> bool:
        """Put in force what is written now; return whether it differs. Raises `Invalid`, and then nothing has changed."""
        if self._reread is None:
            return False
        before, self._current = self._current, self._reread()
        return before != self._current
