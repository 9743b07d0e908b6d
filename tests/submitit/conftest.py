from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import submitted
from submitted import Opens

from carrel import Client, submitit
from support.small_lab import client, small_lab

__all__ = ["client", "lab"]

lab = small_lab(gpus=2)


@pytest.fixture
def opens(client: Client, tmp_path: Path) -> Opens:
    """Makes executors whose jobs need no package."""

    def opens(**more: Any) -> submitit.AutoExecutor:
        asked = {"requirements": [], "modules": [submitted], "client": client, **more}
        executor = submitit.AutoExecutor(tmp_path / "folder", **asked)
        executor.update_parameters(mem_gb=0.25, cpus_per_task=1)
        return executor

    return opens
