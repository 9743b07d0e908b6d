"""What can go wrong with an input, in words that hide what is secret in its address."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from carrel.core.domain.errors import CarrelError


class InputFailed(CarrelError):
    """An input could not be staged."""

    code = "input_failed"


class NotKept(InputFailed):
    """It can be staged, and there is no room to keep it for the job."""


def shown(uri: str) -> str:
    """Return `uri` without user, password and query, which may hold secrets."""
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
