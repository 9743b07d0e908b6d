"""What `carrel gpus` draws with characters: the last hour of a GPU, and its memory by owner. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from carrel.core.domain.units import format_duration, format_size

if TYPE_CHECKING:
    from carrel.wire.v1 import LentDevice, StretchView, TenantView
    from carrel.wire.v1.sessions import Lending

_HOUR, _MINUTES = 3600.0, 60
#: What was so -> its sign. One minute shows what there was most of.
_HAS = {"computes": "#", "task": "=", "holds": "k"}
_BESIDE = {"paused": "p", "leaves": "m", "returns": "m"}
LEGEND = (
    "Each sign is a minute. #: a cell computes, =: a task computes, k: kept while idle, .: nobody has it, ?: not known.\n"
    "Below it, p: work is paused, m: state moves."
)
_BAR = 24


def hour_lines(lending: Lending, device: LentDevice, now: float) -> tuple[str, str]:
    """The device's last hour, a sign for each minute: who had it, and what was paused or moved meanwhile ("" for nothing)."""
    rows = [row for row in lending.hour if row.device == device.uuid]
    known = now if device.known_since is None else device.known_since
    has, beside = [], []
    for minute in range(_MINUTES):
        begin = now - _HOUR + 60.0 * minute
        nothing = "?" if begin + 60.0 <= known else "."
        has.append(_most(rows, begin, now, _HAS) or nothing)
        beside.append(_most(rows, begin, now, _BESIDE) or " ")
    return "".join(has), "".join(beside).rstrip()


def hour_sums(lending: Lending, now: float) -> list[tuple[str, str, str, str, str, str]]:
    """For each GPU and each owner on it within the hour: device, owner, computed, kept, paused, moved."""
    sums: dict[tuple[str, str], list[float]] = {}
    columns = {"computes": 0, "holds": 1, "paused": 2, "leaves": 3, "returns": 3}
    indexes = {device.uuid: str(device.index) for device in lending.devices}
    for row in lending.hour:
        if row.device in indexes and row.what in columns:
            one = sums.setdefault((indexes[row.device], _who(row)), [0.0] * 4)
            one[columns[row.what]] += _within(row, now - _HOUR, now)
    return [
        (index, who, *(format_duration(round(seconds)) if seconds >= 0.5 else "" for seconds in one))  # type: ignore[misc]
        for (index, who), one in sums.items()
        if any(seconds > 0 for seconds in one)
    ]


def memory_bar(lending: Lending, device: LentDevice, name: Callable[[TenantView], str]) -> tuple[str, str]:
    """The device's memory as a bar (#: state, +: cache, o: other use, .: free), and whose it is in words."""
    tenants = {tenant.id: tenant for tenant in lending.tenants}
    state = sum(share.bytes - share.cached for share in device.by)
    cached = sum(share.cached for share in device.by)
    bar, at = "", 0.0
    for amount, sign in ((state, "#"), (cached, "+"), (device.used - state - cached, "o")):
        at += max(0, amount) / max(1, device.memory) * _BAR
        # What is there is seen, however little it is.
        bar = bar.ljust(min(_BAR, max(round(at), len(bar) + (amount > 0))), sign)
    words = []
    for share in device.by:
        who = name(tenants[share.tenant]) if share.tenant in tenants else "somebody else"
        words.append(f"{who} {format_size(share.bytes)}" + (f" ({format_size(share.cached)} cache)" if share.cached else ""))
    rest = device.used - state - cached
    if rest > 0:
        words.append(f"other {format_size(rest)}")
    words.append(f"free {format_size(max(0, device.memory - device.used))}")
    return f"[{bar.ljust(_BAR, '.')}]", ", ".join(words)


def _most(rows: Iterable[StretchView], begin: float, now: float, signs: dict[str, str]) -> str:
    """The sign of what there was most of in the minute; "" for nothing."""
    sums: dict[str, float] = {}
    for row in rows:
        sign = signs.get("task" if row.what == "computes" and row.role == "runner" and "task" in signs else row.what)
        if sign is not None:
            seconds = min(now if row.until is None else row.until, begin + 60.0) - max(row.since, begin)
            sums[sign] = sums.get(sign, 0.0) + max(0.0, seconds)
    sign = max(sums, key=lambda name: sums[name], default="")
    # A little of something is more to be seen than much of nothing.
    return sign if sign and sums[sign] > 0 else ""


def _within(row: StretchView, begin: float, now: float) -> float:
    if row.until is None:
        return max(0.0, now - max(row.since, begin))
    length = row.until - row.since
    return row.seconds * max(0.0, row.until - max(row.since, begin)) / length if length > 0 else 0.0


def _who(row: StretchView) -> str:
    if row.job is None or not (row.mine or row.owner):
        return "somebody else"
    what = f"job {row.job} ({row.owner})"
    return f"{what}: {row.label}" if row.label else what
