"""The link of an invitation, in a real Chromium."""

from __future__ import annotations

import pytest
from local_site import GOOD, LocalSite
from playwright.sync_api import expect

from support.chromium import a_chromium

pytestmark = pytest.mark.browser


def test_the_link_of_an_invitation_opens_a_page_that_keeps_no_code(local_site: LocalSite) -> None:
    code = local_site.invite("grace")
    asked: list[str] = []
    with a_chromium() as chromium:
        page = chromium.new_page()
        page.on("request", lambda request: asked.append(request.url + str(request.headers)))
        page.goto(f"{local_site.url}/invitation#{code}")
        expect(page.get_by_role("heading", name="Welcome, grace")).to_be_visible()
        page.goto(f"{local_site.url}/invitation")  # also where the page is open already
        page.goto(f"{local_site.url}/invitation#{code}")
        expect(page.get_by_role("heading", name="Welcome, grace")).to_be_visible()
        assert code not in page.url
        assert all(code not in one for one in asked)
        page.get_by_label("Password: 12").fill(GOOD)
        page.get_by_label("The same again").fill(GOOD)
        page.get_by_role("button", name="Choose this password").click()
        expect(page.get_by_text("No jobs yet")).to_be_visible()
        page.get_by_role("button", name="Sign out").first.click()
        page.get_by_label("Name").fill("grace")
        page.get_by_label("Password", exact=True).fill(GOOD)
        page.get_by_role("button", name="Sign in with a password").click()
        expect(page.get_by_text("No jobs yet")).to_be_visible()
