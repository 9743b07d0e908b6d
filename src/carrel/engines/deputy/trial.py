"""Tries whether a deputy can be started, as a lab would start it; for `carrel doctor`."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import carrel
from carrel.core.domain.errors import Unavailable
from carrel.core.spool.seal import opening_of
from carrel.engines.deputy.frames import VERSION, FrameReader, NotAFrame, Signer, frame


@dataclass(frozen=True, slots=True)
class Trial:
    """What a deputy said of itself."""

    user: str
    #: Where it would keep the files of the user's jobs.
    directory: str


def try_deputy(command: Sequence[str], *, signer: Signer | None = None, timeout: float = 60.0) -> Trial:
    """Start a deputy, ask it who it is, and send it away. Raises `Unavailable` with what went wrong."""
    environ = {name: os.environ[name] for name in ("PATH", "LANG", "SLURM_CONF") if name in os.environ}
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/", env=environ
        )
    except OSError as error:
        raise Unavailable(f"{command[0]} cannot be started: {error.strerror}.") from error
    with process:
        late = threading.Timer(timeout, process.kill)
        late.start()
        try:
            heads = _converse(process, signer)
        except NotAFrame as error:
            process.kill()
            raise Unavailable(error.message) from error
        finally:
            over = late.finished.is_set()
            late.cancel()
        assert process.stderr is not None
        said = process.stderr.read().decode(errors="replace").strip().splitlines()
    if over:
        raise Unavailable(f"The deputy did not answer within {timeout:.0f} s.")
    if "hello" not in heads or "ready" not in heads:
        raise Unavailable(said[-1] if said else f"The deputy ended with {process.returncode} and said nothing.")
    if heads["hello"]["version"] != VERSION:
        raise Unavailable(
            f"The deputies are of Carrel {heads['hello']['carrel']}, this is {carrel.__version__}.",
            remedy="Install the same for both.",
        )
    return Trial(user=str(heads["hello"]["user"]), directory=str(heads["ready"]["directory"]))


def _converse(process: subprocess.Popen[bytes], signer: Signer | None) -> dict[str, Mapping[str, Any]]:
    """Return what a deputy says, by kind, having told it which lab this is."""
    assert process.stdin is not None
    assert process.stdout is not None
    reader = FrameReader()
    heads: dict[str, Mapping[str, Any]] = {}
    while data := os.read(process.stdout.fileno(), 65536):
        for head, _ in reader.feed(data):
            heads[head["is"]] = head
            if head["is"] != "hello":
                continue
            asked = {"is": "open", "lab": "doctor", "interval": 60.0, "timeout": 30.0, "files": "", "host": ""}
            if signer is not None:
                words = opening_of(str(head.get("nonce", "")), str(head["user"]), "doctor")
                asked |= {"key": signer.public, "signature": signer.sign(words)}
            with suppress(BrokenPipeError):
                process.stdin.write(frame(asked))
                process.stdin.close()
    return heads


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
