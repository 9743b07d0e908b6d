"""A program like a framework's on the fake driver, and what goes wrong for it when it is told to."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from suspension_rig import MIB, await_fault, fake_driver

from support.fake_driver import FakeDriver, start_worker


def trained(driver: FakeDriver, kind: str, lookup: Literal["new", "old", "names"]) -> str:
    with start_worker(driver, lookup=lookup) as worker:
        worker.order(f"alloc {kind} 3 65540")
        worker.order("step 3")
        worker.order("capture 2")
        worker.order("replay 2")
        return worker.order("digest")


def test_the_same_training_ends_the_same_however_memory_and_calls_are_got(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver")
    ends = {trained(driver, kind, "new") for kind in ("plain", "mapped", "expandable", "pooled")}
    ends |= {trained(driver, "mapped", "old"), trained(driver, "plain", "names")}
    assert len(ends) == 1
    assert driver.broken() == []


def test_a_capture_forbids_what_waits(tmp_path: Path) -> None:
    with start_worker(fake_driver(tmp_path / "driver")) as worker:
        worker.order("hold")
        with pytest.raises(RuntimeError, match="error 900 cuMemAlloc"):
            worker.order("alloc plain 1 4096")
        with pytest.raises(RuntimeError, match="error 901 cuStreamEndCapture"):
            worker.order("drop")
        worker.order("alloc mapped 1 4096")
        with pytest.raises(RuntimeError, match="error 1 cuIpcGetMemHandle"):
            worker.order("share 0")


def test_a_process_killed_in_the_middle_of_a_copy_leaves_nothing(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver", memory=64 * MIB, context=8 * MIB)
    with start_worker(driver) as worker:
        worker.order(f"alloc expandable 1 {8 * MIB}")
        driver.inject("cuMemcpyDtoHAsync", "stall", 5 * MIB, pid=worker.pid)
        worker.begin("digest")
        await_fault(driver, "cuMemcpyDtoHAsync")
        worker.kill()
    with start_worker(driver) as another:
        assert another.order("room") == f"{56 * MIB} {64 * MIB}"
    assert list((driver.state / "device").iterdir()) == []


def test_a_copy_that_fails_in_its_middle_ends_the_context(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver")
    with start_worker(driver) as worker:
        worker.order(f"alloc mapped 2 {2 * MIB}")
        driver.inject("cuMemcpyDtoHAsync", "cut", 4096)
        with pytest.raises(RuntimeError, match="error 999 cuMemcpyDtoHAsync"):
            worker.order("digest")
        with pytest.raises(RuntimeError, match="error 999 cuLaunchKernel"):
            worker.order("step 1")
        assert driver.broken() == [(worker.pid, 999, "cuMemcpyDtoHAsync")]
