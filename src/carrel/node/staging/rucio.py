"""Inputs from Rucio: a rule asks for a replica where the lab can read it, and the replica's files are taken from there.

By Rucio's REST API itself, as the owner of the job; see docs/decisions/0064-environments-before-the-place.md. Sources: the API's
description (https://rucio.github.io/documentation/html/rest_api_doc.html) and Rucio's own client.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import ssl
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote_plus, unquote, urlsplit
from urllib.request import HTTPSHandler, OpenerDirector, Request, build_opener

from carrel.core.domain.launch import LaunchRucio
from carrel.node.staging.download import News, manifest
from carrel.node.staging.failed import InputFailed

#: Rucio's names of data (DIDs) are SCOPE:NAME; names of some collaborations have slashes.
_DID = re.compile(r"rucio:(?://)?(?P<scope>[A-Za-z0-9_.-]{1,30}):(?P<name>[^\x00-\x20?#]{1,500})")
#: Seconds between two questions after a rule, for an answer, and between tries of a server that is busy.
_POLL, _SILENCE, _PAUSE = 30.0, 60.0, 0.5
_TRIES = 6
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_LONGEST = 256 * 1024**2

#: Puts a file, or what an address names, at a place, and returns its digest.
Copy = Callable[[str, Path, News], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One file that is there."""

    scope: str
    name: str
    size: int | None
    #: By name ("adler32", "md5"), as Rucio has them.
    checksums: Mapping[str, str]
    #: Where it is (PFNs), the best first.
    places: tuple[str, ...]


def check_rucio(uri: str, here: LaunchRucio | None) -> None:
    """Raise `InputFailed` for what is no DID, and in a lab that has no Rucio."""
    match = _DID.fullmatch(uri)
    if match is None or any(part in (".", "..") for part in unquote(match["name"]).split("/")):
        raise InputFailed(f'"{uri[:200]}" is no address of Rucio\'s.', remedy="Write it like rucio://SCOPE:NAME.")
    if here is None:
        raise InputFailed(
            f"The input {uri[:200]} cannot be staged: this lab has no Rucio.",
            remedy="Have an administrator set rucio_url and rucio_rse in carrel.toml, or fetch it in the task's own command.",
        )


def copy_rucio(uri: str, target: Path, news: News, here: LaunchRucio | None, *, local: Copy, remote: Copy) -> str:
    """Have the data at the lab's RSE, wait for them, put them at `target`; return the digest. Raises `InputFailed`.

    `local` copies a file of this machine's, `remote` fetches an address.
    """
    check_rucio(uri, here)
    match = _DID.fullmatch(uri)
    assert here is not None
    assert match is not None
    scope, name = match["scope"], unquote(match["name"])
    server = Rucio(here, uri)
    kind = str(server.ask(f"/dids/{quote_plus(scope)}/{quote_plus(name)}").get("type", "")).upper()
    rule = server.require(scope, name)
    news.source = f"rucio://{scope}:{name} (rule {rule}, {here.rse})"
    server.wait(rule, news)
    replicas = sorted(server.replicas(scope, name), key=lambda one: (one.scope, one.name))
    if not replicas or not all(one.places for one in replicas):
        lacking = next((f" ({one.scope}:{one.name} for one)" for one in replicas if not one.places), "")
        raise InputFailed(f"{uri} has no replica at {here.rse}{lacking}, and its rule {rule} is satisfied.")
    if kind == "FILE":
        return _take(replicas[0], target, news, here, local, remote)
    names = [one.name for one in replicas]
    apart = len(set(names)) < len(names)  # two scopes may use one name
    placed = [(_place(f"{one.scope}/{one.name}" if apart else one.name), one) for one in replicas]
    return manifest(sorted((path, _take(one, target / path, news, here, local, remote)) for path, one in placed), news)


def _place(name: str) -> str:
    path = name.lstrip("/")
    if any(part in ("", ".", "..") for part in path.split("/")) or "\0" in path:
        raise InputFailed(f'The dataset has a file named "{name[:100]}", which is no place in a directory.')
    return path


def _take(one: Replica, target: Path, news: News, here: LaunchRucio, local: Copy, remote: Copy) -> str:
    """From the first place that is on this machine, else from the first that can be read."""
    tried = []
    here_first = sorted(one.places, key=lambda place: on_this_machine(place, here) is None)
    for place in here_first:
        path = on_this_machine(place, here)
        try:
            digest = local(path, target, news) if path is not None else remote(_web(place), target, news)
        except (InputFailed, FileNotFoundError, PermissionError) as error:
            tried.append(str(getattr(error, "message", error)))
            continue
        _check(one, target)
        return digest
    raise InputFailed(
        f"{one.scope}:{one.name} is at {here.rse}, and could not be read from there: {' '.join(tried)[:800]}",
        remedy="Its addresses can be had with: rucio list-file-replicas. rucio_path says where the lab's machine has its files.",
    )


def on_this_machine(place: str, here: LaunchRucio) -> str | None:
    """Where this machine has what has this address; None when that is not known."""
    parts = urlsplit(place)
    if parts.scheme == "file":
        return unquote(parts.path)
    begin, separator, directory = here.path.rpartition("=")
    rest = place[len(begin) :]
    inside = separator and begin and place.startswith(begin) and not any(part == ".." for part in unquote(rest).split("/"))
    return f"{directory.rstrip('/')}/{unquote(rest).lstrip('/')}" if inside else None


def _web(place: str) -> str:
    """WebDAV has names of its own for the web's schemes."""
    scheme, _, rest = place.partition("://")
    web = {"davs": "https", "dav": "http"}.get(scheme, scheme)
    return f"{web}://{rest}"


def _check(one: Replica, target: Path) -> None:
    for kind, wanted in one.checksums.items():
        with target.open("rb") as file:
            found = hashlib.file_digest(file, "md5").hexdigest() if kind == "md5" else _adler32(file)
        if found != wanted.lower().rjust(len(found), "0"):
            raise InputFailed(f"{one.scope}:{one.name} has the {kind} {found}, and Rucio says {wanted}: it was damaged.")


def _adler32(file: Any) -> str:
    value = 1
    while chunk := file.read(1024**2):
        value = zlib.adler32(chunk, value)
    return f"{value:08x}"


# --- the server ---------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Rucio:
    """A server, asked as the owner of the job, whose credentials are in variables (their secrets)."""

    here: LaunchRucio
    #: What it is asked for, in messages.
    uri: str
    _token: str = field(default="", repr=False)

    def require(self, scope: str, name: str) -> str:
        """Have a rule of the owner's for these data at the lab's RSE; one that there is already is taken. Return its id."""
        wanted = {
            "dids": [{"scope": scope, "name": name}],
            "copies": 1,
            "rse_expression": self.here.rse,
            "lifetime": self.here.lifetime,
            "grouping": "ALL",
            "account": self._account(),
            "locked": False,
            "asynchronous": False,
            "comment": "an input of a task of a Carrel lab",
        }
        try:
            return str(json.loads(self._send("POST", "/rules/", wanted).splitlines()[0])[0])
        except _Refused as error:
            if error.kind != "DuplicateRule":
                raise error.as_failure(self.uri) from error
        for rule in self.listed("GET", f"/dids/{quote_plus(scope)}/{quote_plus(name)}/rules"):
            if rule.get("account") == self._account() and rule.get("rse_expression") == self.here.rse:
                return str(rule["id"])
        raise InputFailed(
            f"Rucio has a rule for {self.uri} at {self.here.rse} already, and does not show it to {self._account()}."
        )

    def wait(self, rule: str, news: News) -> None:
        """Wait until the rule is satisfied; `news` gets how far it is when that changes. The preparation's limit is the longest
        wait."""
        told = ""
        while True:
            found = self.ask(f"/rules/{quote_plus(rule)}")
            state = str(found.get("state", "")).upper()
            if state == "OK":
                return
            said = _waiting(state, found, self.here.rse, rule)
            if state in ("SUSPENDED", "INJECT_FAILED"):
                raise InputFailed(f"{self.uri}: {said}.", remedy=f"Look with: rucio rule-info {rule}")
            if said != told:
                news.also(said)
                told = said
            time.sleep(_POLL)

    def replicas(self, scope: str, name: str) -> Iterator[Replica]:
        """The files at the lab's RSE."""
        asked = {"dids": [{"scope": scope, "name": name}], "rse_expression": self.here.rse, "resolve_archives": False}
        for one in self.listed("POST", "/replicas/list", asked):
            about: Mapping[str, Any] = one.get("pfns") or {}
            places = sorted(about, key=lambda place: (about[place].get("priority") or 0, place))
            yield Replica(
                scope=str(one["scope"]),
                name=str(one["name"]),
                size=None if one.get("bytes") is None else int(one["bytes"]),
                checksums={kind: str(one[kind]) for kind in ("adler32", "md5") if one.get(kind)},
                places=tuple(places),
            )

    def ask(self, route: str) -> Any:
        """One JSON document. Raises `InputFailed`."""
        return next(iter(self.listed("GET", route)), {})

    def listed(self, method: str, route: str, body: Any = None) -> Iterator[Any]:
        """A stream of JSON documents, one a line (application/x-json-stream). Raises `InputFailed`."""
        try:
            text = self._send(method, route, body)
            return iter([json.loads(line) for line in text.splitlines() if line.strip()])
        except _Refused as error:
            raise error.as_failure(self.uri) from error
        except ValueError as error:
            raise InputFailed(f"Rucio's answer about {self.uri} is not JSON.") from error

    def _send(self, method: str, route: str, body: Any = None) -> str:
        if not self._token:
            self._token = os.environ.get("RUCIO_AUTH_TOKEN", "") or self._sign_in()
        headers = {"X-Rucio-Auth-Token": self._token, "X-Rucio-Account": self._account(), "Accept": "application/json, */*"}
        data = None if body is None else json.dumps(body).encode()
        return _ask(self.here.url + route, method, headers, data)[1]

    def _account(self) -> str:
        return os.environ.get("RUCIO_ACCOUNT") or os.environ.get("RUCIO_USERNAME", "")

    def _sign_in(self) -> str:
        """A token for a password, or for a certificate (a proxy of one)."""
        password, proxy = os.environ.get("RUCIO_PASSWORD", ""), os.environ.get("X509_USER_PROXY", "")
        if not self._account() or not (password or proxy):
            raise InputFailed(
                f"The input {self.uri} needs who asks for it at Rucio.",
                remedy="Name these secrets in the task: RUCIO_ACCOUNT, and RUCIO_AUTH_TOKEN, or RUCIO_USERNAME and "
                "RUCIO_PASSWORD, or X509_USER_PROXY (the path of a proxy in your home directory).",
            )
        asked = {"X-Rucio-Account": self._account(), "X-Rucio-AppID": "carrel"}
        route = "/auth/x509_proxy"
        if password:
            route = "/auth/userpass"
            asked |= {"X-Rucio-Username": os.environ.get("RUCIO_USERNAME") or self._account(), "X-Rucio-Password": password}
        try:
            headers, _body = _ask((self.here.auth or self.here.url) + route, "GET", asked, None, certificate=proxy)
        except _Refused as error:
            raise error.as_failure(self.uri) from error
        token = str(headers.get("X-Rucio-Auth-Token") or "")
        if not token:
            raise InputFailed(f"Rucio let {self._account()} in without a token, so {self.uri} cannot be asked for.")
        return token


def _waiting(state: str, found: Mapping[str, Any], rse: str, rule: str) -> str:
    there, coming, stuck = (int(found.get(f"locks_{kind}_cnt") or 0) for kind in ("ok", "replicating", "stuck"))
    locks = f"{there} of {there + coming + stuck} files are there, {coming} on their way, {stuck} stuck"
    why = f"; Rucio says: {str(found['error'])[:200]}" if found.get("error") else ""
    states = {
        "WAITING_APPROVAL": "somebody has to approve the rule",
        "STUCK": f"Rucio tries again what is stuck: {locks}",
        "SUSPENDED": f"the rule is suspended: {locks}",
        "INJECT": "Rucio works the rule out",
    }
    return f"waiting for a replica at {rse} (rule {rule}): {states.get(state, locks)}{why}"


class _Refused(Exception):
    """Rucio's error, with its name for it."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message

    def as_failure(self, uri: str) -> InputFailed:
        remedy = {
            "DataIdentifierNotFound": "Look with: rucio list-dids SCOPE:*",
            "InsufficientAccountLimit": "The account has no more room at this RSE: ask who gives it out, or delete rules.",
            "CannotAuthenticate": "Look at the secrets RUCIO_ACCOUNT, RUCIO_USERNAME, RUCIO_PASSWORD, RUCIO_AUTH_TOKEN.",
        }.get(self.kind, "Ask with Rucio's own client whether it can be had.")
        return InputFailed(f"Rucio refuses {uri}: {self.kind or self.status}: {self.message[:400]}", remedy=remedy)


def _opener(certificate: str) -> OpenerDirector:
    context = ssl.create_default_context(cafile=os.environ.get("RUCIO_CA_CERT") or None)
    if certificate:
        context.load_cert_chain(certificate)
    return build_opener(HTTPSHandler(context=context))


def _ask(
    url: str, method: str, headers: Mapping[str, str], data: bytes | None, *, certificate: str = ""
) -> tuple[Mapping[str, str], str]:
    trouble = ""
    more = {"Content-Type": "application/json"} if data is not None else {}
    for attempt in range(_TRIES):
        try:
            request = Request(url, data=data, headers={**headers, **more}, method=method)
            with _opener(certificate).open(request, timeout=_SILENCE) as response:
                return dict(response.headers.items()), response.read(_LONGEST).decode(errors="replace")
        except HTTPError as error:
            with error:
                if error.code not in _PASSING:
                    raise _refused(error) from error
                trouble = f"{error.code} {error.reason}"
        except (URLError, http.client.HTTPException, OSError) as error:
            trouble = str(getattr(error, "reason", error))
        time.sleep(_PAUSE * 2**attempt)
    raise InputFailed(f"Rucio at {url.split('/auth/')[0]} does not answer: {trouble}.", remedy="Submit again when it does.")


def _refused(error: HTTPError) -> _Refused:
    kind, message = error.headers.get("ExceptionClass") or "", error.headers.get("ExceptionMessage") or ""
    try:
        said = json.loads(error.read(65536))
        kind, message = kind or str(said.get("ExceptionClass") or ""), message or str(said.get("ExceptionMessage") or "")
    except (ValueError, OSError, AttributeError):
        pass
    return _Refused(error.code, kind, message or str(error.reason))
