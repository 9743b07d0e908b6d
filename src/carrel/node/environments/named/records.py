"""Names, places and records of named environments."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from carrel.core.domain.errors import Invalid, Unavailable
from carrel.core.domain.serial import from_plain, to_plain
from carrel.core.domain.user import directory_name
from carrel.core.spool.trees import remove_tree
from carrel.node.environments.guards import OpenGuard, try_exclusive
from carrel.node.environments.records import text_digest, write_text

#: What a session gets that names no environment; made when it is first used.
DEFAULT = "default"
#: The owner of environments that administrators make for everybody (no subject is empty), and how people write it.
SITE, SITE_WORD = "", "site"
#: Shared with every user of the lab.
EVERYBODY = "all"
RECORD = "record.json"
#: Signature of the packages that the newest lock was read from; see `changes`.
SEEN = "seen"
_NAME = re.compile(r"[a-z0-9_-][a-z0-9._-]{0,63}")
#: Last parts of addresses of the API: an environment of that name would look like one of them.
_RESERVED = frozenset({"lock", "share", "restore"})


class Kind(StrEnum):
    """What an environment is made of."""

    #: A virtual environment of its own.
    OWN = "own"
    #: A virtual environment or conda prefix elsewhere, used where it is.
    REFERENCE = "reference"
    #: A virtual environment on top of a referenced one: what is installed goes here, the rest is read there.
    OVERLAY = "overlay"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockNote:
    """One lock in the history of an environment."""

    #: Unix seconds.
    at: float
    #: Digest of its text, which is in `locks/`.
    digest: str
    #: "made", "installed" (by a user, in a session), "restored" or "taken" (anew, from the shared one).
    how: str
    packages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Of a personal copy: what it is a copy of, as one writes it ("ada/torch", "site/torch"), and of which state."""

    environment: str
    lock: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRecord:
    """What is known of one environment; without this file its directory is nobody's."""

    owner: str
    name: str
    kind: Kind
    #: Name of the directory beside this record, or the absolute path of a referenced prefix.
    prefix: str
    #: Implementation and exact version.
    python: str
    #: What it was made from, in words.
    source: str
    #: Unix seconds.
    created: float
    #: Subjects, or `EVERYBODY`.
    shared_with: tuple[str, ...] = ()
    origin: Origin | None = None
    #: Of an overlay: the prefix below it.
    base: str = ""
    #: Oldest first; a reference has none, it is read when somebody asks.
    locks: tuple[LockNote, ...] = ()

    @property
    def changed_since_origin(self) -> bool:
        """True when the owner of a copy has installed something into it."""
        return self.origin is not None and bool(self.locks) and self.locks[-1].how not in ("made", "taken")


@dataclass(frozen=True, slots=True)
class Place:
    """The directory of one environment and what is in it. Making the object touches nothing."""

    directory: Path

    @property
    def record(self) -> Path:
        """The record."""
        return self.directory / RECORD

    @property
    def locks(self) -> Path:
        """Texts of locks, by digest."""
        return self.directory / "locks"

    @property
    def changing(self) -> Path:
        """Guard: held exclusively while the record is changed or a build runs."""
        return self.directory.parent / ".guards" / f"{self.directory.name}.change"

    @property
    def using(self) -> Path:
        """Guard: sessions hold it shared; it is held exclusively while the environment is replaced. Its time is that of the last
        use."""
        return self.directory.parent / ".guards" / f"{self.directory.name}.use"

    def prefix(self, record: NamedRecord) -> Path:
        """Where the environment's interpreter lives."""
        return self.directory / record.prefix

    def prepare(self) -> None:
        """Make the directories around it, private."""
        for path in (self.directory.parent.parent, self.directory.parent, self.changing.parent, self.trash):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def trash(self) -> Path:
        """What is being removed; nobody looks here. On the same file system, so that renaming does."""
        return self.directory.parent.parent / ".trash"

    def read(self) -> NamedRecord | None:
        """Return the record, None when there is no environment here.

        Raises `Unavailable` for one that cannot be understood: taking it for none would be to build over what is there.
        """
        try:
            return from_plain(NamedRecord, json.loads(self.record.read_bytes()))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, TypeError) as error:
            raise Unavailable(
                f"{self.record} cannot be understood: {error}.",
                remedy="A newer version of Carrel may have written it; an administrator can look.",
            ) from error

    def write(self, record: NamedRecord) -> None:
        """Write the record, all at once."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        write_text(self.record, json.dumps(to_plain(record), indent=1))

    def keep_lock(self, text: str) -> str:
        """Keep the text of a lock; return its digest."""
        digest = text_digest(text)
        self.locks.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.lock(digest)
        if not path.exists():
            write_text(path, text)
        return digest

    def lock(self, digest: str) -> Path:
        """Where the text of a lock is kept."""
        return self.locks / f"{digest.removeprefix('sha256:')}.txt"

    def read_lock(self, digest: str) -> str:
        """Return the text of a lock that the record names."""
        return self.lock(digest).read_text(encoding="utf-8")

    def next_generation(self) -> Path:
        """Return a directory for a new virtual environment: it is built where it stays, and counts once the record names it."""
        numbers = [int(path.name) for path in self.generations()]
        return self.directory / str(max(numbers, default=0) + 1)

    def generations(self) -> Iterator[Path]:
        """Yield virtual environments in the directory, finished or not."""
        if self.directory.is_dir():
            yield from (path for path in self.directory.iterdir() if path.name.isdecimal() and path.is_dir())

    def discard(self, path: Path) -> None:
        """Make `path` vanish at once, then free its space."""
        grave = self.trash / uuid.uuid4().hex
        self.trash.mkdir(mode=0o700, exist_ok=True)
        try:
            path.rename(grave)
        except FileNotFoundError:
            return
        remove_tree(grave)

    def sweep(self, record: NamedRecord | None) -> None:
        """Remove what killed builders left here. The caller holds `changing`, and `using` alone if there may be a session."""
        for path in list(self.generations()):
            if record is None or path.name != record.prefix:
                self.discard(path)
        for grave in self.trash.iterdir() if self.trash.is_dir() else ():
            remove_tree(grave)

    def try_change(self) -> OpenGuard | None:
        """Hold `changing`, None when somebody else has it."""
        return try_exclusive(self.changing)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the named environments of one lab are."""

    root: Path

    def place(self, owner: str, name: str) -> Place:
        """Where an environment is, or would be."""
        return Place(self.root / owner_directory(owner) / checked_name(name))

    def of(self, owner: str) -> Iterator[tuple[Place, NamedRecord]]:
        """Yield the environments of one owner, by name."""
        yield from _in(self.root / owner_directory(owner))

    def everything(self) -> Iterator[tuple[Place, NamedRecord]]:
        """Yield all environments."""
        if self.root.is_dir():
            for directory in sorted(self.root.iterdir()):
                if not directory.name.startswith("."):
                    yield from _in(directory)

    @property
    def quota(self) -> Path:
        """What the server was set to, for runners."""
        return self.root / ".quota.json"  # no owner's directory begins with a dot


def _in(directory: Path) -> Iterator[tuple[Place, NamedRecord]]:
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        record = None
        if not path.name.startswith("."):
            with suppress(Unavailable):  # a request for this one gets the error; the others are not affected
                record = Place(path).read()
        if record is not None:
            yield Place(path), record


def checked_name(name: str) -> str:
    """Return `name`; raise `Invalid` when an environment cannot be called so."""
    if not _NAME.fullmatch(name):
        raise Invalid(
            f'"{name[:80]}" cannot be the name of an environment.',
            remedy="Use 1 to 64 of a-z, 0-9, dot, hyphen and underscore, with no dot in front.",
        )
    if name in _RESERVED:
        raise Invalid(f'"{name}" cannot be the name of an environment.', remedy="Choose another: this word has a meaning.")
    return name


def split_name(text: str) -> tuple[str | None, str]:
    """Return owner (None: not said) and name of what somebody wrote: "torch", "ada/torch", "site/torch".

    Owners may have slashes in them.
    """
    owner, slash, name = text.rpartition("/")
    if slash and not owner:
        raise Invalid(f'"{text[:80]}" names no owner before the slash.', remedy="Write owner/name, or the name alone.")
    return (None if not owner else SITE if owner == SITE_WORD else owner), checked_name(name)


def full_name(owner: str, name: str) -> str:
    """Return how anybody can write an environment of `owner`: "ada/torch", "site/torch"."""
    return f"{owner or SITE_WORD}/{name}"


def owner_directory(owner: str) -> str:
    """Return a directory name that no other owner has; the site's begins with an @."""
    return "@site" if owner == SITE else directory_name(owner)


def is_generation(prefix: Path) -> bool:
    """True when `prefix` is a virtual environment of ours, by its place; touches one file name."""
    return prefix.name.isdecimal() and os.path.exists(prefix.parent / RECORD)  # noqa: PTH110
