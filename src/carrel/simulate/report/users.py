"""How it went for each user under each policy, with those who used little summed up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from carrel.simulate.measures import Measures, UserMeasures, together

#: Most users that are shown one by one.
SHOWN = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRow:
    """One user, or the rest of them."""

    name: str
    #: One a policy; None where none of the user's jobs ran.
    measures: Sequence[UserMeasures | None]
    #: Users that this is about.
    users: int = 1


def user_rows(measures: Sequence[Measures]) -> Sequence[UserRow]:
    """Rows of those with the most GPU-hours over all policies, in this order; one more for the rest where there are too many."""
    hours: dict[str, float] = defaultdict(float)
    for one in measures:
        for user in one.users:
            hours[user.user] += user.gpu_hours
    names = sorted(hours, key=lambda name: (-hours[name], name))
    by_name = [{user.user: user for user in one.users} for one in measures]
    rows = [UserRow(name=name, measures=[known.get(name) for known in by_name]) for name in names[:SHOWN]]
    rest = names[SHOWN:]
    if rest:
        title = f"{len(rest):,} other{'' if len(rest) == 1 else 's'}"
        summed = [[known[name] for name in rest if name in known] for known in by_name]
        rows.append(
            UserRow(name=title, measures=[together(users, title) if users else None for users in summed], users=len(rest))
        )
    return rows
