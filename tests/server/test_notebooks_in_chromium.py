"""The notebooks of tests/hook, opened in a session of a real lab, in a real Chromium, and run with *Run All Cells*.

What JupyterLab saves is compared with what a plain kernel leaves. In CI a few of them; all with CARREL_ALL_NOTEBOOKS=1.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from carrel import Client
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import SessionRequest
from support.chromium import a_chromium, answer_select_kernel
from support.kernel import TestKernel
from support.lab_process import start_lab
from support.notebook_client import SessionBrowser
from support.notebook_scripts import PACKAGES, cells_of, make_environment

SCRIPTS = Path(__file__).parents[1] / "hook" / "notebooks"
#: The rest of them needs an environment of a gigabyte and takes minutes.
LIGHT = ("arrays", "asyncio_cells", "processes", "errors")
ALL = tuple(sorted(path.stem for path in SCRIPTS.glob("*.py")))
LIGHT_PACKAGES = ("ipykernel", "numpy")
EVERYTHING = bool(os.environ.get("CARREL_ALL_NOTEBOOKS"))
#: Milliseconds, as Playwright counts.
MILLISECONDS = 1000 * PATIENCE
#: What an Output widget takes into itself where there is a page, and is plain text of the cell where there is none.
IN_WIDGETS = {"widgets": "inside\n"}
VARIABLES = {"OMP_NUM_THREADS": "1"}


@dataclass
class Place:
    client: Client
    session: int
    files: Path
    python: Path
    browser: Browser


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A lab, a session in an environment as people have them, and a browser."""
    home = tmp_path_factory.mktemp("notebooks")
    prefix, files = home / "venv", home / "files"
    files.mkdir()
    python = make_environment(prefix, PACKAGES if EVERYTHING else LIGHT_PACKAGES)
    lab = start_lab(home / "lab", simulate_gpus=1, variables=VARIABLES)
    try:
        with Client(lab.url, lab.token) as client, a_chromium() as browser:
            session = client.start_session(SessionRequest(directory=str(files), environment=str(prefix), memory="8G"))
            wait_until(lambda: client.session(session.job.id).ready, lambda: client.session(session.job.id).job.message)
            yield Place(client, session.job.id, files, python, browser)
            client.cancel(session.job.id)
            client.wait(session.job.id)
    finally:
        lab.stop()


def write_notebook(path: Path, cells: list[str]) -> None:
    """Every cell asks for a GPU."""
    body = {
        "cells": [
            {
                "cell_type": "code",
                "id": f"cell{number}",
                "metadata": {"tags": ["gpus=1"]},
                "source": source,
                "outputs": [],
                "execution_count": None,
            }
            for number, source in enumerate(cells)
        ],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path.write_text(json.dumps(body))


def text_of(cell: dict[str, Any]) -> str:
    """What a cell shows, as text; not the lines about GPUs."""
    found = ""
    for output in cell["outputs"]:
        kind = output["output_type"]
        if kind == "stream":
            found += "".join(output["text"])
        elif kind == "error":
            found += "\n".join(output["traceback"])
        else:
            text = "".join(output["data"].get("text/plain", ""))
            found += "" if "GPU" in text else text + "\n"
    return normal(found)


def normal(text: str) -> str:
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    text = re.sub(r"0x[0-9a-f]+", "0x", re.sub(r"ipykernel_\d+", "ipykernel", text))
    text = re.sub(r"[\d.]+ [nµm]?s\b", "time", re.sub(r"/tmp/\S+", "/tmp", text))
    return re.sub(r"(total|sys|times?): [^\n]*", r"\1", text).strip()


def run_all(page: Page, path: Path, count: int) -> list[dict[str, Any]]:
    """Choose *Run All Cells*; return the cells as JupyterLab saves them when `count` of them have run.

    JupyterLab loses what comes in the first moments after it says that it is idle: then it is chosen again.
    """
    deadline = time.monotonic() + PATIENCE
    answer_select_kernel(page)
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]", timeout=MILLISECONDS)
    ran: list[int | None] = []
    complete = False
    while True:
        assert time.monotonic() < deadline, f"of {count} cells ran {ran}"
        try:
            cells = save(page, path)
            if cells is not None and complete:
                return cells
            ran = [cell["execution_count"] for cell in cells or ()]
            idle = page.locator(".jp-Notebook-ExecutionIndicator").get_attribute("data-status") == "idle"
            # Once more when the kernel is at rest: outputs may come behind a cell's number.
            complete = idle and sum(number is not None for number in ran) >= count
            if idle and not complete and page.locator(".jp-NotebookPanel:visible .jp-InputPrompt").first.inner_text() == "[ ]:":
                page.get_by_role("menuitem", name="Run", exact=True).click()
                page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Run All Cells$")).click()
        except PlaywrightTimeout:
            continue  # something is in front of it: look again
        page.wait_for_timeout(500)


def save(page: Page, path: Path) -> list[dict[str, Any]] | None:
    """Save, and return the notebook's cells with code; None when it was not written within some seconds."""
    before = path.stat().st_mtime_ns
    page.keyboard.press("Control+s")
    for _ in range(30):
        page.wait_for_timeout(100)
        text = path.read_text()
        if path.stat().st_mtime_ns != before and text.rstrip().endswith("}"):
            return [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    return None


@pytest.mark.heavy
@pytest.mark.browser
@pytest.mark.xdist_group("notebooks")
@pytest.mark.parametrize("name", ALL if EVERYTHING else LIGHT)
def test_run_all_in_the_browser_leaves_what_a_plain_kernel_leaves(place: Place, name: str) -> None:
    cells = cells_of(SCRIPTS / f"{name}.py")
    path = place.files / f"{name}.ipynb"
    write_notebook(path, cells)
    expected = []
    with TestKernel(hooked=False, python=place.python, variables=VARIABLES) as kernel:
        for cell in cells:
            ran = kernel.run(cell)
            expected.append(normal(ran.text).replace(IN_WIDGETS.get(name, "\0"), ""))
            if ran.status != "ok":  # "Run all" ends at the first error
                break
    context = place.browser.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    page.set_default_timeout(5000)
    with SessionBrowser(place.client.open_session(place.session)) as door:
        context.add_cookies([{"name": key, "value": value, "url": door.origin} for key, value in door.cookies.items()])
        # In a workspace of its own no other notebook is open.
        page.goto(f"{door.origin}/lab/workspaces/{name}/tree/{path.name}", timeout=MILLISECONDS)
    saved = run_all(page, path, len(expected))
    context.close()
    assert [text_of(cell) for cell in saved[: len(expected)]] == expected
    for kernel_row in place.client.gpus().tenants:
        assert kernel_row.cells > 0
