"""The pages of challenges, in a real browser: from the list to the board."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from parity import YAML, checked, write_challenge
from playwright.sync_api import Browser, Page, expect

from carrel import Client
from support.chromium import a_chromium
from support.lab_process import LabProcess

pytestmark = pytest.mark.browser
Person = Callable[[str], Client]
#: What nothing of a user's may do on a page of the lab's.
HTML = (
    "<script>document.title='ran'</script><img src=x onerror=\"document.title='ran'\"> "
    "[go](javascript:document.title='ran') <b>bold</b>"
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with a_chromium() as browser:
        yield browser


def signed_in(browser: Browser, lab: LabProcess, token: str) -> Page:
    page = browser.new_page()
    page.goto(lab.url + "/login")
    page.get_by_label("Access token").fill(token)
    page.keyboard.press("Enter")
    page.wait_for_url(lab.url + "/")
    return page


@pytest.mark.gate
def test_from_the_list_to_the_board(chromium: Browser, lab: LabProcess, person: Person, published: str, tmp_path: Path) -> None:
    """Ten clicks at most, from the first page on: read, take part, submit a .zip, see the score."""
    ada = person("paula")
    page, clicks = signed_in(chromium, lab, ada.token), 0

    def click(role: str, name: str) -> None:
        nonlocal clicks
        clicks += 1
        page.get_by_role(role, name=name, exact=True).first.click()  # type: ignore[arg-type]

    click("link", "Challenges")
    click("link", "Odd or even")
    expect(page.get_by_text("Say of each number whether it is odd.")).to_be_visible()
    click("checkbox", "I have read the rules, and accept them")
    click("button", "Take part")
    expect(page.get_by_role("heading", name="Your team: paula")).to_be_visible()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("model.py", "def predict(number): return number % 2")
    page.get_by_label("Code: a .zip or a .py file").set_input_files(
        [{"name": "code.zip", "mimeType": "application/zip", "buffer": archive.getvalue()}]
    )
    clicks += 1
    click("button", "Submit")
    expect(page.locator("[data-part=board] tr", has_text="paula").get_by_text("1.00")).to_be_visible()
    expect(page.locator("[data-part=submissions]").get_by_text("COMPLETED")).to_be_visible()
    assert clicks <= 10


def test_start_opens_a_notebook_with_the_starter(chromium: Browser, lab: LabProcess, person: Person, published: str) -> None:
    """The button leads into JupyterLab, at the directory of the challenge."""
    ada = person("petra")
    ada.join_challenge(published, accept_rules=True)
    page = signed_in(chromium, lab, ada.token)
    page.goto(f"{lab.url}/challenges/{published}")
    page.get_by_role("button", name="Start", exact=True).click()
    page.wait_for_url(f"**/tree/{published}/starter.ipynb*")
    expect(page.get_by_text("starter.ipynb").first).to_be_visible()


def test_code_is_tried_on_training_data(
    chromium: Browser, client: Client, lab: LabProcess, person: Person, tmp_path: Path
) -> None:
    """The button leads to the job, whose log is the team's; nothing is counted."""
    yaml = YAML.replace("name: parity", "name: tried").replace(
        "  public:", "  try: {input: data/train/try/input, reference: data/train/try/reference}\n  public:"
    )
    place = write_challenge(tmp_path / "tried", yaml)
    for part, text in (("input/numbers.txt", "x 3 4"), ("reference/labels.txt", "x 1 0")):
        (place / "data/train/try" / part).parent.mkdir(parents=True)
        (place / "data/train/try" / part).write_text(text)
    client.keep_challenge(place)
    checked(client, "tried")
    client.publish_challenge("tried")
    ada = person("tessa")
    ada.join_challenge("tried", accept_rules=True)
    page = signed_in(chromium, lab, ada.token)
    page.goto(f"{lab.url}/challenges/tried")
    code = b"def predict(number):\n    print('seen:', number)\n    return number % 2"
    page.get_by_label("Code: a .zip or a .py file").set_input_files(
        [{"name": "model.py", "mimeType": "text/x-python", "buffer": code}]
    )
    page.get_by_role("button", name="Try on training data").click()
    expect(page.locator("[data-log]")).to_contain_text("seen: 3")
    (scoring,) = [job.id for job in ada.jobs() if job.name == "tried-try-scoring"]
    assert ada.wait(scoring).state == "COMPLETED"
    found = ada.challenge("tried")
    assert (found.phases[0].today, ada.challenge_submissions("tried").submissions) == (3, ())


def test_what_is_wrong_is_said_on_the_page(chromium: Browser, lab: LabProcess, person: Person, published: str) -> None:
    """A team's name that is taken, no file, and nothing left."""
    person("quentin").join_challenge(published, team="Taken", accept_rules=True)
    page = signed_in(chromium, lab, person("quirin").token)
    page.goto(f"{lab.url}/challenges/{published}")
    page.get_by_label("Name of a new team").fill("taken")
    page.get_by_role("checkbox").check()
    page.get_by_role("button", name="Take part").click()
    expect(page.get_by_role("alert")).to_contain_text('There is a team "taken".')
    page.get_by_role("checkbox").check()
    page.get_by_role("button", name="Take part").click()
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("alert")).to_contain_text("No file was chosen.")


def test_texts_of_organisers_run_nowhere(chromium: Browser, client: Client, lab: LabProcess, tmp_path: Path) -> None:
    """HTML in pages, rules, titles and columns is shown as it is written; a long line is scrolled, at the width of a phone."""
    yaml = YAML.replace("name: parity", "name: hostile").replace(
        "title: Odd or even", "title: '<script>document.title=1</script>'"
    )
    place = write_challenge(tmp_path / "hostile", yaml.replace("{Overview:", "{'<b>x</b>':"))
    for path in ("pages/overview.md", "pages/rules.md"):
        (place / path).write_text(f"{HTML}\n\n```\n{'x ' * 200}\n```\n")
    client.keep_challenge(place)
    checked(client, "hostile")
    client.publish_challenge("hostile")
    page = signed_in(chromium, lab, lab.token)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    for path in ("/challenges", "/challenges/hostile"):
        page.goto(lab.url + path)
        expect(page.get_by_text("<script>document.title=1</script>").first).to_be_visible()
        assert page.title() != "ran"
        assert not page.locator("main b, main script, main img, main a[href^=javascript]").count()
    assert not [text for text in said if "Content Security Policy" in text]
    page.set_viewport_size({"width": 390, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_without_scripts_it_can_be_read_and_used(chromium: Browser, lab: LabProcess, person: Person, published: str) -> None:
    """Forms are forms."""
    ada = person("rosa")
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(lab.url + "/login")
    page.get_by_label("Access token").fill(ada.token)
    page.keyboard.press("Enter")
    page.wait_for_url(lab.url + "/")
    page.goto(f"{lab.url}/challenges/{published}")
    page.get_by_role("checkbox").check()
    page.get_by_role("button", name="Take part").click()
    expect(page.get_by_role("heading", name="Your team: rosa")).to_be_visible()
    context.close()
