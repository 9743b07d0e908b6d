"""A GPU with a fault is drained, what failed on it is tried elsewhere, and its users read why: a real lab on the fake driver."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.testing.waiting import wait_until
from carrel.wire.v1 import DeviceView, JobDetail, JobView, ResourceRequest
from support.fake_driver import build, find_compiler
from support.small_lab import MortalLab

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="the fake driver is compiled from C")

#: Waits for its word; its first attempt fails then, as if its GPU were gone.
TASK = """\
until [ -e "$HERE/go" ]; do sleep 0.05; done
[ -e "$HERE/failed" ] && exit 0
touch "$HERE/failed"; exit 3
"""


class Lab(MortalLab):
    """A lab on a machine with two fake GPUs."""

    def __init__(self, place: Path) -> None:
        self.driver = build(place / "driver", gpus=2)
        self.place = place
        environment = self.driver.environment()
        variables = {name: environment[name] for name in ("LD_LIBRARY_PATH", "CARREL_FAKE_DRIVER")}
        super().__init__(place / "lab", "--cpus", "8", variables=variables, python=[sys.executable])

    def devices(self) -> list[DeviceView]:
        (node,) = self.client.nodes()
        return node.devices

    def drained(self) -> list[str | None]:
        """Why, by position."""
        return [device.drained for device in self.devices()]

    def until_drained(self, *reasons: str | None) -> None:
        wait_until(lambda: self.drained() == list(reasons), self.drained)

    def task(self) -> JobView:
        return self.submit(TASK, resources=ResourceRequest(gpus=1, memory="64M"), variables={"HERE": str(self.place)})

    def runs(self, job: JobView) -> JobDetail:
        return self.until(job.id, lambda one: one.state == "RUNNING")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    yield lab
    lab.stop()


@pytest.mark.gate
def test_a_gpu_with_a_fault_is_drained_and_what_failed_on_it_is_tried_elsewhere(lab: Lab) -> None:
    job = lab.runs(lab.task())
    at = lab.driver.uuids.index(job.devices[0])
    why = "Xid 79: it has fallen off the bus"
    lab.driver.xid(31, device=1 - at)  # a program's own error drains nothing
    lab.driver.xid(79, device=at)
    lab.until_drained(*((why, None) if at == 0 else (None, why)))
    wait_until(lambda: lab.client.gpus().devices[at].withheld == f"drained: {why}", lambda: lab.client.gpus())
    assert not any(device.unknown for device in lab.devices())
    (lab.place / "go").touch()
    done = lab.ended(job.id)
    assert (done.state, done.attempt, done.devices) == ("COMPLETED", 2, [lab.driver.uuids[1 - at]])
    told = [str(event.data.get("message")) for event in lab.client.events(job.id)]
    assert f"GPU {at} has a fault and is drained: {why}. An attempt that fails on it is tried elsewhere." in told
    again = f"A GPU that it had is drained: {why}. It is tried elsewhere, at no cost of a retry."
    assert any(message.startswith("Attempt 1 ended FAILED: ") and message.endswith(again) for message in told)
    (line,) = lab.client.audit(action="drain a GPU").lines
    assert (line["resource"], line["rule"]) == (lab.driver.uuids[at], "device health")


def test_it_stays_drained_until_an_administrator_returns_it(lab: Lab) -> None:
    pending = "rows of its memory are to be remapped at the next reset"
    lab.driver.inject("nvmlDeviceGetRemappedRows", "pending", 1, count=-1)
    lab.until_drained(None, pending)
    lab.driver.clear()
    lab.kill_and_restart()
    assert lab.drained() == [None, pending]
    (node,) = lab.client.nodes()
    assert lab.client.undrain(f"{node.name}:1")
    assert lab.drained() == [None, None]
    assert not lab.client.undrain(lab.driver.uuids[1])
    # What is new is drained again, and who waits for that GPU reads why.
    lab.driver.xid(48, device=1)
    lab.driver.xid(95, device=0)
    lab.until_drained("Xid 95: uncorrectable memory error, not contained", "Xid 48: uncorrectable memory error (double bit ECC)")
    waits = lab.until(lab.task().id, lambda one: one.reason == "ReqNodeNotAvail")
    assert f"GPU 0 of {node.name} (Xid 95: uncorrectable memory error, not contained)" in waits.message


def test_a_gpu_is_drained_by_hand(lab: Lab) -> None:
    (node,) = lab.client.nodes()
    assert lab.client.drain(f"{node.name}:0", "new fan")
    assert [(device.state, device.drained) for device in lab.devices()] == [("drained", "new fan"), ("free", None)]
    assert lab.runs(lab.task()).devices == [lab.driver.uuids[1]]
    assert lab.client.undrain(lab.driver.uuids[0])
    assert lab.drained() == [None, None]
