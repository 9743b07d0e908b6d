from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The rig of the gateway's tests, with the pages and their browsers.
sys.path.insert(0, str(Path(__file__).parents[1] / "gateway"))
sys.path.insert(0, str(Path(__file__).parents[1] / "portal"))
sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from gateway_lab import a_lab, serve
from portal_site import Clock, Site

from carrel.portal import Portal


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
