"""A lab with its pages, served, and browsers of a simple kind."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from gateway_lab import Rig, client

from carrel.lab.portal import Portal


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.ahead = 0.0
        #: Where it stands still, or None.
        self.stands: float | None = None

    def __call__(self) -> float:
        return (time.time() if self.stands is None else self.stands) + self.ahead


def secret_in(page: httpx.Response) -> str:
    """What a button of this page sends with it."""
    found = re.search(r'name="form_secret" value="([^"]+)"', page.text)
    assert found, page.text
    return found[1]


@dataclass
class Site:
    rig: Rig
    portal: Portal
    clock: Clock
    url: str

    def link(self, name: str) -> str:
        return f"{self.url}{self.portal.link(self.rig.caller(name))}"

    @contextmanager
    def browser(self, name: str | None = None) -> Iterator[httpx.Client]:
        """A client with cookies and the headers of a browser that follows a link from outside."""
        with client(self.url, {"Accept": "text/html", "Sec-Fetch-Site": "none"}) as http:
            http.follow_redirects = True
            if name is not None:
                assert http.get(self.link(name)).status_code == 200
                http.headers["Sec-Fetch-Site"] = "same-origin"
            yield http

    def submit(self, user: str = "ada", /, **fields: object) -> int:
        with client(self.url, self.rig.headers(user)) as http:
            answer = http.post("/api/v1/jobs", json={"snapshot": self.rig.upload(user), **fields})
            assert answer.status_code == 201, answer.text
            return int(answer.json()["id"])
