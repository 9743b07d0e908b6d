"""A lab with sign-in by passwords."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from argon2 import PasswordHasher
from gateway_lab import Rig, a_lab, client, serve
from portal_site import Clock, Site

from carrel.lab.audit import AuditFilter
from carrel.lab.credentials import LocalSignIn
from carrel.lab.credentials.passwords import Hashes
from carrel.lab.portal import Portal
from carrel.lab.portal.local import LocalPages

GOOD = "correct horse battery staple"
OTHER = "umbrella kettle violin seven"
#: So that a test takes no second; the real parameters have a test of their own.
QUICK = PasswordHasher(time_cost=1, memory_cost=1024, parallelism=1)


@dataclass
class LocalSite(Site):
    local: LocalSignIn

    def invite(self, name: str) -> str:
        with client(self.url, self.rig.headers("root")) as root:
            return str(root.post("/api/v1/invitations", json={"name": name}).raise_for_status().json()["code"])

    def people(self, method: str, path: str) -> httpx.Response:
        with client(self.url, self.rig.headers("root")) as root:
            return root.request(method, f"/api/v1/users{path}", json=None if method == "DELETE" else {}).raise_for_status()

    def choose(self, http: httpx.Client, name: str, password: str = GOOD) -> httpx.Response:
        return http.post("/invitation", data={"code": self.invite(name), "password": password, "again": password}, headers=OWN)

    def sign_in(self, http: httpx.Client, name: str, password: str, **more: str) -> httpx.Response:
        return http.post("/sign-in/password", data={"name": name, "password": password, **more}, headers=OWN)

    def last(self) -> dict[str, Any]:
        return self.rig.audit.read(AuditFilter(), limit=1, newest=True)[0]


OWN = {"Sec-Fetch-Site": "same-origin"}


@contextmanager
def a_local_site(tmp_path: Path) -> Iterator[LocalSite]:
    clock = Clock()
    made: list[tuple[Portal, LocalSignIn]] = []

    def pages(rig: Rig) -> Portal:
        local = LocalSignIn(
            store=rig.store.credentials,
            people=rig.lab.people,
            tokens=rig.lab.tokens,
            clock=clock,
            monotonic=clock,
            hashes=Hashes(hasher=QUICK),
        )
        made.append((Portal(clock=clock, local=LocalPages(local)), local))
        return made[0][0]

    with a_lab(tmp_path, pages=pages, clock=clock) as rig, serve(rig.app) as url:
        yield LocalSite(rig, made[0][0], clock, url, made[0][1])
