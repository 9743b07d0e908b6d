"""Personal copies of environments that belong to others: what their user installs is theirs, and harms nobody."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from carrel.core.domain.errors import Conflict
from carrel.node.environments.named.changes import note_changes
from carrel.node.environments.named.holding import Ground, Opened, alone, changing, use
from carrel.node.environments.named.making import Work, installed
from carrel.node.environments.named.names import name_of_copy
from carrel.node.environments.named.records import Kind, NamedRecord, Origin, Place, full_name
from carrel.node.environments.records import text_digest


def personal_copy(ground: Ground, caller: str, theirs: Place, original: NamedRecord, work: Work) -> Opened:
    """Return the caller's copy of `original`, made now when there is none yet, and brought up to date where that loses nothing.

    A copy is installed from the lock of the original; of a referenced prefix it is a layer on top.
    """

    if original.kind is Kind.OWN:
        lock, digest = theirs.read_lock(original.locks[-1].digest), original.locks[-1].digest
    else:
        lock = installed(theirs.prefix(original))
        digest = text_digest(lock)
    wanted = full_name(original.owner, original.name)
    place = _existing(ground, caller, wanted)
    if place is None:
        place = _take(ground, caller, original, lock, digest, work)
    else:
        _follow(ground, place, lock, digest, work)
    return use(place, place.directory.name, work)


def _existing(ground: Ground, caller: str, wanted: str) -> Place | None:
    rows = ground.layout.of(caller)
    return next((place for place, record in rows if record.origin and record.origin.environment == wanted), None)


def _take(ground: Ground, caller: str, original: NamedRecord, lock: str, digest: str, work: Work) -> Place:

    wanted = full_name(original.owner, original.name)
    for number in count(1):
        name = name_of_copy(original, number)
        place = ground.layout.place(caller, name)
        with changing(place, work) as hold:
            present = place.read()
            if present is None:
                with ground.builder(caller, place, hold, work) as builder:
                    builder.take(caller, name, original, lock, digest)
                return place
        if present.origin is not None and present.origin.environment == wanted:  # another session was faster
            return place
    raise AssertionError("there are more numbers than names")


def _follow(ground: Ground, place: Place, lock: str, digest: str, work: Work) -> None:
    """Bring a copy up to date with its original, unless its owner has installed something, or is using it now."""

    record = place.read()
    if record is None or record.origin is None or record.kind is not Kind.OWN or record.origin.lock == digest:
        return
    note_changes(place.prefix(record), clock=ground.clock)
    source = record.origin.environment
    try:
        with changing(place, work) as hold, alone(place, record.name):
            record = place.read() or record
            if record.changed_since_origin:
                work.report(f"{source} has changed; your copy keeps what you installed (remove {record.name} to copy it again)")
                return
            work.report(f"{source} has changed; bringing your copy up to date")
            record = replace(record, origin=Origin(environment=source, lock=digest))
            with ground.builder(record.owner, place, hold, work) as builder:
                builder.replace(record, lock, "taken")
    except Conflict:
        work.report(f"{source} has changed; your copy is in use and stays as it is")
