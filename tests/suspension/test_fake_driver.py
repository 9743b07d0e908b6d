"""The fake driver behaves as the real one does where it matters, under the real bindings."""

from __future__ import annotations

from pathlib import Path

import pytest
from driver_programs import run
from suspension_rig import MIB, fake_driver

from carrel.core.domain.errors import Unavailable
from support.fake_driver import build, start_specimen


def test_memory_runs_out_and_is_given_back(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver", memory=64 * MIB, context=8 * MIB)
    program = f"""
context()
first = call("cuMemAlloc", {40 * MIB})
full = call("cuMemAlloc", {40 * MIB})
held = d.cuMemGetInfo()[1]
call("cuMemFree", first)
again = call("cuMemAlloc", {40 * MIB})
say(full, held, isinstance(again, str), call("cuMemFree", 4711), call("cuMemAlloc", 0))
"""
    assert run(driver, program) == [
        "CUDA_ERROR_OUT_OF_MEMORY",
        16 * MIB,
        False,
        "CUDA_ERROR_INVALID_VALUE",
        "CUDA_ERROR_INVALID_VALUE",
    ]


def test_a_forked_child_has_no_cuda_until_it_asks_for_it(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver")
    program = """
context()
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, json.dumps([call("cuMemAlloc", 4096), call("cuCheckpointProcessGetRestoreThreadId", os.getpid())]).encode())
    os._exit(0)
os.wait()
say(*json.loads(os.read(read, 4096)))
"""
    assert run(driver, program) == ["CUDA_ERROR_NOT_INITIALIZED", "CUDA_ERROR_INVALID_VALUE"]


def test_calls_in_the_wrong_order_are_illegal(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver")
    specimen = start_specimen(driver)
    pid = specimen.target.pid
    program = f"""
call("cuInit", 0)
state = lambda: int(call("cuCheckpointProcessGetState", {pid}))
names = "Checkpoint Restore Unlock Lock Lock Restore Checkpoint Unlock Checkpoint Restore Unlock".split()
say([[name, call("cuCheckpointProcess" + name, {pid}, None), state()] for name in names])
"""
    illegal = "CUDA_ERROR_ILLEGAL_STATE"
    assert run(driver, program) == [
        [
            ["Checkpoint", illegal, 0],
            ["Restore", illegal, 0],
            ["Unlock", illegal, 0],
            ["Lock", None, 1],
            ["Lock", illegal, 1],
            ["Restore", illegal, 1],
            ["Checkpoint", None, 2],
            ["Unlock", illegal, 2],
            ["Checkpoint", illegal, 2],
            ["Restore", None, 1],
            ["Unlock", None, 0],
        ]
    ]
    assert specimen.order("check")["same"]
    specimen.close()


def test_a_restore_needs_cuda_in_the_caller(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver")
    specimen = start_specimen(driver)
    program = f"""
pid = {specimen.target.pid}
say([call("cuCheckpointProcess" + name, pid, None) for name in ("Lock", "Checkpoint", "Restore")], call("cuInit", 0),
    [call("cuCheckpointProcess" + name, pid, None) for name in ("Restore", "Unlock")])
"""
    assert run(driver, program) == [[None, None, "CUDA_ERROR_NOT_INITIALIZED"], None, [None, None]]
    specimen.close()


def test_faults_happen_as_often_as_asked_and_to_whom(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver")
    driver.inject("cuMemAlloc", "error", 2, count=2)
    driver.inject("cuMemAlloc", "error", 1, pid=1)
    driver.inject("cuCtxSynchronize", "error", 999, count=-1)
    program = """
context()
say([isinstance(call("cuMemAlloc", 64), str) for _ in range(3)], [call("cuCtxSynchronize") for _ in range(3)])
"""
    assert run(driver, program) == [[True, True, False], ["CUDA_ERROR_UNKNOWN"] * 3]
    assert driver.pending() == ["cuMemAlloc 1 1 error 1", "cuCtxSynchronize 0 -1 error 999"]
    driver.clear()
    assert driver.pending() == []


def test_no_compiler_is_said_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(Unavailable, match="neither gcc nor cc.*apt-get install gcc"):
        build(tmp_path / "driver")


def test_without_its_variable_there_is_no_driver(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver")
    assert run(driver, 'say(call("cuInit", 0))', CARREL_FAKE_DRIVER="") == ["CUDA_ERROR_NO_DEVICE"]
