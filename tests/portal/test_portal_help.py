"""The documentation as the lab serves it."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urldefrag

import pytest
from portal_site import Site
from test_portal_pages import HOSTILE

from carrel.lab.portal.help import PAGES

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.gate
def test_every_page_has_its_help_and_each_link_in_it_leads_somewhere(site: Site) -> None:
    with site.browser("ada") as http:
        assert 'href="/help/pages.md"' in http.get("/").text
        assert 'href="/help/pages.md#new-task"' in http.get("/tasks/new").text
        assert 'href="/help/compare.md"' in http.get("/jobs/compare").text
        served = {f"/help/{file.relative_to(DOCS).as_posix()}": "" for file in DOCS.rglob("*.md")}
        for address in served:
            page = http.get(address)
            assert page.status_code == 200, address
            served[address] = page.text
            assert "style=" not in page.text, "the pages' policy allows none"
        for address in (f"/help/{page}" for page in PAGES.values()):
            assert_leads(address, served)
        for address, text in served.items():
            article = text.partition('<article class="prose">')[2]
            for link in re.findall(r'(?:href|src)="(/help/[^"]+|#[^"]+)"', article):
                assert_leads(link if link.startswith("/") else address + link, served)


def assert_leads(link: str, served: dict[str, str]) -> None:
    page, anchor = urldefrag(link)
    if page.endswith((".svg", ".png")):
        assert (DOCS / page.removeprefix("/help/")).exists(), link
        return
    assert page in served, link
    assert not anchor or f'id="{anchor}"' in served[page], link


def test_a_search_finds_the_section_that_is_about_it(site: Site) -> None:
    with site.browser("ada") as http:
        page = http.get("/help", params={"q": "walltime checkpoint"}).text
        assert 'href="/help/tasks.md#going-on-after-the-walltime"' in page
        assert "Nothing for" in http.get("/help", params={"q": f"zzz {HOSTILE}"}).text
        assert HOSTILE not in http.get("/help", params={"q": HOSTILE}).text
        assert "an hour with Carrel" in http.get("/help").text
        for stranger in ("../README.md", "..%2f..%2fpyproject.toml", "nothing.md", "%00"):
            assert http.get(f"/help/{stranger}").status_code == 404


def test_the_documentation_asks_who_is_there(site: Site) -> None:
    with site.browser() as http:
        assert http.get(f"{site.url}/help/pages.md").status_code == 401
