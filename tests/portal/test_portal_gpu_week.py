"""The last week of the GPUs, by owner."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import sqlalchemy as sa
from portal_site import Site
from test_portal_notebooks import start

from carrel.core.control.gpu_use import SeenWeek
from carrel.core.domain.cells import RecordedCell
from carrel.core.domain.job import JobState
from carrel.lab.portal.owner_strips import HEIGHT, WIDTH, week_of
from carrel.lab.store.tables import attempts, jobs


def strips(page: str) -> list[str]:
    """What is said of each strip, in order."""
    return re.findall(r"<title>(GPU \d in the last week: [^<]+)</title>", page)


def since_hours(site: Site, hours: float, job: int) -> None:
    """As if the job had begun so long ago."""
    with site.rig.store.database.write() as connection:
        connection.execute(sa.update(attempts).where(attempts.c.job_id == job).values(leased_at=time.time() - 3600 * hours))


@pytest.fixture
def worked(site: Site) -> Site:
    """Ada has had GPU 0 for 3 hours, Bob has GPU 1 since 5 hours ago, and a cell of Ada's had GPU 0 for one."""
    for user, hours in (("ada", 3), ("bob", 5)):
        job = site.submit(user, resources={"gpus": 1})
        site.rig.engine.run(job)
        site.rig.wait(job, JobState.RUNNING)
        since_hours(site, hours, job)
        if user == "ada":
            with site.browser("ada") as http:
                session = int(start(site, http, gpus="1").url.path.rpartition("/")[2])
    now = time.time()
    cell = RecordedCell(broker="b", number=1, session=session, attempt=1, process="7-70", asked_at=now - 90_000,
                        granted_at=now - 90_000, seen_at=now - 86_400, computed=3600.0, gpus=1, devices=("SIM-0",),
                        busy=35.0)  # fmt: skip
    site.rig.store.cells.add([cell, replace(cell, number=2, devices=("GONE",))])
    return site


@pytest.mark.gate
def test_a_week_has_the_names_of_those_whose_use_one_may_see(worked: Site) -> None:
    with worked.browser("ada") as http:
        page = http.get("/gpus").text
        assert strips(page) == ["GPU 0 in the last week: ada 4 h.", "GPU 1 in the last week: other users 5 h."]
        assert "ada (you) 4 h" in page
        assert "bob" not in page.partition('id="week"')[2]
        assert 'id="week"' not in http.get("/gpus?part=live").text
    with worked.browser("root") as http:
        assert strips(http.get("/gpus").text)[1] == "GPU 1 in the last week: bob 5 h."


@pytest.mark.gate
def test_a_session_s_page_has_what_its_cells_cost_and_the_page_of_use_where_its_time_went(worked: Site) -> None:
    with worked.browser("ada") as http:
        (link,) = set(re.findall(r'href="(/notebooks/\d+)"', http.get("/notebooks").text))
        with worked.rig.store.database.write() as connection:
            connection.execute(sa.update(jobs).where(jobs.c.kind == "session").values(started_at=time.time() - 100_000))
        assert "2 had GPUs, 2.00 GPU-hours, busy for 35 % of them" in http.get(link).text
        page = http.get("/use").text.partition("Where the time of sessions went")[2]
        told = dict(re.findall(r'data-label="([^"]+)" class="num">([^<]+)<', page))
        assert (told["Cells"], told["GPU-hours"], told["Busy"], told["Computed"]) == ("2", "2.00", "35 %", "1.00")
        assert "Where the time of sessions went" not in http.get("/use?from=2020-01-01").text
    with worked.browser("bob") as http:
        assert "Where the time of sessions went" not in http.get("/use").text


def test_a_week_of_which_nothing_is_known(site: Site) -> None:
    with site.browser("ada") as http:
        page = http.get("/gpus").text
        assert strips(page) == [f"GPU {index} in the last week: nobody had it." for index in range(2)]
        assert "Nobody had a GPU." in page


def seen(hours: Mapping[str, Sequence[Mapping[str, float]]]) -> SeenWeek:
    """What an administrator sees of these seconds by owner."""
    rows = {gpu: [{(owner, "a"): seconds for owner, seconds in hour.items()} for hour in row] for gpu, row in hours.items()}
    return SeenWeek(hours=rows, names={holder: holder[0] for row in rows.values() for hour in row for holder in hour})


def test_owners_look_the_same_on_every_strip_and_no_two_look_alike() -> None:
    owners = [f"user{number}" for number in range(30)]
    hours = {name: [dict.fromkeys(owners, 100.0), {}, {owners[0]: 1800.0}] for name in ("a", "b")}
    week = week_of(seen(hours), [("a", "GPU 0"), ("b", "GPU 1"), ("c", "GPU 2")])
    looks = {one.who: (one.look.colour, one.look.texture) for one in week.legend}
    assert len(looks) == len(set(looks.values())) == 25, "24 owners, and all others together"
    assert week.legend[-1].who == "other users"
    for strip in week.strips[:2]:
        assert {one.who: (one.look.colour, one.look.texture) for one in strip.owners} == looks
        assert strip.summary.endswith(", 20 more.")
    first = next(one for one in week.strips[0].owners if one.who == owners[0])
    assert first.path.endswith(f"M2 {HEIGHT // 2}v{HEIGHT // 2}")
    assert week.strips[2].summary == "GPU 2 in the last week: nobody had it."


@pytest.mark.parametrize(("gpus", "piece"), [(1, 1), (8, 1), (9, 2), (64, 8), (200, 24)])
def test_a_week_of_many_gpus_fits_a_page(gpus: int, piece: int) -> None:
    owners = [f"user{number}" for number in range(20)]
    hours = {str(gpu): [dict.fromkeys(owners[hour % 16 :][:4], 900.0) for hour in range(WIDTH)] for gpu in range(gpus)}
    week = week_of(seen(hours), [(str(gpu), f"GPU {gpu}") for gpu in range(gpus)])
    assert (len(week.strips), week.left_out, week.piece) == (min(gpus, 128), max(0, gpus - 128), piece)
    assert sum(len(one.path) for strip in week.strips for one in strip.owners) < 50_000
    assert sum(float(one.time.split()[0]) for one in week.legend) == pytest.approx(WIDTH * len(week.strips), abs=1)
