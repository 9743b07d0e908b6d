"""A shell around the broker's core without processes, sockets or time: its clients, its moves and its crashes are dice."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from carrel.core.domain.lease import ContextPlace, LeaseState, LendingRules, MoveMethod, Residency, Tier
from carrel.core.domain.node import Device
from carrel.core.domain.units import GIB
from carrel.node.broker.config import BrokerConfig
from carrel.node.broker.core.core import Core
from carrel.node.broker.core.effects import (
    NEVER,
    Action,
    Checkpoint,
    Effects,
    Gather,
    Kill,
    Line,
    MoveBack,
    MoveOut,
    Pause,
    Restore,
    ScanDevices,
    Spill,
    Unspill,
)
from carrel.node.broker.core.identity import Identity
from carrel.node.broker.core.ledger import Ledger
from carrel.node.broker.core.rows import RequestRow, TenantRow, plain
from carrel.node.leases.protocol import KERNEL, RESIDENCY, RUNNER
from carrel.node.suspension.ports import Ending, Moved, Use

MEMORY = 16 * GIB
#: Of a process with the library, where contexts are not next to nothing.
CONTEXT = GIB
_AWAY = (Residency.SUSPENDING, Residency.SUSPENDED, Residency.RESUMING)
_OFF = (Residency.SUSPENDING, Residency.SPILLING, Residency.SPILLED, Residency.RESUMING)
#: Mostly it goes well.
_OUT = [Ending.DONE] * 6 + [Ending.RETRY, Ending.UNSUSPENDABLE, Ending.UNVERIFIED, Ending.LOST]
_BACK = [Ending.DONE] * 6 + [Ending.RETRY, Ending.LOST]
_TO_DISK = [Ending.DONE] * 4 + [Ending.RETRY]
#: A library may let go of its host memory although nobody waits for that any more.
_LETS_GO = [Ending.DONE] * 4 + [Ending.RETRY, Ending.UNVERIFIED, Ending.UNVERIFIED]
_FROM_DISK = [Ending.DONE] * 6 + [Ending.RETRY, Ending.RETRY, Ending.LOST]


@dataclass
class Client:
    """A process, and what it believes."""

    pid: int
    identity: Identity
    size: int
    start: int = 1
    uid: int = 1000
    connected: bool = False
    #: Requests that have no answer, and leases that it uses, with their fences.
    waiting: set[str] = field(default_factory=set)
    leases: dict[str, int] = field(default_factory=dict)
    questions: list[str] = field(default_factory=list)
    lost: bool = False
    #: It has the residency library; what that believes, and where its memory is.
    library: bool = False
    hooked: bool = True
    joined: bool = False
    asked: str = ""
    lease: str = ""
    fence: int = 0
    paused: bool = False
    place: str = "none"
    #: The driver has its context in host memory; and its libraries would not survive that.
    asleep: bool = False
    fragile: bool = False
    sees: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.pid}-{self.start}"


class Shell:
    """Drives a core, and checks it after each event."""

    def __init__(
        self, seed: int, core: type[Core] = Core, *, bus: bool = False, spills: bool = False, contexts: bool = False
    ) -> None:
        """`bus`: on one real device, with processes whose states move by the library and do not fit together; `spills`: states of
        real devices, which often have to go on to the disk; `contexts`: as `bus`, with contexts that leave states too little.
        """
        self.only_bus = bus = bus or contexts
        self.context = CONTEXT if contexts else 0
        self.checkpoints = self.restores = 0
        self.dice = random.Random(seed)
        self.make = core
        count = 1 if bus else self.dice.choice([1, 1, 2, 3])
        self.host = None if bus else self.dice.choice([None, 8 * GIB, 12 * GIB, 40 * GIB])
        self.disk = 0 if bus else self.dice.choice([0, 0, 20 * GIB, 200 * GIB])
        self.config = BrokerConfig(
            node="node",
            devices=tuple(
                Device(index=n, uuid=f"gpu{n}", type="sim", name="simulated", memory=MEMORY, simulated=True) for n in range(count)
            ),
            state="",
            spool="",
            secret_file="",
            rules=LendingRules(time_slice=self.dice.choice([0.0, 5.0]), host_memory=self.host, state_disk=self.disk),
            hold_time=60.0,
            grace=5.0,
            reconnect_time=20.0,
        )
        self.now = 1000.0
        self.lines: list[Line] = []
        self.clients: dict[str, Client] = {}
        self.pending: list[Action] = []
        self.numbers = iter(range(1, 10**9))
        self.fence = 0
        self.fences: dict[str, int] = {}
        self.granted = self.refused = self.crashes = self.moves = self.asked = self.bus = self.exchanges = self.spills = 0
        #: Moves out over the bus whose memory leaves piece by piece now.
        self.leaving: list[Action] = []
        self.later: list[tuple[Client, str, int]] = []
        self.tier = Tier.SUSPEND if bus else self.dice.choice([Tier.SIMULATED, Tier.SIMULATED, Tier.SUSPEND, Tier.HOLD])
        if spills:
            self.tier, self.host, self.disk = Tier.SUSPEND, 15 * GIB, 200 * GIB
            rules = replace(self.config.rules, host_memory=self.host, state_disk=self.disk)
            self.config = replace(self.config, devices=self.config.devices[:1], rules=rules)
        self.begin()

    # --- the shell ----------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.core = self.make(self.config, self.tier, make_id="b", lines=self.lines, disk=True)
        self.lines = [self.core.everything(self.now)]
        self.wake = NEVER
        self.pending, self.leaving = [], []
        known = set(self.core.ledger.tenants)
        #: Helpers of the broker before are waited for: what that one began is taken up later, and the rest goes on meanwhile.
        self.recovers = True
        self.carry_out(self.core.started(self.now, sorted(known - self.clients.keys())))
        if not self.crashes or self.dice.random() < 0.2:
            self.recover()

    def recover(self, *, crash: bool = False) -> None:
        self.recovers = False
        self.carry_out(self.core.recover(self.now), crash=crash)

    def crash(self) -> None:
        """Killed: what was written is all that is left. Those who are connected notice, and come again."""
        self.crashes += 1
        for client in self.clients.values():
            client.connected = client.joined = False
            client.questions.clear()
        self.begin()

    def carry_out(self, effects: Effects | None, *, crash: bool = False) -> None:
        if effects is None:
            return
        if effects.line is not None:
            self.write(effects.line)
        self.check(effects)
        if crash:
            self.crash()
            return
        self.wake = effects.wake
        self.pending.extend(effects.actions)
        moving = [action.tenant for action in self.pending if isinstance(action, (Gather, MoveOut, MoveBack))]
        assert len(moving) == len(set(moving)), "two moves of one state at once"
        for tenant, op, fields, member in effects.tells:
            if member:
                if member in self.clients and self.clients[member].joined:
                    self.at_gate(self.clients[member], op, fields)
            elif tenant in self.clients and self.clients[tenant].connected:
                self.hear(self.clients[tenant], op, fields)

    def write(self, line: Line) -> None:
        leases = [row for kind, row in line.rows if kind == "lease"]
        for row in sorted(leases, key=lambda row: row["fence"]):
            if row["fence"] != self.fences.get(row["id"]):
                assert row["fence"] > self.fence, "fences only grow"
                self.fences[row["id"]] = self.fence = row["fence"]
        self.lines.append(line)

    # --- clients ------------------------------------------------------------------------------------------------------------

    def hear(self, client: Client, op: str, fields: Any) -> None:
        request = fields.get("request")
        if op == "granted" and request in client.waiting:
            client.waiting.discard(request)
            client.leases[fields["lease"]] = fields["fence"]
            self.granted += 1
        elif op == "refused":
            self.refused += request in client.waiting
            client.waiting.discard(request)
        elif op == "cancelled":
            client.waiting.discard(request)
        elif op == "resumed":
            client.leases[fields["lease"]] = fields["fence"]
        elif op == "prepare":
            client.questions.append(fields["id"])
        elif op == "lost":
            client.lost, client.leases = True, {}
        elif op == "welcome":
            kept = {lease["lease"]: lease for lease in fields["leases"]}
            client.lost = bool(fields["lost"])
            client.leases = {name: kept[name]["fence"] for name in client.leases if name in kept}
            for name, lease in kept.items():
                if lease["request"] in client.waiting:
                    self.hear(client, "granted", lease)
                elif name not in client.leases and lease["state"] != "held":
                    self.later_releases.append((client, name, lease["fence"]))

    # --- the library in a process, as residency/src behaves ------------------------------------------------------------------

    def at_gate(self, client: Client, op: str, fields: Any) -> None:
        if op == "granted":
            if fields["request"] != client.asked:
                self.later.append((client, fields["lease"], fields["fence"]))
                return
            self.go(client, fields["lease"], fields["fence"])
            client.sees = client.sees or tuple(fields["devices"])
            client.place = "in" if self.context and client.place == "none" else client.place
            self.granted += 1
        elif op == "refused":
            assert fields["request"] == client.asked
            client.asked = ""
            self.refused += 1
        elif op == "pause":
            client.paused = True
        elif op == "go":
            self.go(client, fields.get("lease", client.lease), fields.get("fence", 0))

    def go(self, client: Client, lease: str, fence: int) -> None:
        client.lease, client.fence, client.asked, client.paused = lease, fence, "", False

    def gate_open(self, client: Client) -> bool:
        return bool(client.lease) and not client.paused and client.place in ("none", "in")

    def facts(self, client: Client) -> dict[str, Any]:
        reasons = ["managed memory"] if self.dice.random() < 0.05 else []
        sizes = [client.size] * len(client.sees)
        return {"place": client.place, "devices": list(client.sees), "movable": sizes, "stays": [], "reasons": reasons}

    def join(self, client: Client, *, crash: bool = False) -> None:
        client.joined = True
        about = {"paused": client.paused, "lease": client.lease, "fence": client.fence, **self.facts(client)}
        identity = client.identity.as_role(RESIDENCY)
        self.carry_out(self.core.hello_at_gate(client, identity, about, self.now), crash=crash)
        if client.asked and client.joined:
            self.say_at_gate(client, "acquire", request=client.asked)

    def say_at_gate(self, client: Client, op: str, *, crash: bool = False, **fields: Any) -> None:
        if client.joined:
            self.carry_out(self.core.said_at_gate(client.name, {"op": op, **fields}, self.now), crash=crash)
        while self.later:
            who, lease, fence = self.later.pop()
            self.say_at_gate(who, "release", lease=lease, fence=fence, **self.facts(who))

    def use(self, client: Client, what: str, *, crash: bool) -> None:
        """The process calls the driver, or comes to rest."""
        if what == "leave":
            client.joined = False
            self.carry_out(self.core.left_gate(client.name, self.now, closed=client.pid % 2 > 0), crash=crash)
        elif what == "cancel" and client.asked:
            request, client.asked = client.asked, ""
            self.say_at_gate(client, "cancel", request=request, crash=crash)
        elif what == "rest" and self.gate_open(client):
            client.place = "in" if client.sees and client.size else client.place
            lease, fence, client.lease = client.lease, client.fence, ""
            self.say_at_gate(client, "release", lease=lease, fence=fence, crash=crash, **self.facts(client))
        elif what == "call" and not client.lease and not client.asked and not client.lost:
            client.asked = f"g{next(self.numbers)}"
            self.say_at_gate(client, "acquire", request=client.asked, crash=crash)

    def say(self, client: Client, op: str, *, crash: bool = False, **fields: Any) -> None:
        if client.connected:
            self.carry_out(self.core.said(client.name, {"op": op, **fields}, self.now), crash=crash)

    def hello(self, client: Client, *, crash: bool = False) -> None:
        self.later_releases: list[tuple[Client, str, int]] = []
        client.connected = True
        self.carry_out(self.core.hello(client, client.identity, {"kernel": "k"}, self.now), crash=crash)
        for who, lease, fence in self.later_releases:
            self.say(who, "release", lease=lease, fence=fence)
        if client.connected and client.identity.role == KERNEL:
            self.say(client, "simulate", bytes=client.size)
        for request in sorted(client.waiting):
            self.ask(client, request)

    def ask(self, client: Client, request: str, *, crash: bool = False) -> None:
        self.asked += 1
        client.waiting.add(request)
        if client.lost:
            client.waiting.discard(request)
            return
        devices = {"devices": list(client.identity.assigned)} if client.identity.role == RUNNER else {}
        self.say(client, "acquire", request=request, crash=crash, **devices)

    # --- dice ---------------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        dice, crash = self.dice, self.dice.random() < 0.04
        what = dice.choice(
            (
                "new",
                "hello",
                "ask",
                "ask",
                "release",
                "release",
                "cancel",
                "answer",
                "act",
                "act",
                "act",
                "wake",
                "end",
                "use",
                "use",
            )
        )
        there = list(self.clients.values())
        client = dice.choice(there) if there else None
        self.now += dice.choice([0.0, 0.1, 3.0])
        if self.only_bus and dice.random() < 0.5:  # few processes, which live long and use their device by turns
            what = "act" if self.pending or self.recovers else dice.choice(["answer", "use"])
        if what == "new" and len(there) < (3 if self.only_bus else 6):
            self.newcomer()
        elif what == "wake" and self.wake < NEVER:
            self.now = max(self.now, self.wake)
            self.carry_out(self.core.time_is_up(self.now), crash=crash)
        elif what == "act" and self.recovers and dice.random() < 0.5:
            self.recover(crash=crash)
        elif what == "act" and self.pending:
            self.act(self.pending.pop(dice.randrange(len(self.pending))), crash=crash)
        elif client is not None:
            self.behave(client, what, crash=crash)

    def newcomer(self) -> None:
        number, dice = next(self.numbers), self.dice
        task = dice.random() < 0.2 and not self.only_bus
        assigned = (dice.choice(self.config.devices).uuid,) if task else ()
        role, owner = (RUNNER if task else KERNEL), dice.choice("abc")
        identity = Identity(role=role, job=number, attempt=1, owner=owner, gpus=1, assigned=assigned)
        client = Client(pid=number, identity=identity, size=dice.choice([0, 2, 6, 10, 14]) * GIB)
        if self.only_bus:
            client.size = dice.choice([10, 14]) * GIB if not self.context else dice.choice([13, 14, 14]) * GIB
            client.fragile = self.context > 0 and dice.random() < 0.15
        client.library = self.tier is not Tier.SIMULATED and not task and (self.only_bus or dice.random() < 0.7)
        client.hooked = not client.library or dice.random() < 0.7
        self.clients[client.name] = client
        if client.hooked:
            self.hello(client)
        else:
            self.join(client)

    def behave(self, client: Client, what: str, *, crash: bool) -> None:
        if what == "use" and client.library:
            if client.joined:
                self.use(client, self.dice.choice(["call", "call", "rest", "rest", "cancel", "leave"]), crash=crash)
            else:
                self.join(client, crash=crash)
        elif what == "hello" and not client.connected and client.hooked:
            self.hello(client, crash=crash)
        elif what == "ask" and client.connected and not client.waiting and not client.leases:
            self.ask(client, f"r{next(self.numbers)}", crash=crash)
        elif what == "release" and client.leases and client.connected:
            name, fence = client.leases.popitem()
            blockers = ["managed memory"] if self.dice.random() < 0.1 else []
            self.say(client, "release", lease=name, fence=fence, cuda=True, blockers=blockers, crash=crash)
        elif what == "cancel" and client.waiting and self.dice.random() < 0.3:
            self.say(client, "cancel", request=next(iter(client.waiting)), crash=crash)
        elif what == "answer" and client.questions:
            self.say(client, "prepared", id=client.questions.pop(), cached=[], crash=crash)
        elif what == "end" and self.dice.random() < (0.05 if self.only_bus else 0.3):
            self.leave(client)

    def leave(self, client: Client) -> None:
        if client.connected and self.dice.random() < 0.5:
            closed = self.dice.random() < 0.5
            client.connected, client.questions = False, []
            if closed:
                client.waiting.clear()
                client.leases.clear()
            self.carry_out(self.core.disconnected(client.name, self.now, closed=closed))
        else:
            del self.clients[client.name]
            self.carry_out(self.core.ended(client.name, self.now))

    def act(self, action: Action, *, crash: bool = False, well: bool = False) -> None:
        core, now = self.core, self.now
        match action:
            case Gather(_, _, known):
                self.carry_out(core.done(action, known, now), crash=crash)
            case Checkpoint(tenant):
                self.moves += 1
                self.carry_out(core.done(action, self.falls_asleep(tenant, well=well), now), crash=crash)
            case Restore(tenant):
                self.moves += 1
                self.carry_out(core.done(action, self.wakes(tenant, well=well), now), crash=crash)
            case Pause(tenant):
                assert tenant not in self.clients or not self.clients[tenant].asleep
                moved = Moved(ending=Ending.DONE if well else self.dice.choice([Ending.DONE, Ending.DONE, Ending.RETRY]))
                if tenant in self.clients:
                    self.clients[tenant].paused = moved.ending is Ending.DONE
                self.carry_out(core.done(action, moved, now), crash=crash)
            case MoveOut(tenant) if action.way is MoveMethod.BUS and not self.has_left(action):
                self.leaving.append(action)
                self.pending.append(action)
                self.clients[tenant].paused = True
                self.carry_out(core.leaves(tenant, now), crash=crash)
            case MoveOut(tenant) if action.way is MoveMethod.BUS:
                self.over_the_bus(self.clients.get(tenant), "out", well=well)
                ending = Ending.GONE if tenant not in self.clients else self.bus_ending("out", tenant)
                size = action.size if not self.context or tenant not in self.clients else self.clients[tenant].size
                self.carry_out(core.done(action, Moved(ending=ending, bytes=size), now), crash=crash)
            case MoveBack(tenant, lease) if action.way is MoveMethod.BUS:
                self.over_the_bus(self.clients.get(tenant), "in", well=well)
                ending = Ending.GONE if tenant not in self.clients else self.bus_ending("in", tenant)
                if ending is Ending.DONE and lease is not None:
                    self.check_room()
                self.carry_out(core.done(action, Moved(ending=ending, bytes=0), now), crash=crash)
            case MoveOut():
                self.moves += 1
                moved = Moved(ending=Ending.DONE if well else self.dice.choice(_OUT), message="dice", bytes=action.size)
                self.carry_out(core.done(action, moved, now), crash=crash)
            case MoveBack():
                self.moves += 1
                moved = Moved(ending=Ending.DONE if well else self.dice.choice(_BACK), message="dice")
                self.carry_out(core.done(action, moved, now), crash=crash)
            case Spill(tenant) if action.way is MoveMethod.BUS:
                self.lets_go(tenant, action, crash=crash, well=well)
            case Unspill(tenant) if action.way is MoveMethod.BUS:
                self.fetches(tenant, action, crash=crash, well=well)
            case Spill():
                self.moves += 1
                moved = Moved(ending=Ending.DONE if well else self.dice.choice(_TO_DISK), message="dice", bytes=action.size)
                self.carry_out(core.done(action, moved, now), crash=crash)
            case Unspill():
                self.moves += 1
                moved = Moved(ending=Ending.DONE if well else self.dice.choice(_BACK), message="dice")
                self.carry_out(core.done(action, moved, now), crash=crash)
            case ScanDevices():
                use = self.use_of_devices()
                parents = {pid: pid for there in use.processes.values() for pid in there}
                self.carry_out(core.done(action, (use, parents, {}), now), crash=crash)
            case Kill(tenant):
                if self.clients.pop(tenant, None) is not None:
                    self.carry_out(core.ended(tenant, now))

    def falls_asleep(self, tenant: str, *, well: bool) -> Moved:
        """The driver takes a context off the device, or not; or a broker that was killed had done it."""
        client = self.clients.get(tenant)
        if client is None:
            return Moved(ending=Ending.GONE)
        assert client.place in ("out", "spilled"), "the driver moves what the library should"
        assert not self.gate_open(client)
        if client.fragile:
            return Moved(ending=Ending.UNSUSPENDABLE, libraries=("JAX",))
        ending = Ending.DONE if well or client.asleep else self.dice.choice(_OUT)
        client.asleep = ending in (Ending.DONE, Ending.UNVERIFIED)
        self.checkpoints += client.asleep
        return Moved(ending=ending, message="dice", bytes=self.context)

    def wakes(self, tenant: str, *, well: bool) -> Moved:
        """The driver brings a context back, or not."""
        client = self.clients.get(tenant)
        if client is None:
            return Moved(ending=Ending.GONE)
        ending = Ending.DONE if well or not client.asleep else self.dice.choice(_BACK)
        if ending is Ending.DONE and client.asleep:
            client.asleep = False
            self.restores += 1
            self.check_room()
        return Moved(ending=ending, message="dice")

    def on_device(self, client: Client) -> int:
        """Bytes of a process with the library that are really on its device."""
        row = self.core.ledger.tenants.get(client.name)
        if row is not None and (row.residency is Residency.LOST or row.moved_by == MoveMethod.DRIVER):
            return 0  # nobody's to bring back; or the driver has taken all of it
        context = self.context if client.sees and not client.asleep else 0
        return context + (client.size if client.sees and client.place == "in" else 0)

    def check_room(self) -> None:
        """What came back has room beside what others have there."""
        if self.context:
            assert sum(map(self.on_device, self.clients.values())) <= MEMORY, "more is on the device than it has"

    def has_left(self, action: MoveOut) -> bool:
        """False for a move out whose memory does not leave yet, and whose process is stopped now; some fail before."""
        if action in self.leaving:
            self.leaving.remove(action)
            return True
        return action.tenant not in self.clients or self.dice.random() < 0.3

    def use_of_devices(self) -> Use:
        """As the driver would say it: on simulated devices nothing, else what processes have that are on theirs."""
        processes: dict[str, dict[int, int]] = {uuid: {} for uuid in self.core.lender.devices}
        for client in self.clients.values() if self.tier is not Tier.SIMULATED else ():
            row = self.core.ledger.tenants.get(client.name)
            if self.context:
                processes["gpu0"] |= {client.pid: size} if (size := self.on_device(client)) else {}
                continue
            for uuid in row.home if row is not None and row.residency is Residency.RESIDENT else ():
                processes[uuid][client.pid] = max(client.size, 1)
        return Use(processes=processes, used={uuid: sum(there.values()) for uuid, there in processes.items()})

    def over_the_bus(self, client: Client | None, place: str, *, well: bool) -> None:
        """The library moves its memory, or not; whoever killed the broker before finds it moved already."""
        self.moves += 1
        assert client is None or not client.asleep, "its library cannot call the driver"
        if client is not None and client.place == "spilled":
            client.paused = True
        elif client is not None and (well or self.dice.random() < 0.8):
            client.paused, client.place = True, place
            self.bus += 1
        elif client is not None and place == "out":
            client.paused = False

    def bus_ending(self, place: str, tenant: str) -> Ending:
        return Ending.DONE if (self.clients[tenant].place in ("out", "spilled")) is (place == "out") else Ending.RETRY

    def lets_go(self, tenant: str, action: Spill, *, crash: bool, well: bool) -> None:
        """The state is written to the disk, and the library lets go of its host memory; or not, or nobody knows."""
        self.moves += 1
        client, ending = self.clients.get(tenant), Ending.DONE if well else self.dice.choice(_LETS_GO)
        assert client is None or not client.asleep, "its library cannot call the driver"
        if client is None or client.place not in ("out", "spilled"):
            ending = Ending.RETRY
        elif client.place == "spilled":
            ending = Ending.DONE
        gone = client is not None and (ending is Ending.DONE or (ending is Ending.UNVERIFIED and self.dice.random() < 0.5))
        if client is not None and gone:
            assert action.files == {tenant: action.files[tenant]}
            client.place, self.spills = "spilled", self.spills + 1
        self.carry_out(self.core.done(action, Moved(ending=ending, bytes=action.size), self.now), crash=crash)
        if client is not None and gone and ending is Ending.UNVERIFIED and client.joined:
            if self.dice.random() < 0.5:
                self.carry_out(self.core.found_spilled(tenant, self.now))
            else:
                self.use(client, "leave", crash=False)  # it says so when it comes again

    def fetches(self, tenant: str, action: Unspill, *, crash: bool, well: bool) -> None:
        """The state is brought from the disk, or not, or what is there is not it."""
        self.moves += 1
        client, ending = self.clients.get(tenant), Ending.DONE if well else self.dice.choice(_FROM_DISK)
        if client is None or client.place != "spilled":
            ending = Ending.DONE
        elif ending is Ending.DONE or (ending is Ending.RETRY and self.dice.random() < 0.5):
            client.place = "out"
        self.carry_out(self.core.done(action, Moved(ending=ending, message="dice"), self.now), crash=crash)

    # --- what holds ---------------------------------------------------------------------------------------------------------

    def considered(self) -> list[RequestRow]:
        rows = () if self.in_the_dark() else self.core.ledger.requests.values()
        return [r for r in rows if r.retry_at <= self.now and (r.resumes is not None or self.core.lender.is_here(r))]

    def in_the_dark(self) -> bool:
        """Nobody is considered before the devices were looked at."""
        return self.core.lender.looks_done < self.core.lender.looks_wanted

    def check(self, effects: Effects) -> None:
        ledger, lender = self.core.ledger, self.core.lender
        used = [uuid for lease in ledger.leases.values() if lease.state is not LeaseState.PAUSED for uuid in lease.devices]
        assert len(used) == len(set(used)), "a device is in two leases"
        for tenant, op, _fields, member in effects.tells:
            assert (member or tenant) in self.clients, f"{op} for nobody"
        self.check_gates()
        for action in effects.actions:
            if (
                isinstance(action, MoveBack)
                and action.lease is None
                and action.way is MoveMethod.BUS
                and action.tenant in ledger.tenants
            ):
                self.check_exchange(ledger.tenants[action.tenant])
            assert isinstance(action, ScanDevices) or action.tenant in ledger.tenants, f"{action} for nobody"
        assert set(lender.queue) <= set(ledger.requests)
        waiting = {row.id for row in self.considered()}
        assert waiting <= set(lender.queue), "it waits, and nobody knows why"
        assert all(lender.queue[name].reason.message for name in waiting)
        assert not ledger.requests or effects.wake < NEVER or self.in_the_dark(), "somebody waits, and nobody looks at it again"
        rows = ledger.tenants.values()
        if self.host is not None:
            through = self.tier is not Tier.SIMULATED
            in_host = [
                row
                for row in rows
                if row.residency in (*_AWAY, Residency.SPILLING)
                and (not row.on_disk or (through and row.residency is Residency.RESUMING))
            ]
            assert sum(sum(row.state.values()) for row in in_host) <= self.host
        to_disk = [row for row in rows if row.on_disk or row.residency in (Residency.SPILLING, Residency.SPILLED)]
        assert sum(sum(row.state.values()) for row in to_disk) <= self.disk
        assert all(row.residency in _OFF for row in rows if row.on_disk), "only what is off its devices is on the disk"
        for uuid in lender.devices if self.tier is Tier.SIMULATED else ():
            here = [row for row in ledger.tenants.values() if row.residency in (Residency.RESIDENT, *_AWAY[::2])]
            assert sum(row.state.get(uuid, 0) for row in here) <= MEMORY, "more is on a device than it has"
        for row in self.considered():
            home = row.devices or ledger.tenants[row.tenant].home
            stays = ledger.tenants[row.tenant].residency is Residency.RESIDENT and not row.exclusive
            if stays and not used and all(ledger.lease_on(uuid) is None for uuid in home) and lender.queue[row.id].position == 1:
                there = ledger.tenants.values()
                moving = any(one.unverified or one.residency in (*_AWAY[::2], Residency.SPILLING) for one in there)
                assert moving or lender.trimming or lender.queue[row.id].stuck, (
                    f"it waits for a free device: {lender.queue[row.id]}"
                )

    def check_exchange(self, row: TenantRow) -> None:
        """A state comes in while others leave: nobody computes on its devices, and it has no lease before all is done."""
        self.exchanges += 1
        assert row.residency is Residency.RESUMING
        assert not any(lease.state is LeaseState.ACTIVE for lease in self.core.ledger.leases_of(row.id))
        for uuid in row.home:
            lease = self.core.ledger.lease_on(uuid)
            assert lease is None or self.core.ledger.tenants[lease.tenant].residency is not Residency.RESIDENT

    def check_gates(self) -> None:
        """Whose gate is open has a lease that is in force, and nobody else has its devices."""
        for client in self.clients.values():
            row = self.core.ledger.tenants.get(client.name)
            if client.place == "spilled" and row is not None and row.residency is not Residency.LOST:
                assert client.name in row.files, "its state is on the disk, and nobody knows where"
                assert row.residency in (*_AWAY[1:], Residency.SPILLING, Residency.SPILLED), "its file is not kept"
            assert not client.asleep or not (client.joined and self.gate_open(client)), "it computes, and cannot"
            if client.asleep and row is not None and row.residency is not Residency.LOST:
                assert row.context != ContextPlace.DEVICE, "nobody knows that its context is away"
            if row is not None and row.moved_by == MoveMethod.DRIVER:
                continue  # the driver has stopped it, whatever its gate is
            if client.library and client.joined and self.gate_open(client):
                lease = self.core.ledger.leases.get(client.lease)
                assert lease is not None, f"{client.name} computes without a lease"
                assert lease.tenant == client.name
                assert lease.state is LeaseState.ACTIVE, f"{client.name} computes while its lease is {lease.state}"
                assert client.name in lease.gates

    def check_journal(self) -> None:
        """What was written is what is known."""
        again = Ledger(make_id="b")
        again.replay(self.lines)
        for table in ("tenants", "requests", "leases"):
            written = {name: plain(row) for name, row in getattr(again, table).items()}
            assert written == {name: plain(row) for name, row in getattr(self.core.ledger, table).items()}, table

    def finish(self) -> None:
        """All go on well from now on: everybody who waits is served, or told why not."""
        if self.recovers:
            self.recover()
        for _round in range(400):
            while self.pending:
                self.act(self.pending.pop(0), well=True)
            for client in list(self.clients.values()):
                if client.hooked and not client.connected:
                    self.hello(client)
                if client.library and not client.joined:
                    self.join(client)
                if client.library and self.gate_open(client):
                    self.use(client, "rest", crash=False)
                while client.questions:
                    self.say(client, "prepared", id=client.questions.pop(), cached=[])
                while client.leases:
                    name, fence = client.leases.popitem()
                    self.say(client, "release", lease=name, fence=fence, cuda=True)
            if not self.left() and not self.pending:
                break
            self.now = max(self.now, self.wake if self.wake < NEVER else self.now)
            self.carry_out(self.core.time_is_up(self.now))
        assert not self.left(), f"they wait without an end: {self.core.lender.queue}"
        asking = {f"{client.name}/{request}" for client in self.clients.values() for request in client.waiting}
        assert asking <= set(self.core.ledger.requests), "no answer came"

    def left(self) -> list[RequestRow]:
        """Who waits, but for whole tasks that nothing helps: with the reason in the line, those wait.

        So does a paused cell where others took more than anybody could know, and host memory has no room for that.
        """
        unknown = self.tier is not Tier.SIMULATED
        rows = self.core.ledger.requests.values()
        return [row for row in rows if not ((row.exclusive or (unknown and row.resumes)) and row.stuck_since)]


def live(seed: int, steps: int, core: type[Core] = Core, **kind: bool) -> Shell:
    """One history; `kind`: see `Shell`."""
    shell = Shell(seed, core, **kind)
    for number in range(steps):
        shell.step()
        if number % 20 == 0:
            shell.check_journal()
    shell.check_journal()
    shell.finish()
    return shell
