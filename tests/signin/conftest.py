from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

# The rig of the gateway's tests, with the pages and their browsers.
sys.path.insert(0, str(Path(__file__).parents[1] / "gateway"))
sys.path.insert(0, str(Path(__file__).parents[1] / "portal"))
sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from gateway_lab import a_lab, serve
from oidc_site import OidcSite, an_oidc_site
from portal_site import Clock, Site
from real_provider import RealProvider, a_provider

from carrel.lab.credentials.oidc import Client
from carrel.lab.portal import Portal

MakeSite = Callable[..., OidcSite]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A lab whose clock a test moves; programs that wait may ask each second."""
    clock = Clock()
    portal = Portal(clock=clock)
    with (
        a_lab(tmp_path / "lab", pages=lambda _rig: portal, clock=clock, poll_interval=1, stranger_rate=0) as rig,
        serve(rig.app) as url,
    ):
        yield Site(rig, portal, clock, url)


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealProvider]:
    base = tmp_path_factory.getbasetemp()
    with a_provider(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) as provider:
        yield provider


@pytest.fixture
def provider(started: RealProvider) -> Iterator[RealProvider]:
    yield started
    started.press("shift", seconds=0)
    for login in ("ada", "bob", "grace"):
        started.person(login, email_verified=login != "grace")


@pytest.fixture
def make_site(provider: RealProvider, tmp_path: Path) -> Iterator[MakeSite]:
    with ExitStack() as stack:

        def make(program: Client | None = None, *, userinfo: bool = True, **more: Any) -> OidcSite:
            site = stack.enter_context(an_oidc_site(tmp_path, provider.issuer, program or provider.client(), **more))
            provider.press("choose", redirect_uris=[site.back], userinfo=userinfo)
            return site

        yield make
