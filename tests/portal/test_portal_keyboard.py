"""The pages by keyboard alone: what has the focus is seen, comes in the order of the page, and stays while the page changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from busy_lab import SCRIPT, a_busy_lab
from local_site import GOOD, LocalSite
from playwright.sync_api import Browser, Locator, Page, expect
from portal_site import Site

from carrel.core.domain.job import JobState
from carrel.core.domain.launch import Started
from carrel.core.domain.nouns import ANNOUNCEMENTS
from support.chromium import a_chromium

pytestmark = pytest.mark.browser
#: Stops of a page at most; the longest has about 150.
MOST = 400

#: What has the focus: its place on the page, and whether a reader sees that it has it.
STOP = """() => {
  const one = document.activeElement, box = one.getBoundingClientRect();
  const place = (one.closest(".device, .contents") || one).getBoundingClientRect();  // cards and columns are read one by one
  if (one === document.body || one === document.documentElement) return null;
  const [width, seen] = one.matches(".step") ? ["strokeWidth", one.querySelector("rect")] : ["outlineWidth", one];
  // Of a date the browser shows the part that has the focus; in a frame it is something of the document there.
  const look = getComputedStyle(seen), own = one.matches("input[type=date], iframe");
  const ring = parseFloat(look[width]) >= 2 && (width === "strokeWidth" || look.outlineStyle !== "none");
  const down = box.height > 0 && box.bottom > 0 && box.top < innerHeight;
  const inside = down && box.width > 0 && box.right > 0 && box.left < innerWidth;
  return {
    what: one.outerHTML.slice(0, 90), seen: (ring || own) && inside, main: !!one.closest("main"), ordered: one.tabIndex === 0,
    top: place.top + scrollY, bottom: place.bottom + scrollY,
  };
}"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with a_chromium() as browser:
        yield browser


class Keys:
    """A reader without a pointer."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def to(self, wanted: Locator) -> None:
        """Go on by Tab to the first of these, and see on the way what has the focus."""
        expect(wanted.first).to_be_visible()
        for _ in range(MOST):
            self.press("Tab")
            stop = self.page.evaluate(STOP)
            assert stop is None or stop["seen"], stop
            if wanted.first.evaluate("one => one === document.activeElement"):
                return
        raise AssertionError(f"{wanted} is not reached by Tab")

    def use(self, role: str, name: str) -> None:
        """Go on to a link or a button and use it."""
        self.to(self.page.get_by_role(role, name=name, exact=True))  # type: ignore[arg-type]
        self.press("Enter")

    def open(self, summary: str) -> None:
        """Go on to what is folded and unfold it."""
        self.to(self.page.locator("summary").filter(has_text=summary))
        self.press("Enter")

    def write(self, label: str, text: str) -> None:
        """Go on to the field of that name and write into it."""
        self.to(self.page.get_by_label(label, exact=True))
        self.page.keyboard.insert_text(text)


def a_page(chromium: Browser, width: int = 1280, scheme: str = "light", **more: object) -> Page:
    viewport = {"width": width, "height": 900}
    context = chromium.new_context(viewport=viewport, color_scheme=scheme, **more)  # type: ignore[arg-type]
    page = context.new_page()
    page.on("dialog", lambda dialog: dialog.accept())  # by Enter, in the browser's own window
    return page


@pytest.mark.gate
def test_from_signing_in_to_the_log_of_a_pasted_script(local_site: LocalSite, chromium: Browser) -> None:
    site = local_site
    with site.browser() as http:
        site.choose(http, "dana")
    page = a_page(chromium)
    keys = Keys(page)
    page.goto(site.url)
    keys.write("Name", "dana")
    keys.press("Tab")
    page.keyboard.insert_text(GOOD)
    keys.press("Enter")
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    keys.use("link", "New task")
    expect(page.get_by_label("Paste a script")).to_be_focused()
    page.keyboard.insert_text(SCRIPT)
    keys.use("button", "When would it start?")
    expect(page.get_by_text("It would start now.")).to_be_visible()
    keys.use("button", "Run")
    expect(page.get_by_role("heading", name="resnet-cifar")).to_be_visible()
    job = int(page.url.rpartition("/")[2])
    keys.to(page.get_by_role("button", name="Cancel"))
    site.rig.engine.run(job)
    site.rig.engine.say(job, log=b"epoch 1\n" * 200)
    expect(page.locator("[data-part=head]")).to_contain_text("RUNNING")
    expect(page.get_by_role("button", name="Cancel")).to_be_focused()  # its copy in the part that has changed
    keys.to(page.locator("[data-log]"))
    expect(page.locator("[data-log]")).to_contain_text("epoch 1")
    keys.press("Home")
    expect(page.get_by_label("Follow")).not_to_be_checked()
    keys.use("button", "Cancel")
    expect(page.locator("[data-part=head]")).to_contain_text("CANCELLED")
    page.context.close()


def test_notebooks_outputs_tokens_and_help(site: Site, chromium: Browser) -> None:
    page = a_page(chromium)
    keys = Keys(page)
    page.goto(site.link("ada"))
    keys.use("button", "New notebook")
    expect(page.get_by_role("button", name="End")).to_be_visible()
    session = int(page.url.partition("?")[0].rpartition("/")[2])
    page.goto(f"{site.url}/notebooks")
    keys.open("Choose more")
    keys.write("Name", "my next")
    site.rig.engine.say(session, Started(pid=1))
    expect(page.get_by_role("button", name="Open")).to_be_visible()
    expect(page.get_by_label("Name")).to_be_focused()
    page.keyboard.insert_text(" one")
    expect(page.get_by_label("Name")).to_have_value("my next one")
    keys.press("Enter")  # as the first button of the form
    expect(page.get_by_role("heading", name="my next one")).to_be_visible()
    page.goto(f"{site.url}/notebooks")
    keys.use("link", "GPUs")
    expect(page.get_by_role("heading", name="GPUs", exact=False).first).to_be_visible()
    keys.use("link", "Ada")
    keys.open("Make a token")
    keys.write("Name", "laptop")
    keys.use("button", "Make the token")
    expect(page.get_by_text("This is the new token.")).to_be_visible()
    keys.to(page.get_by_role("row").filter(has_text="laptop").get_by_role("button"))
    keys.press("Space")
    expect(page.get_by_text("is void")).to_be_visible()
    keys.use("link", "Help")
    keys.write("Search the documentation", "walltime checkpoint")
    keys.press("Enter")
    expect(page.get_by_role("heading", name="for “walltime checkpoint”", exact=False)).to_be_visible()
    page.context.close()


def test_who_runs_the_lab_drains_a_machine_and_tells_users(site: Site, chromium: Browser) -> None:
    page = a_page(chromium)
    keys = Keys(page)
    page.goto(site.link("root"))
    keys.use("link", "Administration")
    expect(page.get_by_role("heading", name="Machines")).to_be_visible()
    for summary, text in (("Drain", "new fan"), ("Tell all users something", "Cake")):
        keys.open(summary)
        keys.press("Tab")
        page.keyboard.insert_text(text)
        keys.press("Enter")
        expect(page.locator("main")).to_contain_text(text)
    (told,) = site.rig.lab.keeper(ANNOUNCEMENTS).list(site.rig.caller("root"))
    assert told.text == "Cake"
    page.context.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_every_stop_of_every_page_is_seen_and_in_order(tmp_path: Path, chromium: Browser, width: int, scheme: str) -> None:
    with a_busy_lab(tmp_path) as lab:
        wrong = []
        for user, paths in (("ada", lab.pages()), ("root", ["/administration"])):
            page = a_page(chromium, width, scheme)
            page.goto(lab.site.link(user))
            for path in paths:
                page.goto(lab.site.url + path)
                page.evaluate("document.activeElement.blur()")  # a form that begins at its first field
                page.evaluate("scrollTo(0, 0)")
                stops = list(walk(page))
                wrong += [(path, stop) for stop in stops if not (stop["seen"] and stop["ordered"])]
                assert stops, path
                in_main = [stop for stop in stops if stop["main"]]
                wrong += [(path, before, after) for before, after in pairwise(in_main) if after["bottom"] <= before["top"]]
            page.context.close()
        assert wrong == [], wrong


def walk(page: Page) -> Iterator[dict[str, object]]:
    """All stops of the page, from its beginning to its end."""
    for _ in range(MOST):
        page.keyboard.press("Tab")
        stop = page.evaluate(STOP)
        if stop is None:
            return
        yield stop


def test_the_first_stop_skips_to_the_content(site: Site, chromium: Browser) -> None:
    page = a_page(chromium)
    page.goto(site.link("ada"))
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    expect(page.get_by_role("link", name="Skip to the content")).to_be_in_viewport()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="New notebook")).to_be_focused()
    page.context.close()


def test_at_twice_the_size_nothing_is_cut_off_and_what_moves_can_be_stopped(tmp_path: Path, chromium: Browser) -> None:
    with a_busy_lab(tmp_path) as lab:
        # A browser at 200 % has half of the window's points; one that enlarges only its text has a larger root.
        for width, root in ((640, ""), (1280, "200%")):
            page = a_page(chromium, width)
            page.goto(lab.site.link("ada"))
            for path in lab.pages():
                page.goto(lab.site.url + path)
                page.evaluate("size => { document.documentElement.style.fontSize = size; }", root)
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (path, width)
            page.context.close()
        for motion, moving in (("no-preference", True), ("reduce", False)):
            page = a_page(chromium, reduced_motion=motion)
            page.goto(lab.site.link("ada"))
            expect(page.get_by_text("RUNNING").first).to_be_visible()
            assert bool(page.evaluate("document.getAnimations().length")) is moving
            page.context.close()


def test_what_changes_leaves_the_focus_where_it_is(site: Site, chromium: Browser) -> None:
    jobs = [site.submit(name=f"train-{number}", resources={"gpus": 1}) for number in range(2)]
    site.rig.engine.run(jobs[1])
    site.rig.wait(jobs[1], JobState.RUNNING)
    page = a_page(chromium, 390)
    page.goto(site.link("ada"))
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    link = page.get_by_role("link", name=re.compile("train-1"))
    link.first.focus()
    site.rig.engine.end(jobs[1])
    expect(page.get_by_role("row").filter(has_text="train-1")).to_contain_text("COMPLETED")
    expect(link.first).to_be_focused()
    page.context.close()
