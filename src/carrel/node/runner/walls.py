"""What one attempt's command sees: the system, its own files, its environment, its devices."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.launch import Launch, LaunchPaths, LaunchWalls
from carrel.core.domain.network import Network
from carrel.core.domain.node import Device
from carrel.core.spool import AttemptDirectory
from carrel.core.spool.trees import remove_tree
from carrel.node.containment.walls import PREPARING_SHARED, Bind, Door, View, Walls, bounds_of

if TYPE_CHECKING:
    from carrel.node.runner.prepared import Prepared

#: Nodes that every program on a GPU opens (NVIDIA's open kernel modules, nvidia-modprobe(1)).
_OF_ALL_GPUS = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


def walls_of(launch: Launch, directory: AttemptDirectory, prepared: Prepared) -> Walls | None:
    """Return what the command sees, None where it sees what its runner does. Makes its home directory and its /tmp.

    An image takes the place of the machine's files. Where jobs are not kept apart, it is there with the home directory alone.
    """
    walls = launch.walls
    image = prepared.root or prepared.view
    if walls is None and image is None:
        return None
    if walls is None:
        walls = LaunchWalls(home=os.path.realpath(Path.home()), readable=tuple(_own_below_tmp()))
    private = private_temporary(directory)
    private.mkdir(mode=0o700, exist_ok=True)
    if launch.is_group:
        directory.group.parent.mkdir(mode=0o700, exist_ok=True)
    if walls.home:
        Path(walls.home).mkdir(mode=0o700, parents=True, exist_ok=True)
    writable = [
        walls.home,
        directory.work,
        directory.checkpoint,
        prepared.places.temporary,
        prepared.places.environment if image is None else None,
        directory.group.parent,  # its leader says there how it went
        prepared.directory if launch.task.session is not None else None,
        *(launch.paths.shown if image is not None else ()),
        directory.path if prepared.places.address is not None else None,  # where its server says how the lab reaches it
    ]
    # Of the broker the directory: a broker that is started again makes another socket, and what is shown is a file, not a name.
    shown = [*map(_parent, (launch.paths.broker, launch.paths.residency)), launch.paths.client, launch.paths.bodies]
    seen = [directory.path, *shown, *walls.data]
    given = [*_existing(seen, writable=False), *_existing(writable, writable=True)]
    # Paths of the attempt go before those of the machine.
    binds = given if prepared.root else [*_existing([*walls.readable, *_environment(prepared)], writable=False), *given]
    doors = doors_of(launch, walls.network)
    hosts = list(_hosts(directory, doors)) if doors is not None else []
    inside = _inside(launch, given, hosts) if image is not None else []
    view = None
    if prepared.root is not None:
        binds = inside
    else:
        binds += hosts
    if prepared.view is not None:
        from carrel.node.runner.image import image_place

        place = image_place(directory)
        place.mkdir(mode=0o700, exist_ok=True)
        view = View(root=str(prepared.view), place=str(place), binds=_once(inside))
    return Walls(
        view=view,
        root=str(prepared.root or ""),
        hidden=walls.hidden,
        frozen=walls.frozen,
        binds=_once(binds),
        temporary=str(private),
        devices=tuple(_devices(launch)),
        doors=doors,
        processes=walls.processes,
        shared_memory=launch.resources.memory,
        nests=launch.walls is None,
    )


def _own_below_tmp() -> Iterator[str]:
    """Where this Carrel and its Python are installed, as far as the command's own /tmp would hide them."""
    for place in (sys.prefix, sys.base_prefix, str(Path(__file__).parents[2])):
        real = os.path.realpath(place)
        if real.startswith("/tmp/"):
            yield real


def _inside(launch: Launch, given: Sequence[Bind], hosts: Sequence[Bind]) -> list[Bind]:
    """What is shown in an image: what the job was given, and what of the machine every program needs."""
    from carrel.node.runner.image import HOOK, shown_in_images

    hook = _existing([HOOK] if launch.task.session is not None else [], writable=False)
    return [*given, *hook, *shown_in_images(launch), *(Bind(bind.source, "/etc/hosts") for bind in hosts)]


def private_temporary(directory: AttemptDirectory) -> Path:
    """Where an attempt's own /tmp lies."""
    return directory.private_places[0].absolute()


def remove_private(directory: AttemptDirectory) -> None:
    """Remove what only the processes of an attempt saw behind their walls, and where ssh came in."""
    for place in directory.private_places:
        remove_tree(place)
    (directory.path / "private-hosts").unlink(missing_ok=True)
    directory.ssh_socket.unlink(missing_ok=True)


def doors_of(launch: Launch, network: Network) -> tuple[Door, ...] | None:
    """Return what leads out of the command's own network, None where it has the machine's."""
    if network is Network.ON:
        return None
    if network is Network.OFF or not launch.gateway:
        return ()
    from urllib.parse import urlsplit

    lab = urlsplit(launch.gateway)
    host, port = lab.hostname or "localhost", lab.port or (443 if lab.scheme == "https" else 80)
    if host == "localhost" or host.endswith(".localhost"):
        return (Door(host, port, ("127.0.0.1", "::1")),)
    return (Door(host, port, (host,) if _is_address(host) else ("127.0.0.1",)),)


def _is_address(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return True
    return False


def _hosts(directory: AttemptDirectory, doors: Sequence[Door]) -> Iterator[Bind]:
    """There is nobody to ask for a name: the machine's own, by which a group's processes meet, and the lab's are in a file."""
    place = os.path.realpath("/etc/hosts")
    if not os.path.exists(place):  # noqa: PTH110
        return
    names = [socket.gethostname(), *(door.host for door in doors if not _is_address(door.host))]
    file = directory.path.absolute() / "private-hosts"
    own = " ".join(dict.fromkeys(["localhost", *names]))
    file.write_text(f"127.0.0.1 {own}\n::1 localhost ip6-localhost ip6-loopback\n")
    yield Bind(str(file), place)


def staging_walls(seen: LaunchWalls, directory: AttemptDirectory, paths: LaunchPaths) -> Walls:
    """Return what the process sees that brings an attempt's inputs: as its command does, without devices or environment."""
    private = directory.private_places[1].absolute()
    private.mkdir(mode=0o700, exist_ok=True)
    if seen.home:
        Path(seen.home).mkdir(mode=0o700, parents=True, exist_ok=True)
    if paths.inputs:
        Path(paths.inputs).mkdir(mode=0o700, parents=True, exist_ok=True)
    binds = [
        *_existing([*seen.readable, paths.files], writable=False),
        *_existing([seen.home, directory.work, paths.inputs], writable=True),
    ]
    grows = [place for place in (directory.work, private, paths.inputs) if place and os.path.exists(place)]  # noqa: PTH110
    return Walls(
        hidden=seen.hidden,
        frozen=seen.frozen,
        binds=_once(binds),
        temporary=str(private),
        processes=seen.processes,
        shared_memory=PREPARING_SHARED,
        bounds=bounds_of(seen, grows, seen.home),
    )


def _existing(paths: Sequence[object], *, writable: bool) -> Iterator[Bind]:
    for path in paths:
        if path and os.path.exists(str(path)):  # noqa: PTH110
            real, called = os.path.realpath(str(path)), os.path.abspath(str(path))  # noqa: PTH100 - links stay
            yield Bind(real, writable=writable)
            if called != real:  # a part of the lab lies on another disk, and its environments name it as it is called
                yield Bind(real, called, writable=writable)


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
    """Nodes of the GPUs that it was given; of all where its cells or calls borrow."""
    borrows = (launch.task.session is not None or launch.task.borrows > 0) and bool(launch.paths.broker)
    if not launch.devices and not borrows:
        return
    # On a cluster its cgroup says which of them can be opened, as without walls.
    every = borrows or launch.remote
    yield from gpu_nodes(None if every else _nodes_of([device for device in launch.devices if not device.simulated]))


def _nodes_of(devices: Sequence[Device]) -> Collection[str]:
    if not devices:
        return ()
    from carrel.node.devices.slices import MIG, device_nodes

    try:
        return device_nodes([device.uuid for device in devices])
    except CarrelError:  # the driver does not answer; of a slice nothing else says where it is
        return {f"nvidia{device.index}" for device in devices if not device.uuid.startswith(MIG)}


def gpu_nodes(given: Collection[str] | None) -> Iterator[str]:
    """Yield what programs on these GPUs and slices of the machine open, below /dev; None: on any of them."""
    from carrel.node.devices.slices import nodes_of_all_slices

    wanted = nodes_of_all_slices() if given is None else sorted(name for name in given if "/" in name)
    for name in sorted(entry.name for entry in os.scandir("/dev")):
        if name in _OF_ALL_GPUS or (re.fullmatch(r"nvidia\d+", name) and (given is None or name in given)):
            yield f"/dev/{name}"
    yield from (f"/dev/{name}" for name in wanted)


def _parent(path: str) -> str:
    return str(Path(path).parent) if path else ""
