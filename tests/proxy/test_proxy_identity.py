"""Who is who: labels, cookies, and the tokens between proxy and session."""

from __future__ import annotations

import base64
import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import OctKey

from carrel.notebooks import identity

pytestmark = pytest.mark.quick

SECRET, TOKEN, NOW = b"s" * 32, "carrel-job.7.1.abc", 1_800_000_000.0


def shown(**fields: object) -> str:
    options = {"job_id": 7, "attempt": 1, "subject": "ada", "now": NOW, "name": "Ada L."} | fields
    token = str(options.pop("token", TOKEN))
    return identity.headers(token, **options)[identity.HEADER]  # type: ignore[arg-type]


def read(text: str, **fields: object) -> tuple[str, str] | None:
    options = {"job_id": 7, "attempt": 1, "now": NOW} | fields
    return identity.read_identity(text, str(options.pop("token", TOKEN)), **options)  # type: ignore[arg-type]


def test_a_label_names_its_job_and_cannot_be_guessed() -> None:
    label = identity.session_label(SECRET, 12, 3)
    assert identity.read_session_label(label) == 12
    others = {
        identity.session_label(SECRET, 12, 4),
        identity.session_label(b"t" * 32, 12, 3),
        identity.session_label(SECRET, 13, 3),
    }
    assert label not in others
    assert len({other.partition("-")[2] for other in others} | {label.partition("-")[2]}) == 4


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "s0-000000000000",
        "s01-000000000000",
        "s1-00000000000",
        "s1-0000000000000",
        "S1-000000000000",
        "s1-00000000000g",
        "s1-000000000000.x",
        "s-1-000000000000",
        "s1_000000000000",
        "s1-000000000000\n",
        "s" + "9" * 30 + "-000000000000",
    ],
)
def test_what_is_no_label(text: str) -> None:
    assert identity.read_session_label(text) is None


@given(st.text(alphabet=string.printable))
def test_no_text_breaks_the_reading_of_labels_cookies_or_tokens(text: str) -> None:
    identity.read_session_label(text)
    assert identity.read_cookie(SECRET, "s1-000000000000", text) is None
    assert read(text) is None


def test_the_session_reads_who_asks() -> None:
    assert read(shown()) == ("ada", "Ada L.")
    assert read(shown(name="")) == ("ada", "ada")
    assert read(shown(name="Żółć ✓", subject="ż")) == ("ż", "Żółć ✓")


@pytest.mark.parametrize(
    "text",
    [
        shown(job_id=8),
        shown(attempt=2),
        shown(token="carrel-job.7.1.abd"),
        shown(now=NOW - 91),
        shown(now=NOW + 91),
        shown()[:-1],
        shown() + "A",
        "",
        "a.b.c",
    ],
)
def test_tokens_of_other_sessions_other_times_and_other_keys_are_nobodys(text: str) -> None:
    assert read(text) is None


def test_a_token_is_good_for_a_minute() -> None:
    assert read(shown(now=NOW - 60)) is not None
    claims = json.loads(base64.urlsafe_b64decode(shown().split(".")[1] + "=="))
    assert claims["exp"] - claims["iat"] == 60
    assert claims["aud"] == "carrel-session:7.1"
    assert "abc" not in json.dumps(claims)


def test_no_other_algorithm_and_no_missing_claim_is_taken() -> None:
    head = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    assert read(f"{head}.{shown().split('.')[1]}.") is None
    key = identity._identity_key(TOKEN)
    good = {"aud": "carrel-session:7.1", "sub": "ada", "name": "Ada", "exp": int(NOW) + 60}
    assert read(jwt.encode({"alg": "HS256"}, good, key)) == ("ada", "Ada")
    for wrong in (
        {"sub": 1},
        {"aud": ["carrel-session:7.1"]},
        {"exp": None},
        {"exp": "soon"},
        {"exp": True},
        {"exp": int(NOW) + 3600},
        {"name": None},
    ):
        claims = {name: value for name, value in (good | wrong).items() if value is not None}
        assert read(jwt.encode({"alg": "HS256"}, claims, key)) is None, wrong
    assert read(jwt.encode({"alg": "HS256"}, good, OctKey.import_key(b"x" * 32))) is None


def test_a_cookie_is_for_one_session_and_one_lab() -> None:
    label = identity.session_label(SECRET, 7, 1)
    cookie = identity.cookie_value(SECRET, label, 12)
    assert identity.read_cookie(SECRET, label, cookie) == 12
    assert identity.read_cookie(SECRET, identity.session_label(SECRET, 7, 2), cookie) is None
    assert identity.read_cookie(b"t" * 32, label, cookie) is None
    # One kind of token is not the other.
    assert identity.read_cookie(SECRET, label, shown()) is None
    assert read(cookie) is None
