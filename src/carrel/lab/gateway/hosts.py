"""By which names the lab answers: another page's name for this address (DNS rebinding) is none of them."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from carrel.core.domain.errors import CarrelError, Misdirected


class Hosts:
    """ASGI middleware: requests for a name that is not the lab's are answered with 421 (RFC 9110, 15.5.20)."""

    def __init__(
        self, app: ASGIApp, *, names: frozenset[str], refuse: Callable[[Request, CarrelError], Awaitable[Response]]
    ) -> None:
        """With no `names` the lab does not know its own, and answers by any. Addresses and "localhost" are always good."""
        self._app = app
        self._names = names
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on or answer."""
        if scope["type"] == "http":
            hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
            # Of two hosts (RFC 9112, 3.2) a proxy in front may have read the other one.
            if len(hosts) > 1 or not self._ours(hosts[0] if hosts else ""):
                shown = ", ".join(hosts)[:100]
                error = Misdirected(
                    f'This lab is not called "{shown}".',
                    remedy=f"Use the lab's own address{f': {min(self._names)}' if self._names else ''} (public_url).",
                )
                response = await self._refuse(Request(scope), error)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _ours(self, host: str) -> bool:
        if not self._names or not host:  # HTTP/1.0 needs none, and no browser leaves it out
            return True
        name = host_name(host)
        return name in self._names or name == "localhost" or name.endswith(".localhost") or _is_address(name)


def host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.lower().rpartition(":")[0].removesuffix(".") if ":" in host else host.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
