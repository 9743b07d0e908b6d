"""What every page reads out of a request."""

from __future__ import annotations

from starlette.requests import Request

from carrel.core.domain.errors import NotFound
from carrel.core.domain.user import Caller
from carrel.lab.gateway.context import LARGEST
from carrel.lab.gateway.gate import Grant


def caller_of(request: Request) -> Caller:
    """The user who is signed in."""
    grant: Grant = request.state.grant
    return grant.caller


def job_id_of(request: Request) -> int:
    """The number of the job in the address. Raises `NotFound` when it is none."""
    number = number_in(request.path_params["job_id"])
    if not number:
        raise NotFound(f'There is no job "{request.path_params["job_id"][:40]}".')
    return number


def number_in(text: str | None) -> int | None:
    """A whole number from an address, or None when there is none. Raises `NotFound`: such an address is nowhere on a page."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > LARGEST:
        raise NotFound(f'"{text[:40]}" is not a number of anything here.')
    return int(text)
