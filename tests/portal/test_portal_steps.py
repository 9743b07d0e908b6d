"""How many clicks a beginning takes, and that pages without scripts show the same and work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from busy_lab import a_busy_lab
from local_site import GOOD, LocalSite
from playwright.sync_api import Browser, Locator, Page, expect
from portal_site import Site

from carrel.core.control.sessions import SessionStatus
from carrel.core.domain.job import JobState
from carrel.core.domain.launch import Started
from support.chromium import a_chromium

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with a_chromium() as browser:
        yield browser


class Clicks:
    """A pointer that counts."""

    def __init__(self) -> None:
        self.number = 0

    def on(self, what: Locator) -> None:
        self.number += 1
        what.click()


def test_two_clicks_from_signing_in_to_a_notebook_and_three_from_a_script_to_its_log(
    local_site: LocalSite, chromium: Browser
) -> None:
    site = local_site
    with site.browser() as http:
        site.choose(http, "dana")
    page = chromium.new_page()
    page.goto(site.url)
    click = Clicks()
    page.get_by_label("Name").fill("dana")
    page.get_by_label("Password").fill(GOOD)
    click.on(page.get_by_role("button", name="Sign in with a password"))
    click.on(page.get_by_role("button", name="New notebook"))
    page.wait_for_url("**/notebooks/*")
    session = int(page.url.partition("?")[0].rpartition("/")[2])
    site.rig.engine.say(session, Started(pid=1))
    page.wait_for_url(f"**/open/{session}/**")  # where the session's own server would answer
    assert click.number == 2
    page.goto(site.url)
    click = Clicks()
    click.on(page.get_by_role("link", name="New task").first)
    expect(page.get_by_label("Paste a script")).to_be_focused()
    page.keyboard.insert_text("print('hello')\n")  # as from the clipboard
    click.on(page.get_by_role("button", name="Run", exact=True))
    page.wait_for_url("**/jobs/*")
    job = int(page.url.rpartition("/")[2])
    site.rig.engine.run(job)
    site.rig.engine.say(job, log=b"hello\n")
    expect(page.locator("[data-log]")).to_contain_text("hello")
    assert click.number <= 4
    page.close()


def test_without_scripts_every_page_shows_the_same(tmp_path: Path, chromium: Browser) -> None:
    with a_busy_lab(tmp_path) as lab:
        differing = []
        contexts = [chromium.new_context(java_script_enabled=enabled) for enabled in (True, False)]
        for user, paths in (("ada", lab.pages()), ("root", ["/administration"])):
            with_scripts, without = (context.new_page() for context in contexts)
            for page in (with_scripts, without):
                page.goto(lab.site.link(user))
                expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
            for path in paths:
                found = [shown(page, lab.site.url + path) for page in (with_scripts, without)]
                differing += [(path, *found)] if found[0] != found[1] else []
        assert differing == []
        without.goto(lab.site.link("ada"))
        without.goto(f"{lab.site.url}/jobs/{lab.finished}")
        without.get_by_role("link", name="Plots of what it has measured").click()
        expect(without.locator(".plots li")).to_have_count(3)
        for context in contexts:
            context.close()


def shown(page: Page, address: str) -> tuple[list[str], int, str]:
    """The headings of a page, its rows, and how its log or file begins."""
    page.goto(address)
    main = page.locator("main")
    expect(main).to_be_visible()
    texts = main.locator("pre:visible")
    return (
        main.get_by_role("heading").all_inner_texts(),
        main.locator("tr:visible, li.device:visible").count(),
        texts.first.inner_text()[:60] if texts.count() else "",
    )


def test_without_scripts_forms_work(site: Site, chromium: Browser) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(site.url)
    page.get_by_label("Access token").fill(site.rig.tokens["ada"])
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="New task").first.click()
    page.get_by_label("Paste a script").fill("#!/bin/bash\n#SBATCH --job-name=fit\necho hello\n")
    page.get_by_role("button", name="When would it start?").click()
    expect(page.get_by_text("It would start now.")).to_be_visible()
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("heading", name="fit")).to_be_visible()
    job = int(page.url.rpartition("/")[2])
    site.rig.engine.run(job)
    site.rig.engine.say(job, log=b"hello\n")
    site.rig.wait(job, JobState.RUNNING)
    site.rig.wait_for(lambda: site.rig.store.jobs.attempts(job)[0].log_size > 0)
    page.reload()
    expect(page.locator("[data-log]")).to_contain_text("hello")
    page.get_by_role("button", name="Cancel").click()
    site.rig.wait(job, JobState.CANCELLED)
    page.reload()
    expect(page.locator("[data-part=head]")).to_contain_text("CANCELLED")
    page.get_by_role("button", name="Run again").click()
    page.wait_for_url(f"**/jobs/{job + 1}")
    page.get_by_role("link", name="Notebooks", exact=True).click()
    page.get_by_role("button", name="New notebook").click()
    page.wait_for_url("**/notebooks/*")
    session = int(page.url.partition("?")[0].rpartition("/")[2])
    site.rig.door.shown = SessionStatus(ready=True)
    site.rig.engine.say(session, Started(pid=1))
    expect(page.get_by_role("button", name="Open")).to_be_visible()  # the page loads itself again
    page.get_by_role("link", name="Ada", exact=True).click()
    page.get_by_text("Make a token").click()
    page.get_by_label("Name", exact=True).first.fill("laptop")
    page.get_by_role("button", name="Make the token").click()
    expect(page.get_by_text("This is the new token.")).to_be_visible()
    page.get_by_role("link", name="Help", exact=True).click()
    page.get_by_label("Search the documentation").fill("walltime")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".found a").first).to_be_visible()
    context.close()
