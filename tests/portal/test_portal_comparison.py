from __future__ import annotations

import html
import re
import shlex

import pytest
from gateway_lab import PROJECT, client
from portal_site import Site

from carrel.core.domain.job import JobState
from carrel.core.domain.launch import StoredFile

HOSTILE = "<script>alert('x')</script>"
#: Copied from a page into a shell it would be a command of its own.
QUOTED = "x'; reboot; '"


def ended(site: Site, user: str = "ada", **body: object) -> int:
    job = site.submit(user, **body)
    site.rig.engine.run(job)
    site.rig.engine.end(job)
    site.rig.wait_for(lambda: site.rig.store.jobs.get(job).state.ended)  # type: ignore[union-attr]
    return job


def came_to(site: Site, job: int, result: bytes) -> int:
    """The job, which has ended with this as its output."""
    site.rig.engine.run(job)
    site.rig.engine.end(job, outputs=(StoredFile(path="outputs/result", size=len(result), digest=site.rig.store_blob(result)),))
    site.rig.wait(job, JobState.COMPLETED)
    return job


@pytest.mark.gate
def test_the_page_shows_what_differs_by_cause_and_what_is_not_known(site: Site) -> None:
    one, two = ended(site, parameters={"who": "x"}), ended(site, parameters={"who": HOSTILE})
    with site.browser("ada") as http:
        page = http.get("/jobs/compare", params={"job": [one, two]}).text
        assert f"What differs between {one} and {two}" in page
        assert "Likely to change results" in page
        assert "The command was given another value." in page
        assert '<h2 id="unknown-title">Not known</h2>' in page
        assert HOSTILE not in page
        assert "&lt;script&gt;" in page
        assert page == http.get(f"/jobs/compare?job={one}+{two}").text  # as the form sends it


def test_code_is_shown_by_hunks_as_text(site: Site) -> None:
    jobs = []
    for text in ("echo 1\n", f"echo '{HOSTILE}'\n"):
        files = {"MLproject": PROJECT.replace("echo", "sh run.sh"), "run.sh": text}
        jobs.append(ended(site, snapshot=site.rig.upload("ada", files)))
    with site.browser("ada") as http:
        page = http.get("/jobs/compare", params={"job": jobs}).text
    assert '<span class="removed">-echo 1</span>' in page
    assert '<span class="added">+echo &#39;&lt;script&gt;' in page
    assert HOSTILE not in page


def test_the_form_and_the_ways_to_it(site: Site) -> None:
    one = ended(site)
    with site.browser("ada") as http:
        assert f'href="/jobs/compare?job={one}"' in http.get(f"/jobs/{one}").text
        form = http.get("/jobs/compare", params={"job": one})
        assert (form.status_code, f'value="{one}"' in form.text) == (200, True)
        assert http.get("/jobs/compare").status_code == 200
        for wrong, status in (("x y", 422), (f"{one} 999999", 404), (f"{one} {one}", 422)):
            assert http.get("/jobs/compare", params={"job": wrong}).status_code == status


def test_the_page_of_how_far_results_move(site: Site) -> None:
    one = ended(site)
    with site.browser("ada") as http:
        assert f'href="/jobs/{one}/matrix"' in http.get(f"/jobs/{one}").text
        page = http.get(f"/jobs/{one}/matrix", params={"metric": HOSTILE, "seeds": "2"}).text
        assert f"How far the results of job {one} move" in page
        assert f"<code>carrel matrix {one} --seeds 2 --metric" in page
        assert HOSTILE not in page
        assert "without a GPU" in page or "with a GPU" in page
        assert http.get(f"/jobs/{one}/matrix", params={"case": "x"}).status_code == 422
        assert http.get(f"/jobs/{one}/matrix", params={"metric": "outputs/r.json#loss"}).status_code == 422
        page = http.get(f"/jobs/{one}/matrix", params={"metric": QUOTED}).text
        assert f"--metric {shlex.quote(QUOTED)}<" in html.unescape(page)
        assert "logged no metric" in page
    with site.browser("bob") as http:
        assert http.get(f"/jobs/{one}/matrix").status_code == 404


def test_the_page_of_the_cause_shows_its_runs_as_a_tree_and_the_answer(site: Site) -> None:
    one = came_to(site, site.submit(parameters={"who": "x"}, variables={"NOTE": "1"}), b"a")
    two = came_to(site, site.submit(parameters={"who": HOSTILE}, variables={"NOTE": "2"}), b"b")
    asked = {"first": str(one), "second": str(two)}
    with site.browser("ada") as http, client(site.url, site.rig.headers()) as api:
        assert f'href="/jobs/why?first={one}&amp;second={two}"' in http.get("/jobs/compare", params={"job": [one, two]}).text
        page = http.get("/jobs/why", params=asked | {"ignore": QUOTED}).text
        assert f"carrel why {one} {two} --ignore {shlex.quote(QUOTED)}<" in html.unescape(page)
        assert HOSTILE not in page
        found = api.post("/api/v1/comparison/why/runs", json=asked).raise_for_status().json()
        while not found["answer"]:
            for run in found["variants"]:
                if not run["results"]:
                    came_to(site, run["job"], b"b" if "parameter who" in run["changes"] else b"a")
            found = api.post("/api/v1/comparison/why/runs", json=asked).raise_for_status().json()
        assert found["answer"] == "explained"
        page = http.get("/jobs/why", params=asked).text
        assert "The cause is parameter who (x in job" in page
        assert [int(depth) for depth in re.findall(r'<th scope="row" class="deep-(\d)">', page)] == [0, 0, 0, 1, 1, 1, 0, 1]
        assert HOSTILE not in page
        for wrong, status in (
            ({"second": "999999"}, 404),
            ({"tolerance": "x"}, 422),
            ({"first": ""}, 422),
            ({"tolerance": "nan"}, 422),
        ):
            assert http.get("/jobs/why", params=asked | wrong).status_code == status
    with site.browser("bob") as http:
        assert http.get("/jobs/why", params=asked).status_code == 404
