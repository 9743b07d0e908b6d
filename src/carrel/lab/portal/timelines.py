"""Pictures of a GPU: its last hour as a strip, and its memory by owner as a bar. Pure; the templates draw them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from carrel.core.domain.units import format_duration
from carrel.lab.portal.words import size
from carrel.wire.v1 import LentDevice, MoveView, StretchView, TenantView
from carrel.wire.v1.sessions import Lending

#: Pictures are so wide, in units of their own.
WIDTH = 1000.0
_HOUR = 3600.0
#: Nothing that was is narrower.
_LEAST = 3.0
#: What a bar says of a move of which nobody knows how far it is, at most.
_NEARLY = 0.95

#: What was so -> (its look, its words).
_LOOKS = {
    "computes": ("computes", "computed"),
    "task": ("task", "computed"),
    "holds": ("holds", "kept the GPU while idle"),
    "paused": ("paused", "was paused"),
    "leaves": ("moves", "state went to host memory"),
    "returns": ("moves", "state came back"),
}
#: Which are drawn below, in which row: they can be so while somebody has the device, and each while the other is.
_ROWS = {"paused": 1, "leaves": 2, "returns": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One piece of a picture: where, how it looks, and what it says."""

    x: float
    width: float
    look: str
    title: str
    mine: bool = False
    row: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTimeline:
    """The last hour of one device."""

    marks: Sequence[Mark]
    #: Up to here nobody knows.
    unknown: float
    #: All of it in one sentence.
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Going:
    """How far a move is."""

    move: MoveView
    #: 0 to 1; None: nobody can say.
    part: float | None
    text: str


def strip_of(lending: Lending, device: LentDevice, now: float) -> DeviceTimeline:
    """The device's hour that ends `now` (Unix seconds)."""
    begin = now - _HOUR
    rows = [row for row in lending.hour if row.device == device.uuid and (row.until is None or row.until > begin)]
    known = now if device.known_since is None else min(max(device.known_since, begin), now)
    sums: dict[str, float] = {}
    for row in rows:
        key = _kind(row)
        sums[key] = sums.get(key, 0.0) + _seconds(row, begin, now)
    marks = [_mark(row, begin, now) for row in rows]
    return DeviceTimeline(
        # What is below is read after what is above it.
        marks=sorted(marks, key=lambda mark: (mark.row, mark.x)),
        unknown=(known - begin) / _HOUR * WIDTH,
        summary=_summary(device, sums, known, now),
    )


def memory_of(lending: Lending, device: LentDevice, name: Callable[[TenantView], str]) -> Sequence[Mark]:
    """The device's memory from left to right: whose state, how much of it is cache, what others use; the rest is free."""
    tenants = {tenant.id: tenant for tenant in lending.tenants}
    marks: list[Mark] = []
    at = 0.0

    def add(amount: float, look: str, title: str, *, mine: bool = False) -> None:
        nonlocal at
        if amount > 0:
            width = amount / max(1, device.memory) * WIDTH
            marks.append(Mark(x=at, width=max(0.0, min(width, WIDTH - at)), look=look, title=title, mine=mine))
            at += width

    for share in device.by:
        tenant = tenants.get(share.tenant)
        who, mine = (name(tenant), tenant.mine) if tenant is not None else ("somebody else", False)
        add(share.bytes - share.cached, "state", f"{who}: {size(share.bytes - share.cached)} of state", mine=mine)
        add(share.cached, "cache", f"{who}: {size(share.cached)} of cache, given back when somebody needs it", mine=mine)
    for stranger in device.strangers:
        add(stranger.bytes, "stranger", f"process {stranger.pid} {stranger.name}, without a lease: {size(stranger.bytes)}")
    rest = device.used - sum(share.bytes for share in device.by) - sum(stranger.bytes for stranger in device.strangers)
    if device.by or device.strangers or rest > 0:
        add(rest, "other", f"the driver and what processes need beside their state: {size(max(0, rest))}")
    return marks


def going(lending: Lending, now: float) -> Sequence[Going]:
    """The moves under way, and how far they are."""
    found = []
    for move in lending.moves:
        left = None if move.ends is None else max(0.0, move.ends - now)
        if move.done is not None:
            part: float | None = move.done / max(1, move.bytes)
            text = f"{size(move.done)} of {size(move.bytes)}"
        elif move.ends is not None and move.ends > move.since:
            part = min(_NEARLY, max(0.0, (now - move.since) / (move.ends - move.since)))
            text = size(move.bytes)
        else:
            part, text = None, size(move.bytes)
        text += f", for {format_duration(max(0.0, now - move.since))}"
        if left is not None:
            text += ", any moment now" if left < 1 else f", about {format_duration(left)} more"
        found.append(Going(move=move, part=part, text=text))
    return found


def _kind(row: StretchView) -> str:
    return "task" if row.what == "computes" and row.role == "runner" else row.what


def _seconds(row: StretchView, begin: float, now: float) -> float:
    """How much of the hour it really took; of one that began before it, its part."""
    if row.until is None:
        return max(0.0, now - max(row.since, begin))
    length = row.until - row.since
    return row.seconds * (row.until - max(row.since, begin)) / length if length > 0 else row.seconds


def _mark(row: StretchView, begin: float, now: float) -> Mark:
    since, until = max(row.since, begin), now if row.until is None else min(row.until, now)
    x = (since - begin) / _HOUR * WIDTH
    look, words = _LOOKS.get(_kind(row), ("other", row.what))
    what = _who(row) + ("\u2019s " if words.startswith("state ") else " ") + words
    took = format_duration(row.seconds if row.until is not None else now - row.since)
    over = now - until
    when = "until now" if row.until is None else f"until {format_duration(over)} ago"
    within = ""
    if row.until is not None and row.seconds < 0.9 * (row.until - row.since):
        within = f" within {format_duration(row.until - row.since)}"
    return Mark(
        x=max(0.0, min(x, WIDTH - _LEAST)),
        width=min(WIDTH - min(x, WIDTH - _LEAST), max(_LEAST, (until - since) / _HOUR * WIDTH)),
        look=look,
        title=f"{what}: {took}{within}, {when}",
        mine=row.mine,
        row=_ROWS.get(row.what, 0),
    )


def _who(row: StretchView) -> str:
    if row.job is None or not (row.mine or row.owner):
        return "Somebody else"
    name = row.label or f"job {row.job}"
    return name if row.mine else f"{name} ({row.owner})"


def _summary(device: LentDevice, sums: dict[str, float], known: float, now: float) -> str:
    busy = sum(sums.get(kind, 0.0) for kind in ("computes", "task"))
    idle = max(0.0, now - known - busy - sums.get("holds", 0.0))
    moved = sums.get("leaves", 0.0) + sums.get("returns", 0.0)
    parts = [
        (sums.get("computes", 0.0), "cells computed for {}"),
        (sums.get("task", 0.0), "tasks computed for {}"),
        (sums.get("holds", 0.0), "it was kept idle for {}"),
        (idle, "nobody had it for {}"),
        (sums.get("paused", 0.0), "work was paused for {}"),
        (moved, "states moved for {}"),
    ]
    said = [text.format(format_duration(seconds)) for seconds, text in parts if seconds >= 0.5]
    text = f"GPU {device.index} in the last hour: {', '.join(said) or 'nothing happened'}."
    unknown = _HOUR - (now - known)
    return text if unknown < 1 else f"{text} Nothing is known of the first {format_duration(unknown)}."
