"""Tasks that really fail, each in its own way: their pages say why, and what to try."""

from __future__ import annotations

import html
import re
from pathlib import Path

import httpx
import pytest

from carrel import Client
from carrel.wire.v1 import ResourceRequest
from support.lab_process import LabProcess, start_lab

BROWSER = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
SLOW = "import time; print('slow', flush=True); time.sleep(60)"
FULL = "import time\nopen('big', 'wb').write(b'x' * 2**26)\ntime.sleep(60)\n"
GREEDY = "kept = []\nwhile True:\n    kept.append(bytearray(b'x' * 2**22))\n"


def section(page: str, name: str) -> str:
    """The text of a section of the page, by the id of its heading."""
    found = re.search(rf'<section aria-labelledby="{name}".*?</section>', page, re.DOTALL)
    assert found, page
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", found[0])).split())


def page_of(lab: LabProcess, client: Client, directory: Path, code: str, asked: dict[str, str]) -> str:
    """The page of a task that has ended."""
    (directory / "work.py").write_text(code)
    job = client.submit_project(directory / "work.py", resources=ResourceRequest.model_validate(asked)).id
    client.wait(job)
    with httpx.Client(base_url=lab.url, follow_redirects=True, headers=BROWSER) as http:
        http.post("/login", data={"token": lab.token}).raise_for_status()
        return http.get(f"/jobs/{job}").text


@pytest.mark.parametrize(
    ("code", "asked", "said"),
    [
        pytest.param("print('about to'); exit(3)", {}, ["Exit code 3", "The last it said about to"], marks=pytest.mark.gate),
        pytest.param("import os; os.kill(os.getpid(), 11)", {}, ["Signal 11 (SIGSEGV)", "PYTHONFAULTHANDLER=1"]),
        pytest.param(SLOW, {"time": "2s"}, ["Limit time: 2 s", "Ask for more time than 2 s ( --time )"]),
        pytest.param(GREEDY, {"memory": "128M"}, ["Limit memory: 128 MiB", "Ask for more memory,"]),
        pytest.param("open('data/train.csv')", {}, ["No such file or directory: 'data/train.csv'"]),
        pytest.param("import nosuch", {}, ["ModuleNotFoundError: No module named 'nosuch'"]),
    ],
    ids=["exit code", "signal", "time", "memory", "file", "module"],
)
def test_a_page_says_why_it_failed(
    lab: LabProcess, client: Client, tmp_path: Path, code: str, asked: dict[str, str], said: list[str]
) -> None:
    page = page_of(lab, client, tmp_path, code, asked)
    found = section(page, "failure")
    for words in (*said, "What to try"):
        assert words in found
    assert "running" in section(page, "course")
    # What its runner has read in its log stands in the reason.
    assert ("It did not find data/train.csv." in page) == ("train.csv" in code)
    assert ("nosuch is not installed" in page) == ("nosuch" in code)


def test_a_page_says_that_the_disk_limit_was_reached(tmp_path: Path) -> None:
    lab = start_lab(tmp_path / "lab", variables={"CARREL_DISK_LIMIT": "16M"})
    try:
        with Client(url=lab.url, token=lab.token) as client:
            found = section(page_of(lab, client, tmp_path, FULL, {}), "failure")
    finally:
        lab.stop()
    assert "Limit room on the disk" in found
    assert "Remove what it needs no more while it runs" in found
