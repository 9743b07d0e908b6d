"""The issuer, asked as the RFCs have it, with people who approve on the pages."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from gateway_lab import client
from portal_site import Site
from programs import DEVICE_GRANT, Program, decide, error_of, form_secret

from carrel.core.domain.user import User

HOUR, DAY = 3600.0, 86400.0
V1 = "/api/v1"


@pytest.fixture
def program(site: Site) -> Iterator[Program]:
    with Program(site) as program:
        yield program


def lines(site: Site, who: str | None) -> list[dict[str, Any]]:
    with client(site.url, site.rig.headers("root")) as http:
        found: list[dict[str, Any]] = http.get(f"{V1}/audit", params={"newest": True, "limit": 100}).json()["lines"]
    return [line for line in found if line.get("who") == who]


def as_admin(site: Site, method: str, path: str, **more: Any) -> httpx.Response:
    with client(site.url, site.rig.headers("root")) as http:
        return http.request(method, f"{V1}{path}", **more).raise_for_status()


# ---- discovery


@pytest.mark.gate
def test_the_metadata_name_addresses_that_answer(site: Site, program: Program) -> None:
    found = program.http.get("/.well-known/oauth-authorization-server").json()
    assert found["issuer"] == site.url
    assert set(found["grant_types_supported"]) == {"refresh_token", DEVICE_GRANT}
    for name in ("token_endpoint", "device_authorization_endpoint", "revocation_endpoint"):
        assert program.http.post(found[name], data={"token": "x"}).status_code == 401  # no client_id


def test_unknown_programs_and_grants_are_refused(site: Site, program: Program) -> None:
    begun = program.begin()
    with Program(site, client_id="somebody-else") as other:
        assert error_of(other.post("/oauth/device_authorization")) == "invalid_client"
        assert error_of(other.poll(begun)) == "invalid_client"
    assert error_of(program.post("/oauth/token", grant_type="password", username="ada")) == "unsupported_grant_type"
    assert error_of(program.post("/oauth/token")) == "invalid_request"
    assert error_of(program.post("/oauth/token", grant_type="refresh_token")) == "invalid_request"
    assert error_of(program.post("/oauth/device_authorization", scope="root")) == "invalid_scope"
    twice = b"client_id=carrel-cli&client_id=carrel-cli"
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for body, headers in ((twice, form), (b"%", form), (b"\xff=\xfe", form), (b"a=b&" * 3000, form), (b"{}", {})):
        assert error_of(program.http.post("/oauth/token", content=body, headers=headers)) == "invalid_request"


# ---- the device flow


def test_a_device_waits_until_somebody_approves_it(site: Site, program: Program) -> None:
    begun = program.begin()
    assert begun["verification_uri"] == f"{site.url}/device"
    assert begun["verification_uri_complete"] == f"{site.url}/device?user_code={begun['user_code']}"
    assert (begun["expires_in"], begun["interval"]) == (600, 1)
    assert not set(begun["user_code"]) & set("AEIOUY01")
    assert error_of(program.poll(begun)) == "authorization_pending"
    with site.browser("ada") as browser:
        page = browser.get("/device", params={"user_code": begun["user_code"]})
        for words in ("carrel login", "the-laptop", "127.0.0.1", begun["user_code"], "as Ada"):
            assert words in page.text
        # A page of another site has no form token, and no cookie.
        for change in ({"form_secret": "x"}, {"form_secret": ""}):
            fields = {"user_code": begun["user_code"], "decision": "approve", **change}
            assert browser.post("/device", data=fields).status_code == 403
        assert "is signed in" in decide(browser, begun["user_code"].lower().replace("-", " ")).text
        again = browser.get("/device", params={"user_code": begun["user_code"]})
        assert (again.status_code, "No program waits" in again.text) == (404, True)
    site.clock.ahead += 1
    tokens = program.poll(begun).json()
    assert (tokens["token_type"], tokens["expires_in"], tokens["scope"]) == ("Bearer", 3600, "all")
    assert program.works(tokens)
    assert error_of(program.poll(begun)) == "invalid_grant"
    approved, signed_in = [line for line in lines(site, "ada") if line["result"] == "allowed"][-2:]
    assert (approved["action"], approved["resource"], approved["client"]) == ("approve a sign-in", "/device", "carrel-cli")
    assert (signed_in["action"], signed_in["resource"], signed_in["result"]) == ("sign in", "/oauth/token", "allowed")
    assert signed_in["token"] == site.rig.lab.tokens.list(site.rig.caller("ada"))[-1].id


def test_whoever_is_not_signed_in_comes_back_to_the_question(site: Site, program: Program) -> None:
    begun = program.begin()
    with site.browser() as browser:
        asked = browser.get(begun["verification_uri_complete"])
        assert asked.status_code == 401
        after = f"/device?user_code={begun['user_code']}"
        assert f'name="after" value="{after}"' in asked.text
        browser.headers["Sec-Fetch-Site"] = "same-origin"
        page = browser.post("/login", data={"token": site.rig.tokens["bob"], "after": after})
        assert "as Bob" in page.text


def test_a_device_that_asks_too_often_is_told_to_slow_down(site: Site, program: Program) -> None:
    site.clock.stands = site.clock()
    begun = program.begin()
    assert error_of(program.poll(begun)) == "authorization_pending"
    site.clock.ahead += 1
    assert error_of(program.poll(begun)) == "authorization_pending"
    assert [error_of(program.poll(begun)) for _ in range(2)] == ["slow_down", "slow_down"]
    site.clock.ahead += 1
    assert error_of(program.poll(begun)) == "slow_down"
    site.clock.ahead += 16
    assert error_of(program.poll(begun)) == "authorization_pending"
    # Nothing happened in all that.
    assert [line["status"] for line in lines(site, None) if line.get("resource") == "/oauth/token"] == []


def test_a_device_that_is_refused_or_waits_too_long_gets_nothing(site: Site, program: Program) -> None:
    refused, late = program.begin(), program.begin()
    with site.browser("ada") as browser:
        assert "was refused" in decide(browser, refused["user_code"], "refuse").text
        assert error_of(program.poll(refused)) == "access_denied"
        site.clock.ahead += 601
        assert browser.get("/device", params={"user_code": late["user_code"]}).status_code == 404
    assert error_of(program.poll(late)) == "expired_token"
    assert error_of(program.post("/oauth/token", grant_type=DEVICE_GRANT, device_code="x" * 43)) == "invalid_grant"


def test_wrong_codes_are_limited_by_person_and_by_address(site: Site, program: Program) -> None:
    begun = program.begin()
    with site.browser("ada") as browser:
        for number in range(5):
            assert browser.get("/device", params={"user_code": "BCDF-GHJ" + "KLMNP"[number]}).status_code == 404
        assert (lines(site, "ada")[-1]["action"], lines(site, "ada")[-1]["rule"]) == ("enter a code", "user code")
        limited = browser.get("/device", params={"user_code": begun["user_code"]})
        assert (limited.status_code, int(limited.headers["retry-after"]) > 500) == (429, True)
    with site.browser("bob") as browser:
        assert browser.get("/device", params={"user_code": begun["user_code"]}).status_code == 200
        site.clock.ahead += 600
        assert browser.get("/device", params={"user_code": program.begin()["user_code"]}).status_code == 200
    # Twenty of one address, whoever it is.
    site.rig.lab.people.add(User(subject="dora", name="Dora"), now=0)
    site.rig.lab.people.add(User(subject="eve", name="Eve"), now=0)
    new = {name: site.rig.lab.tokens.hand_out(name, name="of a test", by="root")[1] for name in ("dora", "eve")}
    site.rig.tokens = {**site.rig.tokens, **new}
    for name, expected in (("root", 404), ("bob", 404), ("ada", 404), ("dora", 404), ("eve", 429)):
        with site.browser(name) as browser:
            found = [browser.get("/device", params={"user_code": "no code"}).status_code for _ in range(5)]
            assert found == [expected] * 5


def test_so_many_wait_and_no_more(site: Site, program: Program) -> None:
    for _ in range(100):
        program.begin()
    refused = program.post("/oauth/device_authorization")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "60")
    site.clock.ahead += 600
    program.begin()


@pytest.mark.parametrize("path", ["suspend", "reset", "revoke", ""])
def test_who_lost_their_rights_between_approval_and_poll_gets_nothing(site: Site, program: Program, path: str) -> None:
    begun = program.begin()
    with site.browser("ada") as browser:
        decide(browser, begun["user_code"])
    as_admin(
        site, "POST" if path else "DELETE", f"/users/ada/{path}".rstrip("/"), json={} if path in ("suspend", "reset") else None
    )
    answer = program.poll(begun)
    assert error_of(answer) == ("access_denied" if path == "suspend" else "invalid_grant")
    if path == "suspend":
        assert "suspended" in answer.json()["error_description"]
        assert lines(site, "ada")[-1]["rule"] == "state of the user"


def test_the_question_wants_the_form_of_the_session(site: Site, program: Program) -> None:
    begun = program.begin()
    fields = {"user_code": begun["user_code"], "decision": "approve"}
    with site.browser("ada") as ada, site.browser("bob") as bob:
        for secret in (form_secret(bob.get("/device")), "", "é"):
            assert ada.post("/device", data={**fields, "form_secret": secret}).status_code == 403
        elsewhere = {**fields, "form_secret": form_secret(ada.get("/device"))}
        assert ada.post("/device", data=elsewhere, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert error_of(program.poll(begun)) == "authorization_pending"


# ---- afterwards


def test_a_refresh_token_is_good_once_and_one_that_comes_twice_ends_the_sign_in(site: Site, program: Program) -> None:
    first = program.sign_in()
    second = program.renew(first).json()
    assert program.works(first)  # what runs goes on until it has the new one
    assert program.works(second)
    third = program.renew(second).json()
    assert error_of(program.renew(first)) == "invalid_grant"
    for tokens in (first, second, third):
        assert not program.works(tokens)
        assert error_of(program.renew(tokens)) == "invalid_grant"
    with client(site.url, site.rig.headers("ada")) as http:
        (mine,) = [one for one in http.get(f"{V1}/tokens").json()["tokens"] if one["name"] == "carrel login on the-laptop"]
    assert (mine["state"], "used twice" in mine["revoked_by"]) == ("revoked", True)
    told = [(line["action"], line["result"], line["rule"]) for line in lines(site, "ada") if line["resource"] == "/oauth/token"]
    assert told[:4] == [
        ("sign in", "allowed", "token"),
        ("renew a sign-in", "allowed", "token"),
        ("renew a sign-in", "allowed", "token"),
        ("renew a sign-in", "refused", "refresh token used twice"),
    ]


def test_two_that_renew_at_once_do_not_both_get_tokens(site: Site, program: Program) -> None:
    tokens = program.sign_in()
    with ThreadPoolExecutor(4) as pool:
        found = [answer.status_code for answer in pool.map(lambda _: program.renew(tokens), range(4))]
    assert sorted(found) == [200, 400, 400, 400]


def test_a_program_that_lost_the_answer_shows_its_key_again(site: Site, program: Program) -> None:
    tokens = program.sign_in()
    lost = program.renew(tokens, key="what only the program knows").json()
    again = program.renew(tokens, key="what only the program knows").json()
    assert program.works(again)
    following = program.renew(again).json()
    assert program.works(following)
    # The answer was not lost after all: two have the sign-in.
    assert error_of(program.renew(lost)) == "invalid_grant"
    assert not program.works(following)


def test_a_key_of_somebody_else_proves_nothing(site: Site, program: Program) -> None:
    for key in ("another", None):
        tokens = program.sign_in()
        stolen = program.renew(tokens, key="of the thief").json()
        assert error_of(program.renew(tokens, key=key)) == "invalid_grant"
        assert not program.works(stolen)


def test_access_ends_after_an_hour_and_a_sign_in_after_a_month_unused_or_half_a_year(site: Site, program: Program) -> None:
    tokens = program.sign_in()
    site.clock.ahead += HOUR
    answer = program.http.get(f"{V1}/jobs", headers={"Authorization": f"Bearer {tokens['access_token']}"})
    assert (answer.status_code, answer.json()["details"]["cause"]) == (401, "expired")
    tokens = program.renew(tokens).json()
    assert program.works(tokens)
    for _ in range(6):
        site.clock.ahead += 29 * DAY
        tokens = program.renew(tokens).json()
    assert tokens["expires_in"] == 3600
    site.clock.ahead += 7 * DAY
    assert error_of(program.renew(tokens)) == "invalid_grant"
    tokens = program.sign_in()
    site.clock.ahead += 30 * DAY
    late = program.renew(tokens)
    assert (error_of(late), "was good until" in late.json()["error_description"]) == ("invalid_grant", True)


@pytest.mark.parametrize("how", ["token", "reset", "revoke", "remove", "suspend", "itself"])
def test_a_sign_in_is_a_token_that_is_listed_and_ended_as_others(site: Site, program: Program, how: str) -> None:
    tokens = program.sign_in("bob", scope="read")
    with client(site.url, site.rig.headers("bob")) as http:
        (mine,) = [one for one in http.get(f"{V1}/tokens").json()["tokens"] if one["name"] == "carrel login on the-laptop"]
        assert (mine["scopes"], mine["state"], mine["created_by"]) == (["read"], "valid", "bob")
        if how == "token":
            http.delete(f"{V1}/tokens/{mine['id']}").raise_for_status()
    if how == "itself":
        bearer = {"Authorization": f"Bearer {tokens['access_token']}"}
        assert program.http.delete(f"{V1}/tokens/current", headers=bearer).status_code == 204
    elif how == "remove":
        as_admin(site, "DELETE", "/users/bob")
    elif how != "token":
        as_admin(site, "POST", f"/users/bob/{how}", json={} if how != "revoke" else None)
    assert not program.works(tokens)
    refused = program.renew(tokens)
    assert error_of(refused) == ("access_denied" if how == "suspend" else "invalid_grant")
    if how == "suspend":  # nothing is lost
        as_admin(site, "POST", "/users/bob/resume")
        assert program.works(program.renew(tokens).json())


def test_a_program_ends_its_own_sign_in(site: Site, program: Program) -> None:
    for which in ("refresh_token", "access_token"):
        tokens, other = program.sign_in(), program.sign_in()
        assert program.post("/oauth/revoke", token=tokens[which]).status_code == 200
        assert not program.works(tokens)
        assert error_of(program.renew(tokens)) == "invalid_grant"
        assert program.works(other)
        assert (lines(site, "ada")[-2]["action"], lines(site, "ada")[-2]["result"]) == ("end a sign-in", "allowed")
    # What is none of its own is as good as revoked, and goes on.
    for token in ("nonsense", site.rig.tokens["bob"], "carrel_refresh_x.y"):
        assert program.post("/oauth/revoke", token=token).status_code == 200
    assert site.rig.caller("bob").user.subject == "bob"
    assert error_of(program.post("/oauth/revoke")) == "invalid_request"


def test_a_token_that_is_less_than_its_person_approves_nothing(site: Site, program: Program) -> None:
    begun = program.begin()
    with client(site.url, site.rig.headers("ada")) as http:
        less = http.post(f"{V1}/tokens", json={"scopes": ["read"]}).json()["token"]
    with site.browser() as browser:
        browser.headers["Sec-Fetch-Site"] = "same-origin"
        assert browser.post("/login", data={"token": less, "after": "/device"}).status_code == 403
    assert error_of(program.poll(begun)) == "authorization_pending"


def test_nothing_that_is_stored_or_logged_signs_anybody_in(site: Site, program: Program) -> None:
    begun = program.begin()
    with site.browser("ada") as browser:
        decide(browser, begun["user_code"])
    tokens = program.poll(begun).json()
    renewed = program.renew(tokens, key="the key of the program").json()
    family, _, part = renewed["refresh_token"].removeprefix("carrel_refresh_").partition(".")
    planted = [begun["device_code"], begun["user_code"], tokens["access_token"], family, part, "the key of the program"]
    with sqlite3.connect(site.rig.home / "lab.db") as database:
        dump = "\n".join(database.iterdump())
    database.close()
    assert "sign_ins" in dump
    written = dump + "".join(path.read_text(errors="replace") for path in (site.rig.home / "audit").rglob("*") if path.is_file())
    assert [secret for secret in planted if secret in written] == []


def test_whatever_is_sent_nothing_fails(site: Site, program: Program) -> None:
    chance = random.Random(52)
    wild = (
        "",
        "\0",
        "é",
        "x" * 3000,
        "../..",
        "carrel-cli",
        "all",
        "openid",
        "\r\nX: 1",
        "%00",
        "http://127.0.0.1:49152/signed-in",
        "a.b",
        "💥",
        "[::1",
    )
    names = (
        "client_id",
        "grant_type",
        "device_code",
        "refresh_token",
        "scope",
        "token",
        "x",
    )
    kinds = ("refresh_token", DEVICE_GRANT)
    asked = ("device_name", "user_code", "decision", *names)
    begun, tokens = program.begin(), program.sign_in()
    known = (*wild, begun["device_code"], begun["user_code"], tokens["access_token"])
    counts: Counter[int] = Counter()
    with site.browser("bob") as browser:
        secret = form_secret(browser.get("/device"))
        for _ in range(300):
            fields = {name: chance.choice(known) for name in names if chance.random() < 0.5}
            if chance.random() < 0.8:
                fields |= {"client_id": "carrel-cli", "grant_type": chance.choice(kinds)}
            path = chance.choice(("token", "revoke", "device_authorization"))
            counts[program.http.post(f"/oauth/{path}", data=fields, headers={"Idempotency-Key": "k"}).status_code] += 1
            more = {name: chance.choice(known) for name in asked if chance.random() < 0.6}
            counts[browser.get("/device", params=more, follow_redirects=False).status_code] += 1
            answer = browser.post("/device", data={**more, "form_secret": secret}, follow_redirects=False)
            counts[answer.status_code] += 1
    assert set(counts) <= {200, 303, 400, 401, 404, 422, 429}, counts
