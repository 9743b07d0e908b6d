"""Inputs that are published: a DOI is looked up at Zenodo, or at the Dataverse that it leads to, and its files come from there.

The services' own checksums are compared. Sources: Zenodo's REST API (https://developers.zenodo.org), Dataverse's native API
(https://guides.dataverse.org/en/latest/api/native-api.html), the DOI handbook.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

from carrel.node.staging.cache import InputCache
from carrel.node.staging.download import News, manifest
from carrel.node.staging.failed import InputFailed
from carrel.node.staging.web import copy_http, read_json

ZENODO = "https://zenodo.org"
RESOLVER = "https://doi.org"
#: DOI handbook, 2.2: a prefix "10." and a registrant, a slash, a suffix. No slash in a suffix here: what follows one is a file.
_DOI = re.compile(r"doi:(?://)?(?P<doi>10\.[0-9.]{4,12}/[^/\s?#]+(?:/[A-Z0-9]{6})?)(?:/(?P<path>[^?#]*))?")
_ZENODO = re.compile(r"10\.5281/zenodo\.([0-9]+)", re.IGNORECASE)
_PATIENCE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One file of a record."""

    path: str
    url: str
    size: int | None
    #: "md5:...", "sha256:..." as the service has it; "" where it has none.
    checksum: str


def check_doi(uri: str) -> None:
    """Raise `InputFailed` for what is no DOI with or without a file."""
    if _DOI.fullmatch(uri) is None:
        raise InputFailed(
            f'"{uri[:200]}" is no DOI.', remedy="Write it like doi:10.5281/zenodo.1234567 or doi:10.5281/zenodo.1234567/data.csv."
        )


def copy_doi(uri: str, target: Path, news: News, *, cache: InputCache | None = None) -> str:
    """Fetch the files of the record at `uri`, or the one that it names, to `target`; return the digest. Raises `InputFailed`."""
    check_doi(uri)
    match = _DOI.fullmatch(uri)
    assert match is not None
    doi, wanted = match["doi"], (match["path"] or "").strip("/")
    files = sorted(_files(uri, doi), key=lambda one: one.path)
    if wanted:
        chosen = [one for one in files if one.path == wanted]
        if not chosen:
            names = ", ".join(one.path for one in files[:8])
            raise InputFailed(f"{doi} has no file {wanted}.", remedy=f"It has: {names}{', ...' if len(files) > 8 else ''}.")
        return _copy(chosen[0], uri, target, news, cache)
    if not files:
        raise InputFailed(f"{doi} has no files that everybody may fetch.")
    return manifest(((one.path, _copy(one, f"{uri}/{one.path}", target / one.path, news, cache)) for one in files), news)


def _files(uri: str, doi: str) -> Iterator[Published]:
    if known := _ZENODO.fullmatch(doi):
        return _of_zenodo(read_json(f"{ZENODO}/api/records/{known[1]}", called=f"The record of {uri}"))
    host = _host_of(doi)
    asked = f"{host}/api/datasets/:persistentId/?persistentId=doi:{quote(doi)}"
    return _of_dataverse(host, read_json(asked, called=f"The record of {uri} at {host}"))


def _of_zenodo(record: Any) -> Iterator[Published]:
    for one in record.get("files") or ():
        yield Published(
            path=_name(one["key"]), url=one["links"]["self"], size=int(one["size"]), checksum=str(one.get("checksum") or "")
        )


def _of_dataverse(host: str, answer: Any) -> Iterator[Published]:
    for one in (answer.get("data") or {}).get("latestVersion", {}).get("files") or ():
        if one.get("restricted"):
            continue
        about = one["dataFile"]
        found = about.get("checksum") or {}
        kind = str(found.get("type") or "MD5").lower().replace("-", "")
        value = str(found.get("value") or about.get("md5") or "")
        # A table is served in another format, with another checksum, unless the original is asked for.
        original = "?format=original" if about.get("originalFileFormat") else ""
        label = f"{one['directoryLabel']}/" if one.get("directoryLabel") else ""
        size = about.get("originalFileSize") if original else about.get("filesize")
        yield Published(
            path=_name(label + str(about.get("originalFileName") or about["filename"] if original else about["filename"])),
            url=f"{host}/api/access/datafile/{int(about['id'])}{original}",
            size=None if size is None else int(size),
            checksum="" if original else f"{kind}:{value}" if value else "",
        )


def _host_of(doi: str) -> str:
    """The service that a DOI leads to."""
    try:
        with urlopen(Request(f"{RESOLVER}/{quote(doi)}", method="HEAD"), timeout=_PATIENCE) as response:
            parts = urlsplit(response.url)
    except HTTPError as error:
        # Some pages refuse HEAD; where they are is known by then.
        parts = urlsplit(error.url)
        error.close()
    except OSError as error:
        raise InputFailed(f"The DOI {doi} could not be resolved: {getattr(error, 'reason', error)}.") from error
    if parts.netloc == urlsplit(RESOLVER).netloc:
        raise InputFailed(f"The DOI {doi} leads nowhere.", remedy="Look whether it is written right.")
    return f"{parts.scheme}://{parts.netloc}"


def _name(path: str) -> str:
    if path.startswith("/") or any(part in ("", ".", "..") for part in path.split("/")) or "\0" in path:
        raise InputFailed(f'The record has a file named "{path[:100]}", which is no place in a directory.')
    return path


def _copy(one: Published, uri: str, target: Path, news: News, cache: InputCache | None) -> str:
    digest = copy_http(one.url, target, news, called=uri, size=one.size, cache=cache)
    kind, _, value = one.checksum.partition(":")
    if value and kind in hashlib.algorithms_available:
        with target.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
        if found != value.lower():
            raise InputFailed(f"The input {uri} has the {kind} checksum {found}, and the service says {value}: it was damaged.")
    return digest
