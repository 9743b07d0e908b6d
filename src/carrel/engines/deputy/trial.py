"""Tries whether a deputy can be started, as a lab would start it; for `carrel doctor`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import carrel
from carrel.domain.errors import Unavailable
from carrel.engines.deputy.frames import VERSION, FrameReader, NotAFrame, frame


@dataclass(frozen=True, slots=True)
class Trial:
    """What a deputy said of itself."""

    user: str
    #: Where it would keep the files of the user's jobs.
    directory: str


def try_deputy(command: Sequence[str], *, timeout: float = 60.0) -> Trial:
    """Start a deputy, ask it who it is, and send it away. Raises `Unavailable` with what went wrong."""
    asked = frame({"is": "open", "lab": "doctor", "interval": 60.0, "timeout": 30.0, "files": "", "host": ""})
    environ = {name: os.environ[name] for name in ("PATH", "LANG", "SLURM_CONF") if name in os.environ}
    try:
        done = subprocess.run(command, input=asked, capture_output=True, timeout=timeout, check=False, cwd="/", env=environ)
    except OSError as error:
        raise Unavailable(f"{command[0]} cannot be started: {error.strerror}.") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"The deputy did not answer within {timeout:.0f} s.") from error
    said = done.stderr.decode(errors="replace").strip().splitlines()
    try:
        heads = {head["is"]: head for head, _ in FrameReader().feed(done.stdout)}
    except NotAFrame as error:
        raise Unavailable(error.message) from error
    if "hello" not in heads or "ready" not in heads:
        raise Unavailable(said[-1] if said else f"The deputy ended with {done.returncode} and said nothing.")
    if heads["hello"]["version"] != VERSION:
        raise Unavailable(
            f"The deputies are of Carrel {heads['hello']['carrel']}, this is {carrel.__version__}.",
            remedy="Install the same for both.",
        )
    return Trial(user=str(heads["hello"]["user"]), directory=str(heads["ready"]["directory"]))


def changeable(command: Sequence[str]) -> Path | None:
    """Return what of the program in `command` this user could change, or None: then it does what its administrator installed."""
    for word in command:
        path = Path(word)
        if path.name == "carrel-deputy" and path.is_absolute():
            return next(
                (place for place in (path, path.parent, *path.parent.parent.glob("lib/*/site-packages")) if _mine(place)), None
            )
    return None


def _mine(path: Path) -> bool:
    return os.geteuid() != 0 and path.exists() and os.access(path, os.W_OK)
