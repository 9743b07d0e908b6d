from __future__ import annotations

import pytest
from gateway_lab import PROJECT
from portal_site import Site

HOSTILE = "<script>alert('x')</script>"


def ended(site: Site, user: str = "ada", **body: object) -> int:
    job = site.submit(user, **body)
    site.rig.engine.run(job)
    site.rig.engine.end(job)
    site.rig.wait_for(lambda: site.rig.store.jobs.get(job).state.ended)  # type: ignore[union-attr]
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
    with site.browser("bob") as http:
        assert http.get(f"/jobs/{one}/matrix").status_code == 404
