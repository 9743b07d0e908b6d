"""Submissions by challenge and team, and what is worked out of them: pages ask for both each second, and few of them change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from carrel.core.control.keeper import RecordStore
from carrel.core.domain.challenge import ChallengeSubmission

T = TypeVar("T")
#: A challenge and a team of it; None stands for all.
Part = tuple[str | None, str | None]


class SentSubmissions:
    """Implements `RecordStore`. The records are read once and written by this alone, so reading asks no database. Thread-safe."""

    def __init__(self, records: RecordStore[ChallengeSubmission]) -> None:
        self._records = records
        #: Taken for a whole write, so that memory and database change in the same order; the other one only for memory.
        self._turn, self._guard = threading.Lock(), threading.Lock()
        self._of: dict[Part, dict[int, ChallengeSubmission]] | None = None
        self._listed: dict[Part, Sequence[ChallengeSubmission]] = {}

    def of(self, challenge: str | None = None, team: str | None = None) -> Sequence[ChallengeSubmission]:
        """Those to a challenge, or those of a team of it, in their order. While none of them changes, the very same sequence."""
        part = (challenge, team)
        listed = self._listed.get(part)
        if listed is None:
            with self._guard:
                found = self._loaded().get(part, {})
                listed = self._listed[part] = tuple(found[number] for number in sorted(found))
        return listed

    def put(self, value: ChallengeSubmission) -> ChallengeSubmission:
        """Keep the value in the place of one with the same number; return what is kept."""
        with self._turn:
            kept = self._records.put(value)
            self._change(kept.id, kept)
        return kept

    def get(self, *key: Any) -> ChallengeSubmission | None:
        """The one with this number, or None."""
        with self._guard:
            return self._loaded().get((None, None), {}).get(key[0])

    def remove(self, *key: Any) -> bool:
        """Forget one; return whether there was one."""
        with self._turn:
            there = self._records.remove(*key)
            self._change(key[0], None)
        return there

    def all(self, **equal: Any) -> Sequence[ChallengeSubmission]:
        """All there are, or those that have these values."""
        return self.select(**equal) if equal else self.of()

    def select(self, **equal: Any) -> Sequence[ChallengeSubmission]:
        """Those that have these values."""
        return tuple(one for one in self.of() if all(getattr(one, name) == value for name, value in equal.items()))

    def _change(self, number: int, after: ChallengeSubmission | None) -> None:
        with self._guard:
            before = self._loaded().get((None, None), {}).get(number)
            for part in () if before is None else _parts(before):
                self._loaded()[part].pop(number)
                self._listed.pop(part, None)
            for part in () if after is None else _parts(after):
                self._loaded().setdefault(part, {})[number] = after  # type: ignore[assignment]
                self._listed.pop(part, None)

    def _loaded(self) -> dict[Part, dict[int, ChallengeSubmission]]:
        if self._of is None:
            found: dict[Part, dict[int, ChallengeSubmission]] = {}
            for one in self._records.all():
                for part in _parts(one):
                    found.setdefault(part, {})[one.id] = one
            self._of = found
        return self._of


def _parts(one: ChallengeSubmission) -> Sequence[Part]:
    return ((None, None), (one.challenge, None), (one.challenge, one.team))


class Remembered:
    """What was worked out of values, until one of them is another object: boards, and teams by challenge. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], tuple[tuple[object, ...], Any]] = {}

    def __call__(self, name: tuple[str, ...], made_of: tuple[object, ...], make: Callable[[], T]) -> T:
        """Return what `make` returns, or has returned for the very same objects."""
        known = self._known.get(name)
        if known is None or any(one is not other for one, other in zip(known[0], made_of, strict=True)):
            known = self._known[name] = (made_of, make())
        found: T = known[1]
        return found
