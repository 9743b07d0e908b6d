"""Where the command line keeps the tokens that people signed in with: the system's keyring, else a file for each lab.

A keyring is asked only where it can be expected to answer without somebody at a screen that is not there; after any
error of it, the file is used.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from carrel.core.domain.errors import Unavailable

T = TypeVar("T")

#: Under which the keyring knows our tokens; the user name there is the lab's address.
_SERVICE = "carrel"
#: Seconds after which a keyring that does not answer is left alone: it may be asking somebody who is not there.
_PATIENCE = 10.0


def directory(environment: Mapping[str, str]) -> Path:
    """Where files of ours are for this user (XDG Base Directory Specification)."""
    return Path(environment.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "carrel"


def token_file(url: str, environment: Mapping[str, str]) -> Path:
    """The file for the token of one lab."""
    return directory(environment) / "tokens" / quote(url.rstrip("/"), safe="")


@contextlib.contextmanager
def alone(url: str, environment: Mapping[str, str]) -> Iterator[None]:
    """Be the only one of this user's commands that changes what is kept for this lab. Raises `Unavailable`."""
    import fcntl  # not on every system that a client may be used from

    path = directory(environment) / "locks" / quote(url.rstrip("/"), safe="")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise Unavailable(
            f"The sign-in at {url} cannot be renewed: {path} cannot be written: {error.strerror}.",
            remedy="Make room or set XDG_CONFIG_HOME to a directory of yours; or use CARREL_TOKEN.",
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def authority_file(url: str, environment: Mapping[str, str]) -> Path:
    """The file for whom a person trusts to sign the certificates of one lab."""
    return directory(environment) / "authorities" / f"{quote(url.rstrip('/'), safe='')}.pem"


def keep_authority(url: str, certificate: str, environment: Mapping[str, str]) -> None:
    """Believe this authority (PEM), and no other, when this lab is asked. Raises `Unavailable` when it cannot be kept."""
    path = authority_file(url, environment)
    try:
        _write(path, certificate.strip())
    except OSError as error:
        raise Unavailable(
            f"The trusted certificate cannot be kept in {path}: {error.strerror}.",
            remedy="Set CARREL_CA_FILE to the file instead.",
        ) from error


def usual_lab(environment: Mapping[str, str]) -> str | None:
    """The lab that was signed in to last, or None."""
    try:
        return (directory(environment) / "lab").read_text().strip() or None
    except OSError:
        return None


def keep(url: str, token: str, environment: Mapping[str, str], *, keyring: Any | None = None) -> str:
    """Keep the token for this lab, which is the usual one from now on; return where, in words for people.

    Raises `Unavailable` when it cannot be kept.
    """
    url = url.rstrip("/")
    path = token_file(url, environment)
    try:
        _write(directory(environment) / "lab", url)
    except OSError as error:
        raise _not_kept(path, error) from error
    return _keep(url, path, token, keyring or usable_keyring(environment))


def keep_again(url: str, token: str, environment: Mapping[str, str], *, keyring: Any | None = None) -> None:
    """Keep the token in the place of the one that is kept for this lab, where that is. Raises `Unavailable`."""
    url = url.rstrip("/")
    path = token_file(url, environment)
    _keep(url, path, token, None if path.exists() else keyring or usable_keyring(environment))


def _keep(url: str, path: Path, token: str, found: Any | None) -> str:
    try:
        if found is not None and _asked(lambda: _put(found, url, token)):
            path.unlink(missing_ok=True)
            return "the keyring"
        _write(path, token)
    except OSError as error:
        raise _not_kept(path, error) from error
    return str(path)


def _not_kept(path: Path, error: OSError) -> Unavailable:
    return Unavailable(
        f"The token cannot be kept in {path}: {error.strerror}.", remedy="Set CARREL_URL and CARREL_TOKEN instead."
    )


def kept(url: str, environment: Mapping[str, str], *, keyring: Any | None = None) -> tuple[str, Path | None] | None:
    """The token that is kept for this lab, and its file, or None for one of the keyring; None where there is none.

    The file is not read: who reads it checks first that nobody else can.
    """
    path = token_file(url, environment)
    if path.exists():
        return "", path
    found = keyring or usable_keyring(environment)
    token = None if found is None else _asked(lambda: found.get_password(_SERVICE, url.rstrip("/")))
    return None if not token else (str(token), None)


def forget(url: str, environment: Mapping[str, str], *, keyring: Any | None = None) -> None:
    """Keep no token for this lab."""
    url = url.rstrip("/")
    token_file(url, environment).unlink(missing_ok=True)
    if usual_lab(environment) == url:
        (directory(environment) / "lab").unlink(missing_ok=True)
    found = keyring or usable_keyring(environment)
    if found is not None:
        _asked(lambda: found.delete_password(_SERVICE, url))


def usable_keyring(environment: Mapping[str, str]) -> Any | None:
    """The package `keyring`, where it is installed and somebody is there whom it could ask; else None."""
    chosen = bool(environment.get("PYTHON_KEYRING_BACKEND"))
    screen = environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY")
    if not chosen and not (screen and environment.get("DBUS_SESSION_BUS_ADDRESS")):
        return None
    try:
        found: Any = importlib.import_module("keyring")
        return found if found.get_keyring().priority > 0 else None
    except Exception:  # noqa: BLE001 - any error of it means: there is none
        return None


def _put(keyring: Any, url: str, token: str) -> bool:
    keyring.set_password(_SERVICE, url, token)
    return bool(keyring.get_password(_SERVICE, url) == token)


def _asked(question: Callable[[], T]) -> T | None:
    """The keyring's answer; None where it gave none, or not soon."""
    answers: list[T] = []

    def ask() -> None:
        with contextlib.suppress(Exception):
            answers.append(question())

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return answers[0] if answers else None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(descriptor)  # a refresh token is good once: the one before must not come back with a loss of power
    temporary.replace(path)
