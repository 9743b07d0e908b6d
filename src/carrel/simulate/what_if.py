"""Changes that somebody thinks about: other rules, more GPUs."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from carrel.core.domain.errors import Invalid
from carrel.core.domain.node import Device, Node

_COUNT = re.compile(r"[+-]?\d{1,6}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What is to be different."""

    #: "+4", "-8" or "64", or None for as many GPUs as there are.
    gpus: str | None = None
    #: Rules by where they stand in carrel.toml ("qos.batch.priority").
    rules: Mapping[str, Any] = field(default_factory=dict)


def read_what_if(changes: Sequence[str]) -> WhatIf:
    """Read changes as people write them: ``gpus=+4``, ``qos.batch.priority=5``, ``qos.normal.max_time=12h``.

    Values are TOML; what is none is text. Raises `Invalid` for what is no change.
    """
    gpus, rules = None, {}
    for change in changes:
        name, equals, value = change.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name or not value:
            raise Invalid(f'"{change}" says no change.', remedy="Write NAME=VALUE, such as gpus=+4 or qos.batch.priority=5.")
        if name in rules or (name == "gpus" and gpus is not None):
            raise Invalid(f'"{name}" is changed twice.', remedy="Change it once.")
        if name != "gpus":
            rules[name] = _value(value)
        elif _COUNT.fullmatch(value):
            gpus = value
        else:
            raise Invalid(f'gpus is "{value}".', remedy="Write +4 or -4 for more or fewer, or 64 for so many.")
    return WhatIf(gpus=gpus, rules=rules)


def _value(text: str) -> Any:
    try:
        found = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return found["value"] if len(found) == 1 else text


def with_gpus(nodes: Sequence[Node], wish: str) -> tuple[Node, ...]:
    """The nodes with more or fewer GPUs, or so many, as `wish` says ("+4", "-8", "64").

    Nodes like the largest are added, the last one with fewer GPUs where that makes the number; the last nodes go first. Nodes
    without GPUs stay. Raises `Invalid` when that cannot be.
    """
    present = sum(len(node.devices) for node in nodes)
    wanted = present + int(wish) if wish[0] in "+-" else int(wish)
    if not present:
        raise Invalid(
            "There are no GPUs, so more cannot be like them.",
            remedy="Say how nodes are to be, --gpus 1x2, or start the lab with simulated ones: carrel up --simulate-gpus 2",
        )
    if wanted < 1:
        raise Invalid(f"There are {present} GPUs; {wish} makes {wanted}.", remedy="Leave at least one.")
    kept: list[Node] = []
    left = wanted
    for node in nodes:
        if left or not node.devices:
            kept.append(replace(node, devices=node.devices[:left]))
            left -= len(kept[-1].devices)
    pattern = max(nodes, key=lambda node: len(node.devices))
    taken = {node.name for node in nodes}
    names = (name for number in count(1) if (name := f"{pattern.name}-more-{number}") not in taken)
    while left:
        kept.append(_like(pattern, next(names), min(left, len(pattern.devices))))
        left -= len(kept[-1].devices)
    return tuple(kept)


def _like(pattern: Node, name: str, gpus: int) -> Node:
    devices: tuple[Device, ...] = tuple(
        replace(device, uuid=f"SIM-{name}-{index}", simulated=True) for index, device in enumerate(pattern.devices[:gpus])
    )
    return replace(pattern, name=name, devices=devices, drained=None)
