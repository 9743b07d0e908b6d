"""The button and the way there and back in a real browser, with the provider on another site than the lab."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from oidc_site import OidcSite
from playwright.sync_api import Browser, expect
from real_provider import RealProvider

from carrel.lab.portal.oidc import BACK
from support.chromium import a_chromium

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("oidc-provider")]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with a_chromium() as browser:
        yield browser


@pytest.mark.gate
@pytest.mark.parametrize("width", [1200, 420])
def test_a_person_signs_in_with_the_institute(
    make_site: Callable[..., OidcSite], provider: RealProvider, chromium: Browser, width: int
) -> None:
    site = make_site()
    lab = site.url.replace("127.0.0.1", "localhost")  # to a browser another site than the provider
    object.__setattr__(site.oidc, "redirect_uri", f"{lab}{BACK}")
    provider.press("choose", redirect_uris=[f"{lab}{BACK}"])
    context = chromium.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    asked: list[tuple[str, str]] = []
    page.on("request", lambda request: asked.append((request.url, request.headers.get("referer", ""))))
    page.goto(f"{site.url}/notebooks")
    button = page.get_by_role("link", name="Sign in with the Institute")
    expect(button).to_be_visible()
    box = button.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    button.click()
    expect(page.get_by_role("heading", name="Institute")).to_be_visible()
    page.get_by_label("Name").fill("ada")
    page.get_by_role("button", name="Go on").click()
    page.wait_for_url(f"{lab}/notebooks")
    expect(page.get_by_text("Ada", exact=True).first).to_be_visible()
    cookies = {cookie["name"]: cookie for cookie in context.cookies(lab)}
    (own,) = [cookie for name, cookie in cookies.items() if name.startswith("carrel_session")]
    assert own["sameSite"] == "Strict"
    assert "carrel_oidc" not in cookies
    codes = [url for url, _ in asked if "code=" in url]
    assert len(codes) == 1
    assert not any("code=" in referer for _, referer in asked)
    assert not any("Content Security Policy" in text for text in said)
    context.close()
