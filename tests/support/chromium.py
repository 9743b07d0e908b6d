"""A real browser for tests of what people see."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from carrel.testing.waiting import PATIENCE

#: A browser that asks nobody anything, also where it runs as root.
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


#: Milliseconds that something may take to appear; on a busy machine it may take long.
_PATIENCE = 1000 * PATIENCE


@contextmanager
def a_chromium() -> Iterator[Browser]:
    """The Chromium of this machine. Where it is missing the test is skipped, and fails in CI."""
    # The first is the same without a browser's own windows, which nobody sees here: a fifth less work for each test.
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        message = "Chromium is not installed (Debian: apt-get install chromium-headless-shell)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    expect.set_options(timeout=_PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_FLAGS)
        browser.on("context", lambda context: context.set_default_timeout(_PATIENCE))
        try:
            yield browser
        finally:
            browser.close()


def answer_select_kernel(page: Page) -> None:
    """Whenever JupyterLab asks for a kernel, take the one that it proposes, as a person would.

    On a busy machine it sometimes asks: its list of the kernels that run is then older than the one that it has just started.
    """

    def take(question: Locator) -> None:
        question.get_by_role("button", name="Select Kernel").click()

    page.add_locator_handler(page.get_by_role("dialog").filter(has_text="Select Kernel"), take)
