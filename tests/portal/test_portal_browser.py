"""The pages in a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, Page, expect
from portal_site import Site
from test_portal_notebooks import lately

from carrel.core.domain.job import JobState
from support.chromium import a_chromium

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with a_chromium() as browser:
        yield browser


@dataclass
class Seat:
    page: Page
    complaints: list[str] = field(default_factory=list)

    def complain(self, text: str) -> None:
        self.complaints.append(text)


@pytest.fixture
def seat(chromium: Browser) -> Iterator[Seat]:
    context = chromium.new_context(viewport={"width": 1200, "height": 900})
    seat = Seat(context.new_page())
    seat.page.on("console", lambda message: seat.complain(message.text) if message.type == "error" else None)
    seat.page.on("pageerror", lambda error: seat.complain(str(error)))
    yield seat
    context.close()
    assert seat.complaints == []  # no error in the console, nothing that the content security policy stopped


@pytest.mark.gate
def test_the_link_signs_in_and_is_not_kept(site: Site, seat: Seat) -> None:
    seat.page.goto(site.link("ada"))
    expect(seat.page).to_have_url(f"{site.url}/")
    expect(seat.page.get_by_role("heading", name="Devices")).to_be_visible()
    assert "ticket" not in seat.page.evaluate("document.referrer + location.href")
    seat.page.get_by_role("button", name="Sign out").click()
    expect(seat.page.get_by_role("heading", name="Sign in")).to_be_visible()
    seat.complaints.clear()  # Chromium calls the page's status 401 an error
    seat.page.get_by_label("Access token").fill(site.rig.tokens["ada"])
    seat.page.get_by_role("button", name="Sign in").click()
    expect(seat.page.get_by_text("No jobs yet")).to_be_visible()


def test_the_lab_stays_fresh_without_loading_the_page_again(site: Site, seat: Seat) -> None:
    seat.page.goto(site.link("ada"))
    expect(seat.page.get_by_text("Live", exact=True)).to_be_visible()
    job = site.submit(name="appears", resources={"gpus": 1})
    row = seat.page.get_by_role("row").filter(has_text="appears")
    expect(row).to_contain_text("CONFIGURING")
    site.rig.engine.run(job)
    expect(row).to_contain_text("RUNNING")
    expect(seat.page.locator(".device.held")).to_have_count(1)
    site.rig.engine.end(job)
    expect(row).to_contain_text("COMPLETED")
    expect(seat.page.locator(".device.held")).to_have_count(0)


def test_the_log_runs_along_and_stays_where_the_reader_looks(site: Site, seat: Seat) -> None:
    job = site.submit(name="talks")
    site.rig.engine.run(job)
    lines = "".join(f"line {number}\n" for number in range(300))
    site.rig.engine.say(job, log=lines.encode() + "half of é: ".encode() + b"\xc3")
    site.rig.wait_for(lambda: site.rig.store.jobs.attempts(job)[0].log_size > len(lines))
    seat.page.goto(site.link("ada"))
    seat.page.get_by_role("link", name="talks").click()
    log = seat.page.locator("[data-log]")
    expect(log).to_contain_text("half of é: ")
    at_end = "log => log.scrollTop + log.clientHeight >= log.scrollHeight - 24"
    assert log.evaluate(at_end)
    site.rig.engine.say(job, log=b"\xa9 whole\n10%\r20%")
    expect(log).to_contain_text("half of é: é whole\n20%")
    site.rig.engine.say(job, log=b"\r100%\n\x1b[31mred\x1b[0m <b>no markup</b>\n")
    expect(log).to_contain_text("whole\n100%\nred <b>no markup</b>")
    assert log.evaluate(at_end)
    log.evaluate("log => { log.scrollTop = 0; }")
    expect(seat.page.get_by_label("Follow")).not_to_be_checked()
    site.rig.engine.say(job, log=b"more\n")
    expect(log).to_contain_text("more\n")
    assert log.evaluate("log => log.scrollTop") == 0
    text = str(log.evaluate("log => log.innerText"))
    assert text.count("line 299\n") == 1
    assert text.endswith("red <b>no markup</b>\nmore\n")
    site.rig.engine.end(job, log=b"bye\n")
    expect(seat.page.locator("[data-part=head]")).to_contain_text("COMPLETED")
    expect(log).to_contain_text("bye")
    expect(seat.page.get_by_role("heading", name="Outputs")).to_be_visible()


def test_a_job_is_cancelled_and_run_again_by_buttons(site: Site, seat: Seat) -> None:
    job = site.submit(name="regret")
    site.rig.engine.run(job)
    site.rig.wait(job, JobState.RUNNING)
    seat.page.goto(site.link("ada"))
    seat.page.goto(f"{site.url}/jobs/{job}")
    seat.page.once("dialog", lambda dialog: dialog.dismiss())
    seat.page.get_by_role("button", name="Cancel").click()
    assert site.rig.store.jobs.get(job).state is JobState.RUNNING  # type: ignore[union-attr]
    seat.page.once("dialog", lambda dialog: dialog.accept())
    seat.page.get_by_role("button", name="Cancel").click()
    expect(seat.page.locator("[data-part=head]")).to_contain_text("Cancelled by Ada")
    expect(seat.page.get_by_role("button", name="Cancel")).to_have_count(0)
    seat.page.get_by_role("button", name="Run again").click()
    expect(seat.page).to_have_url(f"{site.url}/jobs/{job + 1}")
    expect(seat.page.get_by_role("link", name=f"job {job}")).to_be_visible()


@pytest.mark.parametrize("width", [360, 768, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_their_window_and_are_readable(site: Site, chromium: Browser, width: int, scheme: str) -> None:
    job = site.submit(name="a-name-without-any-place-to-break-" * 6, resources={"gpus": 1})
    site.rig.engine.run(job)
    site.rig.engine.say(job, log=b"x" * 500 + b"\n")
    site.rig.lender.said = lately(site.clock())
    context = chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(site.link("ada"))
    for path in ("/", f"/jobs/{job}", "/gpus", "/docs", "/jobs/999"):
        page.goto(site.url + path)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        faint = page.evaluate(CONTRAST)
        assert faint == [], (path, faint)
    context.close()


#: Texts whose contrast with what is behind them is below 4.5 (WCAG 2.1, 1.4.3).
CONTRAST = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = (c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] > 250) return colour;
    }
    return [255, 255, 255, 255];
  };
  const faint = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement, text = walk.currentNode.data.trim();
    if (!text || !element.checkVisibility() || element.matches(".sign, script")) continue;
    const [a, b] = [light(rgba(getComputedStyle(element).color)), light(behind(element))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5) faint.push([text.slice(0, 30), contrast.toFixed(2)]);
  }
  return faint;
}"""


def test_related_jobs_are_drawn_live_as_links_for_mouse_and_keyboard(site: Site, seat: Seat) -> None:
    first = site.submit(name="prepare")
    later = [site.submit(name=name, dependency=f"afterok:{first}") for name in ("left", "right")]
    last = site.submit(name="report", dependency=f"afterok:{later[0]}:{later[1]}")
    site.rig.engine.run(first)
    site.rig.wait(first, JobState.RUNNING)
    seat.page.goto(site.link("ada"))
    seat.page.goto(f"{site.url}/jobs/{last}")
    drawing = seat.page.get_by_role("group", name="Related jobs")
    expect(drawing.get_by_role("link")).to_have_count(4)
    expect(drawing.get_by_role("link", name=f"prepare: RUNNING, job {first}", exact=True)).to_be_visible()
    expect(drawing.get_by_role("link", name=f"report: PENDING, job {last}, this one; after left, right")).to_be_visible()
    seat.page.get_by_text("As a table").click()
    site.rig.engine.end(first)  # no event of this page's own job tells of it
    expect(drawing.get_by_role("link", name=f"prepare: COMPLETED, job {first}")).to_be_visible()
    expect(seat.page.get_by_role("row").filter(has_text="prepare")).to_be_visible()  # the table stays open
    drawing.get_by_role("link", name="prepare: COMPLETED").focus()
    seat.page.keyboard.press("Enter")
    expect(seat.page).to_have_url(f"{site.url}/jobs/{first}")
    expect(seat.page.locator("svg.steps")).to_have_count(0)  # it needs none, and nothing has submitted it


def test_a_drawing_wider_than_the_page_scrolls_by_itself(site: Site, seat: Seat) -> None:
    job = site.submit(name="a<b>&")
    for _ in range(5):
        job = site.submit(name="a<b>&", dependency=f"afterok:{job}")
    seat.page.set_viewport_size({"width": 390, "height": 800})
    seat.page.goto(site.link("ada"))
    seat.page.goto(f"{site.url}/jobs/{job}")
    expect(seat.page.get_by_role("group", name="Related jobs").get_by_role("link")).to_have_count(6)
    expect(seat.page.locator("svg.steps .name").first).to_have_text("a<b>&")
    assert seat.page.evaluate("document.documentElement.scrollWidth") <= 390
