"""What one attempt's command sees: the system, its own files, its environment, its devices."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from carrel.containment.walls import Bind, Walls
from carrel.domain.launch import Launch
from carrel.spool import AttemptDirectory

if TYPE_CHECKING:
    from carrel.runner.prepare import Prepared

#: Nodes that every program on a GPU opens (NVIDIA's open kernel modules, nvidia-modprobe(1)).
_OF_ALL_GPUS = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
#: What root alone may read, and so a job of a lab that runs as root.
_OF_ROOT = ("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-")


def walls_of(launch: Launch, directory: AttemptDirectory, prepared: Prepared) -> Walls | None:
    """Return what the command sees, None where it sees what its runner does. Makes its home directory and its /tmp."""
    walls = launch.walls
    if walls is None:
        return None
    private = directory.path.absolute() / "private-tmp"
    private.mkdir(mode=0o700, exist_ok=True)
    if walls.home:
        Path(walls.home).mkdir(mode=0o700, parents=True, exist_ok=True)
    writable = [
        walls.home,
        directory.work,
        directory.checkpoint,
        prepared.places.temporary,
        prepared.places.environment,
        directory.group.parent,  # its leader says there how it went
        prepared.directory if launch.task.session is not None else None,
    ]
    seen = [*walls.readable, directory.path, *_environment(prepared), launch.paths.broker, _parent(launch.paths.residency)]
    binds = [*_existing(seen, writable=False), *_existing(writable, writable=True)]
    if os.geteuid() == 0:  # what is for root alone is for no job
        binds += [Bind("/dev/null", path) for path in _OF_ROOT if os.path.exists(path)]  # noqa: PTH110
    return Walls(hidden=walls.hidden, binds=_once(binds), temporary=str(private), devices=tuple(_devices(launch)))


def _existing(paths: list[object], *, writable: bool) -> Iterator[Bind]:
    for path in paths:
        if path and os.path.exists(str(path)):  # noqa: PTH110
            yield Bind(os.path.realpath(str(path)), writable=writable)


def _once(binds: list[Bind]) -> tuple[Bind, ...]:
    """A place is bound once; what is writable goes before what is not."""
    found = {bind.place: bind for bind in binds}
    return tuple(found.values())


def _environment(prepared: Prepared) -> Iterator[str]:
    """The environment that was activated.

    Where its Python leads is not asked: a session's owner writes there, and a link to it could open what is hidden. The lab's own
    Pythons are among what everybody may read.
    """
    for prefix in (prepared.activated.get("VIRTUAL_ENV"), prepared.activated.get("CONDA_PREFIX")):
        if prefix:
            yield prefix


def _devices(launch: Launch) -> Iterator[str]:
    """Nodes of the GPUs that it was given; of all where its cells borrow."""
    borrows = launch.task.session is not None and bool(launch.paths.broker)
    if not launch.devices and not borrows:
        return
    given = {f"nvidia{device.index}" for device in launch.devices}
    for name in sorted(entry.name for entry in os.scandir("/dev")):
        if name in _OF_ALL_GPUS or name in given or (borrows and re.fullmatch(r"nvidia\d+", name)):
            yield f"/dev/{name}"


def _parent(path: str) -> str:
    return str(Path(path).parent) if path else ""
