"""Sessions at random, brokers and kernels killed at random: no device in two leases, none leaked, nobody forgotten."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kernels import FakeKernel, check_journal, eventually, two_of

from carrel.core.domain.lease import LendingRules
from carrel.core.domain.node import Device
from carrel.core.domain.units import GIB, MIB
from support.broker_process import BrokerProcess
from support.fake_driver import build, find_compiler

pytestmark = pytest.mark.chaos

#: Seconds that each goes on at least; without them, until enough has happened.
SECONDS = float(os.environ.get("CARREL_CHAOS_SECONDS", "0"))
#: How often things happen, which differ from run to run: a few times in the suite, more often in a long run.
TIMES = pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.soak)])
FAULTS = {"lock_timeout": 0.05, "checkpoint_error": 0.01, "unverified": 0.02, "restore_retry": 0.05, "lost": 0.02}


class Session:
    """A kernel that runs cells at random: asks, computes for a while, gives back."""

    def __init__(self, kernel: FakeKernel, dice: random.Random) -> None:
        self.kernel = kernel
        self.dice = dice
        self.request = ""
        self.lease: dict[str, object] | None = None
        self.until = 0.0
        self.paused = False
        self.lost = False
        self.done = 0
        self.heard: set[tuple[object, object]] = set()

    def step(self, now: float) -> None:
        while (message := self.kernel.next(0.0)) is not None:
            self._hear(message, now)
        if self.lost:
            return
        if self.lease is not None:
            if now >= self.until and not self.paused:
                self.kernel.say("release", lease=self.lease["lease"], fence=self.lease["fence"], outcome="ok", cuda=True)
                self.lease, self.done = None, self.done + 1
        elif not self.request and self.dice.random() < 0.3:
            self.request = self.kernel.ask()

    def _hear(self, message: dict[str, object], now: float) -> None:
        op = message["op"]
        if op == "granted" and message["request"] == self.request:
            self.lease, self.request = message, ""
            self.until = now + self.dice.choice([0.0, 0.02, 0.1, 1.5])
            self.heard.add((message["request"], message["lease"]))
        elif op == "granted" and (self.lease is None or message["lease"] != self.lease["lease"]):
            # A broker that has come back grants what it remembers, and answers who asks again: twice, if both were on their way.
            assert (message["request"], message["lease"]) in self.heard, f"a lease that nobody asked for: {message}"
            self.kernel.say("release", lease=message["lease"], fence=message["fence"], outcome="aborted")
        elif op == "paused":
            self.paused = True
        elif op == "resumed":
            self.paused = False
            if self.lease is not None:
                self.lease = {**self.lease, "fence": message["fence"]}
        elif op == "welcome":
            self._compare(message)
        elif op == "lost" or (op == "refused" and message["code"] == "lost"):
            self.lost = True

    def _compare(self, message: dict[str, object]) -> None:
        """After a broker's restart: what it knows of this process is what this process knows."""
        if message["lost"]:
            self.lost = True
            return
        leases = {one["lease"]: one for one in message["leases"] if one["state"] != "held"}  # type: ignore[attr-defined]
        if self.lease is not None:
            assert self.lease["lease"] in leases, f"the lease {self.lease} is forgotten"
            found = leases[self.lease["lease"]]
            self.paused = found["state"] == "paused"
            self.lease = {**self.lease, "fence": found["fence"]}
        for name, found in leases.items():
            # A release that was not heard; what was granted meanwhile comes again as an answer to its request.
            if (self.lease is None or name != self.lease["lease"]) and found["request"] != self.request:
                self.kernel.say("release", lease=name, fence=found["fence"], outcome="ok", cuda=True)


@TIMES
@pytest.mark.parametrize("tier", ["simulated", "hold"])
def test_nothing_is_lent_twice_and_nothing_is_leaked(
    brokers: Callable[..., BrokerProcess], kernels: Callable[..., FakeKernel], tier: str, times: int
) -> None:
    seed = int(os.environ.get("CARREL_CHAOS_SEED", str(time.time_ns() % 100_000)))
    print(f"CARREL_CHAOS_SEED={seed}")
    dice = random.Random(seed)
    broker = brokers(
        devices=2,
        state=6 * GIB,
        faults=FAULTS,
        seed=seed,
        rules=LendingRules(time_slice=0.5),
        never_suspend=tier == "hold",
        hold_time=0.5,
        grace=1.0,
        still=False,
    )
    number = 0
    sessions: list[Session] = []

    def join() -> None:
        nonlocal number
        number += 1
        kernel = kernels(broker, broker.session(number, owner=f"user{number % 3}"))
        sessions.append(Session(kernel, random.Random(dice.random())))

    for _ in range(8):
        join()
    finish = time.monotonic() + SECONDS
    restarts = killed = done = 0
    while (
        time.monotonic() < finish
        or min(restarts, 2 * killed) < 4 * times
        or done + sum(session.done for session in sessions) < 50 * times
    ):
        for session in sessions:
            session.step(time.monotonic())
        if dice.random() < 0.01:
            broker.restart()
            restarts += 1
        if dice.random() < 0.006:
            dice.choice(sessions).kernel.kill()
        for session in [one for one in sessions if one.lost or one.kernel.process.poll() is not None]:
            if session.kernel.process.poll() is None:
                session.kernel.kill()
            killed += 1
            done += session.done
            session.kernel.close()
            sessions.remove(session)
            join()
        time.sleep(0.005)
    done += sum(session.done for session in sessions)
    for session in sessions:
        session.kernel.kill()
    assert eventually(lambda: broker.status()["leases"] == [] and broker.status()["tenants"] == [])
    leases = check_journal(broker)
    print(f"{done} cells, {leases} leases, {restarts} restarts of the broker, {killed} kernels ended")
    assert leases >= done


@TIMES
def test_a_broker_that_dies_at_once_again_and_again(
    brokers: Callable[..., BrokerProcess], kernels: Callable[..., FakeKernel], times: int
) -> None:
    """Killed some milliseconds after each start, in whatever it does then: the cell that computes keeps its lease."""
    broker = brokers(state=12 * GIB, rate=100 * GIB, still=False)
    first, second = two_of(broker, kernels)
    dice = random.Random(7)
    for _ in range(6 * times):
        holder, other = (first, second) if dice.random() < 0.5 else (second, first)
        lease = holder.acquire()
        request = other.ask()
        for _ in range(2):
            time.sleep(dice.random() * 0.05)
            broker.restart()
        holder.release(lease)
        while True:
            granted = other.expect("granted")
            if granted["request"] == request:
                break
        assert granted["fence"] > lease["fence"]
        other.release(granted)
    assert broker.status()["leases"] == []


class Computing(Session):
    """A session with a CUDA state of known value on the fake driver: its first cell makes it, each one after that checks it."""

    started = False
    checking = False
    checked = 0

    def _hear(self, message: dict[str, object], now: float) -> None:
        super()._hear(message, now)
        if message["op"] == "granted" and self.lease is message:
            device = message["devices"][0]["uuid"]  # type: ignore[index]
            self.kernel.tell(f"!cuda {100 * MIB} {device}" if not self.started else "!check")
            self.started = self.checking = True
        elif message["op"] in ("cuda", "check"):
            assert message.get("same", True), "a state came back as something else"
            self.checking, self.checked = False, self.checked + 1

    def step(self, now: float) -> None:
        if self.checking:
            self.until = max(self.until, now)
            while self.checking and (message := self.kernel.next(0.0)) is not None:
                self._hear(message, now)
            return
        super().step(now)


@pytest.mark.skipif(find_compiler() is None, reason="the fake driver is compiled from C, and there is no compiler")
def test_states_on_the_fake_driver_survive(
    tmp_path: Path, brokers: Callable[..., BrokerProcess], kernels: Callable[..., FakeKernel]
) -> None:
    """Real contents, really moved, with a broker that is killed in the middle of moves: every byte comes back."""
    dice = random.Random(int(os.environ.get("CARREL_CHAOS_SEED", "11")))
    driver = build(tmp_path / "driver", gpus=2, memory=256 * MIB)
    devices = tuple(
        Device(uuid=gpu.uuid, index=index, type="h200", name=gpu.name, memory=gpu.memory) for index, gpu in enumerate(driver.gpus)
    )
    rules = LendingRules(margin=8 * MIB, time_slice=2.0, unknown_room=0.45)
    broker = brokers(devices=devices, environment=driver.environment(), rules=rules, still=False)
    sessions = [
        Computing(kernels(broker, broker.session(number, owner=f"user{number}")), random.Random(dice.random()))
        for number in range(1, 6)
    ]
    driver.inject("cuCheckpointProcessCheckpoint", "rate", 200 * MIB, count=-1)
    driver.inject("cuCheckpointProcessRestore", "rate", 400 * MIB, count=-1)
    finish = time.monotonic() + SECONDS
    restarts, cells, restart_after, restart_at = 0, 0, 5, 0.0
    while time.monotonic() < finish or restarts < 3 or not all(session.checked > 1 for session in sessions):
        for session in sessions:
            session.step(time.monotonic())
            assert session.kernel.process.poll() is None
            assert not session.lost, session.kernel.heard[-3:]
        cells = sum(session.checked for session in sessions)
        if cells >= restart_after and not restart_at:  # on a slow machine, too, there is progress between two kills
            restart_at = time.monotonic() + dice.uniform(0.0, 1.0)
        if restart_at and time.monotonic() > restart_at:
            broker.restart()
            restarts += 1
            restart_after, restart_at = cells + dice.randint(1, 4), 0.0
        time.sleep(0.005)
    print(f"{cells} cells, {restarts} restarts of the broker, moves: {broker.log.read_text().count(' done, ')}")
