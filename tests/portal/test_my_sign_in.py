"""The page "Your sign-in": who may change what there, and what it shows."""

from __future__ import annotations

import re

import httpx
import pytest
from gateway_lab import client
from local_site import GOOD, OTHER, OWN, LocalSite

PAGE = "/my-sign-in"


def secret_in(page: httpx.Response) -> str:
    found = re.search(r'name="form_secret" value="([^"]+)"', page.text)
    assert found, page.text
    return found[1]


def change(http: httpx.Client, old: str, new: str, **more: str) -> httpx.Response:
    form = {"form_secret": secret_in(http.get(PAGE)), "old": old, "password": new, "again": new, **more}
    return http.post(f"{PAGE}/password", data=form, headers=OWN)


@pytest.mark.gate
def test_a_password_is_changed_by_who_knows_it(local_site: LocalSite) -> None:
    with local_site.browser() as http:
        local_site.choose(http, "grace")
        refused = http.post(f"{PAGE}/password", data={"old": GOOD, "password": OTHER, "again": OTHER}, headers=OWN)
        assert (refused.status_code, "not from a page of your session" in refused.text) == (403, True)
        assert "present password is not right" in change(http, OTHER, OTHER).text
        assert "has 5 characters" in change(http, GOOD, "short").text
        assert "differ" in change(http, GOOD, OTHER, again=GOOD).text
        done = change(http, GOOD, OTHER)
        assert (done.status_code, "Your password is changed." in done.text) == (200, True)
        line = local_site.last()
        assert (line["who"], line["resource"], line["result"]) == ("grace", f"{PAGE}/password", "allowed")
    with local_site.browser() as http:
        assert local_site.sign_in(http, "grace", GOOD).status_code == 401
        assert local_site.sign_in(http, "grace", OTHER).status_code == 200


def test_who_tries_passwords_there_is_stopped_as_well(local_site: LocalSite) -> None:
    local_site.clock.stands = 1000.0
    with local_site.browser() as http:
        local_site.choose(http, "grace")
        secret = secret_in(http.get(PAGE))
        form = {"form_secret": secret, "old": OTHER, "password": OTHER, "again": OTHER}
        answers = [http.post(f"{PAGE}/password", data=form, headers=OWN) for _ in range(11)]
        assert [one.status_code for one in answers] == [422] * 10 + [429]
        assert answers[-1].headers["retry-after"] == "61"


def test_a_browser_with_less_than_all_changes_nothing(local_site: LocalSite) -> None:
    rig = local_site.rig
    ada = rig.caller("ada")
    _, limited = rig.lab.tokens.create(ada, name="narrow", account="default")
    _, reader = rig.lab.tokens.create(ada, name="reader", scopes=("read",))
    with local_site.browser() as http:
        assert http.post("/login", data={"token": limited}, headers=OWN).status_code == 200
        page = http.get(PAGE)
        assert "good for less than all that you may do" in page.text
        assert f'action="{PAGE}/password"' not in page.text
        secret = secret_in(page)
        form = {"form_secret": secret, "password": GOOD, "again": GOOD, "answer": "{}"}
        for path in ("password", "passkeys", "passkeys/options", "passkeys/1/remove"):
            assert http.post(f"{PAGE}/{path}", data=form, headers=OWN).status_code == 403, path
    with local_site.browser() as http:
        assert http.post("/login", data={"token": reader}, headers=OWN).status_code == 403
    assert rig.store.credentials.password("ada") is None


def test_who_has_neither_chooses_a_first_password(local_site: LocalSite) -> None:
    with local_site.browser("ada") as http:
        assert "You have no password." in http.get(PAGE).text
        assert change(http, "", GOOD).status_code == 200
    with local_site.browser() as http:
        assert local_site.sign_in(http, "ada", GOOD).status_code == 200


def test_an_old_sign_in_is_not_enough_where_there_are_only_passkeys(local_site: LocalSite) -> None:
    from carrel.lab.credentials import NewPasskey

    store = local_site.rig.store
    with local_site.browser("ada") as http:
        caller = local_site.rig.caller("ada")
        assert caller.token_id is not None
        new = NewPasskey(credential=b"one", public_key=b"key", sign_count=0, name="laptop")
        assert store.credentials.add_passkey(caller.token_id, "ada", new, now=1.0)
        local_site.clock.ahead = 16 * 60
        refused = change(http, "", GOOD)
        assert (refused.status_code, "more than 15 minutes ago" in refused.text) == (403, True)
        assert "laptop" in refused.text


def test_other_browsers_are_listed_and_signed_out(local_site: LocalSite) -> None:
    with local_site.browser() as first, local_site.browser() as second, local_site.browser("bob") as stranger:
        local_site.choose(first, "grace")
        local_site.sign_in(second, "grace", GOOD)
        (other,) = [int(one) for one in re.findall(rf"{PAGE}/browsers/(\d+)/end", first.get(PAGE).text)]
        assert "This browser" in first.get(PAGE).text
        refused = stranger.post(f"{PAGE}/browsers/{other}/end", data={"form_secret": secret_in(stranger.get(PAGE))}, headers=OWN)
        assert refused.status_code == 404
        assert second.get("/").status_code == 200
        done = first.post(f"{PAGE}/browsers/{other}/end", data={"form_secret": secret_in(first.get(PAGE))}, headers=OWN)
        assert "That browser is signed out." in done.text
        assert second.get("/").status_code == 401


def test_what_is_stored_while_a_reset_goes_on_is_not_kept(local_site: LocalSite) -> None:
    """Each place that stores something is asked with a token that was good when the request came in."""
    from carrel.lab.credentials import NewPasskey

    store, rig = local_site.rig.store.credentials, local_site.rig
    caller = rig.caller("ada")
    assert caller.token_id is not None
    new = NewPasskey(credential=b"one", public_key=b"key", sign_count=0, name="laptop")
    local_site.people("POST", "/ada/reset")
    assert not store.change_password(caller.token_id, "ada", old=None, new="x", now=1.0)
    assert not store.add_passkey(caller.token_id, "ada", new, now=1.0)
    with client(local_site.url, rig.headers("root")) as root:
        token = root.post("/api/v1/users/ada/reset", json={}).json()["token"]
    fresh = rig.lab.authenticate(token)
    assert fresh.token_id is not None
    assert store.add_passkey(fresh.token_id, "ada", new, now=1.0)
    local_site.people("DELETE", "/ada")
    assert store.passkeys("ada") == []
    assert not store.change_password(fresh.token_id, "ada", old=None, new="x", now=1.0)


def test_a_counter_is_stored_only_where_nobody_else_has(local_site: LocalSite) -> None:
    from carrel.lab.credentials import NewPasskey

    store = local_site.rig.store.credentials
    token = local_site.rig.caller("ada").token_id
    assert token is not None
    assert store.add_passkey(token, "ada", NewPasskey(credential=b"one", public_key=b"k", sign_count=3, name="x"), now=1.0)
    known = store.passkey(b"one")
    assert known is not None
    assert store.used_passkey(known, sign_count=4, now=2.0)
    assert not store.used_passkey(known, sign_count=4, now=3.0)
    assert store.passkeys("ada")[0].last_used_at == 2.0


def test_whatever_is_sent_as_a_passkey_is_refused(local_site: LocalSite) -> None:
    with local_site.browser() as http:
        for answer in ("", "{}", "[]", "null", "{", '{"response": 1}', '{"response": {"clientDataJSON": "e30"}, "rawId": 1}',
                       '{"rawId": "eA", "response": {"clientDataJSON": "eyJjaGFsbGVuZ2UiOiAieCJ9"}}', "[" * 5000):  # fmt: skip
            page = http.post("/sign-in/passkey", data={"answer": answer}, headers=OWN)
            assert page.status_code in (401, 422), (answer, page.status_code)
        options = http.post("/sign-in/passkey/options", headers=OWN).json()
        assert (options["rpId"], options["userVerification"], options["allowCredentials"]) == ("localhost", "required", [])
        assert http.post("/sign-in/passkey/options", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
