"""What a contained process sees. Pure values: who builds them decides, `entering` does."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carrel.core.domain.launch import LaunchWalls

#: Bytes of /dev/shm for what prepares a job, which has no memory of its own to count them by.
PREPARING_SHARED = 256 * 1024**2


class Isolation(StrEnum):
    """How users' code is kept apart from the lab and from each other (`isolation` in carrel.toml)."""

    #: Not at all: everything runs with the rights of the lab's own user.
    NONE = "none"
    #: By the kernel's namespaces, Landlock and seccomp.
    KERNEL = "kernel"


@dataclass(frozen=True, slots=True)
class Bind:
    """A file or directory that is there, at the same place or at another one."""

    source: str
    target: str = ""
    writable: bool = False

    @property
    def place(self) -> str:
        """Where it appears."""
        return self.target or self.source


@dataclass(frozen=True, slots=True)
class Door:
    """An address outside that can be reached from a network of one's own."""

    host: str
    port: int
    #: At which addresses it is found inside, by the same port.
    addresses: Sequence[str] = ("127.0.0.1",)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The root of an image beside the machine's files, for what the contained process starts (`view`)."""

    #: A directory with the file system of an image.
    root: str
    #: The directory at which the root appears. It is there, and is empty.
    place: str
    #: What is shown in it.
    binds: Sequence[Bind] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a program may take that no job answers for; 0: no limit."""

    #: Bytes.
    memory: int = 0
    #: Bytes on the disk, and files, by which `places` may grow while it runs.
    disk: int = 0
    files: int = 0
    places: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Walls:
    """The system is there, read-only; beside that only this. Paths are absolute and without links."""

    #: A directory with the file system of an image, which is there instead of the machine's; "": the machine's.
    root: str = ""
    #: An image that is there beside the machine's files; None: none is.
    view: View | None = None

    #: Directories that are empty, but for what `binds` puts below them, and files that cannot be read, unless `binds` names them.
    hidden: Sequence[str] = ()
    #: Directories that show the entries they have at the start, and no later ones (`freeze`).
    frozen: Sequence[str] = ()
    binds: Sequence[Bind] = ()
    #: The directory that is /tmp.
    temporary: str
    #: Nodes in /dev beyond those that every program may expect.
    devices: Sequence[str] = field(default=())
    #: None: the machine's network. Else one of its own, from which these lead out and nothing else does.
    doors: Sequence[Door] | None = None
    #: Processes and threads at once; 0: as many as the machine allows.
    processes: int = 0
    #: Bytes of /dev/shm; 0: half of the machine's memory, as the kernel has it.
    shared_memory: int = 0
    #: True: what is inside may make namespaces of its own.
    nests: bool = False
    #: None: whoever starts it watches what it takes.
    bounds: Bounds | None = None


def bounds_of(seen: LaunchWalls, places: Iterable[str | Path], home: str = "") -> Bounds | None:
    """Return what a program that prepares a job may take, None where it has no limit. It writes to `places`, and to `home`.

    A home that is not the lab's is a person's own, in which they may do what they like.
    """
    limits = asdict(seen.preparing)
    if not any(limits.values()):
        return None
    own = os.path.realpath(home)
    in_lab = home and any(own.startswith(f"{hidden}/") for hidden in seen.hidden)
    grown = [os.path.realpath(place) for place in (*places, *([home] if in_lab else ()))]
    return Bounds(**limits, places=tuple(dict.fromkeys(grown)))
