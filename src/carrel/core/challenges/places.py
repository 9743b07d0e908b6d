"""The directories of challenges' versions, whose names tell nobody what is in them.

A version is the digest of all its files. Teams see where their training data lie, and from the digest they could confirm labels
that they have guessed (or the seed that made them). So the directory's name is made with a secret of the lab's.
"""

from __future__ import annotations

import hmac
import secrets
from hashlib import sha256
from pathlib import Path

_SECRET = ".names"


def have_names(root: Path) -> None:
    """Have the secret that directories below `root` are named with."""
    if not (root / _SECRET).exists():
        fresh = root / f"{_SECRET}-{secrets.token_hex(8)}"
        fresh.touch(mode=0o600)
        fresh.write_bytes(secrets.token_bytes(32))
        fresh.rename(root / _SECRET)


def place_of(root: Path, name: str, version: str) -> Path:
    """The directory of a version of a challenge."""
    return root / name / hmac.digest((root / _SECRET).read_bytes(), f"{name} {version}".encode(), sha256).hex()[:32]
