"""Staging inputs: each from where it is to where the task wants it.

`fsspec` (and what stands behind its protocols) is imported only when an input needs it; plain files are copied directly.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from carrel.core.domain.errors import CarrelError, StorageFull
from carrel.core.domain.launch import InputsReady, LaunchRucio
from carrel.core.domain.task import LAB_SCHEMES, InputSpec
from carrel.core.spool.disk import full_at, is_full
from carrel.node.staging.cache import InputCache
from carrel.node.staging.download import MOST_LISTED, NO_LIMIT, Download, Most, News, manifest
from carrel.node.staging.failed import InputFailed, shown
from carrel.node.staging.lab import LabFiles, check_lab_uri

_NOWHERE = LabFiles("", "")
#: By what fsspec's file systems tell one content from another (s3fs, gcsfs, adlfs, ossfs, huggingface_hub, sftp).
_MARKS = ("ETag", "etag", "md5Hash", "crc32c", "content_md5", "Content-MD5", "blob_id", "sha256", "VersionId", "generation")


@dataclass(frozen=True, slots=True)
class Closed:
    """Directories of the lab's own, which the process that stages may read and the owner of the job may not."""

    places: tuple[Path, ...] = ()
    #: The owner's own files among them.
    own: Path | None = None

    def check(self, real: Path, called: Path) -> None:
        """Raise `InputFailed` when the file at `real` (without links) is the lab's."""
        if self.own is not None and real.is_relative_to(os.path.realpath(self.own)):
            return
        if any(real.is_relative_to(os.path.realpath(place)) for place in self.places):
            raise InputFailed(
                f"The input {called} lies in the lab's own directory, and no job may read it by its path.",
                remedy="Outputs of your jobs are job:ID/outputs/NAME.",
            )


NOTHING_CLOSED = Closed()


def stage_inputs(
    inputs: tuple[InputSpec, ...],
    directory: Path,
    report: Callable[[str], None],
    *,
    lab: LabFiles = _NOWHERE,
    closed: Closed = NOTHING_CLOSED,
    most: Most = NO_LIMIT,
    cache: InputCache | None = None,
    rucio: LaunchRucio | None = None,
    resolved: Callable[[str, str], None] = lambda _path, _source: None,
    staged: InputsReady | None = None,
) -> dict[str, str]:
    """Put every input where it belongs below `directory` and return the digests by path.

    Where an address names what changes (a branch), `resolved` gets the path, and the address of what was taken.

    What comes from elsewhere is kept in `cache` and taken from there, where it is still the same. What was `staged` for the job
    before is what it gets, as long as that is kept.

    A directory's digest is that of its sorted list of paths and digests; files of a small one have theirs beside it.
    Raises `InputFailed` or `StorageFull`.
    """
    digests = {}
    for item in inputs:
        target = _inside(directory, item.path)
        news = News(f"fetching the input {item.path} from {shown(item.uri)}", report, most=most)
        known = item.digest or (staged.digests.get(item.path) if staged is not None else None)
        if cache is not None and known is not None and cache.take(known, target, news):
            digests[item.path] = known
            if staged is not None and item.path in staged.sources:
                resolved(item.path, staged.sources[item.path])
            continue
        before = staged.sources.get(item.path, "") if staged is not None else ""
        # A branch may have moved since.
        uri = before if before.startswith("git+") else item.uri
        found = fetch(uri, target, news, lab=lab, closed=closed, cache=cache, rucio=rucio)
        if item.digest is not None and item.digest != found:
            raise InputFailed(
                f"The input {item.path} from {shown(item.uri)} has the digest {found}, and the task expects {item.digest}.",
                remedy="It was changed or damaged: correct the digest, or the place where it comes from.",
            )
        digests[item.path] = found
        if len(news.contents) <= MOST_LISTED:
            digests |= {f"{item.path}/{path}": digest for path, digest in news.contents.items()}
        if news.source:
            resolved(item.path, news.source)
    return digests


def stage_in(
    inputs: tuple[InputSpec, ...],
    directory: Path,
    report: Callable[[str], None],
    *,
    cache: InputCache,
    most: Most = NO_LIMIT,
    **how: Any,
) -> dict[str, str]:
    """Do what `stage_inputs` does for the sake of `cache`: `directory` is of no use afterwards.

    Raises `NotKept`, too, as soon as it is known that there is no room for all of them.
    """
    digests: dict[str, str] = {}
    room = cache.room
    for item in inputs:
        digests |= stage_inputs((item,), directory, report, cache=cache, most=replace(most, room=room), **how)
        place = directory / item.path
        room -= sum(file.lstat().st_size for file in (_files(place) if place.is_dir() else [place]))
    return digests


def fetch(
    uri: str,
    target: Path,
    news: News | None = None,
    *,
    lab: LabFiles = _NOWHERE,
    closed: Closed = NOTHING_CLOSED,
    cache: InputCache | None = None,
    rucio: LaunchRucio | None = None,
) -> str:
    """Copy what is at `uri` (a file or a directory) to `target` and return its digest. Raises `InputFailed`, `StorageFull`."""
    told = news or News("", lambda _message: None)
    try:
        parts = urlsplit(uri)
        if parts.scheme in ("", "file"):
            return _copy_local(Path(unquote(parts.path) if parts.scheme else uri), target, told, closed)
        if parts.scheme in ("http", "https"):
            from carrel.node.staging.web import copy_http

            return copy_http(uri, target, told, cache=cache)
        if parts.scheme in LAB_SCHEMES:
            return lab.copy(uri, target, told)
        if parts.scheme == "doi":
            from carrel.node.staging.doi import copy_doi

            return copy_doi(uri, target, told, cache=cache)
        if parts.scheme.startswith("git+"):
            return _copy_git(uri, target, told, closed, cache)
        if parts.scheme == "rucio":
            from carrel.node.staging.rucio import copy_rucio

            def local(path: str, place: Path, about: News) -> str:
                return _copy_local(Path(path), place, about, closed)

            def remote(address: str, place: Path, about: News) -> str:
                return fetch(address, place, about, closed=closed, cache=cache)

            return copy_rucio(uri, target, told, rucio, local=local, remote=remote)
        return _copy_remote(uri, target, told, cache)
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


def check_uri(uri: str, rucio: LaunchRucio | None = None) -> None:
    """Return when there is something here that can read `uri`; raise `InputFailed` with the remedy if not.

    Nobody is asked whether it is there.
    """
    scheme = uri.partition(":")[0]
    if scheme in LAB_SCHEMES:
        check_lab_uri(uri)
        return
    if scheme == "doi":
        from carrel.node.staging.doi import check_doi

        check_doi(uri)
        return
    if scheme == "rucio":
        from carrel.node.staging.rucio import check_rucio

        check_rucio(uri, rucio)
        return
    if scheme.startswith("git+"):
        from carrel.node.staging.git import check_git

        check_git(uri)
        return
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


def _inside(directory: Path, path: str) -> Path:
    """Return where `path` is below `directory`; raise `InputFailed` when it leaves it, links in the code included."""
    target = directory / path
    root = os.path.realpath(directory)
    if not os.path.realpath(target).startswith(root + os.sep):
        raise InputFailed(
            f"The input path {path!r} is not inside the working directory.", remedy="Use a relative path without '..'."
        )
    return target


def _copy_local(source: Path, target: Path, news: News, closed: Closed) -> str:
    closed.check(Path(os.path.realpath(source)), source)  # where it is not even seen, too
    if source.is_dir():
        inside = [(str(file.relative_to(source)), file) for file in _files(source)]
        return manifest(((name, _copy_local(file, target / name, news, closed)) for name, file in inside), news)
    with source.open("rb", buffering=0) as file:
        # By the descriptor: a link may lead elsewhere by the time it is looked at.
        closed.check(Path(f"/proc/self/fd/{file.fileno()}").readlink(), source)
        with Download(target, news, os.fstat(file.fileno()).st_size) as arriving:
            arriving.take(file)
        return arriving.digest


def _files(directory: Path) -> list[Path]:
    """Return all files below a directory, also behind links to files. Raises `OSError`."""
    found, todo = [], [directory]
    while todo:
        with os.scandir(todo.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    todo.append(Path(entry.path))
                elif not entry.is_dir():
                    found.append(Path(entry.path))
    return sorted(found)


def _copy_git(uri: str, target: Path, news: News, closed: Closed, cache: InputCache | None) -> str:
    from carrel.node.staging.git import copy_git
    from carrel.node.staging.git_address import read_address

    address = read_address(uri)
    if address.scheme != "file":
        return copy_git(uri, target, news, cache=cache)
    source = Path(unquote(urlsplit(address.url).path))
    closed.check(Path(os.path.realpath(source)), source)
    return copy_git(uri, target, news)  # it is on this machine anyway


def _copy_remote(uri: str, target: Path, news: News, cache: InputCache | None) -> str:
    import fsspec

    filesystem: Any
    filesystem, path = fsspec.core.url_to_fs(uri)
    if filesystem.isdir(path):
        names = sorted(name for name in filesystem.find(path) if not name.endswith("/"))
        inside = [(str(PurePosixPath(name).relative_to(path)), name) for name in names]
        return manifest(
            ((path, _write_remote(filesystem, name, _inside(target, path), news, uri, cache)) for path, name in inside), news
        )
    return _write_remote(filesystem, path, target, news, uri, cache)


def _write_remote(filesystem: Any, path: str, target: Path, news: News, uri: str, cache: InputCache | None) -> str:
    """Fetch one file. A store says what it has: where it says the same as last time, that is taken from the cache."""
    if cache is None:
        with filesystem.open(path, "rb") as file, Download(target, news) as arriving:
            arriving.take(file)
        return arriving.digest
    mark, called = _mark_of(filesystem, path), f"{uri}\0{path}"
    before = cache.seen(called)
    if mark and before is not None and before[0] == mark and cache.take(before[1], target, news):
        return before[1]
    digest = _write_remote(filesystem, path, target, news, uri, None)
    # What was changed while it came is neither what it was nor what it is.
    cache.keep(digest, target, uri=called, mark=mark if mark == _mark_of(filesystem, path) else "")
    return digest


def _mark_of(filesystem: Any, path: str) -> str:
    """What a store says of an object that changes with its content; "" when it says nothing of the kind."""
    filesystem.invalidate_cache()
    about = filesystem.info(path)
    found = {key: str(about[key]) for key in _MARKS if about.get(key)}
    return json.dumps([about.get("size"), found], sort_keys=True) if found else ""
