from __future__ import annotations

import json
import re
import time

import pytest
from gateway_lab import client
from portal_site import Site, secret_in

from carrel.core.domain.announcement import Announcement, Level
from carrel.core.domain.job import JobState, Reason
from carrel.core.domain.launch import StoredFile
from carrel.core.domain.nouns import ANNOUNCEMENTS, RESERVATIONS
from carrel.core.domain.reservation import Reservation
from carrel.lab.portal.signin import Tickets

HOSTILE = "<script>alert('x')</script>"


@pytest.mark.gate
def test_a_link_signs_one_browser_in_once_and_leaves_no_trace_in_the_address(site: Site) -> None:
    link = site.link("ada")
    with site.browser() as http:
        assert http.head(link).status_code == 200  # looking at a link does not use it up
        page = http.get(link)
        assert (page.status_code, page.url.path, page.url.query) == (200, "/", b"")
        assert "Ada" in page.text
        cookie = page.history[0].headers["set-cookie"].lower()
        for part in ("httponly", "samesite=strict", "path=/", "max-age=43200"):
            assert part in cookie
        assert page.history[0].headers["referrer-policy"] == "no-referrer"
    with site.browser() as http:
        used = http.get(link)
        assert used.status_code == 401
        assert "used already" in used.text
        assert not http.cookies
        for path in ("/", "/jobs/1", "/nothing"):
            page = http.get(path)
            assert page.status_code == 401
            assert "carrel up" in page.text


def test_labs_on_one_host_name_have_cookies_of_their_own(site: Site) -> None:
    with site.browser("ada") as http:
        (name,) = http.cookies
        assert name == f"carrel_session_{site.rig.lab.lab_id}"
        # A browser sends cookies to every port: that of another lab neither signs in here, nor stands in the way.
        http.cookies.set("carrel_session_another", http.cookies[name], domain="127.0.0.1")
        assert http.get("/").status_code == 200
        del http.cookies[name]
        assert http.get("/").status_code == 401


def test_a_page_that_says_no_lets_one_sign_out(site: Site) -> None:
    with site.browser("ada") as http:
        page = http.get("/jobs/77")
        assert (page.status_code, "Sign out" in page.text) == (404, True)
        assert "In a terminal with Carrel" in page.text


def test_a_link_from_another_site_signs_in_too(site: Site) -> None:
    with site.browser() as http:
        step = http.get(site.link("ada"), headers={"Sec-Fetch-Site": "cross-site"})
        assert (step.status_code, step.headers["refresh"]) == (200, "0; url=/")
        assert http.get("/").status_code == 200


def test_tickets_and_sessions_end_by_themselves(site: Site) -> None:
    late = site.link("ada")
    site.clock.ahead = 601
    with site.browser() as http:
        assert http.get(late).status_code == 401
    with site.browser("ada") as http:
        site.clock.ahead += 12 * 3600 - 10
        assert http.get("/").status_code == 200
        site.clock.ahead += 20
        assert http.get("/").status_code == 401


def test_the_sign_in_page_speaks_of_a_link_only_to_who_came_by_one(site: Site) -> None:
    with site.browser() as http:
        asked = http.get("/login")
        assert asked.status_code == 401
        assert "Nobody is signed in." in asked.text
        assert "link was used" not in asked.text
        assert "link was used already, or is older than ten minutes" in http.get("/login?ticket=none").text
    with site.browser("ada") as http:
        page = http.get("/login")
        assert (page.status_code, page.url.path) == (200, "/")


def test_a_token_signs_in_and_signing_out_ends_the_session(site: Site) -> None:
    with site.browser() as http:
        assert http.post("/login", data={"token": "wrong"}).status_code == 401
        page = http.post("/login", data={"token": f" {site.rig.tokens['bob']}\n"})
        assert (page.status_code, page.url.path) == (200, "/")
        ((name, cookie),) = http.cookies.items()
        http.headers["Sec-Fetch-Site"] = "same-origin"
        assert http.post("/logout", data={"form_secret": "x"}).status_code == 403
        http.post("/logout", data={"form_secret": secret_in(page)})
        assert not http.cookies
        assert http.get("/", headers={"Cookie": f"{name}={cookie}"}).status_code == 401
        assert http.post("/login", data={"token": "x"}, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
        job = site.submit("bob")
        token = site.rig.engine.wait_started(job)[1]
        assert http.post("/login", data={"token": token}).status_code == 401  # a job is no person


@pytest.mark.parametrize(
    ("after", "goes_to"),
    [
        ("/jobs?state=RUNNING", "/jobs?state=RUNNING"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
    ],
)
def test_signing_in_leads_to_the_page_that_was_asked_for_and_to_no_other_site(after: str, goes_to: str, site: Site) -> None:
    with site.browser() as http:
        answer = http.post("/login", data={"token": site.rig.tokens["bob"], "after": after}, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, goes_to)
        http.cookies.clear()
        assert 'name="after" value="/notebooks?gpu=1"' in http.get("/notebooks?gpu=1").text


def test_a_page_that_says_that_it_was_too_much_says_for_how_long(site: Site) -> None:
    with site.browser() as http:
        for _ in range(400):  # more than a stranger may try at once
            answer = http.post("/login", data={"token": "x"})
            if answer.status_code == 429:
                break
        assert answer.status_code == 429
        assert "text/html" in answer.headers["content-type"]
        assert int(answer.headers["retry-after"]) >= 1


def test_a_revoked_token_ends_its_sessions(site: Site) -> None:
    with site.browser("ada") as http:
        site.rig.lab.users.revoke_tokens(site.rig.caller("root"), "ada")
        assert http.get("/").status_code == 401


def test_the_cookie_opens_the_pages_and_not_the_api(site: Site) -> None:
    with site.browser("ada") as http, client(site.url, site.rig.headers()) as api:
        assert http.get("/api/v1/jobs").status_code == 401
        assert api.get("/", headers={"Accept": "text/html"}).status_code == 401


def test_everybody_sees_their_own_jobs_and_an_administrator_all(site: Site) -> None:
    ada, bob = site.submit("ada", name="of-ada", resources={"gpus": 1}), site.submit("bob", name="of-bob")
    site.rig.engine.run(ada)
    site.rig.wait(ada, JobState.RUNNING)
    with site.browser("ada") as http:
        page = http.get("/").text
        assert "of-ada" in page
        assert "of-bob" not in page
        assert http.get("/?owner=all").status_code == 200
        assert "of-bob" not in http.get("/?owner=all").text
        for path in ("", "/events", "/log", "/record", "/outputs/x"):
            assert http.get(f"/jobs/{bob}{path}").status_code == 404
        secret = secret_in(http.get("/"))
        for what in ("cancel", "rerun"):
            assert http.post(f"/jobs/{bob}/{what}", data={"form_secret": secret}).status_code == 404
    with site.browser("bob") as http:
        page = http.get("/").text
        assert "Somebody else’s job" in page
        assert "of-ada" not in page
    with site.browser("root") as http:
        assert {"of-ada", "of-bob"} <= set(re.findall(r"of-\w+", http.get("/").text))
        assert "of-bob" not in http.get("/?owner=me").text
    assert site.rig.store.jobs.get(bob).cancelled_by is None  # type: ignore[union-attr]


def test_an_element_is_called_by_its_array_and_all_of_it_can_be_cancelled(site: Site) -> None:
    array = site.submit("ada", array="3,5%1")
    site.rig.engine.wait_started(array)
    with site.browser("ada") as http, site.browser("bob") as other:
        assert f"{array}_5" in http.get("/").text
        page = http.get(f"/jobs/{array + 1}")
        assert f'Element 5 of <a href="/?array={array}">{array}</a> (3,5%1)' in page.text
        alone = site.submit("ada")
        elements = http.get(f"/?array={array}").text
        assert f"{array}_3" in elements
        assert f"/jobs/{alone}" not in elements
        assert f"Nothing of array {array} is over." in http.get(f"/?array={array}&show=ended").text
        data = {"form_secret": secret_in(page)}
        assert other.post(f"/arrays/{array}/cancel", data={"form_secret": secret_in(other.get("/"))}).status_code == 404
        assert http.post(f"/arrays/{array}/cancel", data={"form_secret": "x"}).status_code == 403
        assert http.post(f"/jobs/{array + 1}/cancel", data=data).url.path == f"/jobs/{array + 1}"
        # The one that waited is over, the other one not yet.
        assert "Cancel the array" in http.get(f"/jobs/{array + 1}").text
        assert http.post(f"/arrays/{array}/cancel", data=data).url.path == f"/jobs/{array}"
        site.rig.wait(array, JobState.CANCELLED)
        assert "Cancel the array" not in http.get(f"/jobs/{array + 1}").text
    assert [job.cancelled_by is not None for job in site.rig.store.jobs.elements(array)] == [True, True]


def test_simulated_devices_are_called_simulated_everywhere(site: Site) -> None:
    job = site.submit(resources={"gpus": 1})
    site.rig.engine.run(job)
    site.rig.wait(job, JobState.RUNNING)
    with site.browser("ada") as http:
        assert http.get("/").text.count('sim">simulated<') == 2
        assert "no hardware behind" in http.get("/").text
        assert "simulated GPU" in http.get(f"/jobs/{job}").text


def test_a_job_tells_everything_about_itself_and_nothing_in_it_is_markup(site: Site) -> None:
    job = site.submit(name=HOSTILE, parameters={"who": HOSTILE}, variables={"NOTE": HOSTILE}, experiment=HOSTILE)
    site.rig.engine.run(job)
    data = b"<b>weights</b>"
    outputs = (
        StoredFile(path="outputs/a b#c?.html", size=len(data), digest=site.rig.store_blob(data)),
        StoredFile(path='outputs/two\nlines %0A"\\xff', size=len(data), digest=site.rig.store_blob(data)),
        StoredFile(path=f"outputs/{HOSTILE.replace('/', '_')}", size=len(data), digest=site.rig.store_blob(data)),
    )
    reason = Reason(code="NonZeroExitCode", message=f"It said {HOSTILE}")
    log = f"\x1b[31mred\x1b[0m {HOSTILE}\n10%\r50%\r100%\n".encode()
    site.rig.engine.end(job, state=JobState.FAILED, reason=reason, exit_code=3, log=log, outputs=outputs)
    site.rig.wait(job, JobState.FAILED)
    with site.browser("ada") as http:
        page = http.get(f"/jobs/{job}")
        assert "<script>alert" not in page.text
        assert "\x1b" not in page.text
        assert "100%" in page.text
        assert "50%" not in page.text
        assert page.text.count("&lt;script&gt;") >= 6
        links = re.findall(r'href="(/jobs/\d+/outputs/[^"]+)"', page.text)
        assert len(links) == 3
        for link in links:
            got = http.get(link)
            assert got.content == data
            assert got.headers["content-disposition"].startswith("attachment")
            assert "sandbox" in got.headers["content-security-policy"]
            assert got.headers["content-type"] == "application/octet-stream"
        assert http.get(f"/jobs/{job}/log").content == log
        assert json.loads(http.get(f"/jobs/{job}/record").text)["job"]["name"] == HOSTILE
        assert (
            http.get(f"/jobs/{job}/events", headers={"Accept": "text/event-stream"}, params={"after": 10**6}).status_code == 204
        )
        live = http.get(f"/jobs/{job}?part=live").text
        assert 'data-part="head"' in live
        assert "<html" not in live


def test_who_could_not_be_given_a_place_has_the_log_of_what_failed_before(site: Site) -> None:
    holder = site.submit(resources={"gpus": 2})
    site.rig.engine.run(holder)
    job = site.submit(resources={"gpus": 1})
    log = site.rig.engine.spool.attempt(job, 0).log
    log.parent.mkdir(parents=True)
    log.write_text("No such package.\n")
    with site.browser("ada") as http:
        assert "No such package." not in http.get(f"/jobs/{job}").text  # the stream tells it when it is whole
        reason = Reason(code="EnvironmentFailed", message="It could not be built.")
        site.rig.store.jobs.fail(job, reason=reason, now=1.0, outbox=lambda _job, _task: ())
        assert "No such package." in http.get(f"/jobs/{job}").text
        assert http.get(f"/jobs/{job}/log").text == "No such package.\n"


def test_the_page_of_a_job_that_waits_says_what_would_make_it_start(site: Site) -> None:
    site.rig.engine.wait_started(site.submit(resources={"gpus": 1}))
    job = site.submit(resources={"gpus": 2})
    with site.browser("ada") as http:
        site.rig.wait_for(lambda: "First in line" in http.get(f"/jobs/{job}").text)
        assert "<strong>1 GPU</strong> instead of 2 GPUs it would start now." in http.get(f"/jobs/{job}").text


def test_a_free_gpu_that_is_kept_for_a_job_says_so_wherever_it_is_shown(site: Site) -> None:
    site.rig.engine.wait_started(site.submit(resources={"gpus": 1}))
    job = site.submit(resources={"gpus": 2})
    other = {"index": 1, "name": "Simulated GPU", "memory": 16 * 2**30, "simulated": True}
    site.rig.lender.said = {"tier": "simulated", "devices": [{"uuid": f"SIM-{index}", **other} for index in range(2)]}
    with site.browser("bob") as http:
        for page in ("/", "/gpus"):
            site.rig.wait_for(lambda page=page: f"Free, kept for job {job}" in http.get(page).text)
            assert http.get(page).text.count("Free, kept for job") == 1, page
    with client(site.url, site.rig.headers("bob")) as bob:
        for found in (bob.get("/api/v1/nodes").json()["nodes"][0], bob.get("/api/v1/gpus").json()):
            assert sorted(device["kept_for"] or 0 for device in found["devices"]) == [0, job]


def test_buttons_need_the_form_of_a_page_of_the_same_session(site: Site) -> None:
    holder = site.submit(resources={"gpus": 2})
    job = site.submit(resources={"gpus": 1})
    site.rig.engine.wait_started(holder)
    with site.browser("ada") as http, site.browser("root") as other:
        secret = secret_in(http.get(f"/jobs/{job}"))
        for data in ({}, {"form_secret": ""}, {"form_secret": secret_in(other.get("/"))}):
            assert http.post(f"/jobs/{job}/cancel", data=data).status_code == 403
        for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}):
            assert http.post(f"/jobs/{job}/cancel", data={"form_secret": secret}, headers=headers).status_code == 403
        assert http.get(f"/jobs/{job}/cancel").status_code == 405
        assert site.rig.store.jobs.get(job).state is JobState.PENDING  # type: ignore[union-attr]
        page = http.post(f"/jobs/{job}/cancel", data={"form_secret": secret})
        assert (page.status_code, page.url.path) == (200, f"/jobs/{job}")
        assert "CANCELLED" in page.text
        again = http.post(f"/jobs/{job}/rerun", data={"form_secret": secret})
        assert again.url.path == f"/jobs/{job + 1}"
        assert f"job {job}" in again.text


def test_the_list_goes_on_by_pages_and_is_empty_with_words(site: Site) -> None:
    with site.browser("ada") as http:
        page = http.get("/").text
        assert "No jobs yet" in page
        assert "carrel run" in page
        # For who has no terminal, and for who has one but is not signed in there.
        assert 'href="/notebooks">Start a notebook' in page
        assert f"carrel login {site.url}" in page
        assert "Nothing waits or runs" in http.get("/?show=active").text
        assert http.get("/?show=nonsense").status_code == 422
        assert http.get("/?before=x").status_code == 404
        digest = site.rig.upload()
        with client(site.url, site.rig.headers()) as api:
            for _ in range(51):
                assert api.post("/api/v1/jobs", json={"snapshot": digest}).status_code == 201
        page = http.get("/").text
        older = re.search(r'href="([^"]+)" rel="next"', page)
        assert older
        rest = http.get(older[1].replace("&amp;", "&")).text
        assert 'href="/jobs/1"' in rest
        assert 'rel="next"' not in rest


@pytest.mark.parametrize("path", ["/", "/jobs/1", "/docs", "/login", "/nothing"])
def test_pages_run_no_script_that_is_not_a_file_of_ours(site: Site, path: str) -> None:
    site.submit()
    with site.browser("ada") as http:
        page = http.get(path)
        policy = page.headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert not re.search(r"<script(?![^>]*src=\"/static/)", page.text)
        assert not re.search(r"\son\w+=|\sstyle=|javascript:", page.text)
        assert not re.search(r"(?:src|href)=\"(?:https?:)?//", page.text)
        assert page.headers["x-frame-options"] == "DENY"


def test_errors_have_the_same_look_and_a_remedy(site: Site) -> None:
    with site.browser("ada") as http:
        page = http.get("/jobs/12345")
        assert page.status_code == 404
        assert "There is no job 12345" in page.text
        assert "carrel.css" in page.text
        assert http.get("/static/nothing.js").status_code == 404
        assert http.get("/static/../portal.py").status_code in (401, 404)
        for path in ("/static/carrel.css", "/static/carrel.js", "/static/carrel.svg"):
            assert http.get(path).status_code == 200
        assert http.get("/jobs/" + "9" * 5000).status_code == 404


def test_what_opens_the_lab_is_kept_nowhere(site: Site) -> None:
    tickets = Tickets(lambda: 0.0)
    ticket = tickets.issue(7)
    assert ticket not in repr(tickets._entries)
    assert (tickets.redeem(ticket), tickets.redeem(ticket)) == (7, None)
    with site.browser("ada") as http:
        (session,) = http.cookies.values()
    token = site.portal.sessions.token(session)
    assert token is not None
    kept = (site.rig.home / "lab.db").read_bytes() + (site.rig.home / "lab.db-wal").read_bytes()
    assert session not in token
    assert session.encode() not in kept
    assert token.encode() not in kept
    assert site.portal.sessions.form_secret(session) not in (None, session, token)


def test_the_front_page_tells_of_reservations(site: Site) -> None:
    root, now = site.rig.caller("root"), time.time()
    for name, begin, users in (
        ("course", now - 60, {"bob"}),
        ("power", now + 9000, set[str]()),
        *((f"week-{days}", now + days * 86400 + 600, set[str]()) for days in (2, 3)),
    ):
        reservation = Reservation(name=name, begin=begin, end=begin + 7200, users=frozenset(users), reason=f"the {name}")
        site.rig.lab.keeper(RESERVATIONS).put(root, reservation)
    for who, words in (("ada", "not for your jobs"), ("bob", "kept for you")):
        with site.browser(who) as http:
            page = " ".join(re.sub(r"<[^>]+>", "", http.get("/").text).split())
            assert f"course, the course: all machines {words}; began 1 min ago, for 2 h." in page
            assert "power, the power: all machines not for your jobs; begins in 2 h, for 2 h." in page
            # Weeks of a course are a line, and no wall of notices.
            assert "2 reservations begin later: week-2 in 2 d, week-3 in 3 d" in page
            assert "the week-2" not in page


def test_the_front_page_tells_what_administrators_announce(site: Site) -> None:
    root = site.rig.caller("root")
    for text, level in (("Power & <b>light</b> are off", Level.WARNING), ("Cake in room 3", Level.INFO)):
        site.rig.lab.keeper(ANNOUNCEMENTS).put(root, Announcement(text=text, until=time.time() + 60, level=level))
    with site.browser("ada") as http:
        page = http.get("/").text
    assert '<p class="notice warn" role="note"><strong>Warning.</strong> Power &amp; &lt;b&gt;light&lt;/b&gt; are off ' in page
    assert '<p class="notice" role="note">Cake in room 3 ' in page


def test_a_job_s_page_draws_what_the_job_has_submitted(site: Site) -> None:
    parent = site.submit(name="main")
    _, token = site.rig.engine.wait_started(parent)
    with client(site.url, {"Authorization": f"Bearer {token}"}) as inside:

        def step(name: str, inputs: str) -> int:
            code = f"name: x\nentry_points: {{main: {{command: 'true'}}}}\ncarrel: {{inputs: {{{inputs}}}}}\n"
            task = {"snapshot": site.rig.upload("ada", {"MLproject": code}), "name": name}
            return int(inside.post("/api/v1/jobs", json=task).raise_for_status().json()["id"])

        first = step("fetch", "")
        second = step("train", f"data: 'job:{first}/outputs'")
    site.submit(name="unrelated")
    with site.browser("ada") as http:
        for job in (parent, first, second):
            page = http.get(f"/jobs/{job}").text
            said = re.findall(r'aria-label="([^"]+?)(?:, this one)?(?:; ([^"]+))?"[^>]*class="step', page)
            assert [(name.partition(":")[0], why) for name, why in said] == [
                ("main", ""),
                ("fetch", "submitted by main"),
                ("train", "after fetch"),
            ]
            assert "unrelated" not in page


def test_the_first_page_says_what_is_free_for_its_reader_and_what_they_have_used(site: Site) -> None:
    with site.browser("ada") as http:
        page = http.get("/").text
        assert re.search(r"<strong>2</strong> of 2</span>.*for up to", page, re.DOTALL)
        assert "your share is" in page
        job = site.submit("bob", resources={"gpus": 2, "time": "2h"})
        site.rig.engine.run(job)
        site.rig.wait(job, JobState.RUNNING)
        # It is worked out once in a few seconds; until then the page asks again by itself.
        site.rig.wait_for(lambda: "<strong>0</strong> of 2" in (page := http.get("/").text) or "data-again" not in page)
        page = http.get("/").text
        assert "<strong>0</strong> of 2" in page
        assert "none is free" in page
        assert 'href="/tasks/new"' in page
