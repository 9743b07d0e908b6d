"""Inputs over HTTP: a connection that is cut goes on where it was cut (RFC 9110, 14: Range and If-Range)."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener

from carrel.node.staging.cache import InputCache
from carrel.node.staging.download import Download, News
from carrel.node.staging.failed import InputFailed, shown

#: Seconds without a byte after which a connection counts as cut.
_SILENCE = 60.0
#: Tries in a row that bring nothing, and the first pause between two, in seconds; each one is twice as long as the one before.
_TRIES, _PAUSE = 6, 0.25
#: No pause is longer. So many tries take a quarter of an hour: the lab itself may be starting again.
_LONGEST_PAUSE, TRIES_OF_THE_LAB = 15.0, 65
#: Answers after which trying again may help.
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_JSON = 64 * 1024**2


class _Home(HTTPRedirectHandler):
    """Credentials are for the place that they were meant for, not for one that it sends us to."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            made.remove_header("Authorization")
        return made


_OPENER = build_opener(_Home)


def trusting(authority: str) -> OpenerDirector:
    """What opens addresses whose certificates were signed by this authority (PEM); "": by whom the machine trusts."""
    if not authority:
        return _OPENER
    return build_opener(_Home, HTTPSHandler(context=ssl.create_default_context(cadata=authority)))


def copy_http(
    uri: str,
    target: Path,
    news: News,
    *,
    headers: Mapping[str, str] | None = None,
    called: str = "",
    size: int | None = None,
    opener: OpenerDirector = _OPENER,
    cache: InputCache | None = None,
    tries: int = _TRIES,
) -> str:
    """Fetch `uri` and return its digest; `called` is its name in messages, `size` what it must have. Raises `InputFailed`.

    What did not change since it came into `cache` is taken from there (RFC 9110, 13: conditional requests).
    """
    before = cache.seen(uri) if cache is not None else None
    if cache is not None and before is not None and _is_unchanged(opener, uri, before[0]) and cache.take(before[1], target, news):
        return before[1]
    digest, mark = _copy(uri, target, news, headers or {}, called or shown(uri), size, opener, tries)
    if cache is not None:
        cache.keep(digest, target, uri=uri, mark=mark)
    return digest


def _copy(
    uri: str,
    target: Path,
    news: News,
    headers: Mapping[str, str],
    name: str,
    size: int | None,
    opener: OpenerDirector,
    tries: int,
) -> tuple[str, str]:
    """Fetch; return the digest, and by what the place tells this content from another: a strong ETag, or a time."""
    with Download(target, news, size) as arriving:
        mark, fruitless, length = "", 0, None
        while True:
            before, trouble = arriving.size, ""
            try:
                with _open(opener, uri, headers, arriving.size, mark) as response:
                    if arriving.size and response.status != http.client.PARTIAL_CONTENT:
                        arriving.again()  # it changed meanwhile, or there are only whole ones
                    found = response.headers.get("ETag", "")
                    mark = response.headers.get("Last-Modified", "") if found.startswith("W/") or not found else found
                    announced = response.headers.get("Content-Length")
                    length = None if announced is None else arriving.size + int(announced)
                    arriving.total = size if size is not None else length
                    arriving.take(response)
            except HTTPError as error:
                with error:
                    if not _passes(error.code, fruitless):
                        raise InputFailed(f"The input {name} could not be read: {error.code} {error.reason}.") from error
                    trouble = f"{error.code} {error.reason}"
            except (URLError, http.client.HTTPException, OSError) as error:
                if isinstance(error, OSError) and not isinstance(error, (URLError, ConnectionError, TimeoutError)):
                    raise  # the disk
                trouble = str(getattr(error, "reason", error)) or type(error).__name__
            wanted = size if size is not None else length
            if not trouble and (wanted is None or arriving.size == wanted):
                return arriving.digest, mark
            fruitless = 0 if arriving.size > before else fruitless + 1
            if fruitless >= tries or (wanted is not None and arriving.size > wanted):
                had = f"It was cut off at {arriving.size} of {wanted} bytes" if wanted else f"{arriving.size} bytes came"
                raise InputFailed(
                    f"The input {name} could not be read: {had}{f' ({trouble})' if trouble else ''}, {fruitless} tries in a row.",
                    remedy="Look whether the place answers, and submit again.",
                )
            time.sleep(min(_PAUSE * 2**fruitless, _LONGEST_PAUSE))


def _is_unchanged(opener: OpenerDirector, uri: str, mark: str) -> bool:
    """Ask whether what had this mark is still there; False also when nobody knows."""
    condition = {"If-None-Match" if mark.startswith('"') else "If-Modified-Since": mark}
    try:
        with opener.open(Request(uri, headers=condition), timeout=_SILENCE):
            return False
    except HTTPError as error:
        with error:
            return error.code == http.client.NOT_MODIFIED
    except (http.client.HTTPException, OSError, ValueError):
        return False


def read_json(
    uri: str,
    headers: Mapping[str, str] | None = None,
    *,
    called: str = "",
    opener: OpenerDirector = _OPENER,
    tries: int = _TRIES,
) -> Any:
    """Return the JSON document at `uri`. Raises `InputFailed`."""
    name = called or shown(uri)
    trouble = ""
    for attempt in range(tries):
        try:
            with _open(opener, uri, headers or {}, 0, "") as response:
                return json.loads(response.read(_JSON))
        except HTTPError as error:
            with error:
                if not _passes(error.code, attempt):
                    raise InputFailed(f"{name} could not be read: {_said(error)}") from error
                trouble = f"{error.code} {error.reason}."
        except ValueError as error:
            raise InputFailed(f"{name} could not be read: the answer is not JSON.") from error
        except (URLError, http.client.HTTPException, OSError) as error:
            trouble = f"{getattr(error, 'reason', error)}."
        time.sleep(min(_PAUSE * 2**attempt, _LONGEST_PAUSE))
    raise InputFailed(f"{name} could not be read: {trouble}", remedy="Look whether the place answers, and submit again.")


def _passes(code: int, fruitless: int) -> bool:
    return code in _PASSING and (code != http.client.INTERNAL_SERVER_ERROR or fruitless < _TRIES)


def _open(opener: OpenerDirector, uri: str, headers: Mapping[str, str], offset: int, mark: str) -> Any:
    asked = dict(headers)
    if offset and mark:
        asked |= {"Range": f"bytes={offset}-", "If-Range": mark}
    return opener.open(Request(uri, headers=asked), timeout=_SILENCE)


def _said(error: HTTPError) -> str:
    """What the lab, or another service, says of its refusal."""
    try:
        problem = json.loads(error.read(_JSON))
        return str(problem.get("detail") or problem.get("message") or "").strip() or f"{error.code} {error.reason}."
    except (ValueError, OSError, AttributeError):
        return f"{error.code} {error.reason}."
