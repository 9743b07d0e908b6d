"""Several programs on two devices that do not hold them all: any move may fail, and no value differs and nothing leaks."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest
from random_worker import CONTEXT, Worker, descriptors
from random_world import GPUS, MEMORY, World

import carrel.node.broker.bus
from carrel.node.suspension.ports import Ending
from support.examples import examples

#: Calls of the driver on the way out and back, and before it.
_BOTH = ("cuCtxSynchronize", "cuStreamCreate", "cuStreamSynchronize", "cuStreamDestroy", "cuMemUnmap", "cuMemRelease")
OUT = (*_BOTH, "cuMemHostRegister", "cuMemHostUnregister", "cuMemcpyDtoHAsync")
BACK = (*_BOTH, "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemcpyHtoDAsync")
#: Numbers of CUresult that are no verdict on the context: out of memory, operating system.
CODES = (2, 304)


class Moves:
    """Moves one after the other, or several at once."""

    def __init__(self, world: World, dice: random.Random) -> None:
        self.world, self.dice = world, dice
        self.outcomes: Counter[str] = Counter()

    def run(self, many: int) -> None:
        acts = [self.move] * 16 + [self.exchange] * 4 + [self.change] * 6 + [self.pause] * 2
        rare = [self.restart, self.cut_off, self.kill]
        self.world.check()
        while self.done() < many:
            self.world.fill_up()
            self.dice.choice(acts)() if self.dice.random() > 0.03 else self.dice.choice(rare)()
            self.world.check()

    def done(self) -> int:
        return self.world.count["out"] + self.world.count["back"]

    # --- what is where

    def here(self, tenant: list[Worker]) -> bool:
        return not any(worker.away for worker in tenant)

    def fits(self, tenant: list[Worker]) -> bool:
        """What is away of it has room on its devices."""
        away = [worker for worker in tenant if worker.away]
        return all(
            self.world.used(device)
            + self.world.leaked()
            + sum(worker.used(device, out=False) - worker.used(device, out=True) for worker in away)
            <= MEMORY
            for device in range(GPUS)
        )

    def pick(self) -> list[Worker]:
        return self.dice.choice([tenant for tenant in self.world.tenants if tenant])

    # --- acts

    def break_something(self, tenant: list[Worker], calls: tuple[str, ...]) -> bool:
        """Some calls will go wrong, perhaps."""
        self.world.driver.clear()
        faults = self.dice.choice((0, 0, 1, 1, 2, 3))
        for _ in range(faults):
            pid, call = self.dice.choice(tenant).program.process.pid, self.dice.choice(calls)
            if self.dice.random() < 0.1:
                self.world.driver.inject(call, "hang", self.dice.uniform(0, 0.1), pid=pid, after=self.dice.randint(0, 12))
            else:
                code, count = self.dice.choice(CODES), self.dice.choice((1, 1, 2))
                self.world.driver.inject(call, "error", code, pid=pid, count=count, after=self.dice.randint(0, 12))
        return faults > 0

    def move(self) -> None:
        tenant = self.pick()
        if self.here(tenant):
            broken = self.break_something(tenant, OUT + BACK)
            moved = self.world.move("out", tenant)
        elif self.fits(tenant):
            broken = self.break_something(tenant, BACK + OUT)
            moved = self.world.move("back", tenant)
        else:
            return
        self.outcomes[moved.ending.value] += 1
        full = "pool of host memory" in moved.message
        assert broken or full or moved.ending is Ending.DONE, moved
        self.settle(tenant)

    def exchange(self) -> None:
        """One goes while another comes, which waits for the room."""
        coming, going = self.pick(), self.pick()
        if coming is going or self.here(coming) or not self.here(going):
            return
        broken = self.break_something(going, OUT) if self.dice.random() < 0.3 else False
        out, back = self.world.begin("out", going), self.world.begin("back", coming)
        self.world.until(lambda: out and back)
        self.outcomes[f"exchange {back[0].ending.value}"] += 1
        if not broken and out[0].ending is Ending.DONE and self.fits(coming):
            assert back[0].ending is Ending.DONE, back
        self.settle(going)
        self.settle(coming)

    def settle(self, tenant: list[Worker]) -> None:
        """Nothing goes wrong any more: it is here as a whole, or away as a whole."""
        self.world.driver.clear()
        places = self.places(tenant)
        if places - {"in", "out"} or len(places) > 1:
            self.outcomes["torn"] += 1
            if self.fits(tenant):
                assert self.world.move("back", tenant).ending is Ending.DONE
            else:
                moved = self.world.move("out", tenant)
                assert moved.ending is Ending.DONE, moved
            places = self.places(tenant)
            assert len(places) == 1, places
        if "out" not in places:
            self.world.go(tenant)

    def places(self, tenant: list[Worker]) -> set[str]:
        return {worker.place for worker in tenant} - {"none"}

    def change(self) -> None:
        tenant = self.pick()
        if self.here(tenant):
            for worker in tenant:
                self.world.change(worker)
            self.world.same(tenant)

    def pause(self) -> None:
        tenant = self.pick()
        if self.here(tenant):
            self.world.move("pause", tenant)
            self.world.go(tenant)

    def restart(self) -> None:
        self.world.restart(forget=self.dice.random() < 0.3)

    def cut_off(self) -> None:
        """The broker is killed in the middle of a move."""
        tenant = self.pick()
        what = "out" if self.here(tenant) else "back"
        if what == "back" and not self.fits(tenant):
            return
        for worker in tenant:
            call = self.dice.choice(OUT if what == "out" else BACK)
            self.world.driver.inject(call, "hang", 0.2, pid=worker.program.process.pid, after=self.dice.randint(0, 6))
        ended = self.world.begin(what, tenant)
        self.world.until(lambda: ended or not self.world.driver.pending())
        self.world.restart()
        self.settle(tenant)

    def kill(self) -> None:
        """A process is killed, in the middle of a move or not; others of its tenant go on."""
        tenant = self.pick()
        victim = self.dice.choice(tenant)
        what = "out" if self.here(tenant) else "back"
        ended = []
        if self.dice.random() < 0.8 and (what == "out" or self.fits(tenant)):
            call = "cuMemcpyDtoHAsync" if what == "out" else "cuMemcpyHtoDAsync"
            self.world.driver.inject(call, "stall", 4096, pid=victim.program.process.pid, after=self.dice.randint(0, 3))
            ended = self.world.begin(what, tenant)
            self.world.until(lambda: ended or not self.world.driver.pending())
            self.world.end(victim)
            self.world.until(lambda: ended)
        else:
            self.world.end(victim)
        tenant.remove(victim)
        if tenant:
            self.settle(tenant)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full device is not waited for as long as in a lab."""
    monkeypatch.setattr(carrel.node.broker.bus, "PATIENCE_SECONDS", 0.5)


def moves_at_random(place: Path, seed: int, many: int) -> None:
    dice = random.Random(seed)
    world = World(place, dice, tenants=(1, 1, 1, 2, 1))
    try:
        moves = Moves(world, dice)
        moves.run(many)
        print(f"seed {seed}: {dict(world.count)}, {dict(moves.outcomes)}, {world.leaked()} bytes leaked")
        for tenant in world.tenants:
            for worker in list(tenant):
                world.end(worker)
        world.check()
        assert world.pool.use().given == 0
        assert world.used(0) == CONTEXT
    finally:
        world.shut()
    assert descriptors(os.getpid()) == world.before


def test_moves_of_several_programs_at_random(tmp_path: Path) -> None:
    moves_at_random(tmp_path, 1, examples(100))


def test_who_has_memory_that_no_broker_gave_comes_back_from_it_and_lets_go_of_it(tmp_path: Path) -> None:
    world = World(tmp_path, random.Random(5), tenants=(1, 1))
    try:
        away, here = world.tenants
        assert world.move("out", away).ending is Ending.DONE
        assert world.move("out", here).ending is Ending.DONE
        assert world.move("back", here).ending is Ending.DONE
        world.go(here)
        world.restart(forget=True)
        assert world.pool.use().given == 0, "nobody has less room because of what is not known"
        world.until(lambda: not here[0].pieces())
        assert away[0].pieces()
        world.check()
        assert world.move("back", away).ending is Ending.DONE
        world.go(away)
        assert not away[0].pieces()
        for tenant in world.tenants:
            assert world.move("out", tenant).ending is Ending.DONE
            world.check()
        for tenant in world.tenants:
            assert world.move("back", tenant).ending is Ending.DONE
            world.go(tenant)
            assert {inode for worker in tenant for inode in worker.forgotten} == set()
    finally:
        world.shut()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(20))
def test_ten_thousand_moves_of_several_programs(tmp_path: Path, seed: int) -> None:
    moves_at_random(tmp_path, int(os.environ.get("SEED", "100")) + seed, 500)
