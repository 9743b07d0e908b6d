"""A training that is paused and moved in the middle, again and again, ends bit for bit as one that nobody disturbed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from residency_rig import MIB, Peer, Program, Rig, rig

from support.fake_driver import start_worker
from support.fake_driver.worker import Worker

STEPS = 12
#: No whole number of anything.
SIZE = 3 * MIB + 4


def undisturbed(machine: Rig, kind: str) -> str:
    with start_worker(machine.driver) as worker:
        prepare(worker, kind)
        worker.order("join")
        worker.order("replay 3")
        return worker.order("digest")


def prepare(worker: Worker, kind: str) -> None:
    worker.order(f"alloc {kind} 3 {SIZE}")
    worker.order("step 2")
    worker.order("capture 2")
    worker.order(f"train {STEPS}")


def started(machine: Rig, lookup: Literal["new", "old", "names"]) -> tuple[Worker, Peer]:
    worker = start_worker(machine.driver, lookup=lookup, environment=machine.environment())
    peer = machine.server.accept(linger=3600)
    peer.grant()
    assert peer.give(7 * MIB, 9 * MIB)["ok"]
    return worker, peer


@pytest.mark.parametrize(("kind", "lookup"), [("plain", "new"), ("mapped", "old"), ("expandable", "names"), ("plain", "names")])
def test_a_training_that_moves(kind: str, lookup: Literal["new", "old", "names"], machine: Rig) -> None:
    expected = undisturbed(machine, kind)
    worker, peer = started(machine, lookup)
    with worker:
        prepare(worker, kind)
        where = worker.order("where")
        trained, moves = 0, 0
        while trained < STEPS or moves < 2:
            trained = int(worker.order("trained"))
            assert peer.pause()["ok"]
            moved = peer.out()
            assert moved["place"] == "out", moved
            assert moved["bytes"] == 12 * MIB
            assert peer.back()["ok"]
            assert peer.go()["ok"]
            moves += 1
        worker.order("join")
        worker.order("replay 3")
        assert worker.order("where") == where
        assert worker.order("digest") == expected
    assert machine.driver.broken() == []


def test_pools_stay_and_are_named(machine: Rig) -> None:
    worker, peer = started(machine, "new")
    with worker:
        worker.order(f"alloc pooled 2 {SIZE}")
        quiet = peer.pause()
        assert (quiet["movable"], quiet["stays"], quiet["reasons"]) == ([0], [2 * SIZE], ["memory pools"])
        peer.go()
        worker.order("free -1")
        worker.order("sync")
        assert peer.pause()["reasons"] == []


def test_two_trainings_take_turns_on_a_device_that_holds_one(tmp_path: Path) -> None:
    with rig(tmp_path, memory=(16 + 14) * MIB) as machine:
        expected = undisturbed(machine, "plain")
        first, its = started(machine, "new")
        prepare(first, "plain")
        assert its.pause()["ok"]
        assert its.out()["ok"]
        second, other = started(machine, "new")
        with first, second:
            prepare(second, "plain")
            for _ in range(4):
                assert other.pause()["ok"]
                coming, going = its.begin("in", patience=60), other.begin("out")
                assert other.finish("moved", going)["place"] == "out"
                assert its.finish("moved", coming)["place"] == "in"
                assert its.go()["ok"]
                first, second, its, other = second, first, other, its
            for worker, peer, before in ((second, other, None), (first, its, other)):
                if before is not None:
                    assert before.pause()["ok"]
                    assert before.out()["ok"]
                    assert peer.back()["ok"]
                    assert peer.go()["ok"]
                worker.order("join")
                worker.order("replay 3")
                assert worker.order("digest") == expected


def test_peers_still_see_memory_that_came_back(tmp_path: Path) -> None:
    with rig(tmp_path, gpus=2) as machine:
        program, peer = machine.started()
        program.good("context", device=1)
        at = program.good("alloc", size=4 * MIB, seed=1, device=0)["at"]
        assert not seen(program, at)
        program.good("peer", device=1, other=0)
        assert seen(program, at)
        later = program.good("alloc", size=2 * MIB, seed=2, device=0)["at"]
        peer.give(6 * MIB)
        peer.pause()
        assert peer.out()["ok"]
        assert peer.back()["ok"]
        peer.go()
        assert seen(program, at)
        assert seen(program, later)


def seen(program: Program, at: int) -> bool:
    """Whether device 1 may read and write it."""
    return bool(program.good("allowed", at=at, device=1)["flags"] == 3)
