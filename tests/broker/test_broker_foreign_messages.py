"""Messages that no kernel, runner or library sends: they cost their sender, and no other process notices."""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from kernels import FakeKernel, leases_of
from liars import AT_GATE, any_message, changed
from pretend_shell import Client, Shell

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.lease import LeaseState
from carrel.core.transport.framing import Lines
from carrel.node.broker.core.effects import (
    Action,
    Effects,
    Gather,
    Kill,
    ScanDevices,
)
from carrel.node.broker.core.identity import Identity
from carrel.node.leases.protocol import KERNEL, LONGEST, RESIDENCY, RUNNER
from carrel.node.suspension.ports import Ending, Moved
from carrel.testing.waiting import PATIENCE
from support.broker_process import BrokerProcess, FakeJob
from support.examples import examples


@dataclass
class Liar(Client):
    """A process that says anything."""

    order: object = 0


class LiarsShell(Shell):
    """A shell with honest clients and liars. What it checks of the liars is only what concerns the others."""

    def __init__(self, seed: int, **kind: bool) -> None:
        self.said = 0
        super().__init__(seed, **kind)

    def step(self) -> None:
        liars = [client for client in self.clients.values() if isinstance(client, Liar)]
        if len(liars) < 2 and self.dice.random() < 0.2:
            self.liar()
        elif liars and self.dice.random() < 0.6:
            self.lie(self.dice.choice(liars))
        else:
            super().step()

    def liar(self) -> None:
        number, dice = next(self.numbers), self.dice
        task = dice.random() < 0.3
        assigned = (dice.choice(self.config.devices).uuid,) if task else ()
        identity = Identity(
            role=RUNNER if task else KERNEL, job=number, attempt=1, owner="z", gpus=dice.choice((0, 1, 2)), assigned=assigned
        )
        liar = Liar(pid=number, identity=identity, size=0)
        self.clients[liar.name] = liar

    def lie(self, liar: Liar) -> None:
        dice, now = self.dice, self.now
        self.said += 1
        library = dice.random() < 0.5
        lease, fence = dice.choice(list(liar.leases.items()) or [("1", 1)])
        with suppress(CarrelError):  # the shell refuses the message
            if not (liar.joined if library else liar.connected):
                hello = changed({**AT_GATE, "kernel": "k", "label": "x"}, dice)
                if library:
                    self.carry_out(self.core.hello_at_gate(liar, liar.identity.as_role(RESIDENCY), hello, now))
                    liar.joined = True
                else:
                    self.carry_out(self.core.hello(liar, liar.identity, hello, now))
                    liar.connected = True
            elif dice.random() < 0.03:
                closed = dice.random() < 0.5
                left = self.core.left_gate if library else self.core.disconnected
                liar.joined, liar.connected = liar.joined and not library, liar.connected and library
                self.carry_out(left(liar.name, now, closed=closed))
            else:
                message = any_message(dice, library=library, lease=lease, fence=fence, order=liar.order)
                say = self.core.said_at_gate if library else self.core.said
                self.carry_out(say(liar.name, message, now))

    def behave(self, client: Client, what: str, *, crash: bool) -> None:
        if not isinstance(client, Liar):
            super().behave(client, what, crash=crash)
        elif what == "end" and self.dice.random() < 0.3:
            del self.clients[client.name]
            self.carry_out(self.core.ended(client.name, self.now))

    def hear(self, client: Client, op: str, fields: Any) -> None:
        if not isinstance(client, Liar):
            super().hear(client, op, fields)
        elif "lease" in fields and "fence" in fields:
            client.leases[fields["lease"]] = fields["fence"]
        elif "id" in fields:
            client.order = fields["id"]

    def at_gate(self, client: Client, op: str, fields: Any) -> None:
        if isinstance(client, Liar):
            self.hear(client, op, fields)
        else:
            super().at_gate(client, op, fields)

    def act(self, action: Action, *, crash: bool = False, well: bool = False) -> None:
        if isinstance(action, (ScanDevices, Kill)) or not isinstance(self.clients.get(action.tenant), Liar):
            super().act(action, crash=crash, well=well)
            return
        moved = Moved(ending=self.dice.choice(list(Ending)), message="dice", bytes=self.dice.choice((0, 1, 2**40)))
        self.carry_out(self.core.done(action, action.known if isinstance(action, Gather) else moved, self.now))

    def check(self, effects: Effects) -> None:
        ledger = self.core.ledger
        used = [uuid for lease in ledger.leases.values() if lease.state is not LeaseState.PAUSED for uuid in lease.devices]
        assert len(used) == len(set(used)), "a device is in two leases"
        assert set(used) <= set(self.core.lender.devices)
        assert all(lease.tenant in ledger.tenants for lease in ledger.leases.values())
        json.dumps([fields for _tenant, _op, fields, _member in effects.tells], allow_nan=False).encode()
        if effects.line is not None:
            json.dumps([effects.line.rows], allow_nan=False).encode()

    def check_room(self) -> None:
        """A liar's state is where it says."""

    def check_gates(self) -> None:
        """A liar's gate is as it says."""

    def finish(self) -> None:
        """The liars end; whoever else waits is served."""
        for liar in [client for client in self.clients.values() if isinstance(client, Liar)]:
            del self.clients[liar.name]
            self.carry_out(self.core.ended(liar.name, self.now))
        super().finish()


KINDS: list[dict[str, bool]] = [{}, {"bus": True}, {"spills": True}, {"contexts": True}]


def history(seed: int, kind: dict[str, bool]) -> LiarsShell:
    shell = LiarsShell(seed, **kind)
    for number in range(200):
        shell.step()
        if number % 20 == 0:
            shell.check_journal()
    shell.finish()
    return shell


@pytest.mark.gate
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_whatever_a_client_says_the_others_are_served(kind: dict[str, bool]) -> None:
    shells = [history(seed, kind) for seed in range(examples(250))]
    assert sum(shell.said for shell in shells) > 50 * len(shells)
    assert sum(shell.granted for shell in shells) > len(shells) / 4


class LyingProcess:
    """This process, which may be each of the three, and connects again whenever the broker has had enough."""

    def __init__(self, broker: BrokerProcess, job: FakeJob, dice: random.Random) -> None:
        self.broker, self.job, self.dice = broker, job, dice
        self.stream: socket.socket | None = None

    def speak(self, messages: int) -> None:
        for number in range(messages):
            try:
                stream = self.stream or self._connect()
                stream.sendall(self._line())
                if (
                    number % 20 == 0 and self.role != RESIDENCY
                ):  # all that was said before is answered; libraries have no question
                    stream.sendall(b'{"op":"status"}\n')
                    self._listen(stream)
            except OSError:
                self.close()

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()
            self.stream = None

    def _connect(self) -> socket.socket:
        self.role = self.dice.choice((KERNEL, KERNEL, RUNNER, RESIDENCY))
        self.lines = Lines(10 * LONGEST)
        self.lease, self.order = ("1", 1), 1
        self.stream = socket.socket(socket.AF_UNIX)
        self.stream.settimeout(PATIENCE)
        self.stream.connect(str(self.broker.socket))
        hello = {"op": "hello", "v": 1, "role": self.role, "token": self.job.token, "kernel": "k", "label": "x"}
        hello |= AT_GATE if self.role == RESIDENCY else {}
        self.stream.sendall(self._encoded(changed(hello, self.dice) if self.dice.random() < 0.5 else hello))
        return self.stream

    def _line(self) -> bytes:
        if (draw := self.dice.random()) < 0.002:
            return b"x" * (LONGEST + 1)
        if draw < 0.01:
            return self.dice.choice((b"[" * 100_000, b'{"op":' * 20_000, b"7", b'"x"', b"\xff\0", b"{}", b"[]")) + b"\n"
        lease, fence = self.lease
        return self._encoded(any_message(self.dice, library=self.role == RESIDENCY, lease=lease, fence=fence, order=self.order))

    def _encoded(self, message: dict[str, Any]) -> bytes:
        return json.dumps(message).replace("gpu0", "SIM-test-0").encode() + b"\n"

    def _listen(self, stream: socket.socket) -> None:
        """Read until a status comes."""
        while data := stream.recv(65536):
            for line in self.lines.feed(data):
                said = json.loads(line)
                assert "alice" not in line.decode()
                self.lease = (said["lease"], said["fence"]) if "fence" in said else self.lease
                self.order = said.get("id", self.order)
                if said["op"] == "status" or (said["op"] == "refused" and "observer" in said["message"]):
                    return
        raise BrokenPipeError


def in_a_process_of_its_own(work: Callable[[], None]) -> None:
    """A broker knows processes: each has its own history."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("messages", [pytest.param(2000, marks=pytest.mark.gate), 50_000])
def test_a_real_broker_goes_on_and_other_processes_notice_nothing(
    brokers: Callable[..., BrokerProcess], kernels: Callable[..., FakeKernel], messages: int
) -> None:
    broker = brokers(devices=2)
    assert broker.process is not None
    honest = kernels(broker, broker.session(1, owner="alice"))
    theirs = broker.session(2, owner="mallory")
    for seed in range(20):
        liar = LyingProcess(broker, theirs, random.Random(seed))
        in_a_process_of_its_own(lambda liar=liar: liar.speak(messages // 20))  # type: ignore[misc]
        assert broker.process.poll() is None, broker.log.read_text()[-3000:]
        lease = honest.acquire()  # whatever the other left behind
        assert lease["op"] == "granted", lease
        assert [row["id"] for row in leases_of(broker) if row["owner"] == "alice"] == [lease["lease"]]
        honest.release(lease)
    assert "Traceback" not in broker.log.read_text()


def test_silent_connections_keep_no_process_from_its_device(
    brokers: Callable[..., BrokerProcess], kernels: Callable[..., FakeKernel]
) -> None:
    broker = brokers(devices=1)
    honest = kernels(broker, broker.session(1))
    silent = [socket.socket(socket.AF_UNIX) for _ in range(600)]
    try:
        for stream in silent:
            stream.connect(str(broker.socket))
            stream.settimeout(PATIENCE)
        late = kernels(broker, broker.session(2))  # let in beside them
        for kernel in (honest, late):
            kernel.cell()
        assert silent[0].recv(1) == b""
        broker.advance(11)  # who has said nothing by then goes
        assert all(stream.recv(1) == b"" for stream in silent)
        honest.cell()
    finally:
        for stream in silent:
            stream.close()
