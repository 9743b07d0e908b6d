"""Rows of a report that do not tell of single people: each stands for at least five (k-anonymity with k = 5)."""

from __future__ import annotations

from collections.abc import Mapping

from carrel.core.gpu_use.sums import Use, UseSums

#: A group of fewer people is told with others only: a report goes to readers who may know who is in it.
LEAST_PEOPLE = 5
#: The row of those that are too small.
OTHERS = "others"


class AnonymousSums:
    """Reads like `UseSums`: rows of fewer than five people are one, with the smallest larger ones where that is too small itself.

    Of fewer than five people in all nothing is told.
    """

    def __init__(self, by_owner: Mapping[str, UseSums]) -> None:
        """`by_owner`: the sums of each user, of the same grouping and range."""
        people: dict[str, set[str]] = {}
        for owner, sums in by_owner.items():
            for name in sums.rows:
                people.setdefault(name, set()).add(owner)
        others: set[str] = set()
        together: set[str] = set()
        for name in sorted(people, key=lambda one: (len(people[one]), one)):
            if len(people[name]) < LEAST_PEOPLE or 0 < len(together) < LEAST_PEOPLE:
                others.add(name)
                together |= people[name]
        self.rows: dict[str, Use] = {}
        self.total = Use()
        if others and len(together) < LEAST_PEOPLE:
            return
        for sums in by_owner.values():
            self.total.add(sums.total)
            for name, use in sums.rows.items():
                self.rows.setdefault(OTHERS if name in others else name, Use()).add(use)
