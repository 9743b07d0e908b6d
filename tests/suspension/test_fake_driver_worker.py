"""A program like a framework's on the fake driver, and what goes wrong for it when it is told to."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from suspension_rig import MIB, await_fault, fake_driver

from support.fake_driver import FakeDriver, start_worker

#: Of a buffer: no whole number of pages, so that only its own bytes count.
SIZE = 3 * MIB // 2 + 4


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


def test_it_gives_back_what_it_has_and_keeps_addresses(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver", memory=64 * MIB, context=8 * MIB)
    with start_worker(driver) as worker:
        worker.order(f"alloc expandable 2 {5 * MIB}")
        worker.order(f"alloc plain 1 {SIZE}")
        before = worker.order("where")
        worker.order("train 5")
        worker.order("join")
        assert worker.order("trained") == "5"
        assert worker.order("where") == before
        assert worker.order("room") == f"{64 * MIB - 8 * MIB - 12 * MIB - SIZE} {64 * MIB}"
        worker.order("free -1")
        assert worker.order("room") == f"{56 * MIB} {64 * MIB}"


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


@pytest.mark.parametrize(
    ("call", "code", "after"),
    [
        ("cuMemAddressReserve", 2, 2),
        ("cuMemCreate", 2, 2),
        ("cuMemMap", 1, 2),
        ("cuMemSetAccess", 2, 2),
        ("cuMemcpyHtoDAsync", 2, 2),
        ("cuStreamBeginCapture", 900, 0),
        ("cuStreamEndCapture", 901, 0),
        ("cuGraphInstantiate", 2, 0),
        ("cuGraphLaunch", 719, 1),
        ("cuLaunchKernel", 719, 5),
        ("cuMemcpyDtoHAsync", 719, 2),
        ("cuStreamSynchronize", 719, 3),
        ("cuMemUnmap", 1, 2),
        ("cuMemRelease", 1, 2),
        ("cuMemAddressFree", 1, 2),
    ],
)
def test_every_call_fails_at_the_time_that_was_asked_for(tmp_path: Path, call: str, code: int, after: int) -> None:
    driver = fake_driver(tmp_path / "driver")
    driver.inject(call, "error", code, after=after)
    with start_worker(driver) as worker:
        lines = [*["alloc mapped 1 4096"] * 3, "capture 1", "replay 2", "step 1", "digest", "free -1"]
        with pytest.raises(RuntimeError, match=f"error {code} {call}"):
            for line in lines:
                worker.order(line)
    assert driver.pending() == []


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


def test_memory_runs_out_for_mapped_memory_too(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver", memory=64 * MIB, context=8 * MIB)
    with start_worker(driver) as worker, start_worker(driver) as other:
        worker.order(f"alloc mapped 1 {40 * MIB}")
        with pytest.raises(RuntimeError, match="error 2 cuMemCreate"):
            other.order(f"alloc expandable 1 {20 * MIB}")
        worker.order("free 0")
        other.order(f"alloc mapped 1 {6 * MIB}")
        other.order("digest")
