"""The lab's issuer, as `carrel login` asks it: the device flow (RFC 8628), and codes with PKCE (RFC 6749, RFC 7636)."""

from __future__ import annotations

import hashlib
import secrets
import socket
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

import httpx

from carrel.client.credential import Credential
from carrel.client.problems import error_of
from carrel.core.domain.errors import CarrelError, Denied, Unauthenticated, Unavailable

#: By which the lab knows this program.
CLIENT_ID = "carrel-cli"
_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_METADATA = "/.well-known/oauth-authorization-server"
#: Seconds more between two questions when the lab says that they come too often (RFC 8628, 3.5).
_SLOWER = 5.0
#: Seconds between two questions to a lab that does not answer, at most.
_LONGEST_PAUSE = 30.0

#: What a lab answers that is asked too often, or cannot now.
BUSY = frozenset({429, 503})

#: Sends a form to a path of the lab's. Raises `Unavailable` when it does not answer.
Post = Callable[[str, Mapping[str, str]], httpx.Response]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A device code, for which somebody has to approve us elsewhere."""

    device_code: str = field(repr=False)
    user_code: str
    page: str
    #: The page with the code in its address.
    link: str
    #: Seconds.
    expires_in: float
    interval: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What a browser is sent to the lab with, and what proves that the code it brings is ours."""

    verifier: str = field(repr=False)
    state: str = field(repr=False)
    redirect_uri: str

    @classmethod
    def new(cls, redirect_uri: str) -> Asking:
        """With new secrets."""
        return cls(verifier=secrets.token_urlsafe(48), state=secrets.token_urlsafe(24), redirect_uri=redirect_uri)

    def address(self, url: str) -> str:
        """The page of the lab on which a person approves us."""
        challenge = urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code",
            "client_id": CLIENT_ID,
            "redirect_uri": self.redirect_uri,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            "state": self.state,
            "device_name": socket.gethostname(),
        }
        return f"{url}/oauth/authorize?{urlencode(query)}"


def issuer_of(get: Callable[[str], httpx.Response]) -> str | None:
    """What the lab's issuer calls itself (RFC 8414); None for a lab that has none."""
    response = get(_METADATA)
    try:
        found = response.json() if response.status_code == 200 else {}
        return str(found["issuer"]) if found.get("token_endpoint") else None
    except (ValueError, KeyError, AttributeError):
        return None


def begin(post: Post) -> Waiting:
    """Ask for a code that somebody can approve in any browser."""
    response = post("/oauth/device_authorization", {"client_id": CLIENT_ID, "device_name": socket.gethostname()})
    if response.status_code != 200:
        raise refusal(response)
    try:
        found = response.json()
        page = str(found["verification_uri"])
        return Waiting(
            device_code=str(found["device_code"]),
            user_code=str(found["user_code"]),
            page=page,
            link=str(found.get("verification_uri_complete", page)),
            expires_in=float(found["expires_in"]),
            interval=float(found.get("interval", 5)),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise _strange() from error


def wait(
    post: Post, waiting: Waiting, *, pause: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
) -> Credential:
    """The tokens, once somebody has approved it. Raises `Denied` when it was refused, `Unauthenticated` when nobody came."""
    until, interval = clock() + waiting.expires_in, waiting.interval
    form = {"grant_type": _DEVICE_GRANT, "client_id": CLIENT_ID, "device_code": waiting.device_code}
    while clock() < until:
        pause(interval)
        try:
            response = post("/oauth/token", form)
        except Unavailable:
            if clock() >= until:
                raise
            interval = min(2 * interval + 1, _LONGEST_PAUSE)  # it may be starting again (RFC 8628, 3.5)
            continue
        if response.status_code == 200:
            return read_tokens(response)
        error, _words = oauth_error(response)
        if error == "slow_down":
            interval += _SLOWER
        elif response.status_code in BUSY:  # many sign in from here at once
            interval = min(2 * interval + 1, _LONGEST_PAUSE)
        elif error != "authorization_pending":
            raise refusal(response)
    raise Unauthenticated("Nobody has approved it in time.", remedy="Run `carrel login` again for another code.")


def exchange(post: Post, asking: Asking, code: str) -> Credential:
    """The tokens for the code that a browser brought."""
    form = {"grant_type": "authorization_code", "client_id": CLIENT_ID, "code": code}
    response = post("/oauth/token", {**form, "redirect_uri": asking.redirect_uri, "code_verifier": asking.verifier})
    if response.status_code != 200:
        raise refusal(response)
    return read_tokens(response)


def revoke(post: Post, credential: Credential) -> None:
    """End the sign-in. Raises `Unavailable` when the lab does not do so."""
    token = credential.refresh_token or credential.access_token
    response = post("/oauth/revoke", {"client_id": CLIENT_ID, "token": token})
    if response.status_code != 200:
        raise refusal(response)


def read_tokens(response: httpx.Response) -> Credential:
    """The tokens of an answer (RFC 6749, 5.1). Raises `Unavailable` for what is none."""
    try:
        found = response.json()
        token, refresh = str(found["access_token"]), str(found["refresh_token"])
        return Credential(access_token=token, refresh_token=refresh, expires_at=time.time() + float(found["expires_in"]))
    except (ValueError, KeyError, TypeError) as error:
        raise _strange() from error


def oauth_error(response: httpx.Response) -> tuple[str, str]:
    """The word for what is wrong and a sentence; "" where the answer is none of an issuer."""
    try:
        found = response.json()
        return str(found["error"]), str(found.get("error_description") or found["error"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", ""


def refusal(response: httpx.Response) -> CarrelError:
    """The error that an answer describes."""
    error, words = oauth_error(response)
    if error == "access_denied":
        return Denied(words, remedy="Nothing is kept here.")
    if error:
        return Unauthenticated(words, remedy="Run `carrel login` again.")
    return error_of(response)


def _strange() -> Unavailable:
    return Unavailable("The lab's issuer gave an answer that cannot be read.", remedy="Is the address that of a lab?")
