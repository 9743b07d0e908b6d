"""What NVML tells of the health of GPUs, through the fake driver behind the real pynvml."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carrel.node.devices.xids import FAULTS, fault_of
from support.fake_driver import FakeDriver, build, find_compiler

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="the fake driver is compiled from C")

#: Answers a word of its input with a line.
_LOOKS = """
import json, sys
from carrel.node.devices import DeviceHealth, discover
with DeviceHealth(discover()) as health:
    for word in sys.stdin:
        found = health.read() if word.strip() == "read" else health.heard(60.0)
        print(json.dumps(dict(found)), flush=True)
"""


class Watched:
    """A machine with two GPUs, and a process that watches them."""

    def __init__(self, driver: FakeDriver) -> None:
        self.driver = driver
        self.first, self.second = driver.uuids
        self.process = subprocess.Popen(
            [sys.executable, "-c", _LOOKS], env=driver.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, word: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(word, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def reads(self) -> list[str | None]:
        found = self.ask("read")
        return [found[self.first], found[self.second]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return build(tmp_path_factory.mktemp("driver") / "driver")


@pytest.fixture
def watched(tmp_path: Path, built: FakeDriver) -> Iterator[Watched]:
    machine = Watched(built.another(tmp_path / "machine", gpus=2))
    yield machine
    machine.process.communicate()


def test_an_xid_of_the_device_is_its_fault_and_one_of_a_program_is_none(watched: Watched) -> None:
    watched.driver.xid(31, device=0)
    assert watched.ask("hear") == {}
    watched.driver.xid(79, device=1)
    assert watched.ask("hear") == {watched.second: "Xid 79: it has fallen off the bus"}
    assert watched.reads() == ["", ""]


@pytest.mark.parametrize("xid", [13, 31, 43, 45])
def test_programs_cause_some_xids(xid: int) -> None:
    assert fault_of(xid) == ""


@pytest.mark.parametrize("xid", [48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 140])
def test_devices_cause_others(xid: int) -> None:
    assert fault_of(xid) == f"Xid {xid}: {FAULTS[xid]}"


def test_an_xid_that_is_in_no_list_is_not_taken_for_harmless() -> None:
    assert fault_of(999) == "Xid 999: an error that Carrel does not know"


@pytest.mark.parametrize(
    ("call", "action", "says"),
    [
        ("nvmlDeviceGetRemappedRows", "pending", "rows of its memory are to be remapped at the next reset"),
        ("nvmlDeviceGetRemappedRows", "failed", "a row of its memory could not be remapped"),
        ("nvmlDeviceGetFieldValues", "reset", "the driver wants a reset of the GPU"),
    ],
)
def test_what_stays_until_a_reset_is_read(watched: Watched, call: str, action: str, says: str) -> None:
    watched.driver.inject(call, action, 1, count=-1)
    assert watched.reads() == ["", says]
    watched.driver.clear()
    assert watched.reads() == ["", ""]


def test_uncorrected_errors_count_from_the_first_reading_on(watched: Watched) -> None:
    watched.reads()
    watched.driver.inject("nvmlDeviceGetTotalEccErrors", "errors", 0, count=-1)
    assert watched.reads() == ["1 uncorrected memory error (ECC)", ""]


def test_heat_counts_when_it_lasts(watched: Watched) -> None:
    watched.driver.inject("nvmlDeviceGetCurrentClocksEventReasons", "hot", 0, count=-1)
    assert [watched.reads()[0] for _ in range(3)] == ["", "", "it is too hot, and slows itself down"]
    watched.driver.clear()
    assert watched.reads() == ["", ""]


def test_a_device_of_which_the_driver_does_not_tell_is_not_well(watched: Watched) -> None:
    watched.driver.inject("nvmlDeviceGetRemappedRows", "error", 999, count=-1)
    assert watched.reads() == [None, None]
    watched.driver.clear()
    watched.driver.inject("nvmlDeviceGetRemappedRows", "error", 15, count=-1)
    assert watched.reads() == ["Xid 79: it has fallen off the bus"] * 2
