"""The last week of GPUs as strips, one for each, with a colour and a texture for each owner. Pure; the template draws them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from carrel.core.control.gpu_use import SeenWeek
from carrel.core.domain.units import format_duration
from carrel.core.gpu_use import HOUR

#: A strip has a unit of width for each hour, and of height for each twelfth of what its device could have done.
WIDTH, HEIGHT = 169, 12
#: Looks that tell owners apart: colours, each plain, striped and dotted.
COLOURS, TEXTURES = 8, ("plain", "striped", "dotted")
_LOOKS = COLOURS * len(TEXTURES)
#: Pieces are so many hours long that there are not many more than these in all, and have so many owners.
_PIECES, _OWNERS = 2000, 3
#: Strips on a page.
MOST = 128
_OTHERS = "other users"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How an owner's pieces look."""

    #: Its class, and the id of its texture.
    name: str
    colour: str
    texture: str = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """What one owner had of one GPU, or of all."""

    who: str
    look: Look
    time: str
    #: As SVG has it: a line for each piece, as wide as that.
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """The week of one GPU."""

    name: str
    summary: str
    owners: Sequence[Owned]


@dataclass(frozen=True, slots=True, kw_only=True)
class Week:
    """All of them, and what their looks mean."""

    strips: Sequence[Strip]
    legend: Sequence[Owned]
    #: Hours that one piece stands for.
    piece: int
    left_out: int


def week_of(seen: SeenWeek, devices: Sequence[tuple[str, str]]) -> Week:
    """The week of `devices`, each with its UUID and its name on the page."""
    shown = devices[:MOST]
    piece = next(size for size in (1, 2, 3, 6, 12, 24) if len(shown) * WIDTH / size <= _PIECES or size == 24)
    pieces = {uuid: [_sum(hours[at : at + piece]) for at in range(0, WIDTH, piece)] for uuid, hours in seen.hours.items()}
    totals = _sum(total for uuid, _ in shown for total in pieces.get(uuid, ()))
    looks = _looks(owner for owner in totals if owner is not None)
    owner_of: dict[str | None, str | None] = {owner: owner if owner in looks else None for owner in totals}
    strips = [_strip(name, pieces.get(uuid, ()), owner_of, looks, piece) for uuid, name in shown]
    return Week(strips=strips, legend=_owned(_merged(totals, owner_of), looks), piece=piece, left_out=len(devices) - len(shown))


def _looks(owners: Iterable[str]) -> Mapping[str | None, Look]:
    """An owner has the same look wherever possible: by their name, or the next that is free, plain ones first."""
    found: dict[str | None, Look] = {None: Look(name="owner-others", colour="others")}
    taken: set[int] = set()
    for owner in sorted(owners)[:_LOOKS]:
        first = zlib.crc32(owner.encode())
        at = next(at for step in range(_LOOKS) if (at := (first + step) % COLOURS + step // COLOURS * COLOURS) not in taken)
        taken.add(at)
        found[owner] = Look(name=f"owner-{at}", colour=f"colour-{at % COLOURS}", texture=TEXTURES[at // COLOURS])
    return found


def _strip(
    name: str,
    pieces: Sequence[Mapping[str | None, float]],
    owner_of: Mapping[str | None, str | None],
    looks: Mapping[str | None, Look],
    piece: int,
) -> Strip:
    drawn: dict[str | None, str] = {}
    for count, holders in enumerate(pieces):
        x, y = count * piece, HEIGHT
        for owner, seconds in sorted(_merged(holders, owner_of).items(), key=lambda one: -one[1])[:_OWNERS]:
            height = min(y, max(1, round(HEIGHT * seconds / (min(piece, WIDTH - x) * HOUR))))
            if seconds > 0 and height:
                y -= height
                drawn[owner] = f"{drawn.get(owner, '')}M{x} {y}v{height}"
    owners = _owned(_merged(_sum(pieces), owner_of), looks, drawn)
    said = ", ".join(f"{one.who} {one.time}" for one in owners) or "nobody had it"
    return Strip(name=name, summary=f"{name} in the last week: {said}.", owners=owners)


def _owned(
    totals: Mapping[str | None, float], looks: Mapping[str | None, Look], drawn: Mapping[str | None, str] | None = None
) -> list[Owned]:
    most = sorted(totals.items(), key=lambda one: (one[0] is None, -one[1]))
    return [
        Owned(who=owner or _OTHERS, look=looks[owner], time=_hours(seconds), path=(drawn or {}).get(owner, ""))
        for owner, seconds in most
        if seconds >= 1
    ]


def _hours(seconds: float) -> str:
    return f"{seconds / HOUR:.3g} h" if seconds >= HOUR else format_duration(seconds)


def _merged(holders: Mapping[str | None, float], owner_of: Mapping[str | None, str | None]) -> dict[str | None, float]:
    """With those who have no look of their own among the others."""
    found: dict[str | None, float] = {}
    for owner, seconds in holders.items():
        found[owner_of[owner]] = found.get(owner_of[owner], 0.0) + seconds
    return found


def _sum(rows: Iterable[Mapping[str | None, float]]) -> dict[str | None, float]:
    found: dict[str | None, float] = {}
    for row in rows:
        for owner, seconds in row.items():
            found[owner] = found.get(owner, 0.0) + seconds
    return found
