"""What the command of a task loads before its own libraries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from carrel.core.domain.launch import Launch
from carrel.core.domain.node import Device
from carrel.node.runner.variables import Places, command_variables
from carrel.testing.builders import LabHome, make_launch


def variables(launch: Launch, **more: str) -> dict[str, str]:
    return command_variables(more, launch, "a token", None, Places(outputs=Path("/outputs"), temporary=Path("/tmp")))


@pytest.mark.gate
def test_a_task_that_gives_way_to_cells_loads_the_library(tmp_path: Path) -> None:
    launch = make_launch(LabHome(tmp_path), "true")
    paths = replace(launch.paths, broker="/run/broker.sock", residency="/lib/ours.so")
    task = replace(launch, devices=(Device(uuid="GPU-1", index=0, type="h200", name="H200", memory=1),), lends=True, paths=paths)
    assert variables(task)["LD_PRELOAD"] == "/lib/ours.so"
    assert variables(task, LD_PRELOAD="/lib/theirs.so")["LD_PRELOAD"] == "/lib/ours.so:/lib/theirs.so"
    assert variables(task)["CARREL_BROKER"] == "/run/broker.sock"
    assert "CARREL_ATTEMPT_DIR" not in variables(task)
    for other in (
        replace(task, lends=False),
        replace(task, devices=()),
        replace(task, paths=replace(paths, residency="")),
        replace(task, paths=replace(paths, broker="")),
    ):
        assert "LD_PRELOAD" not in variables(other)
