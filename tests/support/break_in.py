"""Tries what a job must not be able to do: be the lab, act as another user, see another's files.

A job runs this file as it is (standard library alone) and prints one JSON object: what it tried, and what got through.
``break_in.py HOME DIRECTORY DEPUTY...``: the lab's home, where deputies of this user keep their files, and how one of
another user is started.
"""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

#: Seconds that a deputy has to say hello, should it be let in.
_PATIENCE = 10.0
#: What of the lab's home says who somebody is, or what others did.
SECRETS = ("token", "secret", "signing.key", "lab.db", "carrel.toml")


def main(arguments: Sequence[str]) -> int:
    """Try everything and say it; return 0: who asked reads the answer."""
    home, directory, deputy = Path(arguments[0]), Path(arguments[1]), list(arguments[2:])
    tried: list[str] = []
    through: list[str] = []
    for words, works in (*lab_files(home), *others_files(directory), *sudo(deputy)):
        tried.append(words)
        if works:
            through.append(words)
    print(json.dumps({"uid": os.getuid(), "user": pwd.getpwuid(os.getuid()).pw_name, "tried": tried, "through": through}))
    return 0


def lab_files(home: Path) -> Iterator[tuple[str, bool]]:
    """Try to read and to change what is in the lab's home."""
    for name in SECRETS:
        yield f"read {home / name}", _reads(home / name)
    for place in (home, home / "spool", home / "blobs", home / "run"):
        yield f"look into {place}", _lists(place)
        yield f"write into {place}", os.access(place, os.W_OK | os.X_OK)


def others_files(directory: Path) -> Iterator[tuple[str, bool]]:
    """Try to look into the directories in which deputies of other users keep their files."""
    own = pwd.getpwuid(os.getuid())
    for other in pwd.getpwall():
        if other.pw_uid in (0, own.pw_uid):
            continue
        place = _theirs(directory, own, other)
        if place is not None:
            yield f"look into {place}, which is {other.pw_name}'s", _lists(place)
            yield f"write into {place}, which is {other.pw_name}'s", os.access(place, os.W_OK | os.X_OK)


def _theirs(directory: Path, own: pwd.struct_passwd, other: pwd.struct_passwd) -> Path | None:
    """Return where another's deputy keeps what `directory` is for this user; None where that is unknown."""
    if directory.is_relative_to(own.pw_dir):
        return Path(other.pw_dir) / directory.relative_to(own.pw_dir)
    if own.pw_name in directory.parts:
        return Path(*(other.pw_name if part == own.pw_name else part for part in directory.parts))
    return None


def sudo(deputy: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Try to start the deputy of another user, by the rule that lets the lab do so."""
    if not deputy:
        return
    said = b""
    with suppress(OSError, subprocess.TimeoutExpired):
        said = subprocess.run(
            deputy, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_PATIENCE, check=False
        ).stdout
    yield f"start {' '.join(deputy)}", b'"hello"' in said


def _reads(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError:
        return False
    return True


def _lists(path: Path) -> bool:
    try:
        os.listdir(path)  # noqa: PTH208 - whether it works is all that is asked
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
