"""Passkeys, invitations and the page "Your sign-in", in a real Chromium with its virtual authenticator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from local_site import GOOD, OTHER, LocalSite
from playwright.sync_api import Browser, CDPSession, Page, expect

from support.chromium import a_chromium

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with a_chromium() as browser:
        yield browser


@dataclass
class Seat:
    page: Page
    devices: CDPSession
    authenticator: str
    url: str

    def keys(self) -> list[dict[str, Any]]:
        found = self.devices.send("WebAuthn.getCredentials", {"authenticatorId": self.authenticator})
        return list(found["credentials"])

    def sign_out(self) -> None:
        self.page.goto(self.url)
        self.page.get_by_role("button", name="Sign out").first.click()
        expect(self.page.get_by_role("heading", name="Sign in", exact=True)).to_be_visible()


@contextmanager
def seat_at(chromium: Browser, site: LocalSite, *, verified: bool = True) -> Iterator[Seat]:
    """A person's browser, at the lab's name, with an authenticator that knows its owner if `verified`."""
    context = chromium.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()
    devices = context.new_cdp_session(page)
    devices.send("WebAuthn.enable")
    options = {
        "protocol": "ctap2", "transport": "internal", "hasResidentKey": True, "hasUserVerification": True,
        "isUserVerified": verified, "automaticPresenceSimulation": True,
    }  # fmt: skip
    made = devices.send("WebAuthn.addVirtualAuthenticator", {"options": options})
    yield Seat(page, devices, made["authenticatorId"], site.url.replace("127.0.0.1", "localhost"))
    context.close()


@pytest.fixture
def seat(chromium: Browser, local_site: LocalSite) -> Iterator[Seat]:
    with seat_at(chromium, local_site) as seat:
        yield seat


def test_the_link_of_an_invitation_opens_a_page_that_keeps_no_code(local_site: LocalSite, seat: Seat) -> None:
    code = local_site.invite("grace")
    asked: list[str] = []
    seat.page.on("request", lambda request: asked.append(request.url + str(request.headers)))
    seat.page.goto(f"{seat.url}/invitation#{code}")
    expect(seat.page.get_by_role("heading", name="Welcome, grace")).to_be_visible()
    seat.page.goto(f"{seat.url}/invitation")  # also where the page is open already
    seat.page.goto(f"{seat.url}/invitation#{code}")
    expect(seat.page.get_by_role("heading", name="Welcome, grace")).to_be_visible()
    assert code not in seat.page.url
    assert all(code not in one for one in asked)
    seat.page.get_by_label("Password: 12").fill(GOOD)
    seat.page.get_by_label("The same again").fill(GOOD)
    seat.page.get_by_role("button", name="Choose this password").click()
    expect(seat.page.get_by_text("No jobs yet")).to_be_visible()
    seat.sign_out()
    seat.page.get_by_label("Name").fill("grace")
    seat.page.get_by_label("Password", exact=True).fill(GOOD)
    seat.page.get_by_role("button", name="Sign in with a password").click()
    expect(seat.page.get_by_text("No jobs yet")).to_be_visible()


def test_a_passkey_by_invitation_signs_in_and_its_counter_is_watched(local_site: LocalSite, seat: Seat) -> None:
    seat.page.goto(f"{seat.url}/invitation#{local_site.invite('grace')}")
    seat.page.get_by_label("What you call it").fill("laptop")
    seat.page.get_by_role("button", name="Make a passkey").click()
    expect(seat.page.get_by_text("No jobs yet")).to_be_visible()
    (key,) = local_site.rig.store.credentials.passkeys("grace")
    assert (key.name, len(seat.keys())) == ("laptop", 1)
    first = seat.keys()[0]
    seat.sign_out()
    seat.page.goto(f"{seat.url}/notebooks")
    seat.page.get_by_role("button", name="Sign in with a passkey").click()
    expect(seat.page.get_by_role("button", name="Sign out").first).to_be_visible()
    expect(seat.page).to_have_url(f"{seat.url}/notebooks")
    (used,) = local_site.rig.store.credentials.passkeys("grace")
    assert used.sign_count > key.sign_count
    assert used.last_used_at is not None
    assert local_site.last()["who"] == "grace"
    seat.sign_out()
    # A copy that was taken before: its counter is behind.
    seat.devices.send("WebAuthn.removeCredential", {"authenticatorId": seat.authenticator, "credentialId": first["credentialId"]})
    seat.devices.send("WebAuthn.addCredential", {"authenticatorId": seat.authenticator, "credential": {**first, "signCount": 0}})
    seat.page.get_by_role("button", name="Sign in with a passkey").click()
    expect(seat.page.get_by_text("there may be a copy of it")).to_be_visible()
    line = local_site.last()
    assert (line["tried"], line["result"], line["resource"]) == ("grace", "refused", "/sign-in/passkey")
    assert local_site.rig.store.credentials.passkeys("grace")[0].sign_count == used.sign_count


def test_an_authenticator_that_does_not_know_its_owner_is_not_enough(chromium: Browser, local_site: LocalSite) -> None:
    with seat_at(chromium, local_site, verified=False) as seat:
        seat.page.goto(f"{seat.url}/invitation#{local_site.invite('grace')}")
        seat.page.get_by_role("button", name="Make a passkey").click()
        expect(seat.page.get_by_text("It was not confirmed")).to_be_visible()
    assert local_site.rig.store.credentials.passkeys("grace") == []


def test_passkeys_are_added_and_removed_on_ones_own_page(local_site: LocalSite, seat: Seat) -> None:
    page = seat.page
    page.goto(f"{seat.url}/invitation#{local_site.invite('grace')}")
    page.get_by_label("Password: 12").fill(GOOD)
    page.get_by_label("The same again").fill(GOOD)
    page.get_by_role("button", name="Choose this password").click()
    page.get_by_role("link", name="grace").click()
    expect(page.get_by_role("heading", name="Your sign-in")).to_be_visible()
    added = page.locator('form[action="/my-sign-in/passkeys"]')
    added.get_by_label("What you call it").fill("key ring")
    added.get_by_label("Your present password").fill(OTHER)
    added.get_by_role("button", name="Add a passkey").click()
    expect(added.get_by_text("The present password is not right")).to_be_visible()
    added.get_by_label("Your present password").fill(GOOD)
    added.get_by_role("button", name="Add a passkey").click()
    expect(page.get_by_text("The passkey is added.")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="key ring")).to_be_visible()
    seat.sign_out()
    page.get_by_role("button", name="Sign in with a passkey").click()
    expect(page.get_by_text("No jobs yet")).to_be_visible()
    page.goto(f"{seat.url}/my-sign-in")
    page.get_by_text("Remove", exact=True).click()
    row = page.get_by_role("row").filter(has_text="key ring")
    row.get_by_label("Your present password").fill(GOOD)
    row.get_by_role("button", name="Remove key ring").click()
    expect(page.get_by_text("You have no passkey.")).to_be_visible()
    seat.sign_out()
    page.get_by_role("button", name="Sign in with a passkey").click()
    expect(page.get_by_text("does not know this passkey")).to_be_visible()


def test_by_an_address_passkeys_are_offered_where_they_work(local_site: LocalSite, seat: Seat) -> None:
    seat.page.goto(local_site.url)
    expect(seat.page.get_by_role("button", name="Sign in with a passkey")).to_be_hidden()
    expect(seat.page.get_by_role("link", name=seat.url)).to_be_visible()
