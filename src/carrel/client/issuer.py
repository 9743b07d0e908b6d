"""The lab's issuer, as `carrel login` asks it: the device flow (RFC 8628)."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import httpx

from carrel.client.credential import Credential
from carrel.client.problems import error_of
from carrel.core.domain.errors import CarrelError, Denied, Unauthenticated, Unavailable

#: By which the lab knows this program.
CLIENT_ID = "carrel-cli"
_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
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


def begin(post: Post) -> Waiting:
    """Ask for a code that somebody can approve in any browser. Raises `Unavailable` for an answer that is none of a lab's."""
    response = post("/oauth/device_authorization", {"client_id": CLIENT_ID, "device_name": socket.gethostname()})
    if response.status_code != 200:
        raise refusal(response)
    try:
        found = response.json()
        page = str(found["verification_uri"])
        if not page.startswith(("https://", "http://")):  # a browser may be opened with it
            raise _strange()
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
