"""A key that outlives the broker and not the boot: what lies on the disk is worth nothing after the machine was switched off.

It is in a file of a tmpfs (/run where the lab may write there, else /dev/shm), mode 0600, in a directory of the lab's user, mode
0700. Beside the key the file has the id of the boot (/proc/sys/kernel/random/boot_id), so a copy of it is none later. The keyring
of the kernel was not chosen: a user's ends with the last process of the user, and containers commonly forbid the calls.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from carrel.core.domain.errors import Unavailable
from carrel.core.spool.claim import boot_id

#: File systems in memory, the better one first: systemd may remove what a user has in /dev/shm at the logout (RemoveIPC).
_PLACES = (Path("/run"), Path("/dev/shm"))
_BYTES = 32


@dataclass(frozen=True, slots=True)
class BootKey:
    """A secret of this boot. It is never written to a disk, and not shown."""

    secret: bytes = field(repr=False)

    @property
    def id(self) -> str:
        """A name of the key, which tells nothing about it."""
        return hashlib.sha256(b"carrel key id" + self.secret).hexdigest()[:32]

    def derive(self, salt: bytes, about: bytes) -> bytes:
        """A key for one file (HKDF, RFC 5869): its chunks can then be counted from 0 without a nonce being used twice."""
        return HKDF(SHA256(), _BYTES, salt, about).derive(self.secret)


def boot_key(owner: Path, places: tuple[Path, ...] = _PLACES) -> BootKey:
    """The key of the broker whose state directory is `owner`: the one of before, or a new one after a boot.

    Raises `Unavailable` when there is no file system in memory to keep it in: then nothing may go to the disk.
    """
    name = hashlib.sha256(os.fsencode(owner.absolute())).hexdigest()[:16]
    return _kept(find_place(places), name)


def find_place(places: tuple[Path, ...] = _PLACES) -> Path:
    """The directory in which the keys of this user's brokers are, made where it was not there yet.

    Raises `Unavailable` when there is no file system in memory for it.
    """
    mounted = _in_memory()
    problems = []
    for place in places:
        if _type_of(place, mounted) not in ("tmpfs", "ramfs"):
            problems.append(f"{place} is not in memory")
            continue
        try:
            return _usable(place / f"carrel-{os.getuid()}")
        except OSError as error:
            problems.append(f"{error.filename or place}: {error.strerror or error}")
    raise Unavailable(
        f"There is no place for the key of GPU states on the disk: {'; '.join(problems)}.",
        remedy="Give the lab's user a tmpfs at /dev/shm, or leave state_disk unset.",
    )


def _usable(directory: Path) -> Path:
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    about = directory.lstat()
    if about.st_uid != os.getuid() or about.st_mode & 0o077 or directory.is_symlink():
        raise PermissionError(errno.EPERM, "belongs to somebody else", str(directory))
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))
    return directory


def _kept(directory: Path, name: str) -> BootKey:
    file, boot = directory / name, boot_id()
    with suppress(FileNotFoundError, ValueError):
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor) as stream:
            was, _, words = stream.read().partition(" ")
        secret = bytes.fromhex(words)
        if was == boot and len(secret) == _BYTES:
            return BootKey(secret)
    secret = secrets.token_bytes(_BYTES)
    temporary = directory / f".{name}.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(f"{boot} {secret.hex()}")
    temporary.replace(file)
    return BootKey(secret)


def _in_memory() -> dict[str, str]:
    """Type of the file system at each mount point (proc_pid_mounts(5); the last one mounted there is what is seen)."""
    found = {}
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            words = line.split()
            found[words[1]] = words[2]
    return found


def _type_of(place: Path, mounted: dict[str, str]) -> str:
    real = Path(os.path.realpath(place))
    return next((mounted[str(path)] for path in (real, *real.parents) if str(path) in mounted), "")
