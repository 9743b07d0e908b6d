"""Where a lab's home is, so that a copy of it knows that it is one (docs/decisions/0025-a-home-knows-where-it-is.md).

What a home holds speaks of processes, sockets and jobs of a cluster. In a copy all of that is the original's. So a home remembers
where it was opened, and one that finds itself elsewhere is refused before anything in it is believed, until its administrator
says that it is the same lab.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sqlite3
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from carrel.core.domain.errors import Conflict
from carrel.core.spool.claim import boot_id, read_claim
from carrel.core.spool.trees import remove_tree
from carrel.lab.server.home import LabHome, write_private

#: Where systems keep a name that stays over boots (machine-id(5)).
_MACHINE = ("/etc/machine-id", "/var/lib/dbus/machine-id")
#: Jobs that a refusal names.
_NAMED = 5


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

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.path} on {self.host}" if self.host else self.path


def look(home: Path) -> HomeLocation:
    """Return where `home` is now."""
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
        machine=hashlib.sha256(f"carrel:{machine}".encode()).hexdigest()[:32] if machine else "",
        host=platform.node(),
    )


def strangeness(known: HomeLocation, now: HomeLocation) -> str:
    """Return in words why the home is not where it was, "" when it is. Another boot of the same machine is nothing strange."""
    if known.path != now.path and not _leads_to(known.path, now):
        return f"was {known.words}, and is a copy of that or was moved"
    if known.boot != now.boot and known.machine and now.machine and known.machine != now.machine:
        return f"ran on the machine {known.host} and is opened on {now.host}"
    disk = known.boot == now.boot and known.disk and now.disk and known.disk != now.disk
    if (known.inode and known.inode != now.inode) or disk:
        return "is not the directory that it was: it was restored from a backup, or a copy has taken its place"
    return ""


def check(home: LabHome, *, moved: bool) -> None:
    """Raise `Conflict` when the home is not where it was: at another path always, else unless it was `moved`."""
    known, now = read(home), look(home.path)
    strange = strangeness(known, now) if known is not None else ""
    if known is None or not strange:
        return
    refused = f"The lab's home {home.path} {strange}. Jobs of the original may be running, so nothing is started."
    another = "If the original is to go on, start another lab in an empty directory: `carrel up --home DIRECTORY`."
    if known.path != now.path and not _leads_to(known.path, now):
        raise Conflict(
            refused,
            remedy="If it is the same lab and nothing of it is left at the old place, keep its path, which environments and jobs "
            f"hold: `ln -s {home.path} {known.path}`, then `carrel up --moved --home {known.path}`. {another}",
        )
    if not moved:
        raise Conflict(refused, remedy=f"If it is the same lab and no other is left of it: `carrel up --moved`. {another}")
    _check_database(home)
    running = [path.parent.parent.name for path in home.spool.glob("*/*/claim") if _held_elsewhere(path)]
    if running:
        named = ", ".join(running[:_NAMED]) + (", …" if len(running) > _NAMED else "")
        raise Conflict(
            f"Jobs of this lab still run on {known.host}: {named}.",
            remedy=f"Wait until they have ended, or end them with the lab on {known.host}; then start it here.",
        )
    if known.machine != now.machine:  # its journal speaks of processes and GPUs of the other one
        for path in home.broker.iterdir():
            remove_tree(path) if path.is_dir() else path.unlink()


def remember(home: LabHome) -> None:
    """Write down where the home is. A full disk does not keep a lab from starting where it was before."""
    now = look(home.path)
    if read(home) != now:
        try:
            write_private(home.whereabouts, json.dumps(asdict(now)) + "\n")
        except OSError:
            known = read(home)
            if known is None or strangeness(known, now):
                raise


def read(home: LabHome) -> HomeLocation | None:
    """Return where the home was, None for a new one."""
    try:
        return HomeLocation(**json.loads(home.whereabouts.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise Conflict(
            f"{home.whereabouts}, which says where this home belongs, cannot be read: {error}.",
            remedy="If this is the original and no copy, remove that file.",
        ) from error


def _leads_to(path: str, now: HomeLocation) -> bool:
    """True when the old path is another name of this home, such as a link."""
    try:
        return os.path.samefile(path, now.path)  # noqa: PTH121 - of what may not be there
    except OSError:
        return False


def _held_elsewhere(claim: Path) -> bool:
    """True when a runner of another machine lives, by a lock on a shared file system."""
    found = read_claim(claim)
    return found is not None and found.held and found.elsewhere


def _check_database(home: LabHome) -> None:
    """Raise `Conflict` when the database was damaged on its way, as happens to one that is copied while a lab writes into it."""
    if not home.database.exists():
        return
    try:
        with closing(sqlite3.connect(home.database)) as connection:
            found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.Error as error:
        found = str(error)
    if found != "ok":
        raise Conflict(
            f"The database {home.database} is damaged ({found}): it was copied while a lab wrote into it.",
            remedy="Copy the home again while its lab is stopped (jobs go on meanwhile).",
        )
