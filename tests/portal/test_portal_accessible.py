"""No page keeps anybody out: axe-core finds nothing, in either scheme and at the width of a phone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from busy_lab import add_challenge
from playwright.sync_api import Browser
from portal_site import Site
from test_portal_job_course import running
from test_portal_notebooks import lately, start
from test_portal_outputs import PNG, ended, notebook

from carrel.core.domain.job import JobState
from support.chromium import a_chromium

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with a_chromium() as browser:
        yield browser


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
@pytest.mark.parametrize("full", [False, True], ids=["empty", "full"])
def test_axe_finds_nothing_on_any_page(site: Site, chromium: Browser, width: int, scheme: str, full: bool) -> None:
    pages = ["/", "/tasks/new", "/notebooks", "/gpus", "/use", "/baselines", "/sweeps", "/account", "/administration"]
    pages += ["/help", "/help/tasks.md", "/help?q=walltime", "/docs", "/jobs/999"]
    if full:
        job = ended(
            site,
            {"outputs/plot.png": PNG, "outputs/t.csv": b"a,b\n1,2\n", "outputs/run.ipynb": notebook(), "outputs/r.html": b"<p>x"},
        )
        pages += [f"/jobs/{job}", f"/jobs/{job}/metrics", f"/tasks/new?job={job}", f"/jobs/{job}/matrix"]
        pages += [f"/jobs/{job}/view/outputs/{name}" for name in ("plot.png", "t.csv", "run.ipynb", "r.html")]
        for number in range(4):
            waits = site.submit("ada", resources={"gpus": 1, "time": "2h"}, name=f"train-{number}")
            if number < 2:
                site.rig.engine.run(waits)
                site.rig.wait(waits, JobState.RUNNING)
        failed = running(site)
        site.rig.engine.end(failed, state=JobState.FAILED, exit_code=3, log=b"it was bad\n")
        site.rig.wait(failed, JobState.FAILED)
        pages += [f"/jobs/{failed}?find=bad", f"/jobs/compare?job={job}&job={failed}", f"/jobs/why?first={job}&second={failed}"]
        with site.browser("ada") as http:
            started = start(site, http).url.path
        pages += [f"/jobs/{waits}", started]
        site.rig.lender.said = lately(site.clock())
        add_challenge(site)
        pages += ["/challenges", "/challenges/eeg"]
    found = []
    for user in ("ada", "root"):
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(site.link(user))
        for path in pages if user == "ada" else ["/", "/administration", *[one for one in pages if "challenges" in one]]:
            page.goto(site.url + path)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            violations = Axe().run(page).response["violations"]
            found += [(path, one["id"], one["nodes"][0]["html"][:200]) for one in violations]
        context.close()
    assert found == []
