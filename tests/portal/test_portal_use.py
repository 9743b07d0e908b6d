"""The page of use."""

from __future__ import annotations

import re

import pytest
from portal_site import Site

from carrel.core.domain.job import JobState, Reason
from carrel.core.gpu_use import End
from carrel.lab.portal.use import PARTS


@pytest.fixture
def worked(site: Site) -> Site:
    """Ada's job has ended well, one of Bob's has failed."""
    for name, state in (("ada", JobState.COMPLETED), ("bob", JobState.FAILED)):
        job = site.submit(name, resources={"gpus": 1})
        site.rig.engine.run(job)
        site.rig.engine.end(job, state=state, reason=Reason(code="NonZeroExitCode", message="It is over."), log=b"hello\n")
        site.rig.wait(job, state)
    return site


def rows(page: str) -> list[str]:
    """Names of the rows of the first table, and of its sum."""
    table = page.partition("</table>")[0]
    return re.findall(r'<th scope="row" class="job">(.*?)</th>', table)


@pytest.mark.gate
def test_one_sees_ones_own_use_and_an_administrator_everybodys(worked: Site) -> None:
    with worked.browser("ada") as http:
        page = http.get("/use").text
        assert rows(page) == ["ada"]
        assert "Your jobs, " in page
        assert '<rect class="completed"' in page
        assert "failed" not in page.partition("</table>")[0]
        assert "How long jobs take to begin" in page
        assert '<a href="/use" aria-current="page">Use</a>' in page
    with worked.browser("root") as http:
        page = http.get("/use").text
        assert sorted(rows(page)) == ["All", "ada", "bob"]
        assert '<rect class="failed"' in page
    with worked.browser() as http:
        assert http.get("/use").status_code == 401


def test_rows_and_days_are_those_that_are_asked_for(worked: Site) -> None:
    with worked.browser("root") as http:
        assert rows(http.get("/use?by=kind").text) == ["task"]
        assert rows(http.get("/use?by=node").text)[-1] == "All"
        assert rows(http.get("/use?by=account&from=1970-01-01").text) == ["default"]
        past = http.get("/use?by=qos&to=2020-01-01&from=").text
        assert "No job was there in that time." in past
        assert "2020-01-02 00:00 in UTC" in past  # the whole of the last day
        # What was chosen goes with the links and the form.
        assert 'href="/use?to=2020-01-01&amp;by=week"' in past
        assert '<input type="hidden" name="by" value="qos">' in past


@pytest.mark.parametrize(
    "query", ["by=<b>", "from=2026-13-01", "from=1969-12-31", "to=9999-01-01", "from=2020-01-02&to=2020-01-01"]
)
def test_what_is_no_grouping_and_no_day_is_refused(site: Site, query: str) -> None:
    with site.browser("ada") as http:
        page = http.get(f"/use?{query}")
        assert (page.status_code, "<b>" in page.text) == (422, False)


def test_every_end_has_a_part_of_the_bar() -> None:
    assert set(PARTS) == {*End, "lent"}
