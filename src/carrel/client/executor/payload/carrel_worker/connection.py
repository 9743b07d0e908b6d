"""HTTP with the lab, which may be away for a while."""

from __future__ import annotations

import contextlib
import http.client
import math
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
#: Answers of what is away for a while: too many requests, a proxy without its lab, a lab without its database.
_AWAY = (429, 502, 503, 504)
#: Tries after which a pool that the lab does not know is gone (it may not have heard of this worker yet), and after which what
#: the lab fails at is given up.
_UNKNOWN, _FAILS = 12, 6


class Over(Exception):
    """The lab has nothing more to do with this worker."""


class Refused(Over):
    """The lab does not take what this request has, however often it is sent."""


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

    def ask(self, method: str, path: str, parts: Iterable[Any] = (), *, patience: float = math.inf) -> bytearray:
        """Send a request until the lab answers; return the body of its answer.

        Raises `Refused`, and `Over` when the lab does not know the address, or was away for `patience` seconds.
        """
        pause, tries, deadline = _FIRST, 0, time.monotonic() + patience
        parts = list(parts)
        size = sum(len(part) for part in parts)
        while True:
            why = "the lab does not answer"
            try:
                status, body = self._once(method, path, parts, size)
            except (OSError, http.client.HTTPException):
                self._connection.close()
            else:
                if status < 300:
                    return body
                why = "the lab answers {}: {}".format(status, bytes(body[:500]).decode("utf-8", "replace"))
                if status not in _AWAY:
                    tries += 1
                    if tries > (_UNKNOWN if status == 404 else _FAILS if status >= 500 else 0):
                        raise (Over if status == 404 else Refused)(why)
            if time.monotonic() >= deadline:
                raise Over(why)
            time.sleep(pause)
            pause = min(pause * 2, _MOST)

    def _once(self, method: str, path: str, parts: list[Any], size: int) -> tuple[int, bytearray]:
        headers = {"Authorization": "Bearer " + self._token, "Content-Length": str(size)}
        # One piece where it is small: two would wait for each other on the way.
        content: Any = b"".join(parts) if size < 65536 else iter(parts)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # who does not read it all may have said why
            self._connection.request(method, self._path + path, body=content if size else None, headers=headers)
        response = self._connection.getresponse()
        self.kind = response.headers.get("Content-Type", "")
        return response.status, _read(response)


def _read(response: http.client.HTTPResponse) -> bytearray:
    length = response.length
    if not length:  # also of nothing: only a response that was read is over, and lets the connection take the next request
        return bytearray(response.read())
    body = bytearray(length)
    view, done = memoryview(body), 0
    while done < length:
        got = response.readinto(view[done:])
        if not got:
            raise http.client.IncompleteRead(bytes(body[:done]), length - done)
        done += got
    return body


def all_frames(data: bytearray) -> list[tuple[dict[str, Any], memoryview]]:
    """Return the header and the body of each frame in `data`; bodies are not copied."""
    found, start, whole = [], 0, memoryview(data)
    while start < len(data):
        body = start + 4 + int.from_bytes(data[start : start + 4], "big")
        ((_, header), *_) = Decoder().feed(bytes(data[start:body]))
        start = body + header["size"]
        found.append((header, whole[body:start]))
    return found


def note(text: str) -> None:
    """Say something in the worker's log."""
    print("carrel: " + text, file=sys.__stderr__, flush=True)
