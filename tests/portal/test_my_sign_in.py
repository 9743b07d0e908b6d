"""The page "Your sign-in": who may change what there, and what it shows."""

from __future__ import annotations

import re

import httpx
import pytest
from gateway_lab import client
from local_site import GOOD, OTHER, OWN, LocalSite
from portal_site import secret_in

PAGE = "/my-sign-in"


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
        form = {"form_secret": secret, "password": GOOD, "again": GOOD}
        assert http.post(f"{PAGE}/password", data=form, headers=OWN).status_code == 403
    with local_site.browser() as http:
        assert http.post("/login", data={"token": reader}, headers=OWN).status_code == 403
    assert rig.store.credentials.password("ada") is None


def test_who_has_neither_chooses_a_first_password(local_site: LocalSite) -> None:
    with local_site.browser("ada") as http:
        assert "You have no password." in http.get(PAGE).text
        assert change(http, "", GOOD).status_code == 200
    with local_site.browser() as http:
        assert local_site.sign_in(http, "ada", GOOD).status_code == 200


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
    """A password is stored only for a token that is still valid, though it was when the request came in."""
    store, rig = local_site.rig.store.credentials, local_site.rig
    caller = rig.caller("ada")
    assert caller.token_id is not None
    local_site.people("POST", "/ada/reset")
    assert not store.change_password(caller.token_id, "ada", old=None, new="x", now=1.0)
    with client(local_site.url, rig.headers("root")) as root:
        token = root.post("/api/v1/users/ada/reset", json={}).json()["token"]
    fresh = rig.lab.authenticate(token)
    assert fresh.token_id is not None
    assert store.change_password(fresh.token_id, "ada", old=None, new="x", now=1.0)
    local_site.people("DELETE", "/ada")
    assert store.password("ada") is None
    assert not store.change_password(fresh.token_id, "ada", old=None, new="x", now=1.0)
