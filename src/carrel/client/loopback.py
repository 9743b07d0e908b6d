"""Waiting on this machine for a browser that comes back from the lab (RFC 8252, 7.3)."""

from __future__ import annotations

import hmac
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

from carrel.core.domain.errors import Denied, Unauthenticated

#: The path that the lab knows for `carrel-cli`.
PATH = "/signed-in"
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<body><h1>{title}</h1><p>{text}</p></body></html>
"""


class Loopback:
    """A server on a port of its own that takes one answer, and nothing from anybody who does not know the state."""

    def __init__(self, issuer: str) -> None:
        """`issuer`: who has to have sent the browser (RFC 9207)."""
        self._issuer = issuer
        self._state = ""
        self._found: dict[str, str] = {}
        self._came = threading.Event()
        #: True when no browser will come.
        self.given_up = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.redirect_uri = f"http://127.0.0.1:{self._server.server_address[1]}{PATH}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def expect(self, state: str) -> None:
        """Take the answer with this state; before, none is taken."""
        self._state = state

    def give_up(self) -> None:
        """Wait no more: there is no browser."""
        if not self._came.is_set():
            self.given_up = True
            self._came.set()

    def code(self, timeout: float) -> str | None:
        """The code that the browser brought; None when none came in time, or none will. Raises `Denied` or `Unauthenticated`."""
        if not self._came.wait(timeout) or self.given_up:
            return None
        if self._found.get("error") == "access_denied":
            raise Denied("It was refused on the lab's page.", remedy="Nothing is kept here.")
        if "code" not in self._found:
            words = self._found.get("error_description") or self._found.get("error") or "there is no code in its answer"
            raise Unauthenticated(f"The lab did not sign this program in: {words}", remedy="Run `carrel login --device`.")
        return self._found["code"]

    def _take(self, query: str) -> bool:
        found = {name: values[0] for name, values in parse_qs(query, max_num_fields=10).items()}
        right = hmac.compare_digest(found.get("state", "").encode(), self._state.encode()) and bool(self._state)
        if not right or self._found or self._came.is_set() or found.get("iss", self._issuer) != self._issuer:
            return False
        self._found = found
        return True

    def _handler(loopback) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                """Take the answer, and say so to the person."""
                parts = urlsplit(self.path)
                try:
                    taken = parts.path == PATH and loopback._take(parts.query)
                except ValueError:
                    taken = False
                title = "Go back to the terminal" if taken else "Nothing is expected here"
                text = "You can close this page." if taken else "This is not the answer that <code>carrel login</code> waits for."
                body = _PAGE.format(title=title, text=text).encode()
                try:
                    self._answer(200 if taken else 400, body)
                finally:
                    if taken:  # not before: this program may end at once, and the person would see a broken page
                        loopback._came.set()

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                for name, value in (
                    ("Content-Type", "text/html; charset=utf-8"),
                    ("Content-Length", str(len(body))),
                    ("Content-Security-Policy", "default-src 'none'"),
                    ("Cache-Control", "no-store"),
                    ("Referrer-Policy", "no-referrer"),
                    ("Connection", "close"),
                ):
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Write nothing: addresses hold the code."""

        return Handler
