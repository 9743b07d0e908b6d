"""Who is on which device, asked through the real nvidia-ml-py in a process that has the fake driver."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from suspension_rig import MIB, SIZE, fake_driver

from carrel.node.devices.driver import driver_facts
from carrel.node.devices.processes import DeviceProcesses
from carrel.testing.waiting import PATIENCE
from support.fake_driver import FakeDriver, FakeGpu, start_specimen

PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v3"


def ask(driver: FakeDriver, program: str) -> Any:
    prelude = "import dataclasses, json, sys\nfrom carrel.node.devices.processes import DeviceProcesses\n"
    prelude += "from carrel.node.devices.driver import driver_facts\n"
    words = [sys.executable, "-c", f"{prelude}\nprint(json.dumps({program}))"]
    done = subprocess.run(words, env=driver.environment(), capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_processes_and_memory_of_every_device(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver", gpus=2, context=8 * MIB)
    first, second = start_specimen(driver, device=driver.uuids[0]), start_specimen(driver, device=driver.uuids[0])
    size = 8 * MIB + SIZE
    assert ask(driver, "dataclasses.asdict(DeviceProcesses().read())") == {
        "processes": {driver.uuids[0]: {str(first.target.pid): size, str(second.target.pid): size}, driver.uuids[1]: {}},
        "used": {driver.uuids[0]: 2 * size, driver.uuids[1]: 0},
        "unread": {},
        "busy": dict.fromkeys(driver.uuids, 0.0),
    }
    assert ask(driver, f"(lambda d: (d.read(), d.name({first.target.pid}), d.name(0)))(DeviceProcesses())[1:]") == [
        sys.executable,
        "",
    ]
    for specimen in (first, second):
        specimen.close()


def test_a_device_that_does_not_answer_is_unread_and_asked_again(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver", gpus=2)
    driver.inject(PROCESSES, "error", 15)
    read = "(lambda d: [(r.processes, r.unread) for r in (d.read(), d.read())])(DeviceProcesses())"
    assert ask(driver, read) == [
        [{driver.uuids[1]: {}}, {driver.uuids[0]: "GPU is lost"}],
        [{uuid: {} for uuid in driver.uuids}, {}],
    ]
    driver.inject(PROCESSES, "error", 15, count=2)
    unread, again = ask(driver, read)
    assert set(unread[1]) == set(driver.uuids)
    assert again == [{uuid: {} for uuid in driver.uuids}, {}]


def test_only_the_devices_that_are_named_and_an_unknown_one_is_unread(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver", gpus=2)
    found = ask(driver, f"dataclasses.asdict(DeviceProcesses(['{driver.uuids[1]}', 'GPU-none', 'SIM-lab-0']).read())")
    assert found == {
        "processes": {driver.uuids[1]: {}},
        "used": {driver.uuids[1]: 0},
        "unread": {"GPU-none": "Not Found"},
        "busy": {driver.uuids[1]: 0.0},
    }


def test_facts_of_the_driver(tmp_path: Path) -> None:
    gpu = FakeGpu(uuid="GPU-00000000-0000-4000-8000-000000000001", memory=64 * MIB, mig=True)
    driver = fake_driver(tmp_path / "driver", gpus=[gpu], driver="595.71.05")
    assert ask(driver, "dataclasses.asdict(driver_facts())") == {
        "version": "595.71.05",
        "gpus": [{"uuid": gpu.uuid, "name": "NVIDIA H200", "memory": 64 * MIB, "free": 64 * MIB, "mig": True}],
    }


def test_without_a_driver_nothing_is_shown_and_named_devices_are_unread() -> None:
    assert driver_facts() is None or driver_facts()  # a machine with GPUs has facts
    with DeviceProcesses(["GPU-none"]) as processes:
        now = processes.read()
        assert (now.processes, set(now.unread)) == ({}, {"GPU-none"})
        assert processes.name(1) == ""
