"""The file that says what a fabric has: its driver, its blocks, and for how long users may have them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carrel.core.domain.composition import MachineRules
from carrel.core.domain.errors import Invalid
from carrel.core.domain.fabric import Block, BlockKind, by_name
from carrel.core.domain.suggest import suggest
from carrel.core.domain.units import parse_duration, parse_size
from carrel.engines.fabric.profiles import COMPUTE, MEMORY, slice_profiles

DRIVERS = ("simulated", "mig")
#: What the simulated driver can act out: it refuses; it does it and loses the answer; the machine never sees the block.
FAULTS = ("refused", "lost", "unseen")
#: Names of machines that the lab makes (`carrel.core.control.composing.machine_name`).
_TAKEN = re.compile(r"c\d+(-\d+)?")
_KEYS = {
    "simulated": ("driver", "longest", "machines", "max_gpus_per_user", "linger", "shortest", "blocks", "faults"),
    "mig": ("driver", "longest", "machines", "max_gpus_per_user", "linger", "shortest", "gpus", "cpus", "memory"),
}
_BLOCK = (
    "kind",
    "name",
    "count",
    "zone",
    "type",
    "size",
    "memory",
    "island",
    "rack",
    "owner",
    "lent",
    "machine",
    "slices",
    "fault",
)
_FAULT = ("block", "what", "times")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong with a block of the simulated driver, so many times."""

    block: str
    what: str
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricFile(MachineRules):
    """What the file says."""

    driver: str
    blocks: tuple[Block, ...]
    faults: tuple[Fault, ...] = ()
    #: Of the driver `mig`: UUIDs of the GPUs that are cut (none: all in MIG mode), and what jobs on slices have of the machine's
    #: processors and bytes of memory; 0: half.
    gpus: tuple[str, ...] = ()
    cpus: int = 0
    memory: int = 0


def read_fabric(path: Path) -> FabricFile:
    """Read the file. Raises `Invalid`, with the place and the remedy."""
    try:
        found = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Invalid(f"{path} cannot be read: {error}.", remedy="docs/composing.md shows what it says.") from None
    where = path.name
    driver = found.get("driver", "simulated")
    if driver not in DRIVERS:
        raise Invalid(f'{where}: driver is "{driver}".', remedy=f"There are: {', '.join(DRIVERS)}.")
    _check(found, _KEYS[driver], where)
    gpus = found.get("gpus", [])
    if not isinstance(gpus, list) or not all(isinstance(one, str) and one.startswith("GPU-") for one in gpus):
        raise Invalid(
            f"{where}: gpus is {gpus!r}."[:200], remedy='Write a list of UUIDs, such as ["GPU-…"]; `nvidia-smi -L` has them.'
        )
    blocks: list[Block] = []
    for number, table in enumerate(_tables(found, "blocks", where), start=1):
        blocks += _blocks(table, f"{where}: block {number}")
    by_name(blocks)
    return FabricFile(
        driver=driver,
        longest=_duration(found, "longest", "24h", where),
        machines=_whole(found, "machines", 2, where),
        max_gpus_per_user=_whole(found, "max_gpus_per_user", 1, where) if "max_gpus_per_user" in found else 0,
        linger=_duration(found, "linger", "2m", where),
        shortest=_duration(found, "shortest", "1s", where),
        blocks=tuple(blocks),
        faults=tuple(
            _fault(table, f"{where}: fault {number}") for number, table in enumerate(_tables(found, "faults", where), start=1)
        ),
        gpus=tuple(gpus),
        cpus=_whole(found, "cpus", 1, where) if "cpus" in found else 0,
        memory=_size(found, "memory", where, plain=False),
    )


def _blocks(table: Mapping[str, Any], where: str) -> Sequence[Block]:
    _check(table, _BLOCK, where)
    try:
        kind = BlockKind(table.get("kind", ""))
    except ValueError:
        raise Invalid(f'{where}: kind is "{table.get("kind", "")}".', remedy=f"There are: {', '.join(BlockKind)}.") from None
    count, name = _whole(table, "count", 1, where), _text(table, "name", where) or kind.value
    if not all(part.isalnum() or part in "-_.{}" for part in name):
        raise Invalid(
            f'{where}: "{name}" cannot be the name of a block.', remedy="Use letters, digits, . _ and -; {} stands for a number."
        )
    kind_of = _text(table, "type", where)
    if kind_of and not all(part.isalnum() or part in "-_." for part in kind_of):
        raise Invalid(f'{where}: "{kind_of}" cannot be a type.', remedy="Use letters, digits, . _ and -.")
    if count > 1 and "{}" not in name:
        name += "{}"
    size = _size(table, "size", where, plain=kind in (BlockKind.CPU, BlockKind.NIC))
    cut = table.get("slices", False)
    if cut and kind is not BlockKind.GPU:
        raise Invalid(f"{where}: a {kind.value} block cannot be cut into slices.", remedy="Say `slices = true` of GPUs alone.")
    machine = _text(table, "machine", where)
    if _TAKEN.fullmatch(machine):
        raise Invalid(f'{where}: "{machine}" is a name that the lab gives.', remedy="Call the machine something else.")
    if cut and not machine:
        raise Invalid(
            f"{where}: slices are cut from GPUs that are built into a machine.", remedy='Name the machine: `machine = "host1"`.'
        )
    return [
        Block(
            name=name.replace("{}", str(number)),
            kind=kind,
            zone=_text(table, "zone", where) or "main",
            type=kind_of,
            size=size,
            memory=_size(table, "memory", where, plain=False),
            island=_text(table, "island", where).replace("{}", str(number)),
            rack=_text(table, "rack", where),
            owner=_text(table, "owner", where),
            lent=_duration(table, "lent", "", where) if "lent" in table else 0,
            machine=machine,
            fixed=bool(machine),
            fault=_text(table, "fault", where),
            profiles=slice_profiles(size) if cut else (),
            compute_slices=COMPUTE if cut else 0,
            memory_slices=MEMORY if cut else 0,
        )
        for number in range(count)
    ]


def _fault(table: Mapping[str, Any], where: str) -> Fault:
    _check(table, _FAULT, where)
    what = _text(table, "what", where)
    if what not in FAULTS:
        raise Invalid(f'{where}: "{what}" is no fault.', remedy=f"There are: {', '.join(FAULTS)}.")
    return Fault(block=_text(table, "block", where), what=what, times=_whole(table, "times", 1, where))


def _tables(found: Mapping[str, Any], key: str, where: str) -> Sequence[Mapping[str, Any]]:
    tables = found.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise Invalid(f"{where}: {key} is not a list of tables.", remedy=f"Write [[{key}]] above each.")
    return tables


def _check(found: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in found:
        if key not in known:
            raise Invalid(f'{where}: there is no "{key}".', remedy=suggest(key, known))


def _text(table: Mapping[str, Any], key: str, where: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str) or len(value) > 64 or not value.isprintable():
        raise Invalid(f"{where}: {key} is {value!r}."[:200], remedy="Write a text of at most 64 characters in quotes.")
    return value


def _whole(table: Mapping[str, Any], key: str, default: int, where: str) -> int:
    value = table.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise Invalid(f"{where}: {key} is {value!r}.", remedy="Write a whole number, 1 or more.")
    return value


def _size(table: Mapping[str, Any], key: str, where: str, *, plain: bool) -> int:
    value = table.get(key, 0)
    if plain and isinstance(value, int) and value >= 0:
        return value
    if isinstance(value, str):
        return parse_size(value)
    if value == 0:
        return 0
    raise Invalid(f"{where}: {key} is {value!r}.", remedy='Write a size such as "40G"; processors of a CPU as a number.')


def _duration(table: Mapping[str, Any], key: str, default: str, where: str) -> int:
    value = table.get(key, default)
    if not isinstance(value, str):
        raise Invalid(f"{where}: {key} is {value!r}.", remedy='Write a duration such as "24h".')
    return parse_duration(value)
