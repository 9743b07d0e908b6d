"""A program that asks the issuer, as the RFCs have it, and the person who approves it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import httpx
from portal_site import Site

DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"


@dataclass
class Program:
    """One that calls itself `carrel-cli`."""

    site: Site
    client_id: str = "carrel-cli"
    http: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=self.site.url, timeout=60)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def post(self, path: str, /, **fields: str) -> httpx.Response:
        return self.http.post(path, data={"client_id": self.client_id, **fields})

    def begin(self, **fields: str) -> dict[str, Any]:
        answer = self.post("/oauth/device_authorization", device_name="the-laptop", **fields)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def poll(self, begun: dict[str, Any]) -> httpx.Response:
        return self.post("/oauth/token", grant_type=DEVICE_GRANT, device_code=begun["device_code"])

    def sign_in(self, who: str = "ada", **fields: str) -> dict[str, Any]:
        """Tokens of `who`, who has approved the program on the page."""
        begun = self.begin(**fields)
        with self.site.browser(who) as browser:
            assert decide(browser, begun["user_code"]).status_code == 200
        answer = self.poll(begun)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def renew(self, tokens: dict[str, Any], key: str | None = None) -> httpx.Response:
        data = {"client_id": self.client_id, "grant_type": "refresh_token", "refresh_token": tokens["refresh_token"]}
        return self.http.post("/oauth/token", data=data, headers={} if key is None else {"Idempotency-Key": key})

    def works(self, tokens: dict[str, Any]) -> bool:
        answer = self.http.get("/api/v1/jobs", headers={"Authorization": f"Bearer {tokens['access_token']}"})
        assert answer.status_code in (200, 401, 403), answer.text
        return answer.status_code == 200


def form_secret(page: httpx.Response) -> str:
    found = re.search(r'name="form_secret" value="([^"]+)"', page.text)
    assert found, page.text
    return found[1]


def decide(browser: httpx.Client, user_code: str, decision: str = "approve") -> httpx.Response:
    page = browser.get("/device", params={"user_code": user_code})
    assert page.status_code == 200, page.text
    fields = {"form_secret": form_secret(page), "user_code": user_code, "decision": decision}
    return browser.post("/device", data=fields)


def error_of(answer: httpx.Response) -> str:
    assert answer.status_code in (400, 401), answer.text
    assert answer.headers["cache-control"] == "no-store"
    return str(answer.json()["error"])
