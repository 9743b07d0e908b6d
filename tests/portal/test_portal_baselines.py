"""The page of baselines."""

from __future__ import annotations

import re

import pytest
from portal_site import Site

from carrel.core.domain.launch import Started, StoredFile

HOSTILE = "<b>&'x"


def ended(site: Site, user: str = "ada", *, output: bytes = b"1", driver: str = "550", **body: object) -> int:
    job = site.submit(user, **{"name": "train", **body})
    site.rig.engine.run(job)
    hardware = {"gpu_0": "NVIDIA H100, 80 GiB, GPU-1", "gpu_driver": driver}
    site.rig.engine.say(job, Started(pid=1, hardware=hardware, seeds={"OMP_NUM_THREADS": "1"}))
    stored = StoredFile(path="outputs/loss", size=1, digest=site.rig.store_blob(output))
    site.rig.engine.end(job, outputs=(stored,))
    site.rig.wait_for(lambda: site.rig.store.jobs.get(job).state.ended)  # type: ignore[union-attr]
    return job


def baseline(site: Site, job: int, user: str = "ada") -> int:
    with site.browser(user) as http:
        made = http.post(
            "/api/v1/baselines", json={"job": job}, headers={"Authorization": f"Bearer {site.rig.tokens[user]}"}
        )  # fmt: skip
        return int(made.raise_for_status().json()["id"])


def words(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page.partition("<main")[2]).split())


@pytest.mark.gate
def test_later_jobs_stand_below_with_what_moved_and_what_differs(site: Site) -> None:
    number = baseline(site, ended(site))
    same = ended(site)
    ended(site, output=b"2", driver="560", parameters={"who": HOSTILE})
    ended(site, name="another", output=b"9")
    with site.browser("ada") as http:
        assert "never" in words(http.get("/baselines").text)
        page = http.get(f"/baselines?of={number}").text
        assert '<a href="/baselines" aria-current="page">Baselines</a>' in page
        shown = words(page).partition("Later jobs of train")[2]
        assert f"{same} " in shown
        assert re.search(r"✓ bit-identical – NVIDIA H100, 80 GiB, driver 550 –", shown)
        assert re.search(r"✕ different outputs/loss NVIDIA H100, 80 GiB, driver 560 parameter who", shown)
        assert "gpu_driver 550 → 560" in shown
        assert HOSTILE not in page
        assert "another" not in shown


def test_one_sees_ones_own_and_an_administrator_everybodys(site: Site) -> None:
    theirs = baseline(site, ended(site))
    with site.browser("bob") as http:
        assert "No project has a baseline yet." in http.get("/baselines").text
        assert http.get(f"/baselines?of={theirs}").status_code == 404
        assert http.get("/baselines?owner=all").status_code == 403
        assert "Everybody" not in http.get("/baselines").text
    with site.browser("root") as http:
        page = words(http.get(f"/baselines?owner=all&of={theirs}").text)
        assert "ada/train" in page
        assert "No later job of this name is there yet." in page
    with site.browser() as http:
        assert http.get("/baselines").status_code == 401


def test_what_an_administrator_found_is_told_and_the_job_is_not_the_owners_to_read(site: Site) -> None:
    number = baseline(site, ended(site))
    with site.browser("root") as http:
        http.headers["Authorization"] = f"Bearer {site.rig.tokens['root']}"
        begun = http.post(f"/api/v1/baselines/{number}/calibrations", json={}).raise_for_status().json()
        job = begun["job"]
        site.rig.engine.run(job)
        stored = StoredFile(path="outputs/loss", size=1, digest=site.rig.store_blob(b"2"))
        site.rig.engine.end(job, outputs=(stored,))
        site.rig.wait_for(lambda: site.rig.store.jobs.get(job).state.ended)  # type: ignore[union-attr]
        found = http.get(f"/api/v1/baselines/{number}/calibrations/{job}").json()
        assert (found["outcome"], found["by"]) == ("moved", "root")
        assert f'<a href="/jobs/{job}">' in http.get(f"/baselines?of={number}&owner=all").text
    with site.browser("ada") as http:
        page = http.get(f"/baselines?of={number}").text
        assert re.search(r"✕ moved \S.* different; outputs/loss", words(page))
        assert f"{job} run again" in words(page)
        assert f'href="/jobs/{job}"' not in page
        assert http.get(f"/jobs/{job}").status_code == 404


@pytest.mark.parametrize("query", ["of=x", "of=-1", "of=99999999999999999999"])
def test_what_is_no_number_is_refused(site: Site, query: str) -> None:
    with site.browser("ada") as http:
        assert http.get(f"/baselines?{query}").status_code == 404
