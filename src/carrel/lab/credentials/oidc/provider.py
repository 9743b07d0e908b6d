"""What the lab knows of its provider: its addresses (discovery) and its keys."""

from __future__ import annotations

import base64
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote_plus, urlsplit

from carrel.core.domain.ports import Clock
from carrel.core.domain.provider import is_provider_address
from carrel.lab.credentials.oidc.failures import ProviderFailed, Refused, Rejected, shown
from carrel.lab.credentials.oidc.fetch import Fetch
from carrel.lab.credentials.oidc.id_token import ALGORITHMS, Keys

#: Seconds for which addresses and keys are believed; after which an unknown key may have the keys fetched again; for which a
#: provider that did not answer is not asked again.
_KEPT, _AGAIN, _PAUSE = 3600.0, 60.0, 5.0
_WELL_KNOWN = "/.well-known/openid-configuration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """What the lab is to the provider."""

    id: str
    #: None: a public client, whose proof is PKCE alone.
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What a provider says of itself (OpenID Connect Discovery 1.0, 3; RFC 8414, 2), as far as the lab uses it."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    #: Whether its answers name it (RFC 9207, 3), so that one that does not is refused.
    names_itself: bool = False
    #: How a client shows its secret.
    auth_methods: tuple[str, ...] = ("client_secret_basic",)
    #: Of those that the lab takes.
    algorithms: tuple[str, ...] = ALGORITHMS
    #: What it announces of PKCE and scopes; None: nothing.
    challenge_methods: tuple[str, ...] | None = None
    scopes: tuple[str, ...] | None = None


def read_metadata(found: Mapping[str, Any], issuer: str) -> Metadata:
    """Metadata of this very issuer (OpenID Connect Discovery 1.0, 4.3). Raises `ProviderFailed`."""
    said = found.get("issuer")
    if said != issuer:
        raise ProviderFailed(f'it calls itself "{shown(said)}", and not "{issuer}": the two must be the same, sign by sign')
    announced = _words(found, "id_token_signing_alg_values_supported")
    usable = ALGORITHMS if announced is None else tuple(name for name in ALGORITHMS if name in announced)
    if not usable:
        raise ProviderFailed(f"it signs with {shown(announced)}, and the lab takes {', '.join(ALGORITHMS)}")
    responses = _words(found, "response_types_supported")
    if responses is not None and "code" not in responses:
        raise ProviderFailed("it does not offer the authorization code flow (response type code)")
    return Metadata(
        issuer=issuer,
        authorization_endpoint=_address(found, "authorization_endpoint", issuer),
        token_endpoint=_address(found, "token_endpoint", issuer),
        jwks_uri=_address(found, "jwks_uri", issuer),
        userinfo_endpoint=_address(found, "userinfo_endpoint", issuer) if found.get("userinfo_endpoint") else None,
        names_itself=found.get("authorization_response_iss_parameter_supported") is True,
        auth_methods=_words(found, "token_endpoint_auth_methods_supported") or ("client_secret_basic",),
        algorithms=usable,
        challenge_methods=_words(found, "code_challenge_methods_supported"),
        scopes=_words(found, "scopes_supported"),
    )


def _address(found: Mapping[str, Any], name: str, issuer: str) -> str:
    value = found.get(name)
    if not isinstance(value, str) or not is_provider_address(value) or len(value) > 2000:
        raise ProviderFailed(f'its {name} is "{shown(value)}", which is no https address')
    if urlsplit(issuer).scheme == "https" and urlsplit(value).scheme != "https":
        raise ProviderFailed(f'its {name} is "{shown(value)}", which is not https')
    return value


def _words(found: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    value = found.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ProviderFailed(f"its {name} is no list of texts")
    return tuple(value)


@dataclass(slots=True)
class _Kept:
    """Something that was fetched, and when."""

    value: Any = None
    at: float = float("-inf")
    failed_at: float = float("-inf")
    why: str = ""


class Provider:
    """One provider. Thread-safe; blocks while it asks. Nothing is asked before somebody signs in."""

    def __init__(self, issuer: str, client: Client, *, monotonic: Clock, fetch: Fetch | None = None) -> None:
        self.issuer = issuer
        self.client = client
        self._fetch = fetch or Fetch()
        self._monotonic = monotonic
        self._guard = threading.Lock()
        self._metadata = _Kept()
        self._keys = _Kept()

    def metadata(self) -> Metadata:
        """Its addresses, as they were within the last hour. Raises `ProviderFailed`."""
        with self._guard:
            found: Metadata = self._fresh(self._metadata, self._discover)
        return found

    def keys(self, wanted: str | None = None) -> Keys:
        """Its keys. When the one that is `wanted` is not among them, they are fetched again, once a minute at most."""
        where = self.metadata().jwks_uri

        def fetch() -> Keys:
            return Keys.read(self._fetch.get(where))

        with self._guard:
            had = self._keys.at
            keys: Keys = self._fresh(self._keys, fetch)
            old = self._keys.at == had and self._monotonic() - self._keys.at >= _AGAIN
            if wanted is not None and not keys.has(wanted) and old:
                self._keys.at = float("-inf")
                keys = self._fresh(self._keys, fetch)
        return keys

    def redeem(self, code: str, verifier: str, redirect_uri: str) -> tuple[str, str | None]:
        """The ID token for a code, and the access token (RFC 6749, 4.1.3; RFC 7636, 4.5). Raises `Refused`, `ProviderFailed`."""
        metadata = self.metadata()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        headers = {}
        if self.client.secret is None:
            form["client_id"] = self.client.id
        elif "client_secret_basic" in metadata.auth_methods:
            # RFC 6749, 2.3.1: both parts are encoded first.
            pair = f"{quote_plus(self.client.id)}:{quote_plus(self.client.secret)}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        elif "client_secret_post" in metadata.auth_methods:
            form |= {"client_id": self.client.id, "client_secret": self.client.secret}
        else:
            methods = shown(", ".join(metadata.auth_methods))
            raise ProviderFailed(f"it takes no client secret: it offers {methods} (leave client_secret_file out for none)")
        status, found = self._fetch.post(metadata.token_endpoint, form, headers)
        if status != 200:
            error = found.get("error")
            if isinstance(error, str):
                raise Refused(shown(error, 64), shown(found.get("error_description", "")))
            raise ProviderFailed(f"its token endpoint answered with status {status}")
        token, access = found.get("id_token"), found.get("access_token")
        if not isinstance(token, str):
            raise ProviderFailed("its token endpoint gave no ID token (is openid among the scopes?)")
        return token, access if isinstance(access, str) and access.isascii() and access.isprintable() else None

    def userinfo(self, access: str, sub: str) -> Mapping[str, Any]:
        """Further claims of the same person (OpenID Connect Core 1.0, 5.3). Raises `ProviderFailed`, `Rejected`."""
        where = self.metadata().userinfo_endpoint
        if where is None:
            return {}
        found = self._fetch.get(where, {"Authorization": f"Bearer {access}"})
        if found.get("sub") != sub:
            raise Rejected("userinfo is of another person (sub)")
        return found

    def _discover(self) -> Metadata:
        return read_metadata(self._fetch.get(self.issuer.rstrip("/") + _WELL_KNOWN), self.issuer)

    def _fresh(self, kept: _Kept, fetch: Any) -> Any:
        """What is kept, if it is young enough; else what is there now, or, where nothing is, what was."""
        now = self._monotonic()
        if now - kept.at < _KEPT:
            return kept.value
        if now - kept.failed_at >= _PAUSE:
            try:
                kept.value, kept.at = fetch(), self._monotonic()
                return kept.value
            except ProviderFailed as error:
                kept.failed_at, kept.why = self._monotonic(), str(error)
        if kept.value is None:
            raise ProviderFailed(kept.why)
        return kept.value
