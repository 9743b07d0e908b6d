"""Questions of the lab's own to a session's server. Its user can put any program in the place of that server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx

from carrel.core.domain.errors import Unavailable
from carrel.core.spool.foreign import parse_json
from carrel.notebooks.address import Address
from carrel.notebooks.proxy.reach import async_transport, base_url

#: Bytes of an answer; an honest one has some hundred.
_LONGEST = 64 * 1024
_ONE = httpx.Limits(max_connections=1)


def ask(
    address: Address,
    method: str,
    path: str,
    *,
    headers: Mapping[str, str],
    seconds: float,
    json: Any = None,
    called: str = "The session",
) -> tuple[int, dict[str, Any]]:
    """Return the status of the answer and its object of JSON, {} where that is none. Blocks for `seconds` at most.

    Raises `Unavailable` when no whole answer came, or a longer one than the lab reads. Its message names the session as it is
    `called` and the kind of the failure, and nothing of what was sent.
    """
    try:
        status, body = asyncio.run(_exchange(address, method, path, headers, seconds, json))
    except (httpx.HTTPError, OSError, TimeoutError) as error:
        raise Unavailable(f"{called} does not answer ({type(error).__name__}).") from None
    try:
        found = parse_json(body)
    except ValueError:
        found = {}
    return status, found if isinstance(found, dict) else {}


async def _exchange(
    address: Address, method: str, path: str, headers: Mapping[str, str], seconds: float, json: Any
) -> tuple[int, bytes]:
    # No compression: what is small on the way would be large in memory.
    sent = {**headers, "Host": "session", "Accept-Encoding": "identity"}
    body = bytearray()
    async with (
        asyncio.timeout(seconds),
        httpx.AsyncClient(
            transport=async_transport(address, _ONE), base_url=base_url(address), timeout=None, trust_env=False
        ) as http,
        http.stream(method, path, headers=sent, json=json) as answer,
    ):
        async for part in answer.aiter_raw():
            body += part
            if len(body) > _LONGEST:
                raise httpx.DecodingError(f"more than {_LONGEST} bytes")
    return answer.status_code, bytes(body)
