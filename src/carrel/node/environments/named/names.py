"""Which environment a name means, for whom."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from carrel.core.domain.errors import Conflict, NotFound
from carrel.core.domain.user import Caller, User
from carrel.core.policy.access import Action, Resource, allowed
from carrel.node.environments.named.records import (
    DEFAULT,
    EVERYBODY,
    SITE,
    Layout,
    NamedRecord,
    Place,
    full_name,
    split_name,
)


def may_use(caller: str, record: NamedRecord) -> bool:
    """True when the environment is the caller's own, the site's, or shared with them."""
    everybody = record.owner == SITE or EVERYBODY in record.shared_with
    resource = Resource(owner=record.owner, users=frozenset(record.shared_with), everybody=everybody)
    return bool(allowed(Caller(user=User(subject=caller, name=caller)), Action.USE_ENVIRONMENT, resource))


def as_written(caller: str, record: NamedRecord) -> str:
    """Return the name by which `caller` knows the environment."""
    return record.name if record.owner == caller else full_name(record.owner, record.name)


def find(layout: Layout, caller: str, text: str) -> tuple[Place, NamedRecord]:
    """Return the environment that `text` means for `caller`; raise `NotFound`, also for what is not theirs to see.

    A name alone means one's own, else the site's, else the one that somebody shares with the caller in person. What is shared
    with everybody needs its owner's name before it: users of an environment run code of its maker, so nobody
    gets somebody else's by a name that anybody could take.
    """
    owner, name = split_name(text)
    for candidate in (owner,) if owner is not None else (caller, SITE):
        place = layout.place(candidate, name)
        record = place.read()
        if record is not None and may_use(caller, record):
            return place, record
    shared = [] if owner is not None else [row for row in layout.everything() if row[1].name == name and may_use(caller, row[1])]
    personal = [row for row in shared if caller in row[1].shared_with]
    if len(personal) == 1:
        return personal[0]
    names = [full_name(record.owner, record.name) for _, record in shared]
    if len(personal) > 1:
        raise Conflict(f'"{name}" is shared with you by several.', remedy=f"Say which: {', '.join(names)}.")
    raise _unknown(layout, caller, text, names)


def find_own(layout: Layout, owner: str, text: str) -> tuple[Place, NamedRecord]:
    """Return an environment that `owner` may change; `text` is its name alone, or with its owner before it."""
    said, name = split_name(text)
    if said is not None and said != owner:
        raise NotFound(f'You have no environment "{text}".', remedy="Others' can be used, and changed by their owners only.")
    place = layout.place(owner, name)
    record = place.read()
    if record is None:
        raise _unknown(layout, owner, name, [])
    return place, record


def name_of_copy(original: NamedRecord, number: int) -> str:
    """Return what a personal copy of `original` is called; `number` counts tries, because names can be taken."""
    owner = full_name(original.owner, original.name).rpartition("/")[0]
    stem = f"{re.sub(r'[^a-z0-9_-]+', '-', owner.lower()).strip('-') or 'shared'}.{original.name}"[:60]
    return stem if number == 1 else f"{stem}-{number}"


def _unknown(layout: Layout, caller: str, text: str, shared: Sequence[str]) -> NotFound:
    if shared:
        return NotFound(f'You have no environment "{text}".', remedy=f"Shared with everybody is {', '.join(shared)}: write that.")
    if text == DEFAULT:
        return NotFound(f'Your environment "{DEFAULT}" is not there yet.', remedy="The first `carrel notebook` makes it.")
    known = [DEFAULT, *(as_written(caller, record) for _, record in layout.everything() if may_use(caller, record))]
    near = difflib.get_close_matches(text, known, n=1)
    remedy = f'Did you mean "{near[0]}"?' if near else f"Make it: `carrel env create {text.rpartition('/')[2]}`."
    return NotFound(f'There is no environment "{text}" for you.', remedy=remedy)
