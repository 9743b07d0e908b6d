"""Processes that say to a broker what no kernel, runner or library says: changed messages, in any order."""

from __future__ import annotations

import random
from typing import Any

STRANGE: list[Any] = [None, True, 0, -1, 2**63, 10**30, 1.5, 1e308, float("nan"), float("inf"), "", "x" * 10_000, "\ud800"]
STRANGE += [
    "a\0b",
    "/etc/passwd",
    [],
    {},
    [[]],
    [None],
    {"a": 1},
    [{}] * 50,
    ["gpu0"],
    ["gpu0", "gpu0"],
    [float("inf")],
    [10**30],
]
#: What each says, with fields as an honest one has them.
KERNELS: list[dict[str, Any]] = [
    {"op": "acquire", "request": "r1", "gpus": 0, "cell": "c", "devices": [], "ends_by": None, "elsewhere": False, "lends": True},
    {"op": "acquire", "request": "r2", "gpus": 1},
    {"op": "acquire", "request": "r3", "gpus": 2},
    {"op": "cancel", "request": "r1"},
    {"op": "release", "lease": "1", "fence": 1, "cell": "c", "outcome": "ok", "cuda": True, "blockers": [], "background": 0},
    {"op": "release", "lease": "1", "fence": 1, "outcome": "error", "oom": True, "cached": [1]},
    {"op": "set_aside", "lease": "1"},
    {"op": "go_on", "lease": "1"},
    {"op": "touched"},
    {"op": "simulate", "bytes": 5, "cached": 1},
    {"op": "home", "gpus": 1},
    {"op": "home", "gpus": 2},
    {"op": "hold", "seconds": 1},
    {"op": "prepared", "id": 1, "bytes": 5, "cached": 0, "blockers": []},
    {"op": "status"},
    {"op": "watch", "past": True},
    {"op": "took", "until": 1},
]
_SIZES = {"place": "in", "devices": ["gpu0"], "movable": [1], "stays": [1], "reasons": [], "leaked": 0}
LIBRARIES: list[dict[str, Any]] = [
    {"op": "acquire", "request": "r1"},
    {"op": "cancel", "request": "r1"},
    {"op": "release", "lease": "1", "fence": 1, **_SIZES},
    {"op": "quiet", "id": 1, "ok": True, "why": "", "seconds": 1, **_SIZES, "reach": 1},
    {"op": "pieces", "id": 1, "ok": True, "why": "", "result": 0, "bytes": 1, "seconds": 1},
    {"op": "pieces_back", "id": 1, "ok": True, "why": "", "place": "spilled", "bytes": 1},
    {"op": "filled", "id": 1, "ok": True, "why": "", "place": "out", "bytes": 1},
    {"op": "progress", "id": 1, "done": 1, "of": 2},
    {"op": "moved", "id": 1, "ok": True, "place": "out", "why": "", "bytes": 1, "seconds": 1, "leaked": 0},
    {"op": "going", "id": 1, "ok": True, "place": "in"},
]
#: What a library says of itself at first.
AT_GATE = {"gate": "open", "paused": False, "waiting": False, "lease": "", "fence": 0, **_SIZES, "pieces": [], "sizes": []}
PLACES = ("none", "in", "out", "spilled", "lost")


def changed(message: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """Return a copy of which none, one or two fields are another's, or missing."""
    found = dict(message)
    for _ in range(dice.choice((0, 1, 1, 2))):
        name = dice.choice(list(found))
        if name == "op":
            continue
        if dice.random() < 0.1:
            del found[name]
        elif name == "place" and dice.random() < 0.7:
            found[name] = dice.choice(PLACES)
        else:
            found[name] = dice.choice(STRANGE)
    return found


def any_message(dice: random.Random, *, library: bool, lease: str, fence: int, order: object) -> dict[str, Any]:
    """Return a message, changed or not, with what the broker said last of leases and orders."""
    message = dict(dice.choice(LIBRARIES if library else KERNELS))
    if dice.random() < 0.8:
        message |= {name: value for name, value in {"lease": lease, "fence": fence, "id": order}.items() if name in message}
    return changed(message, dice)
