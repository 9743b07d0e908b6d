"""Signing requests, with a sign-in that is renewed before its access token ends, and once when the lab says that it has ended."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace

import httpx

from carrel.client import stored_tokens
from carrel.client.credential import Credential
from carrel.client.issuer import BUSY, CLIENT_ID, oauth_error, read_tokens
from carrel.client.locate import kept_credential
from carrel.client.problems import error_of
from carrel.core.domain.errors import CarrelError, Denied, Unauthenticated

#: Seconds between tries at a lab that is asked too often, by all who share our address.
_PAUSES = (0.5, 1.0, 2.0, 4.0)

#: Sends a form to a path of the lab's, with headers, as nobody in particular.
Ask = Callable[[str, Mapping[str, str], Mapping[str, str]], httpx.Response]


class Fixed(httpx.Auth):
    """A token that stays as it is."""

    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        """The token."""
        return self._token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Put it on the request."""
        request.headers["Authorization"] = f"Bearer {self._token}"
        yield request


class Renewing(httpx.Auth):
    """A sign-in that is kept on this machine. Thread-safe, and so are several commands at once: one of them renews it."""

    def __init__(self, url: str, credential: Credential, environment: Mapping[str, str], ask: Ask) -> None:
        self._url = url
        self._credential = credential
        self._environment = environment
        self._ask = ask
        self._guard = threading.Lock()

    def token(self) -> str:
        """An access token that is good for some minutes at least. Raises what keeps it from being renewed."""
        with self._guard:
            if self._credential.due(time.time()):
                self._renew(self._credential.access_token)
            return self._credential.access_token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Put it on the request; where the lab says that it has ended, renew it and send the request once more."""
        token = self.token()
        request.headers["Authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code != 401:
            return
        response.read()
        if _was_revoked(response):
            return  # the lab says by whom and when
        with self._guard:
            if self._credential.access_token == token:
                self._renew(token)
            token = self._credential.access_token
        if isinstance(request.stream, httpx.ByteStream):  # what was read from elsewhere as it was sent is gone
            request.headers["Authorization"] = f"Bearer {token}"
            yield request

    def _renew(self, ended: str) -> None:
        """Have another access token than `ended`: what another command has got meanwhile, or a new one."""
        with stored_tokens.alone(self._url, self._environment):
            found = kept_credential(self._url, self._environment)
            if found is None:
                raise Unauthenticated(f"Nobody is signed in to {self._url} here any more.", remedy=_remedy(self._url))
            if found.access_token == ended or found.due(time.time()):
                found = self._renewed(found)
            self._credential = found

    def _renewed(self, found: Credential) -> Credential:
        if found.refresh_token is None:  # somebody typed in another token, and that one has ended
            raise Unauthenticated(f"The token for {self._url} is not valid any more.", remedy=_remedy(self._url))
        if found.retry is None:
            # Kept before it is sent: if the answer is lost, or we are killed, the next try shows the same secret.
            found = replace(found, retry=secrets.token_urlsafe(32))
            stored_tokens.keep_again(self._url, found.to_text(), self._environment)
        assert found.retry is not None
        assert found.refresh_token is not None
        form = {"grant_type": "refresh_token", "client_id": CLIENT_ID, "refresh_token": found.refresh_token}
        for pause in _PAUSES:
            response = self._ask("/oauth/token", form, {"Idempotency-Key": found.retry})
            if response.status_code not in BUSY:
                break
            time.sleep(pause)
        if response.status_code != 200:
            raise self._refusal(response)
        made = read_tokens(response)
        stored_tokens.keep_again(self._url, made.to_text(), self._environment)
        return made

    def _refusal(self, response: httpx.Response) -> CarrelError:
        error, words = oauth_error(response)
        if error == "access_denied":
            return Denied(words)
        if error:
            return Unauthenticated(words, remedy=_remedy(self._url))
        return error_of(response)


def _remedy(url: str) -> str:
    return f"Sign in again: `carrel login {url}`."


def _was_revoked(response: httpx.Response) -> bool:
    try:
        return bool(response.json()["details"]["cause"] == "revoked")
    except (ValueError, KeyError, TypeError):
        return False
