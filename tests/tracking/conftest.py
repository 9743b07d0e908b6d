"""One real MLflow for all tests of a worker, behind the real proxy on a real port."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tracking_support import Tracking, authenticate, serve

from carrel.lab.tracking.proxy import TrackingProxy, by_token
from carrel.lab.tracking.server import TrackingServer


@pytest.fixture(scope="session")
def tracking_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrackingServer]:
    server = TrackingServer(tmp_path_factory.mktemp("tracking"), python=sys.executable)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def tracking(tracking_server: TrackingServer) -> Iterator[Tracking]:
    served = serve(TrackingProxy(tracking_server, identify=by_token(authenticate)))
    url = next(served)
    try:
        assert tracking_server.wait_ready(60), tracking_server.status
        yield Tracking(server=tracking_server, url=url)
    finally:
        served.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"
