"""The page of who runs the lab."""

from __future__ import annotations

import json
import re

import httpx
import pytest
from gateway_lab import client
from portal_site import Site
from test_portal_pages import HOSTILE, secret_in

from carrel.core.domain.nouns import ANNOUNCEMENTS, RESERVATIONS
from carrel.core.domain.user import User, UserState

PAGE = "/administration"


def press(site: Site, http: httpx.Client, button: str, **fields: str) -> httpx.Response:
    return http.post(f"{site.url}{PAGE}/{button}", data={"form_secret": secret_in(http.get(f"{site.url}/account")), **fields})


@pytest.mark.gate
def test_an_invited_user_signs_in_is_suspended_goes_on_and_is_removed(site: Site) -> None:
    lab = site.rig.lab
    with site.browser("root") as http:
        assert f'href="{PAGE}"' in http.get(site.url).text
        page = press(site, http, "invite", name="dana", trusted="yes").text
        code = re.search(r"/invitation#([^<]+)</code>", page)
        assert code is not None
        with client(site.url, {"Authorization": f"Bearer {code[1]}"}) as program:
            made = program.post("/api/v1/invitations/current/redeem", json={"name": "laptop"})
        with client(site.url, {"Authorization": f"Bearer {made.json()['token']}"}) as program:
            assert program.get("/api/v1/jobs").status_code == 200
            assert "There is no reason" in press(site, http, "suspend", subject="dana").text
            assert "moved away" in press(site, http, "suspend", subject="dana", reason="moved away").text
            assert program.post("/api/v1/sessions", json={}).status_code in (401, 403)
            press(site, http, "resume", subject="dana")
            assert lab.users.find("dana").state is UserState.ACTIVE
            press(site, http, "remove", subject="dana")
            assert program.get("/api/v1/jobs").status_code == 401
        assert code[1] not in http.get(f"{site.url}{PAGE}").text
    done = [json.loads(line) for line in site.rig.audited().splitlines()]
    assert any(
        line.get("resource") == f"{PAGE}/suspend"
        and line.get("changed")
        == {
            "subject": "dana",
        }
        for line in done
    )


def test_a_machine_is_drained_and_reserved_and_users_are_told(site: Site) -> None:
    lab, root = site.rig.lab, site.rig.caller("root")
    with site.browser("root") as http:
        assert "drained: new fan" in press(site, http, "drain", node="bench", reason="new fan").text
        assert "takes jobs" in press(site, http, "undrain", node="bench").text
        assert "GPU 0 of bench" in press(site, http, "drain", node="bench:0", reason="fan of GPU 0").text
        assert "fan of GPU 0" in http.get("/").text
        assert "GPU 0 of bench" not in press(site, http, "undrain", node="bench:0").text
        press(site, http, "announce", text=f"{HOSTILE} maintenance", warning="yes")
        for name in ("ada", "root"):
            with site.browser(name) as other:
                assert "maintenance" in other.get(site.url).text
                assert HOSTILE not in other.get(site.url).text
        press(site, http, "reserve", name="course", reason="ML course", users="ada", begin="2099-01-01 09:00", **{"for": "3h"})
        (course,) = lab.keeper(RESERVATIONS).list(root)
        assert (course.users, course.end - course.begin) == (frozenset({"ada"}), 3 * 3600)
        (told,) = lab.keeper(ANNOUNCEMENTS).list(root)
        press(site, http, "withdraw", key=str(told.id))
        press(site, http, "release", key="course")
        assert (*lab.keeper(RESERVATIONS).list(root), *lab.keeper(ANNOUNCEMENTS).list(root)) == ()


@pytest.mark.parametrize(
    ("button", "fields", "said"),
    [
        ("invite", {"name": " "}, "name"),
        ("suspend", {"subject": "nobody", "reason": "x"}, "no user"),
        ("drain", {"node": "bench"}, "reason"),
        ("drain", {"node": "none", "reason": "x"}, "no node"),
        ("reserve", {"name": "x", "reason": "y", "begin": "soon"}, "is no moment"),
        ("reserve", {"name": "x", "reason": "y", "begin": "9999-12-31 23:59"}, "is no moment"),
        ("reserve", {"name": "x", "reason": "y", "users": "nobody"}, "no user"),
        ("announce", {"text": "x", "for": "soon"}, "is not a duration"),
    ],
)
def test_what_cannot_be_is_said_in_words(site: Site, button: str, fields: dict[str, str], said: str) -> None:
    with site.browser("root") as http:
        page = press(site, http, button, **fields)
        assert page.status_code in (404, 422)
        assert said in page.text.partition('role="alert">')[2].partition("</p>")[0]
        assert HOSTILE not in page.text


BUTTONS = ("invite", "suspend", "resume", "remove", "drain", "undrain", "announce", "withdraw", "reserve", "release")


def test_who_does_not_run_the_lab_can_press_nothing(site: Site) -> None:
    fields = {"name": "eve", "subject": "bob", "node": "bench", "reason": "x", "text": "x", "key": "1"}
    with site.browser("ada") as http:
        assert PAGE not in http.get(site.url).text
        assert http.get(f"{site.url}{PAGE}").status_code == 403
        for button in BUTTONS:
            assert press(site, http, button, **fields).status_code == 403, button
    with site.browser("root") as http:
        for button in BUTTONS:
            assert http.post(f"{site.url}{PAGE}/{button}", data=fields).status_code == 403, "not from a page of the session"
    assert site.rig.lab.people.get("eve") is None


def test_a_token_that_is_good_for_less_signs_no_browser_in(site: Site) -> None:
    """So the buttons of these pages need not ask what the browser's token is good for."""
    with client(site.url, site.rig.headers("root")) as program:
        token = program.post("/api/v1/tokens", json={"name": "reads", "scopes": ["read"]}).json()["token"]
    with client(site.url, {"Authorization": f"Bearer {token}"}) as program:
        assert program.post("/api/v1/tokens/current/link").status_code == 403
    with site.browser() as http:
        assert http.post(f"{site.url}/login", data={"token": token}, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 403


def test_many_users_are_shown_page_by_page_and_searched(site: Site) -> None:
    for number in range(120):
        site.rig.lab.people.add(User(subject=f"user-{number:03}", name=f"User {number:03}"), now=1.0)
    with site.browser("root") as http:
        first = http.get(f"{site.url}{PAGE}").text
        assert ("user-046" in first, "user-047" in first, "1 to 50 of 123" in first) == (True, False, True)
        (more,) = re.findall(r'href="([^"]+)">More</a>', first)
        second = http.get(site.url + more.replace("&amp;", "&")).text
        assert ("user-047" in second, "51 to 100 of 123" in second, ">Before</a>" in second) == (True, True, True)
        assert "101 to 123 of 123" in http.get(f"{site.url}{PAGE}?from=999").text
        found = http.get(f"{site.url}{PAGE}?user=USER-11").text
        assert ("user-110" in found, "1 to 10 of 10" in found, 'value="USER-11"' in found) == (True, True, True)
        assert "No user is called that" in http.get(f"{site.url}{PAGE}?user={HOSTILE}").text


def test_the_audit_log_is_shown_as_far_as_it_is_asked_for(site: Site) -> None:
    with site.browser("root") as http:
        press(site, http, "drain", node="bench", reason="new fan")
        press(site, http, "drain", node="none", reason="new fan")
        with site.browser("ada") as other:
            press(site, other, "drain", node="bench", reason="mine")

        def rows(**asked: str) -> list[tuple[str, str]]:
            page = http.get(f"{site.url}{PAGE}", params=asked).text.partition('id="audit"')[2]
            return re.findall(r"</time></td><td>([^<]*)</td><td>[^<]*</td><td>[^<]*</td><td>([^<]*)</td>", page)

        assert set(rows(who="ada")) == {("ada", "allowed"), ("ada", "refused")}
        assert rows(**{"with": f"{PAGE}/drain", "result": "refused"}) == [("ada", "refused")]
        assert [who for who, _ in rows(**{"with": f"{PAGE}/drain"})] == ["ada", "root", "root"]
        assert rows(who="nobody") == []


def test_the_health_of_the_lab_is_what_the_doctor_says(site: Site) -> None:
    with site.browser("ada") as http:
        assert press(site, http, "health").status_code == 403
    with site.browser("root") as http:
        page = press(site, http, "health").text
        assert re.search(r'<th scope="row">python</th><td><span class="state good">in order', page)
