"""Each row of the table of failures: what the driver does, what is made of it, and what the process has lost - mostly nothing."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from suspension_rig import MIB, PATIENT, SIZE, await_fault, blocks, hung, once, rig

from carrel.node.suspension import CudaSuspender, DriverState, Ending, Target, start_of
from carrel.node.suspension.specimen import Specimen
from carrel.testing.waiting import PATIENCE

LOCK = "cuCheckpointProcessLock"
CHECKPOINT = "cuCheckpointProcessCheckpoint"
RESTORE = "cuCheckpointProcessRestore"
UNLOCK = "cuCheckpointProcessUnlock"
STATE = "cuCheckpointProcessGetState"
THREAD = "cuCheckpointProcessGetRestoreThreadId"
PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v3"


def runs_on(specimen: Specimen) -> bool:
    """Whether it computes with all its state."""
    specimen.order("step", PATIENCE)
    return bool(specimen.order("check", PATIENCE)["same"])


# Lock


@pytest.mark.gate
def test_work_that_does_not_stop_in_time_is_tried_again_and_in_the_end_left_alone(tmp_path: Path) -> None:
    with rig(tmp_path, suspender={"patience": 3}, limits={"lock": 0.3}) as r:
        specimen = r.specimen()
        assert r.state(specimen) is DriverState.RUNNING
        r.driver.inject("cuCtxSynchronize", "hang", -1, pid=specimen.target.pid)  # as a long kernel
        specimen.begin("step")
        await_fault(r.driver, "cuCtxSynchronize")
        endings = []
        for _ in range(3):
            moved = r.suspend(specimen)
            endings.append(moved.ending)
            assert r.state(specimen) is DriverState.RUNNING
            assert not moved.cordon
        assert endings == [Ending.RETRY, Ending.RETRY, Ending.UNSUSPENDABLE]
        assert "CUDA_ERROR_NOT_READY" in moved.message
        assert "3 times in a row" in moved.message
        r.driver.let_go()
        specimen.finish(PATIENCE)
        assert runs_on(specimen)
        assert r.suspend(specimen).ending is Ending.DONE  # nothing stands in the way any more


def test_success_forgets_the_failures_before_it(tmp_path: Path) -> None:
    with rig(tmp_path, suspender={"patience": 2}) as r:
        specimen = r.specimen()
        for _ in range(2):
            r.driver.inject(LOCK, "error", 600)
            assert r.suspend(specimen).ending is Ending.RETRY
            assert r.suspend(specimen).ending is Ending.DONE
            assert r.resume(specimen).ending is Ending.DONE


@pytest.mark.parametrize(
    ("call", "action", "argument", "managed", "ending", "words"),
    [
        (LOCK, "error", 801, 0, Ending.UNSUSPENDABLE, "CUDA_ERROR_NOT_SUPPORTED"),
        (None, "", 0, MIB, Ending.UNSUSPENDABLE, "CUDA_ERROR_NOT_SUPPORTED"),
        (THREAD, "error", 304, 0, Ending.UNSUSPENDABLE, "is on a device"),
        (PROCESSES, "error", 15, 0, Ending.RETRY, "nothing was begun"),
        (PROCESSES, "hang", -1, 0, Ending.RETRY, "nothing was begun"),
    ],
)
def test_what_the_driver_refuses_leaves_the_process_running(
    tmp_path: Path, call: str | None, action: str, argument: int, managed: int, ending: Ending, words: str
) -> None:
    with rig(tmp_path, limits=hung(PROCESSES)) as r:
        specimen = r.specimen(managed=managed)
        if call is not None:
            r.driver.inject(call, action, argument)
        moved = r.suspend(specimen)
        assert moved.ending is ending
        assert words in moved.message
        assert runs_on(specimen)
        if ending is Ending.RETRY:
            assert r.suspend(specimen).ending is Ending.DONE


def test_a_lock_that_kills_the_process_is_told_and_its_sibling_goes_on(tmp_path: Path) -> None:
    with rig(tmp_path) as r:
        kernel, child = r.specimen(), r.specimen()
        r.driver.inject(LOCK, "segv", pid=kernel.target.pid)
        moved = r.suspend(child, kernel)  # the main one is the other: this child only takes itself along
        assert moved.ending is Ending.DONE
        assert r.resume(child).ending is Ending.DONE
        assert runs_on(child)

        third = r.specimen()
        r.driver.inject(LOCK, "segv", pid=third.target.pid)
        moved = r.suspend(third, child)
        assert moved.ending is Ending.GONE
        assert "while it was being locked" in moved.message
        assert runs_on(child)


# Checkpoint


def test_a_checkpoint_that_fails_is_undone_for_all(tmp_path: Path) -> None:
    with rig(tmp_path) as r:
        kernel, child = r.specimen(), r.specimen()
        r.driver.inject(CHECKPOINT, "error", 999, pid=child.target.pid)  # the kernel is in host memory already
        moved = r.suspend(kernel, child)
        assert moved.ending is Ending.UNSUSPENDABLE
        assert "CUDA_ERROR_UNKNOWN" in moved.message
        assert "goes on" in moved.message
        assert runs_on(kernel)
        assert runs_on(child)


def test_nothing_is_checkpointed_before_all_are_locked(tmp_path: Path) -> None:
    with rig(tmp_path) as r:
        kernel, child = r.specimen(), r.specimen()
        r.driver.inject(LOCK, "error", 600, pid=child.target.pid)
        r.driver.inject(CHECKPOINT, "fail", pid=kernel.target.pid)
        assert r.suspend(kernel, child).ending is Ending.RETRY
        assert len(r.driver.pending()) == 1  # no checkpoint was asked for
        assert runs_on(kernel)
        assert runs_on(child)


def test_a_driver_in_state_failed_loses_the_process(tmp_path: Path) -> None:
    with rig(tmp_path) as r:
        specimen = r.specimen()
        r.driver.inject(CHECKPOINT, "fail")
        moved = r.suspend(specimen)
        assert (moved.ending, moved.cordon) == (Ending.LOST, False)
        assert r.state(specimen) is DriverState.FAILED
        assert r.suspend(specimen).ending is Ending.LOST
        assert r.resume(specimen).ending is Ending.LOST


def test_a_process_that_is_killed_while_it_is_copied(tmp_path: Path) -> None:
    """As when host memory runs out and the kernel ends it."""
    with rig(tmp_path) as r:
        specimen, other = r.specimen(), r.specimen()
        r.driver.inject(CHECKPOINT, "rate", 4 * MIB, pid=specimen.target.pid)
        with once(r.driver, CHECKPOINT, specimen.kill):
            moved = r.suspend(specimen, other)
        assert moved.ending is Ending.GONE
        assert runs_on(other)


def test_the_deadline_of_a_checkpoint_grows_with_its_size(tmp_path: Path) -> None:
    with rig(tmp_path) as r:
        specimen = r.specimen()
        slow = replace(PATIENT, move=0.2, rate=4 * MIB / 60)
        patient = r.another_suspender(deadlines=slow)
        r.driver.inject(CHECKPOINT, "rate", 8 * MIB)
        moved = r.suspend(specimen, suspender=patient)
        assert moved.ending is Ending.DONE
        assert moved.seconds > 0.4


# After the checkpoint


def test_a_device_that_goes_on_showing_the_process_is_not_lent_on(tmp_path: Path) -> None:
    with rig(tmp_path, limits={"verify": 0.5}) as r:
        specimen = r.specimen()
        r.driver.inject(CHECKPOINT, "ghost", -1)
        moved = r.suspend(specimen)
        assert moved.ending is Ending.UNVERIFIED
        assert f"{r.driver.uuids[0]} still shows process {specimen.target.pid}" in moved.message
        assert r.state(specimen) is DriverState.CHECKPOINTED
        assert r.resume(specimen).ending is Ending.DONE
        assert runs_on(specimen)


def test_a_device_may_take_a_moment(tmp_path: Path) -> None:
    with rig(tmp_path) as r:
        specimen = r.specimen()
        r.driver.inject(CHECKPOINT, "ghost", 0.2)
        moved = r.suspend(specimen)
        assert moved.ending is Ending.DONE
        assert moved.seconds >= 0.2


def test_where_nvml_shows_no_processes_the_memory_in_use_must_fall(tmp_path: Path) -> None:
    with rig(tmp_path, limits={"verify": 0.5}) as r:
        specimen = r.specimen()
        r.driver.inject(PROCESSES, "blind", count=-1)
        assert r.suspend(specimen).ending is Ending.DONE
        assert r.resume(specimen).ending is Ending.DONE
        r.driver.inject(CHECKPOINT, "ghost", -1)
        moved = r.suspend(specimen)
        assert moved.ending is Ending.UNVERIFIED
        assert f"memory in use fell by 0 of about {SIZE} bytes" in moved.message


def test_nvml_that_falls_silent_in_between_verifies_nothing(tmp_path: Path) -> None:
    with rig(tmp_path, limits={"verify": 0.5}) as r:
        specimen = r.specimen()
        r.suspender.use()
        r.driver.inject(CHECKPOINT, "hang", -1)

        def fall_silent() -> None:
            r.driver.inject(PROCESSES, "error", 15, count=-1)
            r.driver.let_go()

        with once(r.driver, CHECKPOINT, fall_silent):
            moved = r.suspend(specimen)
        assert moved.ending is Ending.UNVERIFIED
        assert "does not answer (GPU is lost)" in moved.message
        r.driver.clear()
        assert r.suspend(specimen).ending is Ending.DONE  # it was away already; now it is seen


# Restore


def test_a_full_device_poisons_a_restore(tmp_path: Path) -> None:
    with rig(tmp_path, memory=20 * MIB, context=8 * MIB) as r:
        specimen = r.specimen()
        assert r.suspend(specimen).ending is Ending.DONE
        squatter = r.specimen()
        moved = r.resume(specimen)
        assert moved.ending is Ending.LOST
        assert "CUDA_ERROR_OUT_OF_MEMORY" in moved.message
        squatter.close()
        moved = r.resume(specimen)  # room does not help any more
        assert moved.ending is Ending.LOST
        assert "CUDA_ERROR_OPERATING_SYSTEM" in moved.message


def test_a_restore_that_fails_otherwise_is_tried_again_only_so_often(tmp_path: Path) -> None:
    with rig(tmp_path, suspender={"patience": 2}) as r:
        specimen = r.specimen()
        assert r.suspend(specimen).ending is Ending.DONE
        r.driver.inject(RESTORE, "error", 999)
        moved = r.resume(specimen)
        assert moved.ending is Ending.RETRY
        assert "still in host memory" in moved.message
        assert r.resume(specimen).ending is Ending.DONE
        assert runs_on(specimen)
        r.suspend(specimen)
        r.driver.inject(RESTORE, "error", 999, count=-1)
        assert [r.resume(specimen).ending for _ in range(2)] == [Ending.RETRY, Ending.LOST]


def test_a_child_that_stays_away_takes_the_others_back_with_it(tmp_path: Path) -> None:
    with rig(tmp_path) as r:
        kernel, child = r.specimen(), r.specimen()
        r.suspend(kernel, child)
        r.driver.inject(RESTORE, "error", 999, pid=child.target.pid)
        assert r.resume(kernel, child).ending is Ending.RETRY
        assert r.on_devices() == set()
        assert r.resume(kernel, child).ending is Ending.DONE
        assert runs_on(kernel)
        assert runs_on(child)


def test_a_restore_onto_the_wrong_device_is_taken_back(tmp_path: Path) -> None:
    with rig(tmp_path, gpus=2) as r:
        specimen = r.specimen()
        r.suspend(specimen)
        r.driver.inject(RESTORE, "elsewhere", 1)
        moved = r.resume(specimen)
        assert moved.ending is Ending.UNVERIFIED
        assert f"came back on {r.driver.uuids[1]}" in moved.message
        assert "in host memory again" in moved.message
        assert r.state(specimen) is DriverState.CHECKPOINTED
        assert r.on_devices() == set()


def test_a_map_moves_it_to_another_device(tmp_path: Path) -> None:
    with rig(tmp_path, gpus=2) as r:
        specimen = r.specimen()
        here, there = r.driver.uuids
        r.suspend(specimen)
        assert r.resume(specimen, devices=[there], moves={here: there, there: here}).ending is Ending.DONE
        assert r.on_devices() == {(specimen.target.pid, there)}
        assert specimen.order("where")["device"] == there
        assert runs_on(specimen)


def test_a_map_that_is_refused_leaves_it_in_host_memory(tmp_path: Path) -> None:
    """At home, where it would come back without the map, there may be no room: then no restore would succeed any more."""
    with rig(tmp_path, gpus=2) as r:
        specimen = r.specimen()
        here, there = r.driver.uuids
        r.suspend(specimen)
        r.driver.inject(RESTORE, "refuse_map")
        assert r.resume(specimen, devices=[there], moves={here: there}).ending is Ending.RETRY
        assert r.state(specimen) is DriverState.CHECKPOINTED
        assert r.resume(specimen, devices=[here]).ending is Ending.DONE
        assert r.on_devices() == {(specimen.target.pid, here)}
        assert runs_on(specimen)


@pytest.mark.parametrize("home_too", [True, False])
def test_a_map_that_is_ignored_brings_it_home(tmp_path: Path, home_too: bool) -> None:
    with rig(tmp_path, gpus=2) as r:
        specimen = r.specimen()
        here, there = r.driver.uuids
        r.suspend(specimen)
        r.driver.inject(RESTORE, "stay")
        moved = r.resume(specimen, devices=[there, *([here] if home_too else [])], moves={here: there, there: here})
        assert r.driver.pending() == []
        if home_too:
            assert moved.ending is Ending.DONE
            assert r.on_devices() == {(specimen.target.pid, here)}
            assert runs_on(specimen)
        else:
            assert moved.ending is Ending.UNVERIFIED
            assert r.on_devices() == set()


def test_the_driver_is_told_of_every_device_of_the_node(tmp_path: Path) -> None:
    """As it wants it, whatever CUDA_VISIBLE_DEVICES shows the process; the broker names those on which something changes."""
    with rig(tmp_path, gpus=3) as r:
        specimen = r.specimen()
        here, _other, there = r.driver.uuids
        r.suspend(specimen)
        assert r.resume(specimen, devices=[there], moves={here: there}).ending is Ending.DONE
        assert r.on_devices() == {(specimen.target.pid, there)}
        assert runs_on(specimen)


def test_an_unlock_that_is_refused_loses_the_process(tmp_path: Path) -> None:
    with rig(tmp_path) as r:
        specimen = r.specimen()
        r.suspend(specimen)
        r.driver.inject(UNLOCK, "error", 401)
        moved = r.resume(specimen)
        assert moved.ending is Ending.LOST
        assert "CUDA_ERROR_ILLEGAL_STATE" in moved.message


# Helpers that hang


@pytest.mark.parametrize(
    ("call", "ending", "state"),
    [
        (STATE, Ending.DONE, DriverState.CHECKPOINTED),
        (LOCK, Ending.RETRY, DriverState.RUNNING),
        (CHECKPOINT, Ending.RETRY, DriverState.RUNNING),
    ],
)
def test_one_hang_while_suspending_loses_nothing(tmp_path: Path, call: str, ending: Ending, state: DriverState) -> None:
    with rig(tmp_path, limits=hung(call)) as r:
        specimen = r.specimen()
        r.driver.inject(call, "hang", -1)
        moved = r.suspend(specimen)
        assert (moved.ending, moved.cordon) == (ending, False)
        assert r.suspender._pool.replaced == 1
        assert r.state(specimen) is state
        if state is DriverState.CHECKPOINTED:
            assert r.resume(specimen).ending is Ending.DONE
        assert runs_on(specimen)


@pytest.mark.parametrize("call", [RESTORE, UNLOCK])
@pytest.mark.parametrize("action", ["hang", "hang_after"])
def test_one_hang_while_resuming_is_got_over(tmp_path: Path, call: str, action: str) -> None:
    with rig(tmp_path, limits=hung(call)) as r:
        specimen = r.specimen()
        r.suspend(specimen)
        r.driver.inject(call, action, -1)
        moved = r.resume(specimen)
        assert (moved.ending, moved.cordon) == (Ending.DONE, False)
        assert r.suspender._pool.replaced == 1
        assert runs_on(specimen)


@pytest.mark.parametrize("call", [LOCK, CHECKPOINT])
def test_a_call_that_hangs_after_it_did_its_work_is_done(tmp_path: Path, call: str) -> None:
    with rig(tmp_path, limits=hung(call)) as r:
        specimen = r.specimen()
        r.driver.inject(call, "hang_after", -1)
        moved = r.suspend(specimen)
        assert (moved.ending, moved.cordon) == (Ending.DONE, False)
        assert r.resume(specimen).ending is Ending.DONE
        assert runs_on(specimen)


@pytest.mark.parametrize(("call", "second"), [(LOCK, STATE), (CHECKPOINT, UNLOCK), (CHECKPOINT, STATE)])
def test_two_hangs_while_suspending_lose_it_and_cordon_the_device(tmp_path: Path, call: str, second: str) -> None:
    with rig(tmp_path, limits=hung(call, second)) as r:
        specimen = r.specimen()
        r.driver.inject(call, "hang", -1)
        # Not at once: the survey asks for the state too, and that has to go well.
        with once(r.driver, call, lambda: r.driver.inject(second, "hang", -1)):
            moved = r.suspend(specimen)
        assert (moved.ending, moved.cordon) == (Ending.LOST, True)
        assert "does not answer any more" in moved.message


@pytest.mark.parametrize("call", [RESTORE, UNLOCK])
def test_two_hangs_while_resuming_lose_it_and_cordon_the_device(tmp_path: Path, call: str) -> None:
    with rig(tmp_path, limits=hung(call)) as r:
        specimen = r.specimen()
        r.suspend(specimen)
        r.driver.inject(call, "hang", -1, count=2)
        moved = r.resume(specimen)
        assert (moved.ending, moved.cordon) == (Ending.LOST, True)


def test_a_driver_that_hangs_before_anything_was_begun_costs_no_state(tmp_path: Path) -> None:
    with rig(tmp_path, limits=hung(STATE)) as r:
        specimen = r.specimen()
        r.driver.inject(STATE, "hang", -1, count=2)
        moved = r.suspend(specimen)
        assert (moved.ending, moved.cordon) == (Ending.RETRY, True)
        assert runs_on(specimen)


# Who it is


def test_a_pid_that_somebody_else_has_now_is_never_touched(tmp_path: Path) -> None:
    with rig(tmp_path) as r:
        specimen = r.specimen()
        before = Target(pid=specimen.target.pid, start=specimen.target.start - 1)
        devices = [r.driver.uuids[0]]
        assert r.suspender.state(before) is DriverState.GONE
        assert r.suspender.suspend([before], devices=devices, size=SIZE).ending is Ending.GONE
        assert r.suspender.resume([before], devices=devices, size=SIZE).ending is Ending.GONE
        assert r.state(specimen) is DriverState.RUNNING


def test_a_process_that_ended_is_gone_and_its_memory_is_free(tmp_path: Path) -> None:
    with rig(tmp_path) as r:
        specimen = r.specimen()
        assert r.suspend(specimen).ending is Ending.DONE
        specimen.kill()
        moved = r.resume(specimen)
        assert (moved.ending, r.state(specimen)) == (Ending.GONE, DriverState.GONE)
        assert set(r.suspender.use().used.values()) == {0}


# An agent that died in the middle


def test_a_successor_finishes_what_was_locked(tmp_path: Path) -> None:
    with rig(tmp_path) as r:
        specimen = r.specimen()
        r.suspender._calls().lock(specimen.target)
        assert r.state(specimen) is DriverState.LOCKED
        assert blocks(lambda: specimen.order("step", 0.2))
        successor = r.another_suspender()
        assert r.suspend(specimen, suspender=successor).ending is Ending.DONE
        assert r.resume(specimen).ending is Ending.DONE
        specimen.finish(PATIENCE)
        assert runs_on(specimen)


def test_a_successor_can_let_go_on_what_was_locked(tmp_path: Path) -> None:
    with rig(tmp_path) as r:
        specimen = r.specimen()
        r.suspender._calls().lock(specimen.target)
        assert r.resume(specimen).ending is Ending.DONE
        assert runs_on(specimen)


@pytest.mark.parametrize("cuda", [13000, 13040])
def test_a_copy_that_is_broken_off_is_made_again(tmp_path: Path, cuda: int) -> None:
    """With new drivers there are states in between, CHECKPOINTING and RESTORING."""
    with rig(tmp_path, cuda=cuda) as r:
        specimen = r.specimen()
        r.driver.inject(CHECKPOINT, "rate", 2 * MIB)
        with once(r.driver, CHECKPOINT, lambda: os.kill(_busy_helper(r.suspender), signal.SIGKILL)):
            moved = r.suspend(specimen)
        assert (moved.ending, moved.cordon) == (Ending.RETRY, False)
        assert runs_on(specimen)
        assert r.suspend(specimen).ending is Ending.DONE


def _busy_helper(suspender: CudaSuspender) -> int:
    """The helper that is not idle."""
    idle = {helper.conversation.pid for helper in suspender._pool._idle}
    children = Path(f"/proc/self/task/{threading.main_thread().native_id}/children").read_text().split()
    helpers = [int(pid) for pid in children if b"carrel.node.suspension.helper" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    (found,) = [pid for pid in helpers if pid not in idle]
    return found


# No driver


def test_without_a_driver_nothing_is_known_and_nothing_done(tmp_path: Path) -> None:
    suspender = CudaSuspender(environment={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}, deadlines=PATIENT)
    me = Target(pid=os.getpid(), start=start_of(os.getpid()) or 0)
    try:
        assert suspender.state(me) is DriverState.UNKNOWN
        moved = suspender.suspend([me], devices=["GPU-none"], size=0)
        assert (moved.ending, moved.cordon) == (Ending.RETRY, False)
        assert "cannot be asked" in moved.message
        assert suspender.use().processes == {}
    finally:
        suspender.close()
