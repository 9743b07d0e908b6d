"""How far a job is, what it uses, and its log, on its page."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect
from portal_site import Site

from carrel.core.domain.job import JobState, Reason
from carrel.core.domain.launch import (
    Claimed,
    Continued,
    EnvironmentReady,
    InputsReady,
    JournalRecord,
    Paused,
    Sampled,
    Started,
    Usage,
)
from carrel.core.spool import Journal
from carrel.lab.portal.log_search import look_for
from support.chromium import a_chromium

STEPS: tuple[tuple[float, JournalRecord], ...] = (
    (0, Claimed(pid=1)),
    (40, EnvironmentReady(digest="e", lock="", python="3", built=True, seconds=40)),
    (60, InputsReady(digests={})),
    (60, Started(pid=2)),
    *((60 + 5 * n, Sampled(usage=Usage(cpu_seconds=10 * n, memory=2**30 + n, gpu_utilization={"G": 50}))) for n in range(600)),
    (100, Paused()),
    (130, Continued(seconds=30, people=1)),
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with a_chromium() as browser:
        yield browser


def running(site: Site) -> int:
    """A job of Ada's that runs, with a journal as its runner would have written it, from when it was started."""
    job = site.submit("ada", name="fit", resources={"cpus": 2, "memory": "4G"})
    site.rig.engine.wait_started(job)
    journal, began = Journal(site.rig.engine.spool.attempt(job, 1).journal), time.time()
    site.clock.ahead = 3100.0
    for seconds, record in sorted(STEPS, key=lambda step: step[0]):
        journal.append(began + seconds, record)
    journal.close()
    site.rig.engine.run(job)
    site.rig.wait(job, JobState.RUNNING)
    return job


def said_of(page: str) -> list[str]:
    """What is said of the strips of a page, in order."""
    return re.findall(r"</svg>([^<]+)</li>", page.partition('class="course"')[2].partition("</ol>")[0])


@pytest.mark.gate
def test_the_course_of_a_job_from_the_line_to_now(site: Site) -> None:
    job = running(site)
    with site.browser("ada") as http:
        for address in (f"/jobs/{job}", f"/jobs/{job}/course"):
            page = http.get(address).text
            said = said_of(page)
            assert said[:3] == ["environment 40 s", "inputs 20 s", "running 50 min"]
            assert said[3].startswith("GPUs lent to cells 30 s")
            assert "Processors: at most 2.0 of 2, last 2.0" in page
            assert "Memory: at most 1 GiB of 4 GiB" in page
            assert 'aria-label="GPU 0 busy: at most 50 %' in page
            assert max(path.count("L") for path in re.findall(r'<path d="(M[^"]+)"', page)) <= 240
            assert "data-again" in page
        site.rig.engine.end(job)
        site.rig.wait(job, JobState.COMPLETED)
        assert "data-again" not in http.get(f"/jobs/{job}/course").text
    with site.browser("bob") as http:
        assert http.get(f"/jobs/{job}/course").status_code == 404


def test_a_job_in_line(site: Site) -> None:
    site.rig.engine.wait_started(site.submit("ada", resources={"gpus": 2}))
    waits = site.submit("ada", resources={"gpus": 1})
    site.clock.ahead = 3600.0
    with site.browser("ada") as http:
        assert said_of(http.get(f"/jobs/{waits}").text) == ["in line 1 h"]


def test_a_job_that_is_tried_again(site: Site) -> None:
    job = site.submit("ada", retries=1, resources={"gpus": 2})
    site.rig.engine.run(job)
    site.rig.engine.end(job, state=JobState.FAILED, reason=Reason(code="NonZeroExitCode", message="No."), exit_code=1)
    with site.browser("ada") as http:
        site.rig.wait_for(lambda: "Attempt 2" in http.get(f"/jobs/{job}/course").text)
        page = http.get(f"/jobs/{job}/course").text
        assert page.index("Attempt 1") < page.index("FAILED") < page.index("Attempt 2")
        assert "Why it failed" not in http.get(f"/jobs/{job}").text, "it has not ended"


def test_a_course_outlives_the_log(site: Site) -> None:
    job = running(site)
    journal = site.rig.engine.spool.attempt(job, 1).journal
    with journal.open("ab") as file:
        file.write(b"damaged\n00000000 {}\n" + b"x" * 5000)
    with site.browser("ada") as http:
        assert "running 50 min" in said_of(http.get(f"/jobs/{job}").text)
        journal.unlink()
        assert [words.split()[0] for words in said_of(http.get(f"/jobs/{job}").text)] == ["running"]


def test_a_log_is_searched_without_scripts(site: Site) -> None:
    job = site.submit("ada")
    site.rig.engine.run(job)
    site.rig.engine.say(job, log=b"start\n" + b"".join(b"epoch %d Loss <b>\n" % number for number in range(300)) + b"late LOSS")
    with site.browser("ada") as http:
        page = http.get(f"/jobs/{job}", params={"find": "LATE"}).text
        assert "1 line with “LATE”" in page
        assert '<span class="id">302</span> late LOSS' in page
        page = http.get(f"/jobs/{job}", params={"find": "loss"}).text
        assert "The first 200 lines with “loss”" in page
        assert "Loss &lt;b&gt;" in page
        assert "No line has “&lt;i&gt;”" in http.get(f"/jobs/{job}", params={"find": "<i>"}).text
    with site.browser("bob") as http:
        assert http.get(f"/jobs/{job}", params={"find": "loss"}).status_code == 404


def test_lines_are_found_across_pieces_and_in_long_lines() -> None:
    assert look_for("needle", [b"a nee", b"dle\nb\n", b"\x1b[31mNeedle\x1b[0m"]).lines == ((1, "a needle"), (3, "Needle"))
    long = look_for("needle", [b"x" * 3_000_000 + b"needle", b"y" * 100 + b"\nnext needle\n"])
    assert [number for number, _ in long.lines] == [1, 2]
    assert len(long.lines[0][1]) <= 500
    assert "needle" in long.lines[0][1]


@pytest.mark.browser
def test_the_course_goes_on_by_itself(site: Site, chromium: Browser) -> None:
    job = running(site)
    page = chromium.new_page()
    page.goto(site.link("ada"))
    page.goto(f"{site.url}/jobs/{job}")
    course = page.locator("section[aria-labelledby=course]")
    expect(course).to_contain_text("running")
    site.rig.engine.end(
        job, state=JobState.FAILED, exit_code=1, reason=Reason(code="NonZeroExitCode", message="Exit code 1."), log=b"bad\n"
    )
    expect(page.get_by_role("heading", name="Why it failed")).to_be_visible()
    expect(course).to_contain_text("FAILED")
    page.get_by_role("searchbox", name="Text in the log").fill("bad")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_text("1 line with “bad”")).to_be_visible()
    page.context.close()
