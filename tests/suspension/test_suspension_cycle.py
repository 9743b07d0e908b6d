"""State moves off the device and back, by value, and the driver's own lists agree."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from suspension_rig import MIB, SIZE, blocks, rig

from carrel.node.suspension import DriverState, Ending, Target, start_of


@pytest.mark.gate
def test_state_leaves_the_device_and_comes_back_as_it_was(tmp_path: Path) -> None:
    with rig(tmp_path) as r:
        specimen = r.specimen()
        specimen.order("step")
        there = (specimen.target.pid, r.driver.uuids[0])
        assert r.on_devices() == {there}

        away = r.suspend(specimen)
        assert (away.ending, away.message, away.cordon) == (Ending.DONE, "", False)
        assert away.bytes >= SIZE
        assert away.seconds > 0
        assert r.state(specimen) is DriverState.CHECKPOINTED
        use = r.suspender.use()
        assert use.processes == {r.driver.uuids[0]: {}}
        assert use.used == {r.driver.uuids[0]: 0}

        back = r.resume(specimen)
        assert (back.ending, back.message) == (Ending.DONE, "")
        assert back.bytes >= SIZE
        assert r.state(specimen) is DriverState.RUNNING
        assert r.on_devices() == {there}
        assert specimen.order("step") == {"count": 2, "running": False}
        assert specimen.order("check") == {"same": True, "count": 2}


def test_a_computation_is_suspended_in_mid_flight_and_goes_on(tmp_path: Path) -> None:
    with rig(tmp_path) as r:
        specimen = r.specimen()
        specimen.order("run", times=10**9)
        assert r.suspend(specimen).ending is Ending.DONE
        stopped = specimen.order("count")
        assert stopped["running"]
        assert specimen.order("count") == stopped
        # Its own calls wait; it answers what needs no device, and the count stands still.
        assert blocks(lambda: specimen.order("check", 0.3))
        assert r.resume(specimen).ending is Ending.DONE
        assert specimen.finish()["same"]
        specimen.order("stop")
        checked = specimen.order("check")
        assert checked["same"]
        assert checked["count"] > stopped["count"]


def test_two_processes_take_turns_on_a_device_that_holds_one(tmp_path: Path) -> None:
    with rig(tmp_path, memory=20 * MIB, context=8 * MIB) as r:
        first = r.specimen()
        assert r.suspend(first).ending is Ending.DONE
        second = r.specimen()
        for turn in range(3):
            assert r.suspend(second).ending is Ending.DONE
            assert r.resume(first).ending is Ending.DONE
            assert first.order("step")["count"] == turn + 1
            assert r.suspend(first).ending is Ending.DONE
            assert r.resume(second).ending is Ending.DONE
            assert second.order("step")["count"] == turn + 1
        assert r.on_devices() == {(second.target.pid, r.driver.uuids[0])}


def test_a_kernel_and_its_children_on_two_devices_move_together(tmp_path: Path) -> None:
    with rig(tmp_path, gpus=2) as r:
        kernel, child = r.specimen(0), r.specimen(1)
        moved = r.suspend(kernel, child)
        assert (moved.ending, moved.bytes) == (Ending.DONE, 2 * (SIZE + 8 * MIB))
        assert r.on_devices() == set()
        assert r.resume(kernel, child).ending is Ending.DONE
        assert kernel.order("check")["same"]
        assert child.order("check")["same"]


def test_children_without_cuda_or_already_gone_take_no_part(tmp_path: Path) -> None:
    with rig(tmp_path) as r:
        kernel = r.specimen()
        with subprocess.Popen(["sleep", "60"]) as sleeper:
            plain = Target(pid=sleeper.pid, start=start_of(sleeper.pid) or 0)
            gone = Target(pid=sleeper.pid, start=plain.start + 1)
            assert r.suspender.state(plain) is DriverState.NO_CUDA
            targets, devices = [kernel.target, plain, gone], [r.driver.uuids[0]]
            assert r.suspender.suspend(targets, devices=devices, size=SIZE).ending is Ending.DONE
            assert r.suspender.resume(targets, devices=devices, size=SIZE).ending is Ending.DONE
            sleeper.kill()
        assert kernel.order("check")["same"]


def test_helpers_see_every_device_whatever_our_own_process_may_use(tmp_path: Path) -> None:
    with rig(tmp_path, gpus=2) as r:
        specimen = r.specimen(1)
        narrow = r.driver.environment() | {"CUDA_VISIBLE_DEVICES": r.driver.uuids[0]}
        other = type(r.suspender)(environment=narrow)
        r.stack.callback(other.close)
        assert r.suspend(specimen, suspender=other).ending is Ending.DONE
        assert other.use().processes == {uuid: {} for uuid in r.driver.uuids}


def test_one_helper_serves_many_operations_and_ends_with_the_suspender(tmp_path: Path) -> None:
    with rig(tmp_path) as r:
        specimen = r.specimen()
        for _ in range(3):
            r.suspend(specimen)
            r.resume(specimen)
        idle = r.suspender._pool._idle
        assert len(idle) == 1
        helper = idle[0].conversation
        r.suspender.close()
        assert helper.ended()


def test_a_slow_move_holds_up_nobody_else(tmp_path: Path) -> None:
    with rig(tmp_path, gpus=2) as r, ThreadPoolExecutor() as threads:
        slow, quick = r.specimen(0), r.specimen(1)
        r.driver.inject("cuCheckpointProcessCheckpoint", "rate", 6 * MIB, pid=slow.target.pid)
        away = threads.submit(r.suspend, slow)
        turns = 0
        while not away.done():
            assert r.suspend(quick).ending is Ending.DONE
            assert r.resume(quick).ending is Ending.DONE
            assert (quick.target.pid, r.driver.uuids[1]) in r.on_devices()
            turns += 1
        assert away.result().ending is Ending.DONE
        assert turns >= 3
        assert r.resume(slow).ending is Ending.DONE
        assert slow.order("check")["same"]
