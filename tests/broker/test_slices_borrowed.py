"""Cells borrow slices as they borrow GPUs: a GPU that is cut in seven, and a class of eight."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from kernels import FakeKernel

from carrel.core.domain.node import Device, short_type
from support.broker_process import BrokerProcess
from support.fake_driver import FakeGpu, build, find_compiler

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="the fake driver is compiled from C")

MIB = 1024**2
NAME = "NVIDIA H200 MIG 1g.18gb"


@pytest.mark.gate
def test_each_of_a_class_borrows_a_slice_and_one_waits_for_the_next(
    tmp_path: Path, brokers: Callable[..., BrokerProcess], kernels: Callable[..., FakeKernel]
) -> None:
    # To programs the driver shows slices, not the GPU that they are of.
    slices = [FakeGpu(uuid=f"MIG-{uuid.uuid4()}", memory=64 * MIB, name=NAME) for _ in range(7)]
    driver = build(tmp_path / "machine", gpus=slices)
    devices = tuple(
        Device(uuid=one.uuid, index=index, type=short_type(one.name), name=one.name, memory=one.memory)
        for index, one in enumerate(slices)
    )
    broker = brokers(devices=devices, environment=driver.environment())
    pupils = [kernels(broker, broker.session(number, owner=f"pupil{number}")) for number in range(1, 9)]
    # The driver moves no state out of a slice: a cell's GPU memory stays where it is.
    assert pupils[0].welcome["tier"] == "hold"
    lent = {}
    for pupil in pupils[:7]:
        lease = pupil.acquire()
        (device,) = lease["devices"]
        lent[device["uuid"]] = (pupil, lease)
        pupil.tell(f"!cuda {16 * MIB} {device['uuid']}")
        pupil.expect("cuda")
    assert set(lent) == {one.uuid for one in slices}
    last = pupils[7]
    last.queue()
    first, lease = next(iter(lent.values()))
    first.close()  # its pupil leaves
    assert last.expect("granted")["devices"][0]["uuid"] == lease["devices"][0]["uuid"]
    for pupil, _ in list(lent.values())[1:]:
        pupil.tell("!check")
        assert pupil.expect("check")["same"]
