"""A machine with the fake driver, and a broker that the test plays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from residency_rig import Rig, rig


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path) as made:
        yield made
