"""HTTP with the lab, which may be away for a while."""

from __future__ import annotations

import http.client
import os
import ssl
import sys
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from carrel_worker.frames import Decoder

API = "/api/v1"
#: Seconds between two tries while the lab is away: the first, and most.
_FIRST, _MOST = 0.05, 2.0
#: Tries after which a pool that the lab does not know is gone: it may not have heard of this worker yet.
_UNKNOWN = 12


class Over(Exception):
    """The lab has nothing more to do with this worker."""


class Refused(Over):
    """It does not take what this request has (409)."""


class Lab:
    """One connection. Not for several threads at once."""

    def __init__(self, timeout: float = 90.0) -> None:
        url = urlsplit(os.environ["CARREL_URL"])
        self._token = os.environ["CARREL_TOKEN"]
        self._path = url.path.rstrip("/") + API
        self._timeout = timeout
        #: Media type of the last answer.
        self.kind = ""
        self._connection = self._make(url)

    def _make(self, url: Any) -> http.client.HTTPConnection:
        if url.scheme == "https":
            context = ssl.create_default_context(cafile=os.environ.get("CARREL_CA_FILE"))
            return http.client.HTTPSConnection(url.hostname, url.port, timeout=self._timeout, context=context)
        return http.client.HTTPConnection(url.hostname, url.port, timeout=self._timeout)

    def ask(self, method: str, path: str, parts: Iterable[Any] = ()) -> bytearray:
        """Send a request until the lab answers; return the body of its answer. Raises `Over`."""
        pause, unknown = _FIRST, 0
        parts = list(parts)
        size = sum(len(part) for part in parts)
        while True:
            try:
                status, body = self._once(method, path, parts, size)
            except (OSError, http.client.HTTPException):
                self._connection.close()
            else:
                if status < 300:
                    return body
                if status == 404 and unknown < _UNKNOWN:
                    unknown += 1
                elif status < 500 and status != 429:
                    kind = Refused if status == 409 else Over
                    raise kind("the lab answers {}: {}".format(status, bytes(body[:500]).decode("utf-8", "replace")))
            time.sleep(pause)
            pause = min(pause * 2, _MOST)

    def _once(self, method: str, path: str, parts: list[Any], size: int) -> tuple[int, bytearray]:
        headers = {"Authorization": "Bearer " + self._token, "Content-Length": str(size)}
        # One piece where it is small: two would wait for each other on the way.
        content: Any = b"".join(parts) if size < 65536 else iter(parts)
        self._connection.request(method, self._path + path, body=content if size else None, headers=headers)
        response = self._connection.getresponse()
        self.kind = response.headers.get("Content-Type", "")
        return response.status, _read(response)


def _read(response: http.client.HTTPResponse) -> bytearray:
    length = response.length
    if length is None:
        return bytearray(response.read())
    body = bytearray(length)
    view, done = memoryview(body), 0
    while done < length:
        got = response.readinto(view[done:])
        if not got:
            raise http.client.IncompleteRead(bytes(body[:done]), length - done)
        done += got
    return body


def first_frame(data: bytearray) -> tuple[dict[str, Any], memoryview]:
    """Return the header of the only frame in `data`, and its body, which is not copied."""
    length = int.from_bytes(data[:4], "big")
    ((_, header), *_) = Decoder().feed(bytes(data[: 4 + length]))
    return header, memoryview(data)[4 + length :]


def note(text: str) -> None:
    """Say something in the worker's log."""
    print("carrel: " + text, file=sys.__stderr__, flush=True)
