"""The pages of sweeps: what they show, to whom, and their buttons."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from xml.etree import ElementTree

import pytest
from gateway_lab import client
from portal_site import Site, secret_in

from carrel.lab.portal.parallel_coordinates import BOTTOM, TOP, picture_of
from carrel.testing.waiting import wait_until
from carrel.wire.v1 import SweepDetail, TrialView
from support.chromium import a_chromium

HOSTILE = "<script>alert('x')</script>"


def start(site: Site, name: str = "ada", metric: str = "loss") -> int:
    """A sweep of three trials, one after the other."""
    body = {
        "task": {"snapshot": site.rig.upload(name)},
        "parameters": {"n": "int(1, 9)", "c": f'categorical("{HOSTILE}", plain)'},
        "metric": metric,
        "trials": 3,
        "parallel": 1,
    }
    with client(site.url, site.rig.headers(name)) as http:
        answer = http.post("/api/v1/sweeps", json=body)
        assert answer.status_code == 201, answer.text
        return int(answer.json()["id"])


def carry_out(site: Site, sweep: int, number: int, value: float) -> None:
    """Trial `number` runs, reports this, and ends."""
    with client(site.url, site.rig.headers()) as http:

        def job() -> int | None:
            trials = http.get(f"/api/v1/sweeps/{sweep}").json()["all_trials"]
            return trials[number - 1]["job_id"] if len(trials) >= number else None

        wait_until(lambda: job() is not None)
        job_id = job() or 0
    _, token = site.rig.engine.wait_started(job_id)
    site.rig.engine.run(job_id)
    with client(site.url, {"Authorization": f"Bearer {token}"}) as http:
        answer = http.post(f"/api/v1/sweeps/{sweep}/trials/{number}/values", json={"values": [{"step": 0, "value": value}]})
        assert answer.json() == {"pruned": False}
    site.rig.engine.end(job_id)


@pytest.mark.gate
def test_a_sweep_with_its_trials_and_its_picture(site: Site) -> None:
    sweep = start(site)
    with site.browser("ada") as http:
        assert 'href="/sweeps"' in http.get("/").text
        assert f'href="/sweeps/{sweep}"' in http.get("/sweeps").text
        assert "<svg class=" not in http.get(f"/sweeps/{sweep}").text
        for number, value in ((1, 3.0), (2, 1.5), (3, 2.0)):
            carry_out(site, sweep, number, value)
        wait_until(lambda: "COMPLETED</span>" in http.get(f"/sweeps/{sweep}?part=live").text.partition("</div>")[0])
        page = http.get(f"/sweeps/{sweep}").text
        assert "The best: trial 2" in page
        assert "3 of 3" in page
        assert page.count('<path class="trial') == 3
        assert page.index("trial best") > page.index("trial q"), "the best is drawn over the others"
        assert HOSTILE not in page
        job = re.search(r'<td><a href="/jobs/(\d+)">', page)
        assert job is not None
        assert f'of <a href="/sweeps/{sweep}">' in http.get(f"/jobs/{job[1]}").text
        picture = re.search(r"<svg class=\"coordinates\".*?</svg>", page, re.DOTALL)
        assert picture is not None
        ElementTree.fromstring(picture[0])


def test_the_page_of_a_trial_says_that_its_sweep_was_removed(site: Site) -> None:
    sweep = start(site)
    with site.browser("ada") as http, client(site.url, site.rig.headers()) as api:
        carry_out(site, sweep, 1, 1.0)
        stopped = http.post(f"/sweeps/{sweep}/stop", data={"form_secret": secret_in(http.get(f"/sweeps/{sweep}"))})
        assert stopped.status_code == 200
        wait_until(lambda: all(one["ended_at"] for one in api.get(f"/api/v1/sweeps/{sweep}").json()["all_trials"]))
        job = api.get(f"/api/v1/sweeps/{sweep}").json()["all_trials"][0]["job_id"]
        name = api.get(f"/api/v1/jobs/{job}").json()["name"]

        def removed() -> bool:
            site.rig.store.sweeps.drop_old(time.time() + 3600)
            return api.get(f"/api/v1/sweeps/{sweep}").status_code == 404

        wait_until(removed, "the sweep to be removed")
        for part in ("", "?part=live"):
            page = http.get(f"/jobs/{job}{part}").text
            assert f"Trial 1 of {name} (sweep {sweep}, which was removed)" in page
            assert f'href="/sweeps/{sweep}"' not in page


def test_buttons_stop_and_resume(site: Site) -> None:
    sweep = start(site)
    with site.browser("ada") as http:
        page = http.get(f"/sweeps/{sweep}")
        assert http.post(f"/sweeps/{sweep}/stop", data={"form_secret": "wrong"}).status_code in (400, 403)
        stopped = http.post(f"/sweeps/{sweep}/stop", data={"form_secret": secret_in(page)})
        assert "STOPPED</span>" in stopped.text
        resumed = http.post(f"/sweeps/{sweep}/resume", data={"form_secret": secret_in(stopped)})
        assert "RUNNING</span>" in resumed.text


@pytest.mark.browser
def test_the_page_changes_by_itself(site: Site) -> None:
    sweep = start(site)
    with a_chromium() as browser:
        page = browser.new_page()
        page.goto(site.link("ada"))
        page.goto(f"{site.url}/sweeps/{sweep}")
        page.get_by_text("0 of 3").wait_for()
        for number in (1, 2, 3):
            carry_out(site, sweep, number, float(number))
            page.get_by_text(f"{number} of 3").wait_for()
        page.get_by_role("heading", name="The best: trial 1").wait_for()
        assert page.locator("svg.coordinates path.trial").count() == 3


def detail(values: list[float | None], parameters: dict[str, str], **first: object) -> SweepDetail:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    trials = [
        TrialView(number=number, state="COMPLETED", parameters=first, value=value, created_at=now)
        for number, value in enumerate(values, start=1)
    ]
    return SweepDetail(
        id=1, owner="ada", name="s", state="RUNNING", parameters=parameters, trials=9, parallel=1, metric="m",
        direction="maximize", sampler="tpe", pruner="none", seed=0, created_at=now, all_trials=trials, best=1,
    )  # fmt: skip


def test_places_in_the_picture() -> None:
    picture = picture_of(detail([5.0, None, 1.0], {"x": "loguniform(0.01, 1)", "c": "categorical(a, b, c)"}, x=0.1, c="c"))
    assert picture is not None
    assert [axis.name for axis in picture.axes] == ["x", "c", "m"]
    assert [line.look for line in picture.lines][-1] == "best"
    assert [mark.text for mark in picture.axes[0].marks] == ["1", "0.01", "0.1"]
    middle = (TOP + BOTTOM) / 2
    assert picture.axes[0].marks[-1].y == middle
    assert picture.lines[-1].path == f"M90.0 {middle:.1f}L500.0 {TOP:.1f}L910.0 {TOP:.1f}"
    assert picture.lines[0].path.endswith(f"L910.0 {BOTTOM:.1f}")
    assert picture_of(detail([None], {"x": "uniform(0, 1)"}, x=0.1)) is None
    wide = picture_of(detail([2.0], {"x": "loguniform(3e-9, 2)"}, x=0.1))
    assert wide is not None
    assert [mark.text for mark in wide.axes[0].marks] == ["2", "3e-09", "1e-07", "1e-05", "0.001", "0.1"]
    one = picture_of(detail([2.0], {"x": "int(3, 3)"}, x=3))
    assert one is not None
    assert one.lines[0].path == f"M90.0 {middle:.1f}L910.0 {middle:.1f}"
    many = picture_of(detail([float(value) for value in range(600)], {"x": "uniform(0, 1)"}, x=0.1))
    assert many is not None
    assert len(many.lines) == 500
    assert many.summary.startswith("The best 500 of 600 trials; m is from 100 to 599.")
    huge = picture_of(detail([1.7e308, -1.7e308], {"x": "uniform(0, 1)"}, x=0.5))
    assert huge is not None
    assert "nan" not in "".join(line.path for line in huge.lines)


def test_long_names_of_axes_have_the_room_that_there_is() -> None:
    names = ["a_rather_long_name_of_a_parameter", *(f"p{number}" for number in range(7))]
    found = detail([2.0], dict.fromkeys(names, "uniform(0, 1)"), x=0.1).model_copy(update={"metric": "validation_loss_of_all"})
    picture = picture_of(found)
    assert picture is not None
    assert [(axis.name, axis.label) for axis in (picture.axes[0], picture.axes[1], picture.axes[-1])] == [
        ("a_rather_long_name_of_a_parameter", "a_rather_lo…"),
        ("p0", "p0"),
        ("validation_loss_of_all", "validation_…"),
    ]
