"""TLS from two files, read again when they were renewed."""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

from carrel.core.domain.errors import Invalid, in_words

_log = logging.getLogger(__name__)


class Certificate:
    """A certificate with its key. A connection that comes after both files were renewed gets the new one.

    Files that do not fit each other, because one of them is still the old one, change nothing.
    """

    def __init__(self, certificate: Path, key: Path, renew: Callable[[], None] = lambda: None) -> None:
        """`renew` is called before they are looked at, for a lab that makes them itself. Raises `Invalid` for unusable files."""
        self._renew = renew
        self._files = (certificate, key)
        self._guard = threading.Lock()
        self._seen = self._state()
        try:
            self._current = self._read()
        except (OSError, ssl.SSLError) as error:
            raise Invalid(
                f"TLS cannot be offered with {certificate} and {key}: {in_words(error)}.",
                remedy="tls_certificate has the certificate and those that vouch for it, tls_key its key (PEM).",
            ) from None
        self.context = self._read()
        self.context.sni_callback = self._choose

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(*self._files)
        return context

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        """Asked by OpenSSL in the middle of each handshake."""
        connection.context = self._newest()

    def _newest(self) -> ssl.SSLContext:
        try:
            self._renew()
        except (OSError, ValueError) as error:
            _log.warning("The certificate cannot be renewed: %s.", in_words(error) if isinstance(error, OSError) else error)
        with self._guard:
            state = self._state()
            if state != self._seen:
                try:
                    self._current = self._read()
                    self._seen = state
                    _log.info("The certificate was renewed.")
                except (OSError, ssl.SSLError) as error:
                    _log.warning("The renewed certificate cannot be used (yet): %s.", in_words(error))
            return self._current

    def _state(self) -> tuple[tuple[int, int, int], ...]:
        found = []
        for file in self._files:
            try:
                status = file.stat()
            except OSError:
                found.append((0, 0, 0))
            else:
                found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        return tuple(found)
