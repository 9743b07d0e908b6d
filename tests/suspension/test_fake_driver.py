"""The fake driver behaves as the real one does where it matters, under the real bindings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from driver_programs import run
from suspension_rig import MIB, SIZE, fake_driver

from carrel.core.domain.errors import Unavailable
from support.fake_driver import FakeGpu, build, start_specimen


def test_devices_are_those_that_are_visible(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver", gpus=3, memory=64 * MIB)
    program = (
        'r = call("cuInit", 0); say(r, call("cuDeviceGetCount"), [call("cuDeviceGetUuid", i).bytes.hex() for i in range(2)])'
    )

    def raw(*indexes: int) -> list[str]:
        return [driver.uuids[index].removeprefix("GPU-").replace("-", "") for index in indexes]

    assert run(driver, program) == [None, 3, raw(0, 1)]
    assert run(driver, program, CUDA_VISIBLE_DEVICES=f"{driver.uuids[2]},{driver.uuids[0]}") == [None, 2, raw(2, 0)]
    assert run(driver, program, CUDA_VISIBLE_DEVICES="1,2") == [None, 2, raw(1, 2)]
    assert run(driver, 'say(call("cuInit", 0))', CUDA_VISIBLE_DEVICES="") == ["CUDA_ERROR_NO_DEVICE"]
    assert run(driver, 'say(call("cuInit", 0), call("cuDeviceGetCount"))', CUDA_VISIBLE_DEVICES="1,x,2") == [None, 1]


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


def test_memory_holds_what_was_written(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver")
    program = """
context()
here, there = call("cuMemAlloc", 4096), call("cuMemAlloc", 4096)
call("cuMemsetD8", here, 7, 4096)
call("cuMemcpyHtoD", int(here) + 8, b"carrel", 6)
call("cuMemcpyDtoD", there, here, 4096)
back = bytearray(16)
import ctypes
call("cuMemcpyDtoH", ctypes.addressof((ctypes.c_char * 16).from_buffer(back)), there, 16)
say(back.hex(), call("cuMemcpyHtoD", int(here) + 4090, b"carrel+", 7))
"""
    assert run(driver, program) == [(b"\7" * 8 + b"carrel" + b"\7" * 2).hex(), "CUDA_ERROR_INVALID_VALUE"]


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


def test_what_a_killed_process_had_is_free_again(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver")
    specimen = start_specimen(driver)
    assert len(list((driver.state / "device").iterdir())) == 1
    specimen.kill()
    assert run(driver, f'context(); say(call("cuMemAlloc", {1000 * MIB}) is not None, d.cuMemGetInfo()[2])') == [True, 1024 * MIB]
    assert not list((driver.state / "device").glob(f"{specimen.target.pid}-*"))


NVML = """
import pynvml as n
n.nvmlInit()
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
"""


def test_nvml_tells_the_same(tmp_path: Path) -> None:
    gpus = [
        FakeGpu(uuid=f"GPU-0000000{number}-0000-4000-8000-000000000000", memory=64 * MIB, name="NVIDIA T4") for number in (1, 2)
    ]
    driver = fake_driver(tmp_path / "driver", gpus=gpus, driver="590.1", context=8 * MIB)
    specimen = start_specimen(driver, device=gpus[1].uuid)
    program = (
        NVML
        + """
second = n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(handles[1]))
memory = n.nvmlDeviceGetMemoryInfo(second)
shown = [(p.pid, p.usedGpuMemory) for p in n.nvmlDeviceGetComputeRunningProcesses(second)]
say(n.nvmlSystemGetDriverVersion(), n.nvmlDeviceGetName(second), [memory.total, memory.used], shown,
    n.nvmlDeviceGetComputeRunningProcesses(handles[0]), n.nvmlDeviceGetUtilizationRates(second).gpu,
    n.nvmlSystemGetProcessName(shown[0][0]), n.nvmlDeviceGetMigMode(second))
"""
    )
    assert run(driver, program) == [
        "590.1",
        "NVIDIA T4",
        [64 * MIB, 8 * MIB + SIZE],
        [[specimen.target.pid, 8 * MIB + SIZE]],
        [],
        0,
        sys.executable,
        [0, 0],
    ]
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
