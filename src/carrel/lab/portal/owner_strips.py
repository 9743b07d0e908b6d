"""The last week of GPUs as strips, one for each, with a colour and a texture for each owner. Pure; the template draws them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from carrel.core.control.gpu_use import SeenWeek
from carrel.core.domain.units import format_duration
from carrel.core.gpu_use import HOUR
from carrel.core.gpu_use.week import Holder

#: A strip has a unit of width for each hour, and of height for each twelfth of what its device could have done.
WIDTH, HEIGHT = 169, 12
#: Looks that tell owners apart: colours, each plain, striped and dotted.
COLOURS, TEXTURES = 8, ("plain", "striped", "dotted")
_LOOKS = COLOURS * len(TEXTURES)
#: Hours that a piece may stand for: so many that there are no more pieces than these in all. Each has the owners with the most.
_LENGTHS, _PIECES, _OWNERS = (1, 2, 3, 4, 6, 8, 12, 24), 1400, 3
#: Owners whom the words of a strip name.
_NAMED = 5
#: Strips on a page.
MOST = 128
_OTHERS = "other users"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The look of an owner's pieces."""

    #: Its class, and the id of its texture.
    name: str
    colour: str
    texture: str = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """The part that one owner had of one GPU, or of all."""

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
    piece = next(hours for hours in _LENGTHS if len(shown) * WIDTH / hours <= _PIECES or hours == _LENGTHS[-1])
    looks = _looks({name for name in seen.names.values() if name is not None})
    owners = {holder: name if name in looks else None for holder, name in seen.names.items()}
    strips, totals = [], dict[str | None, float]()
    for uuid, name in shown:
        pieces = _pieces(seen.hours.get(uuid, ()), owners, piece)
        sums = _sum(pieces)
        totals = _sum([totals, sums])
        strips.append(_strip(name, pieces, sums, looks, piece))
    return Week(strips=strips, legend=_owned(totals, looks, {}), piece=piece, left_out=len(devices) - len(shown))


def _pieces(
    hours: Sequence[Mapping[Holder, float]], owners: Mapping[Holder, str | None], piece: int
) -> list[dict[str | None, float]]:
    found = []
    for at in range(0, len(hours), piece):
        sums: dict[str | None, float] = {}
        for hour in hours[at : at + piece]:
            for holder, seconds in hour.items():
                owner = owners[holder]
                sums[owner] = sums.get(owner, 0.0) + seconds
        found.append(sums)
    return found


def _looks(owners: Iterable[str]) -> Mapping[str | None, Look]:
    """An owner has the same look wherever possible: by their name, or the next that is free, plain ones first."""
    found: dict[str | None, Look] = {None: Look(name="owner-others", colour="others")}
    taken: set[int] = set()
    for owner in sorted(owners)[:_LOOKS]:
        first = zlib.crc32(owner.encode())
        at = next(at for step in range(_LOOKS) if (at := (first + step) % COLOURS + step // COLOURS * COLOURS) not in taken)
        taken.add(at)
        found[owner] = Look(name=f"owner-{at}", colour=f"hue-{at % COLOURS}", texture=TEXTURES[at // COLOURS])
    return found


def _strip(
    name: str,
    pieces: Sequence[Mapping[str | None, float]],
    sums: Mapping[str | None, float],
    looks: Mapping[str | None, Look],
    piece: int,
) -> Strip:
    drawn: dict[str | None, str] = {}
    for count, holders in enumerate(pieces):
        x, y = count * piece, HEIGHT
        for owner, seconds in sorted(holders.items(), key=lambda one: -one[1])[:_OWNERS]:
            height = min(y, max(1, round(HEIGHT * seconds / (min(piece, WIDTH - x) * HOUR))))
            if seconds > 0 and height:
                y -= height
                drawn[owner] = f"{drawn.get(owner, '')}M{x} {y}v{height}"
    owners = _owned(sums, looks, drawn)
    said = [f"{one.who} {one.time}" for one in owners[:_NAMED]] or ["nobody had it"]
    if len(owners) > _NAMED:
        said.append(f"{len(owners) - _NAMED} more")
    return Strip(name=name, summary=f"{name} in the last week: {', '.join(said)}.", owners=owners)


def _owned(sums: Mapping[str | None, float], looks: Mapping[str | None, Look], drawn: Mapping[str | None, str]) -> list[Owned]:
    most = sorted(sums.items(), key=lambda one: (one[0] is None, -one[1]))
    return [
        Owned(who=owner or _OTHERS, look=looks[owner], time=_hours(seconds), path=drawn.get(owner, ""))
        for owner, seconds in most
        if seconds >= 1
    ]


def _hours(seconds: float) -> str:
    return f"{seconds / HOUR:.1f}".removesuffix(".0") + " h" if seconds >= HOUR else format_duration(seconds)


def _sum(rows: Iterable[Mapping[str | None, float]]) -> dict[str | None, float]:
    found: dict[str | None, float] = {}
    for row in rows:
        for owner, seconds in row.items():
            found[owner] = found.get(owner, 0.0) + seconds
    return found
