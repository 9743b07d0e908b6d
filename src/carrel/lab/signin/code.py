"""Sign-in of a program that has a browser beside it: authorization codes (RFC 6749, 4.1), only with PKCE (RFC 7636, S256)."""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from carrel.lab.signin.clients import Client, find_client, is_redirect_of
from carrel.lab.signin.port import Code
from carrel.lab.signin.refused import Refused

#: Seconds for which a code can be used.
LIFETIME = 60
_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")
_VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}")
_LONGEST_STATE = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRequest:
    """What a program asks through the browser, checked."""

    client: Client
    redirect_uri: str
    challenge: str
    state: str
    scope: str
    #: What the program calls its machine.
    host: str

    def returned(self, error: str, description: str) -> Returned:
        """What is raised to tell the program an error."""
        return Returned(answer(self.redirect_uri, error=error, error_description=description, state=self.state))


class Returned(Exception):
    """The program learns through the browser what was wrong: the address to send the browser to."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


def read_request(query: Mapping[str, str]) -> CodeRequest:
    """What the browser brought.

    Raises `Refused` for a program or a redirect address that the lab does not know, to which nothing may be sent (RFC 6749,
    4.1.2.1), and `Returned` for an error that the program has to get.
    """
    client, redirect_uri = find_client(query.get("client_id")), query.get("redirect_uri", "")
    if not is_redirect_of(client, redirect_uri):
        raise Refused("invalid_request", "The address to come back to is not one of that program's (redirect_uri).")
    state = query.get("state", "")
    if len(state) > _LONGEST_STATE or not (state.isascii() and state.isprintable()):
        raise Returned(answer(redirect_uri, error="invalid_request", error_description="The state is too long or not ASCII."))

    def returned(error: str, description: str) -> Returned:
        return Returned(answer(redirect_uri, error=error, error_description=description, state=state))

    if query.get("response_type") != "code":
        raise returned("unsupported_response_type", "Only the response type code is answered here.")
    challenge = query.get("code_challenge", "")
    if query.get("code_challenge_method") != "S256" or _CHALLENGE.fullmatch(challenge) is None:
        raise returned("invalid_request", "A code challenge of the method S256 is required.")
    return CodeRequest(
        client=client,
        redirect_uri=redirect_uri,
        challenge=challenge,
        state=state,
        scope=query.get("scope", ""),
        host=query.get("device_name", ""),
    )


def answer(redirect_uri: str, **values: str) -> str:
    """The address that brings values to the program."""
    return f"{redirect_uri}?{urlencode({name: value for name, value in values.items() if value})}"


def check_use(code: Code, client: Client, redirect_uri: str, verifier: str, now: float) -> None:
    """Raise `Refused` unless who shows the code is who asked for it."""
    if now >= code.expires_at:
        raise Refused("invalid_grant", "The code has expired. Sign in again.")
    if client.id != code.asked.client:
        raise Refused("invalid_grant", "The code was given to another program.")
    if redirect_uri != code.redirect_uri:
        raise Refused("invalid_grant", "The redirect address is not that of the code.")
    if _VERIFIER.fullmatch(verifier) is None or not hmac.compare_digest(challenge_of(verifier), code.challenge):
        raise Refused("invalid_grant", "The code verifier is missing or wrong.", rule="code verifier")


def challenge_of(verifier: str) -> str:
    """The challenge of a code verifier, which is sent before the verifier (RFC 7636, 4.2)."""
    return urlsafe_b64encode(hashlib.sha256(verifier.encode("ascii")).digest()).rstrip(b"=").decode()
