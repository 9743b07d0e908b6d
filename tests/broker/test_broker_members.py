"""What a broker knows of a task's processes before they have connected again: the core alone, event by event."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from carrel.core.domain.lease import LendingRules, MoveMethod, Residency, Tier
from carrel.core.domain.node import Device
from carrel.core.domain.units import GIB
from carrel.node.broker.config import BrokerConfig
from carrel.node.broker.core.core import Core
from carrel.node.broker.core.effects import Action, Effects, Gather, Line, MoveOut, Pause, ScanDevices
from carrel.node.broker.core.identity import Identity
from carrel.node.leases.protocol import RESIDENCY, RUNNER
from carrel.node.suspension.ports import Ending, Moved, Use

pytestmark = pytest.mark.quick

DEVICE = Device(index=0, uuid="gpu", type="h200", name="H200", memory=10 * GIB)
CONFIG = BrokerConfig(
    node="node",
    devices=(DEVICE,),
    state="",
    spool="",
    secret_file="",
    rules=LendingRules(margin=0, task_turn=0.0, task_share=0.0),
    reconnect_time=60.0,
)
TASK = Identity(role=RUNNER, job=1, attempt=1, owner="ada", gpus=1, assigned=("gpu",))
SIZE = 6 * GIB


@dataclass
class Process:
    pid: int
    start: int = 1
    uid: int = 1000

    @property
    def name(self) -> str:
        return f"{self.pid}-{self.start}"


RUNNER_PROCESS, PROGRAM = Process(10), Process(11)


class Brokers:
    """One broker after the other, on one journal. Looks at the device are answered at once: the program is on it."""

    def __init__(self) -> None:
        self.now, self.lines = 1000.0, list[Line]()
        self.restart()

    def restart(self, ended: tuple[str, ...] = ()) -> None:
        self.core = Core(CONFIG, Tier.SUSPEND, make_id="b", lines=self.lines)
        self.lines, self.actions = [self.core.everything(self.now)], list[Action]()
        self.carry_out(self.core.started(self.now, ended))

    def carry_out(self, effects: Effects | None) -> None:
        assert effects is not None
        self.lines += [effects.line] if effects.line is not None else []
        for action in effects.actions:
            if isinstance(action, ScanDevices):
                use = Use(processes={"gpu": {PROGRAM.pid: SIZE}}, used={"gpu": SIZE})
                self.carry_out(self.core.done(action, (use, {PROGRAM.pid: RUNNER_PROCESS.pid}, {}), self.now))
            else:
                self.actions.append(action)

    def said(self, op: str, **fields: Any) -> None:
        self.carry_out(self.core.said(RUNNER_PROCESS.name, {"op": op, **fields}, self.now))

    def joins(self, place: str = "in") -> None:
        about = {"place": place, "devices": ["gpu"], "movable": [SIZE], "stays": [0], "reasons": []}
        self.carry_out(self.core.hello_at_gate(PROGRAM, TASK.as_role(RESIDENCY), about, self.now))

    def orders(self) -> list[Action]:
        """What is to be done, once."""
        given, self.actions = self.actions, []
        return given


def whose_turn_is_over() -> Brokers:
    """The broker is killed while a task with state on its device is being paused."""
    brokers = Brokers()
    brokers.carry_out(brokers.core.hello(RUNNER_PROCESS, TASK, {}, brokers.now))
    brokers.said("acquire", request="r", devices=["gpu"], lends=True)
    brokers.joins()
    (lease,) = brokers.core.ledger.leases
    brokers.now += 5.0
    brokers.carry_out(brokers.core.time_is_up(brokers.now))  # a look
    assert brokers.core.ledger.tenants[RUNNER_PROCESS.name].residency is Residency.RESIDENT
    brokers.said("set_aside", lease=lease)
    assert brokers.orders() == [Pause(RUNNER_PROCESS.name, lease, (PROGRAM.name,))]
    brokers.restart()
    return brokers


def test_a_task_is_not_paused_before_its_processes_have_come_back_and_stopped() -> None:
    brokers = whose_turn_is_over()
    (pause,) = brokers.orders()
    assert isinstance(pause, Pause)
    assert pause.members == (PROGRAM.name,), "the process that may compute is asked, once it is connected again"


def test_a_state_leaves_by_its_library_although_that_has_not_come_back_yet() -> None:
    brokers = whose_turn_is_over()
    tenant, core = RUNNER_PROCESS.name, brokers.core
    (pause,) = brokers.orders()
    assert isinstance(pause, Pause)
    brokers.carry_out(core.done(pause, Moved(ending=Ending.DONE), brokers.now))
    rival, other_task = Process(20), replace(TASK, job=2, owner="bob")
    brokers.carry_out(core.hello(rival, other_task, {}, brokers.now))
    brokers.carry_out(core.said(rival.name, {"op": "acquire", "request": "r", "devices": ["gpu"], "lends": True}, brokers.now))
    (gather,) = brokers.orders()
    assert isinstance(gather, Gather)
    # Where nothing but its library says whose the process is, no look at the device finds it.
    brokers.carry_out(core.done(gather, core.ledger.tenants[tenant].targets(), brokers.now))
    (out,) = brokers.orders()
    assert isinstance(out, MoveOut)
    assert (out.members, out.way) == ((PROGRAM.name,), MoveMethod.BUS)


def test_a_state_that_nobody_moved_leaves_once_its_process_is_there() -> None:
    brokers = whose_turn_is_over()
    row = brokers.core.ledger.tenants[RUNNER_PROCESS.name]
    row.residency, row.moved_by, row.joined = Residency.SUSPENDED, MoveMethod.BUS.value, ()
    brokers.orders()
    brokers.joins()
    (gather,) = brokers.orders()
    assert isinstance(gather, Gather)
    assert row.residency is Residency.SUSPENDING
    assert PROGRAM.name in row.joined


def test_processes_that_ended_or_did_not_come_back_are_not_waited_for() -> None:
    brokers = whose_turn_is_over()
    brokers.restart(ended=(PROGRAM.name,))
    assert brokers.core.ledger.tenants[RUNNER_PROCESS.name].joined == ()
    brokers = whose_turn_is_over()
    brokers.carry_out(brokers.core.time_is_up(brokers.now + CONFIG.reconnect_time))
    assert brokers.core.ledger.tenants[RUNNER_PROCESS.name].joined == ()
