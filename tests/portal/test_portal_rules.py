"""The page on which classes of service, accounts and priorities are changed."""

from __future__ import annotations

import json
import re

import httpx
import pytest
from gateway_lab import RULES, RULES_FILE
from portal_site import Site
from test_portal_pages import HOSTILE, secret_in

from carrel.core.domain.job import JobState
from carrel.core.domain.qos import QoS

PAGE = "/administration/rules"


def form_of(http: httpx.Client, table: str) -> dict[str, str]:
    """The fields of a form as a browser sends it."""
    page = http.get(PAGE).text
    form = next(one for one in page.split("<form")[1:] if f'name="table" value="{table}"' in one).partition("</form>")[0]
    found = dict(re.findall(r'<input [^>]*name="([^"]+)" value="([^"]*)"', form))
    return {name: value for name, value in found.items() if value}


def ended_jobs(site: Site, number: int) -> None:
    for _ in range(number):
        job = site.submit("ada", resources={"gpus": 1, "time": "10m"})
        site.rig.engine.run(job)
        site.rig.engine.end(job)
        site.rig.wait(job, JobState.COMPLETED)


@pytest.mark.gate
def test_a_change_is_tried_on_the_last_jobs_then_applied_and_kept(site: Site) -> None:
    rules, file = site.rig.lab.administration.rules, site.rig.home / "carrel.toml"
    ended_jobs(site, 3)
    with site.browser("root") as http:
        http.base_url = site.url
        assert f'href="{PAGE}"' in http.get("/administration").text
        form = {**form_of(http, "qos.normal"), "qos.normal.max_gpus_per_user": "1", "days": "30"}
        page = http.post(f"{PAGE}/preview", data=form).text
        assert "3 jobs since" in page
        assert "<code>qos.normal.max_gpus_per_user</code> none → 1" in page
        rows = re.findall(r'<th scope="row">([^<]+)</th><td class="num">(\d+)', page)
        assert rows == [("all", "3"), ("normal", "3"), ("ada", "3")]
        assert (rules.current, file.read_text()) == (RULES, RULES_FILE)
        assert 'name="qos.normal.max_gpus_per_user" value="1"' in page
        assert "The rules are in force" in http.post(f"{PAGE}/apply", data=form).text
    assert rules.current.qos["normal"] == QoS(name="normal", default_time=3600, max_gpus_per_user=1)
    assert file.read_text() == RULES_FILE.replace('"1h"\n', '"1h"\nmax_gpus_per_user = 1\n')
    lines = [json.loads(line) for line in site.rig.audited().splitlines()]
    (applied,) = [line for line in lines if line.get("resource") == f"{PAGE}/apply"]
    assert (applied["who"], applied["changed"]) == ("root", {"qos.normal.max_gpus_per_user": "none → 1"})


@pytest.mark.parametrize(
    ("table", "key", "value", "said"),
    [
        ("qos.short", "qos.short.max_time", "soon", "is not a duration"),
        ("qos.short", "qos.short.priority", HOSTILE, "must be a whole number"),
        ("qos.short", "qos.short.preempts", "short", "would preempt itself"),
        ("accounts.", "accounts..parent", "physics", "Write [accounts.physics] too"),
        ("priority", "priority.promises", "0", "must be 1 or more"),
    ],
)
def test_what_is_wrong_is_said_at_its_field(site: Site, table: str, key: str, value: str, said: str) -> None:
    with site.browser("root") as http:
        http.base_url = site.url
        form = {**form_of(http, table), key: value, "name": "new"}
        for button in ("preview", "apply"):
            answer = http.post(f"{PAGE}/{button}", data=form)
            assert answer.status_code == 422
            (at,) = re.findall(r'name="([^"]+)"[^>]*aria-invalid="true"', answer.text)
            assert (at, said in answer.text.partition('class="wrong"')[2].partition("</span>")[0]) == (key, True)
            assert HOSTILE not in answer.text
    assert (site.rig.home / "carrel.toml").read_text() == RULES_FILE


def test_a_file_that_was_edited_since_the_page_was_made_is_not_overwritten(site: Site) -> None:
    file = site.rig.home / "carrel.toml"
    with site.browser("root") as http:
        http.base_url = site.url
        form = {**form_of(http, "qos.normal"), "qos.normal.priority": "3"}
        file.write_text(RULES_FILE.replace("priority = 10", "priority = 11"))
        answer = http.post(f"{PAGE}/apply", data=form)
        assert (answer.status_code, "changed since you looked" in answer.text) == (409, True)
        assert "says more than what is in force" in http.get(PAGE).text
        again = {**form_of(http, "qos.normal"), "qos.normal.priority": "3"}
        assert "The rules are in force" in http.post(f"{PAGE}/apply", data=again).text
        assert "says more than what is in force" not in http.get(PAGE).text
        file.write_text("[qos.normal\n")
        assert "is not valid TOML" in http.get(PAGE).text
    qos = site.rig.lab.administration.rules.current.qos
    assert (qos["normal"].priority, qos["short"].priority) == (3, 11)


def test_an_account_is_made(site: Site) -> None:
    with site.browser("root") as http:
        http.base_url = site.url
        form = {**form_of(http, "accounts."), "name": "optics", "accounts..users": "ada=2 bob"}
        assert "Account optics" in http.post(f"{PAGE}/apply", data=form).text
        assert "has no name" in http.post(f"{PAGE}/apply", data=form_of(http, "accounts.")).text
    account = site.rig.lab.administration.rules.current.accounts["optics"]
    assert (account.shares, account.users) == (1, {"ada": 2, "bob": 1})


def test_without_jobs_there_is_nothing_to_try_it_on(site: Site) -> None:
    with site.browser("root") as http:
        http.base_url = site.url
        form = {**form_of(http, "priority"), "priority.half_life": "7d"}
        assert "No job of the last 7 days has run and ended" in http.post(f"{PAGE}/preview", data=form).text
        assert "That changes nothing" in http.post(f"{PAGE}/preview", data=form_of(http, "priority")).text


def test_only_administrators_see_and_change_rules(site: Site) -> None:
    with site.browser("ada") as http:
        http.base_url = site.url
        assert http.get(PAGE).status_code == 403
        form = {"form_secret": secret_in(http.get("/account")), "table": "priority", "priority.promises": "2"}
        for button in ("preview", "apply"):
            assert http.post(f"{PAGE}/{button}", data=form).status_code == 403
    with site.browser("root") as http:
        http.base_url = site.url
        for button in ("preview", "apply"):
            assert http.post(f"{PAGE}/{button}", data={"table": "priority"}).status_code == 403, "not from a page of the session"
    assert (site.rig.home / "carrel.toml").read_text() == RULES_FILE
