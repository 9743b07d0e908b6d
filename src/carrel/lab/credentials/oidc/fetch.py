"""Asks a provider over HTTP, within limits: it may be slow, broken or hostile, and the lab goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from carrel.core.domain.errors import in_words
from carrel.lab.credentials.oidc.failures import ProviderFailed

#: Bytes of an answer; keys and metadata of large providers have some 20 KiB.
_LONGEST = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """One request at a time, each with a deadline for the whole of it. Blocks: call it in a thread."""

    #: Seconds from the first byte sent to the last one received.
    patience: float = 15.0
    longest: int = _LONGEST

    def get(self, url: str, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The JSON object at `url`. Raises `ProviderFailed`."""
        status, found = self._ask("GET", url, None, headers or {})
        if status != 200:
            raise ProviderFailed(f"{_place(url)} answered with status {status}")
        return found

    def post(self, url: str, form: Mapping[str, str], headers: Mapping[str, str] | None = None) -> tuple[int, dict[str, Any]]:
        """Status and JSON object of the answer, for any status. Raises `ProviderFailed`."""
        return self._ask("POST", url, form, headers or {})

    def _ask(
        self, method: str, url: str, form: Mapping[str, str] | None, headers: Mapping[str, str]
    ) -> tuple[int, dict[str, Any]]:
        try:
            status, body = asyncio.run(self._exchange(method, url, form, headers))
        except TimeoutError as error:
            raise ProviderFailed(f"{_place(url)} gave no whole answer within {self.patience:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise ProviderFailed(f"{_place(url)} cannot be reached: {in_words(error)}") from error
        try:
            found = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ProviderFailed(f"{_place(url)} answered with status {status} and no JSON") from error
        if not isinstance(found, dict):
            raise ProviderFailed(f"{_place(url)} answered with JSON that is no object")
        return status, found

    async def _exchange(
        self, method: str, url: str, form: Mapping[str, str] | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        # No compression: what is small on the way would be large in memory.
        sent = {"Accept": "application/json", "Accept-Encoding": "identity", **headers}
        body = bytearray()
        async with asyncio.timeout(self.patience):
            async with httpx.AsyncClient(timeout=self.patience, follow_redirects=False, trust_env=not _is_here(url)) as http:
                async with http.stream(method, url, data=form, headers=sent) as answer:
                    if answer.is_redirect or 300 <= answer.status_code < 400:
                        raise ProviderFailed(f"{_place(url)} sends the lab elsewhere (status {answer.status_code})")
                    if answer.headers.get("content-encoding", "identity").lower() != "identity":
                        raise ProviderFailed(f"{_place(url)} sends a compressed answer, which was not asked for")
                    async for part in answer.aiter_raw():
                        body += part
                        if len(body) > self.longest:
                            raise ProviderFailed(f"{_place(url)} sends more than {self.longest} bytes")
        return answer.status_code, bytes(body)


def _place(url: str) -> str:
    """An address without what may be a secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _is_here(url: str) -> bool:
    """Whether no proxy of the environment has a part in it."""
    return urlsplit(url).hostname in ("127.0.0.1", "::1", "localhost")
