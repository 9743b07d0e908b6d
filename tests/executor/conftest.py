from __future__ import annotations

from pathlib import Path

import pytest

from support.small_lab import client, small_lab

__all__ = ["client", "lab"]

lab = small_lab(gpus=2)


@pytest.fixture
def flags(tmp_path: Path) -> Path:
    """Where calls say that they have begun, and are told to go on."""
    return tmp_path
