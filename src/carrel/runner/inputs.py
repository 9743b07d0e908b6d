"""Staging inputs: from where they are to where the task wants them, with their digests.

`fsspec` (and what stands behind its protocols) is imported only when an input needs it; plain files are copied directly.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast
from urllib.parse import unquote, urlsplit, urlunsplit

from carrel.domain.errors import CarrelError, StorageFull
from carrel.domain.task import InputSpec
from carrel.spool.disk import full_at, is_full

_CHUNK = 1024**2


class InputFailed(CarrelError):
    """An input could not be staged."""

    code = "input_failed"


def stage_inputs(inputs: tuple[InputSpec, ...], directory: Path, report: Callable[[str], None]) -> dict[str, str]:
    """Put every input where it belongs below `directory` and return the digests by path.

    A directory's digest is that of its sorted list of paths and digests. Raises `InputFailed` or `StorageFull`.
    """
    digests = {}
    for item in inputs:
        target = _inside(directory, item.path)
        report(f"fetching the input {item.path} from {shown(item.uri)}")
        found = fetch(item.uri, target)
        if item.digest is not None and item.digest != found:
            raise InputFailed(
                f"The input {item.path} from {shown(item.uri)} has the digest {found}, and the task expects {item.digest}.",
                remedy="It was changed or damaged: correct the digest, or the place where it comes from.",
            )
        digests[item.path] = found
    return digests


def fetch(uri: str, target: Path) -> str:
    """Copy what is at `uri` (a file or a directory) to `target` and return its digest. Raises `InputFailed`, `StorageFull`."""
    try:
        parts = urlsplit(uri)
        if parts.scheme in ("", "file"):
            return _copy_local(Path(unquote(parts.path) if parts.scheme else uri), target)
        if parts.scheme in ("http", "https"):
            return _copy_http(uri, target)
        return _copy_remote(uri, target)
    except CarrelError:
        raise
    except OSError as error:
        if is_full(error):
            said = f"The input {shown(uri)} does not fit. {full_at(target, error)}"
            raise StorageFull(said, remedy="Free space and submit again.") from error
        raise InputFailed(f"The input {shown(uri)} could not be read: {error.strerror or error}.") from error
    except Exception as error:
        # What a file system library raises is its own affair (botocore, aiohttp, paramiko …).
        raise InputFailed(f"The input {shown(uri)} could not be read: {type(error).__name__}: {error}.") from error


def check_uri(uri: str) -> None:
    """Return when there is something here that can read `uri`; raise `InputFailed` with the remedy if not.

    Nobody is asked whether it is there.
    """
    # fsspec writes what reads through what with "::", such as "simplecache::s3://bucket/key".
    for part in uri.split("::"):
        protocol = part.partition("://")[0] if "://" in part else part.partition(":")[0]
        if protocol not in ("", "file", "http", "https"):
            _check_protocol(protocol, uri)


def _check_protocol(protocol: str, uri: str) -> None:
    import fsspec

    try:
        fsspec.get_filesystem_class(protocol)
    except ValueError:
        raise InputFailed(
            f"The input {shown(uri)} cannot be staged: nothing here reads {protocol}://.",
            remedy="Have the data at file:, https:, s3: or another address that fsspec reads, and name that; or fetch it in the "
            "task's own command.",
        ) from None
    except ImportError as error:
        raise InputFailed(
            f"The input {shown(uri)} cannot be staged: {protocol}:// needs a package that this lab does not have ({error}).",
            remedy="Have an administrator install it beside the lab, or fetch the data in the task's own command.",
        ) from None


def shown(uri: str) -> str:
    """Return `uri` without user, password and query, which may hold secrets."""
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def _inside(directory: Path, path: str) -> Path:
    """Return where `path` is below `directory`; raise `InputFailed` when it leaves it, links in the code included."""
    target = directory / path
    root = os.path.realpath(directory)
    if not os.path.realpath(target).startswith(root + os.sep):
        raise InputFailed(
            f"The input path {path!r} is not inside the working directory.", remedy="Use a relative path without '..'."
        )
    return target


def _copy_local(source: Path, target: Path) -> str:
    if source.is_dir():
        return _manifest(
            (str(file.relative_to(source)), _copy_local(file, target / file.relative_to(source))) for file in _files(source)
        )
    with open(source, "rb", buffering=0) as file:
        return _write(cast(BinaryIO, file), target)


def _files(directory: Path) -> list[Path]:
    return sorted(Path(where) / name for where, _, names in os.walk(directory, onerror=_raise) for name in names)


def _raise(error: OSError) -> None:
    raise error


def _copy_http(uri: str, target: Path) -> str:
    from urllib.error import HTTPError
    from urllib.request import urlopen

    try:
        with urlopen(uri, timeout=60) as response:
            length = response.headers.get("Content-Length")
            digest = _write(response, target)
    except HTTPError as error:
        raise InputFailed(f"The input {shown(uri)} could not be read: {error.code} {error.reason}.") from error
    if length is not None and target.stat().st_size != int(length):
        raise InputFailed(f"The input {shown(uri)} was cut off at {target.stat().st_size} of {length} bytes.")
    return digest


def _copy_remote(uri: str, target: Path) -> str:
    import fsspec

    filesystem: Any
    filesystem, path = fsspec.core.url_to_fs(uri)
    if filesystem.isdir(path):
        names = sorted(name for name in filesystem.find(path) if not name.endswith("/"))
        inside = [(str(PurePosixPath(name).relative_to(path)), name) for name in names]
        return _manifest((relative, _write_remote(filesystem, name, _inside(target, relative))) for relative, name in inside)
    return _write_remote(filesystem, path, target)


def _write_remote(filesystem: Any, path: str, target: Path) -> str:
    with filesystem.open(path, "rb") as file:
        return _write(file, target)


def _write(source: BinaryIO, target: Path) -> str:
    digest = hashlib.sha256()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)  # a file of the code gives way; a link is replaced, not followed
    with open(target, "xb", buffering=0) as file:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            view = memoryview(chunk)
            while view:
                view = view[file.write(view) :]
    return f"sha256:{digest.hexdigest()}"


def _manifest(files: Iterator[tuple[str, str]]) -> str:
    digest = hashlib.sha256()
    for path, file_digest in files:
        digest.update(f"{path}\0{file_digest}\n".encode(errors="surrogateescape"))
    return f"sha256:{digest.hexdigest()}"
