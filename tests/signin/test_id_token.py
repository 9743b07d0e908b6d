"""Keys and names as a provider may send them: nothing that it says breaks the lab."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import ECKey, OKPKey, RSAKey

from carrel.core.domain.errors import Denied
from carrel.core.domain.provider import is_provider_address
from carrel.core.domain.user import Role
from carrel.lab.credentials.oidc import Membership, Naming
from carrel.lab.credentials.oidc.failures import ProviderFailed, Rejected
from carrel.lab.credentials.oidc.id_token import Expected, Keys, check_id_token
from carrel.lab.credentials.oidc.people import NAME, claim_of
from carrel.lab.credentials.oidc.provider import read_metadata

pytestmark = pytest.mark.quick

KEYS = [RSAKey.generate_key(2048), ECKey.generate_key("P-256"), OKPKey.generate_key("Ed25519")]
GOOD = [{**key.as_dict(private=False), "kid": str(number)} for number, key in enumerate(KEYS)]
EXPECTED = Expected(issuer="https://id.example.org", client_id="carrel", nonce="n")

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
_parts = st.sampled_from([value for key in GOOD for value in key.values()]) | _json
_key = st.dictionaries(st.sampled_from(["kty", "crv", "n", "e", "x", "y", "d", "use", "alg", "kid", "k"]), _parts)


@given(st.lists(st.sampled_from(GOOD) | _key | _json, max_size=4))
def test_key_sets_are_read_or_refused(listed: list[Any]) -> None:
    with warnings.catch_warnings(action="ignore"):
        try:
            keys = Keys.read({"keys": listed})
        except ProviderFailed:
            return
    assert 1 <= len(keys.found) <= len(listed)
    for algorithm in ("RS256", "PS256", "ES256", "Ed25519", "EdDSA"):
        assert len(keys.for_(algorithm, None)) <= len(keys.found)


def test_of_a_key_only_its_public_part_is_read() -> None:
    private = {**KEYS[0].as_dict(private=True), "kid": "1"}
    ((_, key),) = Keys.read({"keys": [private, {"kty": "EC", "crv": "P-384", "x": "AA", "y": "AA"}]}).found
    assert not key.is_private
    curves = Keys.read({"keys": [ECKey.generate_key("P-384").as_dict(private=False)]})
    assert curves.for_("ES256", None) == []


@given(st.text(alphabet='abcXYZ0129-_.={}"é', max_size=60))
def test_texts_that_are_no_tokens_are_rejected(text: str) -> None:
    with pytest.raises(Rejected):
        check_id_token(text, lambda _kid: Keys.read({"keys": GOOD}), EXPECTED, now=1.0)


@given(st.dictionaries(st.sampled_from(["issuer", "token_endpoint", "jwks_uri", "scopes_supported", "userinfo_endpoint"]), _json))
def test_metadata_are_read_or_refused(change: dict[str, Any]) -> None:
    places = dict.fromkeys(("authorization_endpoint", "token_endpoint", "jwks_uri"), "https://id.example.org/x")
    try:
        found = read_metadata({"issuer": EXPECTED.issuer, **places, **change}, EXPECTED.issuer)
    except ProviderFailed:
        return
    assert found.token_endpoint.startswith("https://")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "https://",
        "http://id.example.org",
        "https://a b",
        "https://x#y",
        "https://u@x",
        "https://x:port",
        "ftp://x",
        "//x",
        "é",
    ],
)
def test_addresses_that_are_none(text: str) -> None:
    assert not is_provider_address(text)


@given(value=_json, domain=st.sampled_from(["", "example.org"]), claim=st.sampled_from(["email", "preferred_username", "a.b"]))
def test_whatever_a_claim_says_it_is_a_name_or_words(value: Any, domain: str, claim: str) -> None:
    try:
        name = Naming(claim=claim, domain=domain).name({claim: value, "email_verified": value}, "the Institute")
    except Denied as error:
        name = "" if error.message and error.remedy else "it said nothing"
    assert not name or NAME.match(name)


@pytest.mark.parametrize(
    ("claims", "naming", "name"),
    [
        ({"preferred_username": "ada.l-1_x@lab"}, Naming(), "ada.l-1_x@lab"),
        ({"email": "ada@Example.ORG", "email_verified": True}, Naming(claim="email", domain="example.org"), "ada"),
        ({"email": "ada@example.org", "email_verified": True}, Naming(claim="email"), "ada@example.org"),
        ({"eppn": "ada@example.org"}, Naming(claim="eppn", domain="example.org"), "ada"),
        ({"https://x.org/name": "ada"}, Naming(claim="https://x.org/name"), "ada"),
        ({"a": {"b": "ada"}}, Naming(claim="a.b"), "ada"),
    ],
)
def test_names(claims: dict[str, Any], naming: Naming, name: str) -> None:
    assert naming.name(claims, "the Institute") == name


@pytest.mark.parametrize(
    ("claims", "naming", "words"),
    [
        ({}, Naming(), "no claim"),
        ({"preferred_username": ["ada"]}, Naming(), "is no text"),
        ({"preferred_username": ""}, Naming(), "cannot be the name"),
        ({"preferred_username": "ada\n"}, Naming(), "cannot be the name"),
        ({"preferred_username": "аda"}, Naming(), "cannot be the name"),  # its first letter is Cyrillic
        ({"preferred_username": "-x"}, Naming(), "cannot be the name"),
        ({"preferred_username": "../x"}, Naming(), "cannot be the name"),
        ({"preferred_username": "a b"}, Naming(), "cannot be the name"),
        ({"preferred_username": "x" * 256}, Naming(), "cannot be the name"),
        ({"email": "ada@example.org"}, Naming(claim="email"), "not verified"),
        ({"email": "ada@example.org", "email_verified": "true"}, Naming(claim="email"), "not verified"),
        ({"eppn": "ada"}, Naming(claim="eppn", domain="example.org"), "is not of example.org"),
        ({"eppn": "ada@example.org.evil"}, Naming(claim="eppn", domain="example.org"), "is not of example.org"),
        ({"eppn": "ada@evil@example.org"}, Naming(claim="eppn", domain="example.org"), "is not of example.org"),
        ({"eppn": "@example.org"}, Naming(claim="eppn", domain="example.org"), "cannot be the name"),
    ],
)
def test_claims_that_make_no_name(claims: dict[str, Any], naming: Naming, words: str) -> None:
    with pytest.raises(Denied, match=words):
        naming.name(claims, "the Institute")


@pytest.mark.parametrize(
    ("value", "role", "accounts"),
    [
        (["ops", "x"], Role.OPERATOR, set()),
        (["ops", "heads", "admins", "physics"], Role.ADMIN, {"physics", "optics"}),
        (["heads", "ops"], Role.OPERATOR, set()),
        ("heads", Role.MANAGER, set()),
        ([], None, set()),
        (None, None, set()),
        ({"ops": True}, None, set()),
        ([["ops"], 1, None], None, set()),
    ],
)
def test_groups(value: Any, role: Role | None, accounts: set[str]) -> None:
    groups = Membership(
        claim="realm_access.roles",
        roles={"ops": Role.OPERATOR, "heads": Role.MANAGER, "admins": Role.ADMIN},
        accounts={"physics": ("physics", "optics")},
    )
    found = groups.groups({"realm_access": {"roles": value}})
    assert (groups.role(found), groups.accounts_of(found)) == (role, accounts)
    assert claim_of({"realm_access": 1}, "realm_access.roles") is None
