"""A provider that lies, breaks or attacks: nobody comes in by it, the lab says why, and all else goes on."""

from __future__ import annotations

import gzip
import hmac
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Semaphore
from typing import Any

import pytest
from anyio import CapacityLimiter
from gateway_lab import client
from hostile_provider import Hostile, a_hostile_provider, encode, of_json, other_keys, public, sign
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from joserfc.jwk import OKPKey, RSAKey
from oidc_site import INCIDENT, OidcSite, an_oidc_site

from carrel.core.domain.user import Role
from carrel.lab.credentials.oidc import Client, Membership, Naming
from carrel.lab.credentials.oidc.fetch import Fetch
from carrel.lab.portal.oidc import BACK, OidcPage
from carrel.testing.waiting import PATIENCE

METADATA = "/.well-known/openid-configuration"


@pytest.fixture
def hostile() -> Iterator[Hostile]:
    with a_hostile_provider() as hostile:
        yield hostile


@pytest.fixture
def site(hostile: Hostile, tmp_path: Path) -> Iterator[OidcSite]:
    with an_oidc_site(tmp_path, hostile.issuer, Client(id="carrel", secret="s+ %")) as site:
        yield site


def refused(hostile: Hostile, site: OidcSite, log: str, **change: str | None) -> tuple[int, str]:
    """Nobody is signed in; the reason is in the log, under the number that the person was told."""
    with site.browser() as http:
        answer = hostile.come_back(site, http, **change)
        assert site.signed_in(http) is None
    assert answer.status_code in (401, 503), answer.text
    assert site.rig.store.identities.of("ada") is None
    return answer.status_code, answer.text


@pytest.mark.gate
def test_a_good_one_is_let_in(hostile: Hostile, site: OidcSite) -> None:
    with site.browser() as http:
        assert hostile.come_back(site, http).status_code == 200
        assert site.signed_in(http) == "ada"
    with client(site.url, site.rig.headers("root")) as http:
        links = {user["subject"]: user["linked_to"] for user in http.get("/api/v1/users").json()["users"]}
    assert (links["ada"], links["root"]) == (f"{hostile.issuer} s1", "")
    ((_, form),) = [asked for asked in hostile.asked if asked[0] == "/token"]
    assert form["authorization"] == "Basic Y2FycmVsOnMlMkIrJTI1"  # RFC 6749, 2.3.1: encoded, then in base64
    assert (form["redirect_uri"], form["grant_type"]) == (site.back, "authorization_code")
    assert "client_secret" not in form


# ---- tokens


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"aud": "somebody-else"}, "its aud"),
        ({"aud": ["carrel", "another"]}, "its aud"),
        ({"aud": ["carrel", "another"], "azp": "another"}, "its azp"),
        ({"azp": "another"}, "its azp"),
        ({"aud": None}, "its aud"),
        ({"aud": {"carrel": 1}}, "its aud"),
        ({"iss": "https://id.example.org"}, "its iss"),
        ({"iss": None}, "its iss"),
        ({"nonce": "another"}, "its nonce"),
        ({"nonce": None}, "its nonce"),
        ({"nonce": 1}, "its nonce"),
        ({"sub": None}, "its sub"),
        ({"sub": ""}, "its sub"),
        ({"sub": "x" * 256}, "its sub"),
        ({"sub": "a\nb"}, "its sub"),
        ({"sub": 7}, "its sub"),
        ({"exp": None}, "exp and iat"),
        ({"iat": None}, "exp and iat"),
        ({"exp": "soon"}, "its exp"),
        ({"exp": True}, "its exp"),
        ({"exp": 10**400}, "its exp"),
        ({"exp": float("nan")}, "its exp"),
        ({"exp": float("inf")}, "its exp"),
    ],
)
def test_what_an_id_token_must_say(
    hostile: Hostile, site: OidcSite, caplog: pytest.LogCaptureFixture, claims: dict[str, Any], why: str
) -> None:
    hostile.claims = claims
    if None in claims.values():
        hostile.claims = {}
        (name,) = claims
        hostile.answers["/token"] = lambda _: of_json({"id_token": hostile.token(**{name: None})})
    status, text = refused(hostile, site, caplog.text)
    incident = INCIDENT.search(text)
    assert (status, incident is not None) == (401, True)
    assert incident is not None
    line = next(record.getMessage() for record in caplog.records if incident[0] in record.getMessage())
    assert why in line


@pytest.mark.parametrize(
    ("name", "seconds", "comes_in"),
    [
        ("exp", -40, True), ("exp", -80, False), ("iat", 40, True), ("iat", 80, False), ("nbf", 40, True), ("nbf", 80, False),
        ("iat", -500, True), ("iat", -700, False),
    ],
)  # fmt: skip
def test_times_by_the_lab_s_clock_within_a_minute(
    hostile: Hostile, site: OidcSite, name: str, seconds: int, comes_in: bool
) -> None:
    site.clock.stands = 2e9
    hostile.claims = {"exp": 2_000_000_300, name: int(2e9) + seconds}
    with site.browser() as http:
        assert (hostile.come_back(site, http).status_code == 200) == comes_in


def forgeries(hostile: Hostile) -> dict[str, str]:
    others = other_keys()
    good = hostile.token()
    head, body, signature = good.split(".")
    pem, jwk = hostile.key.as_pem(private=False), json.dumps(public(hostile.key)).encode()
    claims = {"iss": hostile.issuer, "aud": "carrel", "sub": "s1", "nonce": hostile.nonce, "preferred_username": "ada"}
    claims |= {"iat": int(hostile.now), "exp": int(hostile.now) + 300}
    strange = others["one in the header"]
    return {
        "another key": hostile.token(key=others["RS256"]),
        "another key of another sort": sign({"alg": "ES256", "kid": "k1"}, claims, others["ES256"]),
        "another key under EdDSA": sign({"alg": "EdDSA", "kid": "k1"}, claims, others["EdDSA"]),
        "none": sign({"alg": "none"}, claims, None),
        "None": good.replace(head, _head(alg="None")),
        "no signature": f"{head}.{body}.",
        "signature of nothing": f"{head}.{body}.{'A' * len(signature)}",
        "the public key as a secret": by_secret(claims, pem),
        "the key set as a secret": by_secret(claims, jwk),
        "a shared secret": by_secret(claims, b"s+ %"),
        "a key of its own in the header": sign(
            {"alg": "RS256", "jwk": strange.as_dict(private=False), "kid": "k1"}, claims, strange
        ),
        "an algorithm that is not allowed": sign({"alg": "RS384", "kid": "k1"}, claims, hostile.key),
        "something critical": sign({"alg": "RS256", "kid": "k1", "crit": ["b64"], "b64": True}, claims, hostile.key),
        **{
            f"{name} {value}": sign({"alg": "RS256", "kid": "k1", name: value}, claims, hostile.key)
            for name, value in [
                ("typ", "logout+jwt"),
                ("typ", "at+jwt"),
                ("typ", "application/at+jwt"),
                ("typ", "dpop+jwt"),
                ("typ", ""),
                ("cty", "JWT"),
            ]
        },
        "an unknown key": hostile.token(key=others["RS256"]).replace(head, _head(alg="RS256", kid="k2")),
        "a number for a name of a key": good.replace(head, _head(alg="RS256", kid=1)),
        "a list for an algorithm": good.replace(head, _head(alg=["RS256"], kid="k1")),
        "changed content": f"{head}.{_encoded({**claims, 'sub': 's2'})}.{signature}",
        "nothing": "",
        "one part": "x",
        "two parts": "x.y",
        "five parts": "a.b.c.d.e",
        "a list": f"{_encoded([])}.{_encoded([])}.{signature}",
        "signed, but a list": sign({"alg": "RS256", "kid": "k1"}, b"[]", hostile.key),
        "signed, but no JSON": sign({"alg": "RS256", "kid": "k1"}, b"{", hostile.key),
        "deep": f"{_encoded_text('[' * 40_000)}.x.y",
        "signed and deep": sign({"alg": "RS256", "kid": "k1"}, b"[" * 40_000, hostile.key),
        "long": "x" * 70_000,
        "signs": "é.ü.ß",
    }


def by_secret(claims: dict[str, Any], secret: bytes) -> str:
    """Libraries for this refuse to use a public key as a secret. Attackers do not."""
    text = f"{_head(alg='HS256', kid='k1')}.{_encoded(claims)}"
    return f"{text}.{encode(hmac.digest(secret, text.encode(), 'sha256'))}"


def _head(**header: Any) -> str:
    return _encoded(header)


def _encoded(value: Any) -> str:
    return _encoded_text(json.dumps(value))


def _encoded_text(text: str) -> str:
    return encode(text.encode())


def test_no_forged_token_opens_the_lab(hostile: Hostile, site: OidcSite, caplog: pytest.LogCaptureFixture) -> None:
    hostile.metadata = {"id_token_signing_alg_values_supported": ["RS256", "ES256", "EdDSA", "HS256", "none"]}
    with site.browser() as http:
        hostile.come_back(site, http, code=None)
    for name in forgeries(hostile):
        hostile.answers["/token"] = lambda _, name=name: of_json({"id_token": forgeries(hostile)[name]})  # type: ignore[misc]
        site.clock.ahead += 1000  # nobody has to wait for wrong tries
        assert refused(hostile, site, caplog.text)[0] == 401, name


@pytest.mark.parametrize("kind", ["JWT", "jwt", "application/jwt", None])
def test_a_token_that_says_that_it_is_one_or_nothing_is_taken(hostile: Hostile, site: OidcSite, kind: str | None) -> None:
    hostile.header = {"typ": kind}
    with site.browser() as http:
        assert hostile.come_back(site, http).status_code == 200
        assert site.signed_in(http) == "ada"


def test_nobody_comes_in_whose_name_looks_like_a_users(hostile: Hostile, tmp_path: Path) -> None:
    with an_oidc_site(tmp_path, hostile.issuer, Client(id="carrel", secret="s+ %"), everybody=True) as site:
        for number, name in enumerate(("Ada", "AdA", "ADA", "r00t")):
            hostile.claims = {"preferred_username": name, "sub": f"other-{number}"}
            with site.browser() as http:
                answer = hostile.come_back(site, http)
                assert (answer.status_code, site.signed_in(http)) == (409, None)
                assert f"{name}&#34; looks like" in answer.text
        assert not {"Ada", "AdA", "ADA", "r00t"} & {user.subject for user in site.rig.store.people.list()}


def test_an_algorithm_that_the_provider_does_not_announce_is_refused(hostile: Hostile, site: OidcSite) -> None:
    hostile.metadata = {"id_token_signing_alg_values_supported": ["ES256"]}
    assert refused(hostile, site, "")[0] == 401


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"keys": {}},
        {"keys": []},
        {"keys": [1, None, {"kty": "RSA"}, {"kty": "oct", "k": "AAAA", "kid": "k1"}, {"kty": ["RSA"]}]},
        {"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": "k1"}]},
        {"keys": [public(RSAKey.generate_key(1024))]},
        {"keys": [public(OKPKey.generate_key("X25519"))]},
        {"keys": [public(RSAKey.generate_key(2048), use="enc")]},
        {"keys": [{}] * 101},
    ],
)
def test_key_sets_that_hold_no_key(hostile: Hostile, site: OidcSite, keys: Any) -> None:
    hostile.answers["/jwks"] = lambda _: of_json(keys)
    assert refused(hostile, site, "")[0] in (401, 503)


def test_a_key_for_another_algorithm_or_purpose_is_not_taken(hostile: Hostile, site: OidcSite) -> None:
    for more in ({"alg": "PS256"}, {"use": "enc"}, {"kid": "other"}):
        hostile.answers["/jwks"] = lambda _, more=more: of_json({"keys": [public(hostile.key, **more)]})  # type: ignore[misc]
        site.clock.ahead += 4000
        assert refused(hostile, site, "")[0] in (401, 503)
    # Among others that the lab cannot use, without a name: all of the right sort are tried.
    hostile.header = {"kid": None}
    strange = [{"kty": "XYZ"}, public(RSAKey.generate_key(2048)), public(RSAKey.generate_key(1024))]
    hostile.answers["/jwks"] = lambda _: of_json({"keys": [*strange, public(hostile.key)]})
    site.clock.ahead += 4000
    with site.browser() as http:
        assert hostile.come_back(site, http).status_code == 200


# ---- the answer in the address


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"iss": "https://id.example.org"}, 401),  # mix-up: the answer of another provider
        ({"iss": None}, 401),  # this one always says who it is
        ({"state": "another"}, 401),
        ({"state": None}, 401),
        ({"state": "é"}, 401),
        ({"code": None}, 401),
        ({"code": ""}, 401),
        ({"code": "x" * 5000}, 401),
        ({"code": None, "error": "access_denied"}, 401),
        ({"error": "server_error", "error_description": "<script>alert(1)</script>\n2026 forged line"}, 401),
        ({"error": "<b>"}, 401),
    ],
)
def test_answers_that_are_not_for_this_sign_in(
    hostile: Hostile, site: OidcSite, caplog: pytest.LogCaptureFixture, change: dict[str, str | None], status: int
) -> None:
    found, text = refused(hostile, site, caplog.text, **change)
    assert found == status
    assert "<script>alert" not in text
    assert "<b>" not in text
    assert not any("\n" in record.getMessage() for record in caplog.records if record.name == "carrel.lab.credentials")
    assert [asked for asked in hostile.asked if asked[0] == "/token"] == []


def test_a_parameter_that_comes_twice_is_refused(hostile: Hostile, site: OidcSite) -> None:
    with site.browser() as http:
        begun = site.begin(http)
        answer = http.get(f"{site.back}?code=a&code=b&state={begun['state']}&iss={hostile.issuer}")
        assert (answer.status_code, "twice" in answer.text) == (401, True)


def test_a_cookie_that_was_changed_is_none(hostile: Hostile, site: OidcSite) -> None:
    with site.browser() as http:
        begun = site.begin(http, after="/notebooks")
        good = http.cookies["carrel_oidc"]
        parts = good.split(".")
        for bad in (
            "", ".", "...", "é", good[:-1], good + "x", f"{parts[0]}.9999999999.{parts[2]}.{parts[3]}",
            f"{parts[0]}.{parts[1]}.Ly9ldmls.{parts[3]}", "x" * 5000,
        ):  # fmt: skip
            with site.browser() as other:
                answer = other.get(
                    f"{site.back}?code=a&state={begun['state']}",
                    headers={"Cookie": f"carrel_oidc={bad}".encode()},
                )
                assert (answer.status_code, "did not begin" in answer.text) == (401, True), bad


def test_many_wrong_answers_have_to_wait(hostile: Hostile, site: OidcSite) -> None:
    site.clock.stands = 2e9
    hostile.answers["/token"] = lambda _: of_json({"error": "invalid_grant"}, 400)
    with site.browser() as http:
        found = [hostile.come_back(site, http).status_code for _ in range(31)]
    assert found == [401] * 30 + [503 if found[-1] == 503 else 429]
    assert len([asked for asked in hostile.asked if asked[0] == "/token"]) == 30


# ---- answers of the provider


def test_what_a_broken_provider_does_ends_in_words(hostile: Hostile, site: OidcSite, caplog: pytest.LogCaptureFixture) -> None:
    good = hostile.token()
    answers = {
        "sends the lab elsewhere": lambda _: (302, {"Location": f"{hostile.issuer}/elsewhere"}, b""),
        "more than 262144 bytes": lambda _: of_json({"id_token": good, "more": "x" * 300_000}),
        "no JSON": lambda _: (200, {}, b"<html>"),
        "no object": lambda _: of_json([]),
        "status 500 and no JSON": lambda _: (500, {}, b"sorry"),
        "answered with status 502": lambda _: of_json({}, 502),
        "compressed": lambda _: (200, {"Content-Encoding": "gzip"}, gzip.compress(b"{}")),
        "gave no ID token": lambda _: of_json({"access_token": "x"}),
        "no JSON ": lambda _: (200, {}, b"[" * 100_000),
    }
    for words, answer in answers.items():
        hostile.answers["/token"] = answer
        caplog.clear()
        status, text = refused(hostile, site, "")
        assert (status, "the Institute cannot be used at this moment" in text) == (503, True), words
        assert words.strip() in caplog.text
    assert all(path != "/elsewhere" for path, _ in hostile.asked)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"issuer": "https://id.example.org"}, "calls itself"),
        ({"issuer": None}, "calls itself"),
        ({"token_endpoint": "http://id.example.org/token"}, "no https address"),
        ({"token_endpoint": None}, "no https address"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "no https address"),
        ({"jwks_uri": "file:///etc/passwd"}, "no https address"),
        ({"jwks_uri": ["x"]}, "no https address"),
        ({"token_endpoint": "https://user:password@id.example.org/"}, "no https address"),
        ({"id_token_signing_alg_values_supported": ["HS256", "none"]}, "signs with"),
        ({"id_token_signing_alg_values_supported": "RS256"}, "no list"),
        ({"response_types_supported": ["id_token"]}, "authorization code flow"),
    ],
)
def test_metadata_that_the_lab_does_not_believe(
    hostile: Hostile, site: OidcSite, caplog: pytest.LogCaptureFixture, change: dict[str, Any], why: str
) -> None:
    hostile.metadata = change
    with site.browser() as http:
        assert http.get(f"{site.url}/sign-in/oidc").status_code == 503
    assert why in caplog.text


def test_a_provider_that_hangs_holds_up_nobody_else(hostile: Hostile, site: OidcSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """More wait for it than the lab has threads; whoever comes another way comes in meanwhile."""
    most, waiting, released = 60, Semaphore(0), threading.Event()
    threads = OidcPage._threads

    def counted(page: OidcPage) -> CapacityLimiter:
        waiting.release()
        return threads(page)

    def hang(_: dict[str, str]) -> Any:
        assert released.wait(2 * PATIENCE)
        return of_json({})

    def begin() -> int:
        with site.browser() as http:
            return http.get(f"{site.url}/sign-in/oidc").status_code

    monkeypatch.setattr(OidcPage, "_threads", counted)
    hostile.answers[METADATA] = hang
    be_patient(site, 2 * PATIENCE)
    with ThreadPoolExecutor(most) as pool:
        asked = [pool.submit(begin) for _ in range(most)]
        try:
            for _ in range(most):
                assert waiting.acquire(timeout=PATIENCE)
            with site.browser("ada") as http:
                assert http.get("/notebooks").status_code == 200
            assert not any(one.done() for one in asked)
        finally:
            released.set()
        assert {one.result() for one in asked} == {503}
    hostile.answers.clear()
    site.clock.ahead += 6
    with site.browser() as http:
        assert hostile.come_back(site, http).status_code == 200


def test_an_answer_that_never_ends_ends(hostile: Hostile, site: OidcSite) -> None:
    """Less is sent than was announced."""
    hostile.answers["/token"] = lambda _: (200, {"Content-Length": "100"}, b"{")
    with site.browser() as http:
        begun = site.begin(http)
        be_patient(site, 1.0)
        answer = http.get(site.back, params={"code": "c", "state": begun["state"], "iss": hostile.issuer})
        assert (answer.status_code, "cannot be used at this moment" in answer.text) == (503, True)


def be_patient(site: OidcSite, seconds: float) -> None:
    site.oidc.provider._fetch = Fetch(patience=seconds)


def test_what_was_known_is_used_while_the_provider_is_down(hostile: Hostile, site: OidcSite) -> None:
    with site.browser() as http:
        assert hostile.come_back(site, http).status_code == 200
    hostile.answers = {path: lambda _: (503, {}, b"") for path in (METADATA, "/jwks")}
    site.clock.ahead += 4000
    with site.browser() as http:
        assert hostile.come_back(site, http).status_code == 200


def test_userinfo_of_another_person_is_refused(hostile: Hostile, site: OidcSite) -> None:
    hostile.answers["/token"] = lambda _: of_json({"id_token": hostile.token(preferred_username=None), "access_token": "t"})
    hostile.answers["/me"] = lambda _: of_json({"sub": "s2", "preferred_username": "ada"})
    assert refused(hostile, site, "")[0] == 401
    hostile.answers["/me"] = lambda form: of_json({"sub": "s1", "preferred_username": "ada", "nonce": form["authorization"]})
    with site.browser() as http:
        assert hostile.come_back(site, http).status_code == 200


def test_a_verified_address_is_never_put_together_from_two(hostile: Hostile, tmp_path: Path) -> None:
    """The ID token has ada's address, unverified; userinfo has a verified one of somebody else."""
    naming = Naming(claim="email", domain="example.org")
    with an_oidc_site(tmp_path, hostile.issuer, Client(id="carrel"), naming=naming) as site:
        hostile.claims = {"email": "ada@example.org"}
        hostile.answers["/me"] = lambda _: of_json({"sub": "s1", "email": "eve@example.net", "email_verified": True})
        with site.browser() as http:
            answer = hostile.come_back(site, http)
        assert (answer.status_code, "eve@example.net" in answer.text) == (403, True)
        assert site.rig.store.identities.of("ada") is None
        hostile.answers["/me"] = lambda _: of_json({"sub": "s1", "email_verified": True})
        with site.browser() as http:
            assert "has not verified" in hostile.come_back(site, http).text
        hostile.answers["/me"] = lambda _: of_json({"sub": "s1", "email": "ada@example.org", "email_verified": True})
        with site.browser() as http:
            assert hostile.come_back(site, http).status_code == 200


def test_groups_that_cannot_be_asked_for_take_nothing_away(hostile: Hostile, tmp_path: Path) -> None:
    groups = Membership(roles={"ops": Role.OPERATOR})
    with an_oidc_site(tmp_path, hostile.issuer, Client(id="carrel"), membership=groups) as site, site.browser() as http:
        hostile.answers["/me"] = lambda _: of_json({"sub": "s1", "groups": ["ops"]})
        assert hostile.come_back(site, http).status_code == 200
        assert site.user("ada").role is Role.OPERATOR
        hostile.answers["/me"] = lambda _: (500, {}, b"")
        assert hostile.come_back(site, http).status_code == 503
        assert site.user("ada").role is Role.OPERATOR
        hostile.answers["/me"] = lambda _: of_json({"sub": "s1", "groups": {"ops": True}})
        assert hostile.come_back(site, http).status_code == 200
        assert site.user("ada").role is Role.USER


# ---- whatever comes

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_claims = st.dictionaries(
    st.sampled_from(["iss", "aud", "azp", "sub", "nonce", "exp", "iat", "nbf", "preferred_username", "groups", "alg"]), _json
)
_query = st.lists(
    st.tuples(st.sampled_from(["code", "state", "iss", "error", "error_description", "x", "after"]), st.text(max_size=40)),
    max_size=6,
)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hostile, OidcSite]]:
    groups = Membership(roles={"ops": Role.OPERATOR})
    with a_hostile_provider() as hostile:
        with an_oidc_site(tmp_path_factory.mktemp("fuzzed"), hostile.issuer, Client(id="carrel"), membership=groups) as site:
            yield hostile, site


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(claims=_claims, query=_query)
def test_whatever_comes_is_answered(
    fuzzed: tuple[Hostile, OidcSite], claims: dict[str, Any], query: list[tuple[str, str]]
) -> None:
    hostile, site = fuzzed
    hostile.claims = claims
    hostile.answers["/me"] = lambda _: of_json(
        {"sub": claims.get("sub", "s1"), **{k: v for k, v in claims.items() if k != "sub"}}
    )
    site.clock.ahead += 1000
    with site.browser() as http:
        answer = hostile.come_back(site, http)
        assert answer.status_code in (200, 401, 403), answer.text
        assert (site.signed_in(http) is None) == (answer.status_code != 200)
        site.begin(http)
        assert http.get(f"{site.url}{BACK}", params=query).status_code == 401
        assert http.get(f"{site.url}/sign-in/oidc", params=query, follow_redirects=False).status_code == 303
