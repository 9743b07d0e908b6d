"""Whether an ID token says what the lab asked for (OpenID Connect Core 1.0, 3.1.3.7; RFC 8725). Asks nobody."""

from __future__ import annotations

import base64
import hmac
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey

from carrel.lab.credentials.oidc.failures import ProviderFailed, Rejected, shown

#: Signatures that the lab takes. Never "none", and none by a shared secret (HS256): a public key is no secret.
ALGORITHMS = ("RS256", "PS256", "ES256", "Ed25519", "EdDSA")
#: Seconds by which the clocks of lab and provider may differ.
SKEW = 60.0
#: Seconds before which a token must not have been made: it comes at once, from the provider itself.
_OLDEST = 600.0
_LONGEST, _MOST_KEYS, _LONGEST_SUB = 64 * 1024, 100, 255
#: Bits of an RSA key: fewer are too weak (RFC 7518, 3.3), more are slow to check.
_RSA = (2048, 16384)
#: What sort of key an algorithm takes (RFC 7518, 3.1; RFC 9864, 2.2, which has a new name for EdDSA of RFC 8037).
_SORTS: Mapping[str, tuple[str, str | None]] = {
    "RS256": ("RSA", None),
    "PS256": ("RSA", None),
    "ES256": ("EC", "P-256"),
    "Ed25519": ("OKP", "Ed25519"),
    "EdDSA": ("OKP", "Ed25519"),
}
_TYPES: Mapping[str, Any] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}


@dataclass(frozen=True, slots=True)
class Keys:
    """The public keys of a provider (RFC 7517, 5), those that can check a signature that the lab takes."""

    found: tuple[tuple[Mapping[str, Any], Key], ...]

    @classmethod
    def read(cls, text: Mapping[str, Any]) -> Keys:
        """Read a key set; what it has beside such keys is passed over. Raises `ProviderFailed` when nothing is left."""
        listed = text.get("keys")
        if not isinstance(listed, list) or len(listed) > _MOST_KEYS:
            raise ProviderFailed(f"its keys are no list of at most {_MOST_KEYS}")
        found = []
        for one in listed:
            key = _key(one) if isinstance(one, dict) and one.get("use", "sig") == "sig" else None
            if key is not None:
                found.append((one, key))
        if not found:
            raise ProviderFailed("among its keys is none that the lab can use (RSA of 2048 bits, P-256, Ed25519)")
        return cls(tuple(found))

    def has(self, kid: str) -> bool:
        """Whether there is a key of this name."""
        return any(said.get("kid") == kid for said, _ in self.found)

    def for_(self, algorithm: str, kid: str | None) -> Sequence[Key]:
        """The keys that may have signed so: the one of that name, or where there is no name all of the right sort."""
        sort, curve = _SORTS[algorithm]
        return [
            key
            for said, key in self.found
            if said["kty"] == sort
            and (curve is None or said.get("crv") == curve)
            and said.get("alg", algorithm) == algorithm
            and (kid is None or said.get("kid") == kid)
        ]


def _key(said: Mapping[str, Any]) -> Key | None:
    # Its public part alone, and none of what else is said of it.
    parts = {name: said[name] for name in ("kty", "crv", "n", "e", "x", "y") if isinstance(said.get(name), str)}
    kind = _TYPES.get(parts.get("kty", ""))
    if kind is None:
        return None
    try:
        key: Key = kind.import_key(parts)
        size = key.public_key.key_size if isinstance(key, RSAKey) else _RSA[0]
    except (JoseError, ValueError, TypeError, KeyError, OverflowError, UnsupportedAlgorithm):
        return None
    return key if _RSA[0] <= size <= _RSA[1] else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the token must say."""

    issuer: str
    client_id: str
    nonce: str
    algorithms: Sequence[str] = ALGORITHMS


def check_id_token(token: str, keys: Callable[[str | None], Keys], expected: Expected, *, now: float) -> Mapping[str, Any]:
    """The claims of a token that is signed by the provider and meant for this sign-in. Raises `Rejected`, `ProviderFailed`.

    `keys` gives the provider's keys, new ones if it does not have the one of that name.
    """
    if len(token) > _LONGEST:
        raise Rejected(f"it is longer than {_LONGEST} bytes")
    header = _header(token)
    algorithm, kid = header.get("alg"), header.get("kid")
    if algorithm not in ALGORITHMS or algorithm not in expected.algorithms:
        raise Rejected(f'its alg is "{shown(algorithm)}"')
    if "crit" in header:
        raise Rejected("its header has crit")
    # Access tokens, logout tokens and their like name their kind, and a token around another has "cty" (RFC 8725, 3.11).
    kind = header.get("typ", "JWT")
    if "cty" in header or not isinstance(kind, str) or kind.lower().removeprefix("application/") != "jwt":
        raise Rejected(f'its typ is "{shown(kind)}" and its cty "{shown(header.get("cty", ""))}"')
    if kid is not None and not isinstance(kid, str):
        raise Rejected("its kid is no text")
    claims = _verified(token, str(algorithm), keys(kid).for_(str(algorithm), kid))
    _check_times(claims, now)
    _check_parties(claims, expected)
    return claims


def _header(token: str) -> Mapping[str, Any]:
    part = token.partition(".")[0]
    try:
        found = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError) as error:
        raise Rejected("it is no signed token") from error
    if not isinstance(found, dict):
        raise Rejected("its header is no object")
    return found


def _verified(token: str, algorithm: str, keys: Sequence[Key]) -> Mapping[str, Any]:
    if not keys:
        raise Rejected("no key of the provider's goes with it")
    for key in keys:
        try:
            payload = jws.deserialize_compact(token, key, algorithms=[algorithm]).payload
        except (JoseError, ValueError, TypeError):
            continue
        try:
            claims = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise Rejected("its content is no JSON") from error
        if isinstance(claims, dict):
            return claims
        raise Rejected("its content is no object")
    raise Rejected("its signature is not the provider's")


def _check_times(claims: Mapping[str, Any], now: float) -> None:
    expires, issued, begins = (_seconds(claims, name) for name in ("exp", "iat", "nbf"))
    if expires is None or issued is None:
        raise Rejected("it does not say exp and iat")
    if now >= expires + SKEW:
        raise Rejected(f"it expired {now - expires:.0f} s ago by the lab's clock")
    for name, begin in (("iat", issued), ("nbf", begins)):
        if begin is not None and begin > now + SKEW:
            raise Rejected(f"it is from {begin - now:.0f} s in the future by the lab's clock ({name})")
    if issued < now - _OLDEST - SKEW:
        raise Rejected(f"it was made {now - issued:.0f} s ago by the lab's clock")


def _seconds(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    # Integers of any length are JSON; the comparison with a float is exact.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or (isinstance(value, float) and not math.isfinite(value)):
        raise Rejected(f"its {name} is no time")
    if abs(value) > 1e15:
        raise Rejected(f"its {name} is no time")
    return float(value)


def _check_parties(claims: Mapping[str, Any], expected: Expected) -> None:
    if claims.get("iss") != expected.issuer:
        raise Rejected(f'its iss is "{shown(claims.get("iss"))}"')
    said = claims.get("aud")
    audience = [said] if isinstance(said, str) else said
    if not isinstance(audience, list) or expected.client_id not in audience:
        raise Rejected(f'its aud is "{shown(said)}"')
    if claims.get("azp", expected.client_id) != expected.client_id or (len(audience) > 1 and "azp" not in claims):
        raise Rejected(f'its aud is "{shown(said)}" and its azp "{shown(claims.get("azp"))}"')
    nonce = claims.get("nonce")
    if not isinstance(nonce, str) or not hmac.compare_digest(nonce.encode("utf-8", "replace"), expected.nonce.encode()):
        raise Rejected("its nonce is not that of this sign-in")
    sub = claims.get("sub")
    if not isinstance(sub, str) or not 1 <= len(sub) <= _LONGEST_SUB or not sub.isascii() or not sub.isprintable():
        raise Rejected("its sub is no name of 1 to 255 ASCII characters")
