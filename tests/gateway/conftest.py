from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from gateway_lab import Rig, a_lab, client, serve


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with a_lab(tmp_path) as rig:
        yield rig


@pytest.fixture
def url(rig: Rig) -> Iterator[str]:
    with serve(rig.app) as url:
        yield url


@pytest.fixture
def ada(rig: Rig, url: str) -> Iterator[httpx.Client]:
    with client(url, rig.headers("ada")) as http:
        yield http


@pytest.fixture
def bob(rig: Rig, url: str) -> Iterator[httpx.Client]:
    with client(url, rig.headers("bob")) as http:
        yield http


@pytest.fixture
def root(rig: Rig, url: str) -> Iterator[httpx.Client]:
    with client(url, rig.headers("root")) as http:
        yield http


@pytest.fixture
def nobody(url: str) -> Iterator[httpx.Client]:
    with client(url) as http:
        yield http
