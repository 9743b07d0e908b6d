"""What is installed in an environment, and noting it when it has changed.

A runner calls `note_changes` every few seconds while a session runs: standard library only, no process is started, and a
call that finds nothing new takes about a millisecond. Sources: PyPA, "Recording installed projects" and "Direct URL Data
Structure"; pip's "Requirements File Format".
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from carrel.core.spool.foreign import parse_json, read_regular
from carrel.node.environments.building import requirements_in
from carrel.node.environments.named.records import SEEN, LockNote, NamedRecord, Place, is_generation
from carrel.node.environments.records import write_text
from carrel.node.environments.words import without_userinfo

#: An installation takes many steps; locks that follow each other within so many seconds are one.
_TOGETHER = 30.0
#: Bytes of a record of where a package came from.
_LONGEST = 1 << 20
_INFO = (".dist-info", ".egg-info")
_GIT_USER = re.compile(r"^(?:git\+)?ssh://git@")


def note_changes(prefix: Path, *, clock: Callable[[], float] = time.time) -> bool:
    """Remember what is installed in the environment at `prefix`, when that differs from its newest lock.

    Returns True when a new lock was written. Of a prefix that is no environment of ours, or no longer the current one, nothing
    is noted. Safe to call from any number of processes at any time: the lock and the record are written whole or not at all,
    and when somebody else is changing the record, this call leaves it to them or to the next. Raises `OSError`.
    """
    if not is_generation(prefix):
        return False
    place = Place(prefix.parent)
    seen = signature(prefix)
    if _read_seen(place) == seen:
        return False
    hold = place.try_change()
    if hold is None:
        return False
    with hold:
        record = place.read()
        if record is None or record.prefix != prefix.name:
            return False
        text = freeze(prefix, known_hashes(place, record))
        written = append(place, record, text, how="installed", at=clock())
        write_text(place.directory / SEEN, seen)
    return written is not record


def append(place: Place, record: NamedRecord, text: str, *, how: str, at: float) -> NamedRecord:
    """Add a lock to the history when it differs from the newest one; return the record as it is now written."""
    digest = place.keep_lock(text)
    locks = record.locks
    if locks and locks[-1].digest == digest:
        return record
    if locks and how == locks[-1].how == "installed" and 0 <= at - locks[-1].at < _TOGETHER:
        locks = locks[:-1]
    note = LockNote(at=at, digest=digest, how=how, packages=len(requirements_in(text)))
    record = replace(record, locks=(*locks, note))
    place.write(record)
    return record


def signature(prefix: Path) -> str:
    """Return what changes when a package is installed, removed or replaced: metadata directories and their times."""
    found = []
    for site in site_packages(prefix):
        for entry in os.scandir(site):
            if entry.name.endswith(_INFO):
                status = entry.stat(follow_symlinks=False)
                found.append(f"{entry.name} {status.st_mtime_ns} {status.st_ino}")
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()


def freeze(prefix: Path, hashes: dict[str, tuple[str, ...]] | None = None) -> str:
    """Return the lock of what is installed: requirement lines, sorted; addresses that packages came from directly are kept.

    `hashes` are those that are known of a requirement ("name==version") from an earlier lock.
    """
    lines = set()
    for site in site_packages(prefix):
        for entry in os.scandir(site):
            line = _requirement(entry, hashes or {}) if entry.name.endswith(_INFO) else None
            if line is not None:
                lines.add(line)
    return "".join(f"{line}\n" for line in sorted(lines))


def known_hashes(place: Place, record: NamedRecord) -> dict[str, tuple[str, ...]]:
    """Return the hashes in all locks of the history, by requirement."""
    found: dict[str, tuple[str, ...]] = {}
    for note in record.locks:
        try:
            text = place.read_lock(note.digest)
        except OSError:
            continue
        found |= hashes_in(text)
    return found


def hashes_in(text: str) -> dict[str, tuple[str, ...]]:
    """Return the hashes in a lock, by requirement ("name==version")."""
    found = {}
    for line in requirements_in(text):
        pin, *options = line.split(" --hash=")
        if options:
            found[pin.partition(";")[0].strip()] = tuple(option.strip() for option in options)
    return found


def site_packages(prefix: Path) -> Iterator[Path]:
    """Yield the directories in which packages of the environment lie (PEP 405); `lib64` may be a link to `lib`.

    Its owner may have put links there: what they lead to outside of it is not the environment's.
    """
    seen, inside = set(), os.path.realpath(prefix) + os.sep
    for path in sorted(prefix.glob("lib*/python3*/site-packages")):
        real = os.path.realpath(path)
        if real not in seen and real.startswith(inside):
            seen.add(real)
            yield path


def _read_seen(place: Place) -> str:
    try:
        return (place.directory / SEEN).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _requirement(entry: os.DirEntry[str], hashes: dict[str, tuple[str, ...]]) -> str | None:
    """One line; None for what is not (or not yet) an installed package: pip renames what it is about to remove to "~…"."""
    stem, _, _ = entry.name.rpartition(".")
    name, dash, version = stem.partition("-")
    metadata = "METADATA" if entry.name.endswith(".dist-info") else "PKG-INFO"
    present = os.path.exists(os.path.join(entry.path, metadata)) or not entry.is_dir()  # noqa: PTH110, PTH118
    if not dash or name.startswith("~") or not present:
        return None
    if entry.name.endswith(".egg-info"):
        version = re.sub(r"-py3(\.\d+)?$", "", version)
    name = re.sub(r"[-_.]+", "-", name).lower()
    direct = _direct_url(entry.path)
    if direct is not None:
        return _direct(name, direct)
    pin = f"{name}=={version}"
    return " \\\n    ".join([pin, *(f"--hash={value}" for value in hashes.get(pin, ()))])


def _direct_url(info: str) -> dict[str, object] | None:
    try:
        found = parse_json(read_regular(Path(info) / "direct_url.json", _LONGEST))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("url"), str) else None


def _direct(name: str, direct: dict[str, object]) -> str:
    url = str(direct["url"])
    url = url if _GIT_USER.match(url) else without_userinfo(url)
    vcs, archive, directory = (_part(direct, f"{kind}_info") for kind in ("vcs", "archive", "dir"))
    subdirectory = f"subdirectory={direct['subdirectory']}" if direct.get("subdirectory") else ""
    if directory.get("editable"):
        return f"-e {url}"
    if vcs:
        url = f"{vcs.get('vcs', 'git')}+{url}@{vcs.get('commit_id', '')}"
    line = f"{name} @ {url}{'#' + subdirectory if subdirectory else ''}"
    digests = archive.get("hashes")
    if isinstance(digests, dict) and isinstance(digests.get("sha256"), str):
        line += f" \\\n    --hash=sha256:{digests['sha256']}"
    return line


def _part(direct: dict[str, object], name: str) -> dict[str, object]:
    found = direct.get(name)
    return found if isinstance(found, dict) else {}
