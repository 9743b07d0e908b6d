"""What a lock installs: names and versions. Understands pip's requirements, uv.lock, conda's explicit lists and pinned images."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

_PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*===?\s*([^\s;,\\]+)")
_DIRECT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*@\s*(\S+)")
_IMAGE = re.compile(r"\S+@(sha256:[0-9a-f]{64})")
_HASH = re.compile(r"--hash=(\S+)")
_CONDA_FILE = re.compile(r"(?:\.conda|\.tar\.bz2)$")
_UV_PACKAGE = re.compile(r'^\[\[package\]\]\nname = "([^"\n]+)"\nversion = "([^"\n]+)"', re.MULTILINE)


def packages_of(lock: str) -> Mapping[str, str] | None:
    """Return versions by normalised name (PEP 503), or None for a lock that is not understood.

    Of an image only that is known which it is.
    """
    text = lock.strip()
    if text.startswith("@EXPLICIT"):
        return _conda(text)
    if "[[package]]" in text:
        return {normalised(name): version for name, version in _UV_PACKAGE.findall(text)}
    if "\n" not in text and _IMAGE.fullmatch(text):
        return None
    found: dict[str, str] = {}
    for line in re.sub(r"\\\s*\n\s*", " ", text).splitlines():
        words = line.strip()
        if not words or words.startswith(("#", "--")):
            continue
        match = _PINNED.match(words) or _DIRECT.match(words)
        if match is None:
            return None
        found[normalised(match[1])] = match[2]
    return found


def files_of(lock: str) -> Mapping[str, frozenset[str]]:
    """Return the digests of the files from which each package may come, by normalised name; of requirement lines alone."""
    return {name: frozenset(_HASH.findall(line)) for name, line in _requirements(lock) or () if name}


def mix_locks(first: str, second: str, taken: Collection[str]) -> str | None:
    """Return the first lock with the packages in `taken` as the second one has them, or without them if it has none.

    Of requirement lines with versions; None where a lock is something else. Options stay those of the first.
    """
    mine, theirs = _requirements(first), _requirements(second)
    if mine is None or theirs is None:
        return None
    kept = [line for name, line in mine if name not in taken]
    return "\n".join([*kept, *(line for name, line in theirs if name and name in taken)]) + "\n"


def _requirements(lock: str) -> list[tuple[str, str]] | None:
    """Each line with the normalised name of its package, "" for what is none; continued lines are one."""
    found = []
    for line in re.sub(r"\s*\\\s*\n\s*", " ", lock.strip()).splitlines():
        words = line.strip()
        if not words or words.startswith("#"):
            continue
        match = None if words.startswith("-") else _PINNED.match(words) or _DIRECT.match(words)
        if match is None and not words.startswith("-"):
            return None
        found.append((normalised(match[1]) if match is not None else "", words))
    return found


def image_of(lock: str) -> str | None:
    """Return the digest of the image that a lock pins, or None."""
    match = _IMAGE.fullmatch(lock.strip())
    return None if match is None else match[1]


def normalised(name: str) -> str:
    """Return a package's name as PEP 503 compares them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _conda(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines()[1:]:
        if line.startswith("# pip "):
            name, _, version = line.removeprefix("# pip ").partition("==")
            found[normalised(name)] = version
        elif line.strip() and not line.startswith("#"):
            file = _CONDA_FILE.sub("", line.partition("#")[0].rpartition("/")[2])
            parts = file.rsplit("-", 2)
            if len(parts) == 3:
                found[normalised(parts[0])] = f"{parts[1]} ({parts[2]})"
    return found
