"""Where a lab's home is, so that a copy of it knows that it is one (docs/decisions/0025-a-home-knows-where-it-is.md).

What a home holds speaks of processes, sockets and jobs of a cluster. In a copy all of that is the original's. So a home remembers
where it was opened, and one that finds itself elsewhere asks what it is before anything in it is believed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

from carrel.core.domain.errors import Conflict, Invalid
from carrel.core.spool.claim import boot_id
from carrel.lab.server.home import LabHome, write_private

#: Where systems keep a name that stays over boots (machine-id(5)).
_MACHINE = ("/etc/machine-id", "/var/lib/dbus/machine-id")


class Answer(StrEnum):
    """What the administrator says about a home that is not where it was."""

    #: It is the same lab, and nothing is left at the old place.
    MOVED = "moved"
    #: It is to be a lab of its own, and the original goes on.
    COPY = "copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeLocation:
    """Where a home was when a lab ran in it last. "" and 0 stand for what is not known."""

    path: str
    inode: int = 0
    #: Number of the disk (stat(2)); 0 for a file system without one of its own.
    disk: int = 0
    #: Name of the machine until its next boot; a name that stays, as a digest; and what people call it.
    boot: str = ""
    machine: str = ""
    host: str = ""
    #: Digest of the address of a database outside of the home.
    database: str = ""

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.path} on {self.host}" if self.host else self.path


def look(home: Path, database: str) -> HomeLocation:
    """Return where `home` is now; `database` is the address of the one that it uses, "" for its own."""
    about = home.stat()
    machine = ""
    for path in _MACHINE:
        with suppress(OSError):
            machine = machine or Path(path).read_text().strip()
    return HomeLocation(
        path=str(home),
        inode=about.st_ino,
        # Network file systems and containers have numbers that are given anew at each mount; their major part is 0.
        disk=about.st_dev if os.major(about.st_dev) else 0,
        boot=boot_id(),
        machine=_digest(f"carrel:{machine}") if machine else "",
        host=platform.node(),
        database=_digest(database) if database else "",
    )


def strangeness(known: HomeLocation, now: HomeLocation) -> str:
    """Return in words why the home is not where it was, "" when it is. Another boot of the same machine is nothing strange."""
    if known.boot != now.boot and known.machine and now.machine and known.machine != now.machine:
        return f"ran on the machine {known.host} and is opened on {now.host}"
    if known.path != now.path and not _leads_to(known.path, now):
        return f"was {known.words}, and is a copy of that or was moved"
    disk = known.boot == now.boot and known.disk and now.disk and known.disk != now.disk
    if (known.inode and known.inode != now.inode) or disk:
        return "is not the directory that it was: it was restored from a backup, or a copy has taken its place"
    return ""


def check(home: LabHome, database: str, answer: Answer | None) -> HomeLocation | None:
    """Return where the home was, None when it still is there. Nothing is changed.

    Raises `Conflict` when it is elsewhere and `answer` does not say what it is, or what it says cannot be.
    """
    known, now = read(home), look(home.path, database)
    strange = strangeness(known, now) if known is not None else ""
    if not strange or known is None:
        if answer is Answer.COPY:
            raise Invalid(
                f"{home.path} is no copy: it is where it was when a lab ran in it last.",
                remedy="Leave --copy out; it would end the records of jobs that run.",
            )
        return None
    if answer is None:
        raise Conflict(
            f"The lab's home {home.path} {strange}. Jobs of the original may be running, so nothing is started.",
            remedy="If it is the same lab and nothing of it is left at the old place: `carrel up --moved` goes on with its jobs. "
            "If the original is to go on: `carrel up --copy` makes this one a lab of its own, which leaves those jobs to the "
            "original.",
        )
    if answer is Answer.MOVED and (old := _still_there(home, known)) is not None:
        raise Conflict(
            f"The lab's home is still at {old}, so {home.path} is a copy of it.",
            remedy="Start it there; or `carrel up --copy` makes this one a lab of its own; or remove the old one first.",
        )
    shared = [path for path in home.written if path.is_symlink()]
    if answer is Answer.COPY and shared:
        raise Conflict(
            f"{shared[0]} is a link to {shared[0].readlink()}, which belongs to the original.",
            remedy="Put a copy of that, or an empty directory, in the place of the link.",
        )
    if answer is Answer.COPY and known.database and known.database == now.database:
        raise Conflict(
            "The copy would use the very database of the original.",
            remedy="Copy that too, and name the copy in this home's carrel.toml or with --database.",
        )
    return known


def remember(home: LabHome, database: str) -> None:
    """Write down where the home is. A full disk does not keep a lab from starting where it was before."""
    now = look(home.path, database)
    if read(home) != now:
        try:
            write_private(home.whereabouts, json.dumps(asdict(now)) + "\n")
        except OSError:
            known = read(home)
            if known is None or strangeness(known, now):
                raise


def read(home: LabHome) -> HomeLocation | None:
    """Return where the home was, None for a new one. One of an older release says by its files what its path was."""
    try:
        fields = json.loads(home.whereabouts.read_text())
        known = HomeLocation(path=str(fields["path"]))
        return replace(known, **{name: type(getattr(known, name))(fields[name]) for name in asdict(known) if name in fields})
    except FileNotFoundError:
        return _guess(home)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Conflict(
            f"{home.whereabouts}, which says where this home belongs, cannot be read: {error}.",
            remedy="If this is the original and no copy, remove that file.",
        ) from error


def _guess(home: LabHome) -> HomeLocation | None:
    """From the launch file of an attempt: releases before this one wrote the home's path into each."""
    if not home.spool.is_dir():
        return None
    with os.scandir(home.spool) as jobs:
        for job in jobs:
            with suppress(OSError, ValueError, KeyError, TypeError):
                paths = json.loads((Path(job.path) / "1" / "launch.json").read_text())["paths"]
                return HomeLocation(path=str(Path(paths["snapshots"]).parent))
    return None


def _leads_to(path: str, now: HomeLocation) -> bool:
    """True when the old path is another name of this home, such as a link."""
    try:
        return os.path.samefile(path, now.path)  # noqa: PTH121 - of what may not be there
    except OSError:
        return False


def _still_there(home: LabHome, known: HomeLocation) -> str | None:
    """The old path, when a home of the same lab is there; only of this machine can that be said."""
    old = LabHome(Path(known.path))
    with suppress(OSError):
        if not old.path.samefile(home.path) and (old.path / "secret").read_bytes() == (home.path / "secret").read_bytes():
            return known.path
    return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
