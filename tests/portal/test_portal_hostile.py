"""What users write is text on every page: no script of theirs runs, and nothing that they write is markup."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from gateway_lab import a_lab, client, serve
from playwright.sync_api import Page, expect
from portal_site import Clock, Site
from starlette.routing import Route
from test_portal_notebooks import LENDING
from test_portal_outputs import PNG

from carrel.core.comparison import Metrics
from carrel.core.domain.announcement import Announcement
from carrel.core.domain.job import JobState, Reason
from carrel.core.domain.launch import Started, StoredFile
from carrel.core.domain.nouns import ANNOUNCEMENTS, RESERVATIONS
from carrel.core.domain.reservation import Reservation
from carrel.core.domain.user import User
from carrel.lab.portal import Portal
from support.chromium import a_chromium


def hostile(where: str) -> str:
    """A text that would run, be markup, or be worked out, where a page does not take it as text. `where` tells it from others."""
    runs = "top.broken=1"
    return f"""{where}'"><script>{runs}</script><img src=x onerror={runs}><a href="javascript:{runs}">w{{{{7*7}}}}w"""


def path_of(where: str) -> str:
    """The same as the name of a file."""
    return hostile(where).replace("/", "")


#: Elements that are there because of such a text, and code within attributes.
INJECTED = """() => [...document.querySelectorAll("*")].filter((one) =>
  one.matches("script:not([src^='/static/']), img[src='x'], base, object, embed, meta[http-equiv='refresh']") ||
  [...one.attributes].some(({ name, value }) => name.startsWith("on") || name === "style" || /^\\s*javascript:/i.test(value)),
).map((one) => one.outerHTML.slice(0, 200))"""


@dataclass
class Hostile:
    site: Site
    #: Where such texts are: each has to be seen on a page.
    texts: set[str] = field(default_factory=set)
    pages: list[str] = field(default_factory=list)
    job: int = 0

    def text(self, where: str) -> str:
        self.texts.add(where)
        return hostile(where)

    def path(self, where: str) -> str:
        self.texts.add(where)
        return path_of(where)


@contextmanager
def a_hostile_lab(place: Path) -> Iterator[Hostile]:
    """A lab in which everything that eve may name is hostile."""
    clock = Clock()
    portal = Portal(clock=clock)
    templates = place / "templates"
    project = templates / path_of("ofTemplate")
    project.mkdir(parents=True)
    (project / "MLproject").write_text("entry_points: {main: {command: 'true'}}\n")
    measured = Metrics(
        last={hostile("ofMetric"): 1.0}, curves={hostile("ofMetric"): {0: 2.0, 1: 1.0}}, parameters={hostile("x"): hostile("y")}
    )
    with (
        a_lab(
            place / "lab",
            pages=lambda _rig: portal,
            clock=clock,
            templates=templates,  # type: ignore[arg-type]
            run_metrics=lambda _owner, _run: measured,
        ) as rig,
        serve(rig.app) as url,
    ):
        lab = Hostile(Site(rig, portal, clock, url), {"ofTemplate", "ofMetric"})
        rig.lab.people.add(User(subject="eve", name=lab.text("ofPerson")), now=clock())
        rig.tokens = {**rig.tokens, "eve": rig.lab.tokens.hand_out("eve", name=lab.text("ofToken"), by="root")[1]}
        fill(lab)
        yield lab


def fill(lab: Hostile) -> None:
    site, rig = lab.site, lab.site.rig
    directory, entry = lab.path("ofDirectory"), lab.text("ofEntryPoint")
    project = {
        "entry_points": {entry: {"parameters": {"who": {"type": "string"}}, "command": f"echo {{who}} {lab.text('ofCommand')}"}},
        "carrel": {"inputs": {lab.path("ofInput"): f"https://host/{quote(lab.text('ofAddress'), safe='<>')}"}},
    }
    asked = {
        "snapshot": rig.upload("eve", {f"{directory}/MLproject": json.dumps(project)}),
        "directory": directory,
        "entry_point": entry,
        "name": lab.text("ofJob"),
        "parameters": {"who": lab.text("ofParameter")},
        "variables": {"NOTE": lab.text("ofVariable")},
        "experiment": lab.text("ofExperiment"),
        "git": {"commit": "a" * 40, "branch": lab.text("ofBranch"), "remote": lab.text("ofRemote")},
    }
    root = rig.caller("root")
    with client(site.url, rig.headers("eve")) as http:
        lab.job = post(http, "jobs", asked)
        after = post(http, "jobs", {**asked, "dependency": f"afterany:{lab.job}"})
        rig.engine.run(lab.job)
        outputs = files(lab)
        stored = [StoredFile(path=name, size=len(data), digest=rig.store_blob(data)) for name, data in outputs.items()]
        rig.store.outbox.set_run(lab.job, "run", "1")
        reason = Reason(code="NonZeroExitCode", message=f"It said {lab.text('ofReason')}")
        log = f"{lab.text('ofLog')}\n\x1b]8;;javascript:top.broken=1\x07link\x1b]8;;\x07\n".encode()
        rig.engine.end(lab.job, state=JobState.FAILED, reason=reason, exit_code=3, log=log, outputs=tuple(stored))
        rig.wait(lab.job, JobState.FAILED)
        rig.engine.run(after)
        rig.engine.end(after)
        rig.wait(after, JobState.COMPLETED)
        post(http, "baselines", {"job": after, "project": lab.text("ofProject")})
        choice = lab.text("ofChoice").replace('"', "")
        body = {
            **{"task": {"snapshot": rig.upload("eve"), "name": lab.text("ofSweep")}, "metric": lab.text("ofSweptMetric")},
            **{"parameters": {"c": f'categorical("{choice}", plain)'}, "trials": 1, "parallel": 1},
        }
        sweep = post(http, "sweeps", body)
        session = post(http, "sessions", {"kind": "notebook", "name": lab.text("ofSession")})
        rig.engine.say(session, Started(pid=1))
    rig.lab.keeper(ANNOUNCEMENTS).put(root, Announcement(text=lab.text("ofAnnouncement"), until=4e9))
    kept = Reservation(name="course", begin=site.clock() + 72_000, end=4e9, reason=lab.text("ofReservation"))
    rig.lab.keeper(RESERVATIONS).put(root, kept)
    rig.lab.administration.drain(root, "bench", lab.text("ofDrain"))
    devices = [{**LENDING["devices"][0], "strangers": [{"pid": 7, "bytes": 9, "name": lab.text("ofProcess")}]}]  # type: ignore[index]
    tenants = [{**one, "owner": "eve", "label": lab.text("ofNotebook")} for one in LENDING["tenants"]]  # type: ignore[attr-defined]
    queue = [{**one, "message": lab.text("ofWait")} for one in LENDING["queue"]]  # type: ignore[attr-defined]
    rig.lender.said = {**LENDING, "devices": devices, "tenants": tenants, "queue": queue}
    asked_for = quote(lab.text("ofSearch"))
    job = f"/jobs/{lab.job}"
    lab.pages = [
        *("/", "/tasks/new", f"/tasks/new?job={lab.job}", "/notebooks", f"/notebooks/{session}", f"/jobs/{session}", "/gpus"),
        *("/use", "/baselines", "/sweeps", f"/sweeps/{sweep}", "/account", job, f"/jobs/{after}", f"{job}/metrics"),
        *(f"/help?q={asked_for}", f"/?show={asked_for}", f"/jobs/{asked_for}", f"/tasks/new?template={asked_for}"),
        *(f"/jobs/compare?job={lab.job}&job={after}", f"/jobs/compare?job={asked_for}", f"/help/{asked_for}", f"/{asked_for}"),
        *(f"{job}/view/{quote(name)}" for name in outputs),
        f"/tasks/new?template={quote(path_of('ofTemplate'))}",
    ]


def post(http: httpx.Client, path: str, body: Mapping[str, object]) -> int:
    answer = http.post(f"/api/v1/{path}", json=body)
    assert answer.is_success, answer.text
    made = answer.json()
    return int((made["job"] if path == "sessions" else made)["id"])


def files(lab: Hostile) -> Mapping[str, bytes]:
    cell = {"cell_type": "code", "metadata": {"tags": [hostile("z")]}, "source": lab.text("ofCell")}
    outputs: Sequence[object] = [
        {"output_type": "stream", "name": hostile("z"), "text": lab.text("ofStream")},
        {"output_type": "error", "ename": hostile("z"), "evalue": hostile("z"), "traceback": [lab.text("ofTraceback")]},
        {"output_type": "display_data", "data": {"text/html": hostile("z"), lab.text("ofKind"): "x"}},
        {"output_type": "display_data", "data": {"image/png": hostile("z"), "text/plain": lab.text("ofPlain")}},
        {"output_type": "display_data", "data": {"image/png": base64.b64encode(PNG).decode()}},
        {"output_type": "display_data", "data": {"image/svg+xml": hostile("z"), "application/javascript": "top.broken=1"}},
    ]
    markdown = {"cell_type": "markdown", "source": f"[x](javascript:top.broken=1) {lab.text('ofMarkdown')}"}
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"title": hostile("z")}}
    document = {**notebook, "cells": [markdown, {**cell, "outputs": outputs}]}
    runs = "top.broken=1"
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" onload="{runs}" width="9" height="9"><script>{runs}</script></svg>'
    moves = f'<base href="//elsewhere/"><meta http-equiv="refresh" content="0;url=javascript:{runs}">'
    page = f'{moves}<body onload="{runs}">{hostile("z")}'
    return {
        f"outputs/{lab.path('ofFile')}.txt": lab.text("ofText").encode(),
        "outputs/run.ipynb": json.dumps(document).encode(),
        "outputs/table.csv": f'"{lab.text("ofHead").replace(chr(34), chr(34) * 2)}",b\n=cmd(),{hostile("z")}\n'.encode(),
        "outputs/drawn.svg": svg.encode(),
        "outputs/report.html": page.encode(),
        "outputs/not-a-picture.png": hostile("z").encode(),
    }


@pytest.mark.browser
def test_no_text_of_a_user_runs_or_is_markup_on_any_page(tmp_path: Path) -> None:
    with a_hostile_lab(tmp_path) as lab, a_chromium() as browser:
        seen: set[str] = set()
        for user, pages in (("eve", lab.pages), ("root", ["/", "/administration", f"/jobs/{lab.job}", "/gpus", "/use?by=user"])):
            page = browser.new_page()
            complaints = watched(page)
            page.goto(lab.site.link(user))
            for path in pages:
                page.goto(lab.site.url + path)
                look(page, path, seen, lab.texts)
            if user == "eve":
                changes(lab, page)
                look(page, "/ as it changes", seen, lab.texts)
            assert complaints == []
            page.close()
        assert lab.texts - seen == set(), "these are on no page"


def watched(page: Page) -> list[str]:
    """What the page opens, and what its policy stops, but for what a file in a frame of its own tries."""
    complaints: list[str] = []

    def opened(dialog: object) -> None:
        complaints.append(f"{page.url}: a dialog")
        dialog.dismiss()  # type: ignore[attr-defined]

    page.on("dialog", opened)
    page.on("pageerror", lambda error: complaints.append(f"{page.url}: {error}"))
    page.on(
        "console",
        lambda said: (
            complaints.append(f"{page.url}: {said.text}")
            if re.search("Content Security|Refused|Blocked", said.text) and "/shown/" not in said.location["url"] + said.text
            else None
        ),
    )
    return complaints


def look(page: Page, path: str, seen: set[str], texts: set[str]) -> None:
    assert page.evaluate("window.broken") is None, path
    assert page.evaluate(INJECTED) == [], path
    content = page.content()
    assert "w49w" not in content, path
    seen |= {where for where in texts if where in content}


def changes(lab: Hostile, page: Page) -> None:
    """The pages that are open hear of hostile news."""
    page.goto(lab.site.url)
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    job = lab.site.submit("eve", name=lab.text("ofNews"))
    expect(page.get_by_role("row").filter(has_text="ofNews")).to_be_visible()
    look(page, "/", set(), lab.texts)
    lab.site.rig.lab.administration.undrain(lab.site.rig.caller("root"), "bench")
    lab.site.rig.engine.run(job)
    page.goto(f"{lab.site.url}/jobs/{job}")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    lab.site.rig.engine.say(job, log=f"{lab.text('ofLine')}\n".encode())
    expect(page.locator("[data-log]")).to_contain_text("ofLine")


#: What routes need in their addresses.
PLACES = {"{job_id}": "1", "{array_id}": "1", "{sweep_id}": "1", "{baseline_id}": "1", "{path:file}": "outputs/report.html"}


@pytest.mark.gate
def test_every_route_has_a_strict_policy(tmp_path: Path) -> None:
    with (
        a_hostile_lab(tmp_path) as lab,
        lab.site.browser("eve") as pages,
        client(lab.site.url, lab.site.rig.headers("eve")) as program,
    ):
        answered = 0
        for route in [*lab.site.rig.app.routes, Route("/mlflow/", lambda _: None), Route("/static/carrel.js", lambda _: None)]:
            path = getattr(route, "path", "")
            for name, value in PLACES.items():
                path = path.replace(name, value)
            path = re.sub(r"\{[^}]*\}", "x", path)
            methods = getattr(route, "methods", None) or {"GET"}
            for http in (pages, program):
                for method in sorted(methods - {"DELETE"}):
                    with http.stream(method, path) as answer:
                        answered += answer.status_code == 200
                        check(answer, f"{method} {path}")
        assert answered > 60


def check(answer: httpx.Response, what: str) -> None:
    said = [one.split() for one in answer.headers.get("content-security-policy", "").split(";")]
    policy = {words[0]: words[1:] for words in said if words}
    assert policy.get("frame-ancestors") in (["'none'"], ["'self'"]), what
    assert policy.get("base-uri") in (["'none'"], ["'self'"]), what
    assert policy.get("object-src", policy.get("default-src")) == ["'none'"], what
    if what.split()[1].startswith("/mlflow"):
        return  # MLflow's own pages
    assert policy["default-src"] == ["'none'"], what
    assert policy.get("script-src", ["'self'"]) == ["'self'"], what
    assert policy.get("form-action") in (["'none'"], ["'self'"]), what
    assert not any("unsafe" in word for words in policy.values() for word in words) or "sandbox" in policy, what
    assert answer.headers["x-content-type-options"] == "nosniff", what
