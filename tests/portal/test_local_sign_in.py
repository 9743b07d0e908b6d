"""Invitations in the browser, and sign-in by name and password."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from argon2 import PasswordHasher
from gateway_lab import Rig, a_lab, client, serve
from portal_site import Clock, Site

from carrel.audit import Wanted
from carrel.credentials import LocalSignIn
from carrel.credentials.passwords import Hashes
from carrel.portal import Portal
from carrel.portal.local import LocalPages
from carrel.portal.signin import COOKIE

GOOD = "correct horse battery staple"
OTHER = "umbrella kettle violin seven"
#: So that a test takes no second; the real parameters have a test of their own.
QUICK = PasswordHasher(time_cost=1, memory_cost=1024, parallelism=1)


@dataclass
class LocalSite(Site):
    local: LocalSignIn

    def invite(self, name: str) -> str:
        with client(self.url, self.rig.headers("root")) as root:
            return str(root.post("/api/v1/invitations", json={"name": name}).raise_for_status().json()["code"])

    def people(self, method: str, path: str) -> httpx.Response:
        with client(self.url, self.rig.headers("root")) as root:
            return root.request(method, f"/api/v1/users{path}", json=None if method == "DELETE" else {}).raise_for_status()

    def choose(self, http: httpx.Client, name: str, password: str = GOOD) -> httpx.Response:
        return http.post("/invitation", data={"code": self.invite(name), "password": password, "again": password}, headers=OWN)

    def sign_in(self, http: httpx.Client, name: str, password: str, **more: str) -> httpx.Response:
        return http.post("/sign-in/password", data={"name": name, "password": password, **more}, headers=OWN)

    def last(self) -> dict[str, Any]:
        return self.rig.audit.read(Wanted(), limit=1, newest=True)[0]


OWN = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LocalSite]:
    clock = Clock()
    made: list[tuple[Portal, LocalSignIn]] = []

    def pages(rig: Rig) -> Portal:
        local = LocalSignIn(
            store=rig.store.credentials,
            people=rig.lab.people,
            tokens=rig.lab.tokens,
            clock=clock,
            monotonic=clock,
            hashes=Hashes(hasher=QUICK),
        )
        made.append((Portal(clock=clock, local=LocalPages(local)), local))
        return made[0][0]

    with a_lab(tmp_path, pages=pages, clock=clock) as rig, serve(rig.app) as url:
        yield LocalSite(rig, made[0][0], clock, url, made[0][1])


def everything_kept(site: LocalSite) -> bytes:
    return b"\n".join(site.rig.audit.lines()) + b"".join(path.read_bytes() for path in site.rig.home.glob("lab.db*"))


def test_an_invitation_becomes_a_password_once(site: LocalSite) -> None:
    code = site.invite("grace")
    with site.browser() as http:
        opened = http.get("/invitation")
        assert (opened.status_code, opened.headers["cache-control"], opened.headers["referrer-policy"]) == (
            200, "no-store", "same-origin",
        )  # fmt: skip
        shown = http.post("/invitation", data={"code": code}, headers=OWN)
        assert (shown.status_code, "Welcome, grace" in shown.text, shown.headers["cache-control"]) == (200, True, "no-store")
        short = http.post("/invitation", data={"code": code, "password": "short"}, headers=OWN)
        assert (short.status_code, "has 5 characters" in short.text) == (422, True)
        unequal = http.post("/invitation", data={"code": code, "password": GOOD, "again": OTHER}, headers=OWN)
        assert (unequal.status_code, "differ" in unequal.text) == (422, True)
        done = http.post("/invitation", data={"code": code, "password": GOOD, "again": GOOD}, headers=OWN)
        assert (done.status_code, done.url.path, "grace" in done.text) == (200, "/", True)
        line = site.last()
        assert (line["who"], line["resource"], line["result"]) == ("grace", "/invitation", "allowed")
    with site.browser() as again:
        used = again.post("/invitation", data={"code": code, "password": OTHER, "again": OTHER}, headers=OWN)
        assert (used.status_code, "used or taken back" in used.text, COOKIE in again.cookies) == (401, True, False)
        assert site.sign_in(again, "grace", OTHER).status_code == 401
        assert site.sign_in(again, "grace", GOOD).url.path == "/"
    assert code.encode() not in everything_kept(site)
    assert GOOD.encode() not in everything_kept(site)


def test_what_is_no_invitation_opens_nothing(site: LocalSite) -> None:
    code = site.invite("grace")
    with site.browser() as http:
        for wrong in (site.rig.tokens["ada"], "carrel_invitation_none", "", "é", "x" * 600):
            page = http.post("/invitation", data={"code": wrong, "password": GOOD}, headers=OWN)
            assert page.status_code == 401, wrong
        assert http.post("/invitation", data={"code": code}, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
        site.clock.ahead = 8 * 86400
        assert "was good until" in http.post("/invitation", data={"code": code, "password": GOOD}, headers=OWN).text
    assert site.rig.store.credentials.password("ada") is None
    assert site.rig.store.credentials.password("grace") is None


def test_of_two_browsers_with_one_invitation_one_gets_in(site: LocalSite) -> None:
    code = site.invite("grace")
    found: list[object] = []
    together = threading.Barrier(4)

    def redeem(password: str) -> None:
        together.wait()
        try:
            found.append(site.local.choose_password(code, password))
        except Exception as error:  # noqa: BLE001
            found.append(type(error).__name__)

    threads = [threading.Thread(target=redeem, args=(f"{GOOD} {number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(str(one) for one in found if isinstance(one, str)) == ["Unauthenticated"] * 3


def test_name_and_password_sign_in_and_the_page_asked_for_survives_a_wrong_one(site: LocalSite) -> None:
    with site.browser() as http:
        site.choose(http, "grace")
    with site.browser() as http:
        asked = http.get("/notebooks?x=1")
        assert 'action="/sign-in/password"' in asked.text
        assert 'name="after" value="/notebooks?x=1"' in asked.text
        wrong = site.sign_in(http, "grace", OTHER, after="/notebooks?x=1")
        assert (wrong.status_code, 'name="after" value="/notebooks?x=1"' in wrong.text) == (401, True)
        line = site.last()
        assert (line.get("who"), line["tried"], line["result"], line["resource"]) == (
            None,
            "grace",
            "refused",
            "/sign-in/password",
        )
        right = site.sign_in(http, "grace", GOOD, after="/notebooks?x=1")
        assert (right.status_code, right.url.path, right.url.query) == (200, "/notebooks", b"x=1")
        line = site.last()
        assert (line["who"], line["result"]) == ("grace", "allowed")
        assert [one.name for one in site.rig.store.tokens.list("grace")][-1] == "browser, by password"
    with site.browser() as http:
        assert site.sign_in(http, "grace", GOOD, after="https://elsewhere.example").url.path == "/"
        crossed = http.post(
            "/sign-in/password", data={"name": "grace", "password": GOOD}, headers={"Sec-Fetch-Site": "cross-site"}
        )
        assert crossed.status_code == 403


def test_nobody_learns_who_has_a_name(site: LocalSite) -> None:
    with site.browser() as http:
        site.choose(http, "grace")
    bodies = set()
    for name in ("grace", "ada", "nobody-at-all"):  # with a password, without one, and not there
        with site.browser() as http:
            page = site.sign_in(http, name, OTHER)
            bodies.add((page.status_code, page.text))
    assert len(bodies) == 1
    assert "tried" not in site.last()  # a password in the field of names is in no log
    asked: list[object] = []

    class Counting(PasswordHasher):
        def verify(self, hash: str | bytes, password: str | bytes) -> bool:  # type: ignore[override]
            asked.append(password)
            return QUICK.verify(hash, password)  # type: ignore[arg-type]

    hashes = Hashes(hasher=Counting(time_cost=1, memory_cost=1024, parallelism=1))
    assert not hashes.matches(None, OTHER)
    assert not hashes.matches(None, "x" * 5000)
    assert len(asked) == 2  # as much work where there is nobody


def test_wrong_tries_are_bounded_for_each_person_and_each_address(site: LocalSite) -> None:
    site.clock.stands = 1000.0
    with site.browser() as http:
        site.choose(http, "grace")
        http.cookies.clear()
        for _ in range(10):
            assert site.sign_in(http, "grace", OTHER).status_code == 401
        stopped = site.sign_in(http, "grace", GOOD)
        assert (stopped.status_code, stopped.headers["retry-after"], "Wait 61 s" in stopped.text) == (429, "61", True)
        assert COOKIE not in http.cookies
        site.clock.ahead += 61
        assert site.sign_in(http, "grace", GOOD).status_code == 200
        http.cookies.clear()
        answers = [site.sign_in(http, f"name-{number}", OTHER).status_code for number in range(40)]
        assert (answers[0], answers[-1], 20 <= answers.count(401) <= 30) == (401, 429, True)
        site.clock.ahead += 11
        assert site.sign_in(http, "grace", GOOD).status_code == 200


def test_reset_removal_and_suspension_close_the_door(site: LocalSite) -> None:
    with site.browser() as http:
        site.choose(http, "grace")
        assert http.get("/").status_code == 200
        site.people("POST", "/grace/suspend")
        assert http.get("/").status_code == 403
    with site.browser() as http:
        refused = site.sign_in(http, "grace", GOOD)
        assert (refused.status_code, "suspended" in refused.text) == (403, True)
        assert site.sign_in(http, "grace", OTHER).status_code == 401  # who does not know the password is told nothing
        site.people("POST", "/grace/resume")
        assert site.sign_in(http, "grace", GOOD).status_code == 200
        site.people("POST", "/grace/reset")
        assert http.get("/").status_code == 401
        assert site.sign_in(http, "grace", GOOD).status_code == 401
        site.choose(http, "grace")
        site.people("DELETE", "/grace")
        site.people("POST", "/grace/resume")
        assert site.sign_in(http, "grace", GOOD).status_code == 401


def test_a_reset_between_the_check_and_the_token_wins(site: LocalSite) -> None:
    with site.browser() as http:
        site.choose(http, "grace")
        proof = site.local.by_password("grace", GOOD, "127.0.0.1")
        site.people("POST", "/grace/reset")
        with pytest.raises(Exception, match="changed just now"):
            proof.confirm()
        code = site.invite("grace")
        site.people("POST", "/grace/reset")
        assert http.post("/invitation", data={"code": code, "password": GOOD}, headers=OWN).status_code == 401


def test_a_password_is_hashed_anew_when_parameters_rise(site: LocalSite) -> None:
    with site.browser() as http:
        site.choose(http, "grace")
    before = site.rig.store.credentials.password("grace")
    better = LocalSignIn(
        store=site.rig.store.credentials, people=site.rig.lab.people, tokens=site.rig.lab.tokens,
        clock=site.clock, monotonic=site.clock
    )  # fmt: skip
    better.by_password("grace", GOOD, "127.0.0.1").confirm()
    after = site.rig.store.credentials.password("grace")
    assert before is not None
    assert after is not None
    assert "m=1024,t=1,p=1" in before
    assert re.match(r"\$argon2id\$v=19\$m=65536,t=3,p=4\$", after)
    assert not Hashes().is_weak(after)


@pytest.mark.parametrize(
    ("password", "word"),
    [
        ("eleven-char", "has 11 characters"),
        ("x" * 1025, "more than 1024"),
        ("é" * 600 + "abcdef", "bytes"),
        ("aaaaaaaaaaaabb", "different characters"),
        ("Grace Hopper 2026", "your name"),
        ("carrelcarrelcarrel", "your name"),
        ("with a zero \0 byte", "zero byte"),
    ],
)
def test_passwords_that_are_refused(password: str, word: str) -> None:
    from carrel.credentials.passwords import check_new
    from carrel.domain.errors import Invalid

    with pytest.raises(Invalid, match=word):
        check_new(password, "Grace Hopper")


def test_two_keyboards_give_the_same_password() -> None:
    hashes = Hashes(hasher=QUICK)
    from carrel.credentials.passwords import check_new

    composed, decomposed = "caf\u00e9 noir pour moi", "cafe\u0301 noir pour moi"
    assert hashes.matches(hashes.make(check_new(composed)), decomposed)
