"""The page of machines from parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from gateway_lab import a_lab, serve
from portal_site import Clock, Site, secret_in

from carrel.lab.portal import Portal
from carrel.testing.waiting import wait_until

FABRIC = re.findall(r"```toml\n(.*?)```", (Path(__file__).parents[2] / "docs" / "composing.md").read_text(), re.DOTALL)[0]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    clock = Clock()
    portal = Portal(clock=clock)
    with a_lab(tmp_path, pages=lambda _rig: portal, clock=clock, fabric=FABRIC) as rig, serve(rig.app) as url:
        yield Site(rig, portal, clock, url)


def press(http: httpx.Client, path: str, **fields: str) -> httpx.Response:
    """What a form of the page sends."""
    secret = secret_in(http.get("/account"))
    return http.post(path, data={"form_secret": secret, **fields}, follow_redirects=False)


def shown(http: httpx.Client, word: str) -> str:
    """What changes of the page, once it says the word."""
    page = http.get("/machines?part=live").text
    return page if word in page else ""


@pytest.mark.gate
def test_a_machine_is_foreseen_made_seen_and_given_back(site: Site) -> None:
    asked = {"gpus": "2", "type": "a100", "nvme": "1", "for": "2h", "together": "anyhow"}
    with site.browser("ada") as ada, site.browser("bob") as bob:
        page = ada.get("/machines").text
        assert '<a href="/machines" aria-current="page">Machines</a>' in page
        assert "<strong>a100 1g.5gb</strong> 35, " in page  # of five GPUs that can be cut
        page = press(ada, "/machines", **asked, preview="yes").text
        assert "It would take <strong>node0, a100-0, a100-1, nvme0</strong>" in page
        assert 'name="gpus" inputmode="numeric" value="2"' in page
        assert "No machine is made yet" in page
        assert press(ada, "/machines", **asked).status_code == 303
        page = wait_until(lambda: shown(ada, "RUNNING"))
        assert page.count("Your machine 1") == 4
        theirs = bob.get("/machines").text
        assert "No machine is made yet" in theirs
        assert theirs.count("</span>In use") == 4
        assert press(bob, "/machines/1/release").status_code == 404
        assert press(ada, "/machines/1/release").status_code == 303
        # The blocks of the picture are looked at before the list.
        wait_until(lambda: "achine 1<" not in (shown(ada, "CANCELLED") or "achine 1<"))


def test_slices_are_asked_for_by_profile_or_by_memory(site: Site) -> None:
    with site.browser("ada") as ada:
        for size, of_it in ({"profile": "2g.10gb"}, "2g.10gb"), ({"memory": "12G", "profile": ""}, "3g.20gb"):
            page = press(ada, "/machines", slices="1", **size, preview="yes").text
            assert re.search(rf"It would take <strong>class-gpu\d/{of_it}@\d</strong>", page)
        assert "A slice of no size is asked for" in press(ada, "/machines", slices="1", profile="").text


def test_what_is_wrong_is_said_and_nothing_typed_is_lost(site: Site) -> None:
    with site.browser("ada") as ada:
        for fields, said in (
            ({"gpus": "9"}, "the fabric has 5 that fit"),
            ({"gpus": "many"}, "is no number of gpus"),
            ({"gpus": "1", "for": "100h"}, "keeps one for at most 1 d"),
            ({"gpus": "1", "memory": "40"}, "is not a size"),
            ({}, "0 kinds of blocks"),
        ):
            answer = press(ada, "/machines", **fields)
            assert answer.status_code == 422, said
            assert said in answer.text
            assert not fields.get("gpus") or f'value="{fields["gpus"]}"' in answer.text
