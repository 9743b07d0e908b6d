"""`carrel login` with a real browser, which it opens."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine
from playwright.sync_api import Browser, expect
from portal_site import Site
from test_login import read_code

from carrel.testing.waiting import PATIENCE, wait_until
from support.chromium import a_chromium

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with a_chromium() as browser:
        yield browser


@pytest.mark.parametrize("decision", ["Let it sign in", "Refuse"])
def test_a_person_signs_in_and_enters_the_code(site: Site, chromium: Browser, tmp_path: Path, decision: str) -> None:
    opened, program = tmp_path / "opened", tmp_path / "opens.py"
    program.write_text("import os, pathlib, sys\npathlib.Path(os.environ['TEST_OPENED']).write_text(sys.argv[1])\n")
    laptop = CommandLine(
        {
            "BROWSER": f"{sys.executable} {program} %s",
            "TEST_OPENED": str(opened),
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "XDG_DATA_HOME": str(tmp_path / "data"),
        }
    )
    running = laptop.start("login", site.url)
    code, _said = read_code(running)
    wait_until(lambda: opened.exists() and opened.read_text(), "the browser was opened")
    context = chromium.new_context()
    page = context.new_page()
    # Not signed in yet: the question comes after that.
    page.goto(opened.read_text())
    page.get_by_label("Access token").fill(site.rig.tokens["ada"])
    page.get_by_role("button", name="Sign in").click()
    page.get_by_label("Code").fill(code)
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_role("heading")).to_have_text("Let this program sign in as Ada?")
    page.get_by_role("button", name=decision).click()
    expect(page.get_by_role("heading")).to_have_text(
        "The program is signed in" if decision == "Let it sign in" else "The program was refused"
    )
    context.close()
    out, err = running.communicate(timeout=PATIENCE)
    assert (running.returncode, "as Ada" in out) == ((0, True) if decision == "Let it sign in" else (4, False)), err
