from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The rig of the gateway's tests serves the pages too.
sys.path.insert(0, str(Path(__file__).parents[1] / "gateway"))

from gateway_lab import a_lab, serve
from local_site import LocalSite, a_local_site
from portal_site import Clock, Site

from carrel.lab.portal import Portal


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    clock = Clock()
    portal = Portal(clock=clock)
    with a_lab(tmp_path, pages=lambda _rig: portal, clock=clock) as rig, serve(rig.app) as url:
        yield Site(rig, portal, clock, url)


@pytest.fixture
def local_site(tmp_path: Path) -> Iterator[LocalSite]:
    with a_local_site(tmp_path) as site:
        yield site
