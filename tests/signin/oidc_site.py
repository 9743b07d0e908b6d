"""A lab with sign-in through a provider, and browsers that go there and back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx
from gateway_lab import Rig, a_lab, client, serve
from local_site import QUICK
from portal_site import Clock, Site

from carrel.core.domain.account import Account
from carrel.core.domain.user import User
from carrel.lab.audit import AuditFilter
from carrel.lab.credentials import LocalSignIn
from carrel.lab.credentials.oidc import Client, OidcSignIn, Provider
from carrel.lab.credentials.oidc.fetch import Fetch
from carrel.lab.credentials.passwords import Hashes
from carrel.lab.portal import Portal
from carrel.lab.portal.local import LocalPages
from carrel.lab.portal.oidc import BACK, BEGIN, OidcPage

INCIDENT = re.compile(r"\b[0-9a-f]{12}\b")


@dataclass
class OidcSite(Site):
    oidc: OidcSignIn

    @property
    def back(self) -> str:
        return f"{self.url}{BACK}"

    def begin(self, http: httpx.Client, after: str = "/") -> dict[str, str]:
        """What the button sends the browser to the provider with."""
        answer = http.get(f"{self.url}{BEGIN}", params={"after": after}, follow_redirects=False)
        assert answer.status_code == 303, answer.text
        return {name: values[0] for name, values in parse_qs(urlsplit(answer.headers["location"]).query).items()}

    def arrive(self, http: httpx.Client, login: str, after: str = "/", **form: str) -> str:
        """Sign in at the real provider; the address that it sends the browser back to, which is not followed yet."""
        page = http.get(f"{self.url}{BEGIN}", params={"after": after})
        assert "Institute" in page.text, page.text
        answer = http.post(page.url, data={"login": login, **form}, follow_redirects=False)
        while not (place := urljoin(str(answer.url), answer.headers["location"])).startswith(self.back):
            answer = http.get(place, follow_redirects=False)
            assert answer.status_code in (302, 303), answer.text
        return place

    def sign_in(self, http: httpx.Client, login: str, after: str = "/", **form: str) -> httpx.Response:
        return http.get(self.arrive(http, login, after, **form))

    def who(self, login: str, **form: str) -> tuple[int, str | None, str]:
        """Status, who is signed in, and the text, after a sign-in in a browser of its own."""
        with self.browser() as http:
            answer = self.sign_in(http, login, **form)
            return answer.status_code, self.signed_in(http), answer.text

    def signed_in(self, http: httpx.Client) -> str | None:
        """Who the lab takes the browser for; None: for nobody."""
        token = self.portal.sessions.token(http.cookies.get(self.portal.sessions.cookie(secure=False)) or "")
        if http.get(f"{self.url}/notebooks").status_code != 200:
            return None
        assert token is not None
        return self.rig.lab.authenticate(token).user.subject

    def lines(self) -> list[dict[str, Any]]:
        return list(self.rig.audit.read(AuditFilter(), limit=1000, newest=True))

    def last(self) -> dict[str, Any]:
        return next(line for line in reversed(self.lines()) if line.get("resource") == BACK)

    def add(self, name: str) -> None:
        self.rig.lab.people.add(User(subject=name, name=name), now=1.0)

    def user(self, name: str) -> User:
        found = self.rig.lab.people.get(name)
        assert found is not None
        return found

    def as_admin(self, method: str, path: str) -> httpx.Response:
        with client(self.url, self.rig.headers("root")) as http:
            return http.request(method, f"/api/v1/users{path}", json=None if method == "DELETE" else {}).raise_for_status()


@contextmanager
def an_oidc_site(
    tmp_path: Path, issuer: str, program: Client, *, patience: float = 60.0, everybody: bool = False, **more: Any
) -> Iterator[OidcSite]:
    clock = Clock()
    made: list[tuple[Portal, OidcSignIn]] = []

    def pages(rig: Rig) -> Portal:
        oidc = OidcSignIn(
            provider=Provider(issuer, program, monotonic=clock, fetch=Fetch(patience=patience)),
            name="the Institute",
            redirect_uri="http://127.0.0.1/not yet known",
            key=rig.lab.secret,
            identities=rig.store.identities,
            people=rig.lab.people,
            clock=clock,
            monotonic=clock,
            enroll=rig.lab.users.enroll if everybody else None,
            **more,
        )
        local = LocalSignIn(
            store=rig.store.credentials,
            people=rig.lab.people,
            tokens=rig.lab.tokens,
            clock=clock,
            monotonic=clock,
            hashes=Hashes(hasher=QUICK),
        )
        pages = LocalPages(local)
        made.append((Portal(clock=clock, first=[OidcPage(oidc)], local=pages), oidc))
        return made[0][0]

    with a_lab(tmp_path / "lab", pages=pages, clock=clock, poll_interval=1, stranger_rate=0) as rig, serve(rig.app) as url:
        object.__setattr__(made[0][1], "redirect_uri", f"{url}{BACK}")  # the server has chosen its port
        yield OidcSite(rig, made[0][0], clock, url, made[0][1])


def open_accounts(site: OidcSite, *names: str) -> None:
    """Research accounts of the lab that admit nobody by name but root."""
    from dataclasses import replace

    accounts = {name: Account(name=name, users={"root": 1}) for name in names}
    site.rig.written.append(replace(site.rig.written[-1], accounts=accounts))
    site.rig.lab.administration.apply_rules()
