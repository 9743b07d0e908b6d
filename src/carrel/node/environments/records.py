"""What the store writes down, and where: locks, markers, digests."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from carrel.core.domain.serial import to_plain
from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe

#: In each finished environment; without it the directory counts as half-built.
MARKER = "carrel-environment.json"
#: Beside it, the lock as text.
LOCK = "carrel.lock"
#: In that of an image: what the image says of itself, and its size.
IMAGE_ABOUT = "image.json"
#: Changes when environments are built in another way, so that none of the old ones is taken for the new.
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LockEntry:
    """What a recipe resolved to on this machine."""

    #: Digest of the environment that the lock makes.
    environment: str
    lock: str
    #: The Python that was chosen, its version, and `pythons.identity` of it (empty where the tool brings its own).
    interpreter: str
    version: str
    identity: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """What a finished environment says about itself."""

    digest: str
    lock_digest: str
    kind: str
    #: Implementation and exact version.
    python: str
    #: Where its interpreter's prefix is, relative to the directory of the marker.
    prefix: str
    #: "name==version", sorted.
    packages: tuple[str, ...]
    #: Unix seconds.
    created: float


@dataclass(frozen=True, slots=True)
class Layout:
    """Directories of the store. Names are the first 128 bits of a digest: shebang lines have a limit (execve(2))."""

    root: Path

    def prepare(self) -> None:
        """Make the directories, private to the lab."""
        for path in (self.root, self.locks, self.environments, self.guards, self.work, self.trash):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def locks(self) -> Path:
        """What recipes resolved to."""
        return self.root / "locks"

    @property
    def environments(self) -> Path:
        """The environments themselves."""
        return self.root / "envs"

    @property
    def guards(self) -> Path:
        """Lock files; see `guards`."""
        return self.root / "guards"

    @property
    def work(self) -> Path:
        """Scratch space of preparations."""
        return self.root / "work"

    @property
    def trash(self) -> Path:
        """What is being removed; nobody looks here."""
        return self.root / "trash"

    def lock(self, key: str) -> Path:
        """Where the lock of a recipe is kept."""
        return self.locks / f"{short(key)}.json"

    def environment(self, digest: str) -> Path:
        """Where an environment is built, for good: virtual environments do not move."""
        return self.environments / short(digest)

    def guard(self, digest: str) -> Path:
        """The lock file of an environment or of a recipe."""
        return self.guards / short(digest)


def short(digest: str) -> str:
    """Return the file name for a digest "sha256:<hex>"."""
    return digest.removeprefix("sha256:")[:32]


def digest_of(*parts: Any) -> str:
    """Return the digest of plain values, by their canonical JSON."""
    text = json.dumps([_FORMAT, *parts], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def text_digest(text: str) -> str:
    """Return the digest of the text itself, as the blob store would name it."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def recipe_key(
    recipe: EnvironmentRecipe,
    *,
    lab: tuple[str, str],
    platform: str,
    mirrors: str,
    code_digest: str,
    locked: str | None,
    maker: str = "",
) -> str:
    """Return the digest of everything that decides what a recipe resolves to; which file said so does not.

    `maker` is whose builds it is for, where builds are kept apart: what one's code had a hand in is no other's.
    """
    plain = to_plain(recipe)
    del plain["source"]
    python = recipe.python or list(lab)
    return digest_of("recipe", plain, python, platform, mirrors, code_digest if recipe.needs_code else "", locked, *_by(maker))


def _by(maker: str) -> tuple[str, ...]:
    return (maker,) if maker else ()


def environment_digest(
    recipe: EnvironmentRecipe, *, lock: str, version: str, platform: str, code_digest: str, maker: str = ""
) -> str:
    """Return the digest of an environment: the same lock, Python, platform and maker make the same one, for any request."""
    kind = recipe.kind.value if recipe.kind in (EnvironmentKind.CONDA, EnvironmentKind.IMAGE) else "uv"
    return digest_of("environment", kind, lock, version, platform, code_digest if recipe.needs_code else "", *_by(maker))


def read_lock(path: Path) -> LockEntry | None:
    """Return the entry, None when there is none that can be read: then it is made again."""
    plain = _read(path)
    if plain is None:
        return None
    try:
        return LockEntry(**{**plain, "identity": tuple(plain["identity"])})
    except (TypeError, KeyError):
        return None


def read_marker(directory: Path) -> Marker | None:
    """Return what a finished environment says; None when it is not finished, or not there."""
    plain = _read(directory / MARKER)
    if plain is None:
        return None
    try:
        return Marker(**{**plain, "packages": tuple(plain["packages"])})
    except (TypeError, KeyError):
        return None


def write_record(path: Path, record: LockEntry | Marker) -> None:
    """Write the record at `path`: whole or not at all, and durable before anybody sees it."""
    write_text(path, json.dumps(asdict(record), sort_keys=True))


def write_text(path: Path, text: str) -> None:
    """Write a private file: whole or not at all (rename(2))."""
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _read(path: Path) -> dict[str, Any] | None:
    try:
        plain = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return plain if isinstance(plain, Mapping) else None  # type: ignore[return-value]
