from __future__ import annotations

from pathlib import Path

import pytest

from support.small_lab import client, small_lab

__all__ = ["client", "lab"]

lab = small_lab(gpus=0)


@pytest.fixture
def flags(tmp_path: Path) -> Path:
    """Where trials say that they have begun, and are told to go on."""
    path = tmp_path / "flags"
    path.mkdir()
    return path
