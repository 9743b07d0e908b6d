"""`examples/challenge-eeg` by a person with a browser alone: from the first page to the board in ten clicks."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from parity import checked
from playwright.sync_api import Page, expect

from carrel import Client
from carrel.testing.waiting import PATIENCE
from support.chromium import a_chromium, answer_select_kernel
from support.lab_process import LabProcess, start_lab

EXAMPLE = Path(__file__).parents[2] / "examples" / "challenge-eeg"
#: What notebooks begin with where nobody has chosen anything.
PACKAGES = "numpy pandas matplotlib scikit-learn"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
    home = tmp_path_factory.mktemp("lab") / "home"
    home.mkdir(mode=0o700)
    (home / "carrel.toml").write_text('isolation = "kernel"\n')
    process = start_lab(home, "--cpus", "8", simulate_gpus=0, variables={"CARREL_DEFAULT_ENVIRONMENT": PACKAGES})
    yield process
    process.end_jobs()
    process.stop()


def run_all(page: Page) -> None:
    """Choose *Run All Cells*, until the last cell has run: JupyterLab loses what comes while it asks for a kernel."""
    last = page.get_by_text("To send it: SEND = True above, or")
    first = page.locator(".jp-Notebook .jp-CodeCell .jp-InputPrompt").first
    deadline = time.monotonic() + PATIENCE
    while not last.is_visible():
        assert time.monotonic() < deadline, first.inner_text()
        idle = page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").is_visible()
        if idle and first.inner_text() == "[ ]:":
            page.get_by_role("menuitem", name="Run", exact=True).click()
            page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Run All Cells$")).click()
        page.wait_for_timeout(1000)


@pytest.mark.browser
def test_from_the_first_page_to_the_board(
    lab: LabProcess, client: Client, person: Callable[[str], Client], tmp_path: Path
) -> None:
    place = tmp_path / "eeg"
    shutil.copytree(EXAMPLE, place, ignore=shutil.ignore_patterns("data", "__pycache__"))
    subprocess.run([sys.executable, "make_data.py"], cwd=place, check=True)
    client.keep_challenge(place)
    checked(client, "eeg")
    client.publish_challenge("eeg")
    ada, clicks = person("paula"), 0
    with a_chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.goto(lab.url + "/login")
        page.get_by_label("Access token").fill(ada.token)
        page.keyboard.press("Enter")
        page.wait_for_url(lab.url + "/")

        def click(role: str, name: str | re.Pattern[str]) -> None:
            nonlocal clicks
            clicks += 1
            page.get_by_role(role, name=name, exact=True).first.click()  # type: ignore[arg-type]

        click("link", "Challenges")
        click("link", "Find seizures in EEG")
        click("checkbox", "I have read the rules, and accept them")
        click("button", "Take part")
        click("button", "Start")
        page.wait_for_url("**/tree/eeg/starter.ipynb*")
        answer_select_kernel(page)
        page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]")
        clicks += 2
        run_all(page)
        # The last cell is the active one, and it is written in: SEND = True.
        for key in ("Enter", "Control+Home", "End", *["Backspace"] * len("False")):
            page.keyboard.press(key)
        page.keyboard.insert_text("True")
        page.keyboard.press("Shift+Enter")
        expect(page.get_by_text(re.compile(r"Submission \d+ was sent\."))).to_be_visible()
        page.goto(lab.url + "/")
        click("link", "Challenges")
        click("link", "Find seizures in EEG")
        expect(page.locator("[data-part=board] tr", has_text="paula")).to_be_visible()
        expect(page.locator("[data-part=board] tbody tr").first).to_contain_text("paula")  # before both baselines
        expect(page.locator(".plots li")).to_have_count(3)
    assert clicks <= 10
