"""What a broker remembers of its last hour, of moves under way and of how fast they go."""

from __future__ import annotations

from typing import Any

from carrel.core.domain.lease import LendingRules, Tier
from carrel.core.domain.node import Device
from carrel.core.domain.units import GIB
from carrel.node.broker.config import BrokerConfig
from carrel.node.broker.core.core import Core
from carrel.node.broker.core.device_history import MOST, DeviceHistory, Stretch
from carrel.node.broker.core.identity import Identity
from carrel.node.broker.pool import HostPool
from carrel.node.broker.status import Status
from carrel.node.leases.protocol import KERNEL, RUNNER
from carrel.node.suspension.ports import Ending, Moved

GPU = "gpu0"
ADA, BOB = "100-1", "200-1"


class Somebody:
    """A process that says hello."""

    def __init__(self, name: str) -> None:
        self.name, self.uid = name, 1000
        self.pid, self.start = (int(part) for part in name.split("-"))


class Node:
    """A core on one simulated GPU, whose states move when the test says so; it writes down all that it would."""

    def __init__(self) -> None:
        device = Device(index=0, uuid=GPU, type="sim", name="simulated", memory=16 * GIB, simulated=True)
        self.config = BrokerConfig(
            node="node",
            devices=(device,),
            state="",
            spool="",
            secret_file="",
            rules=LendingRules(time_slice=5.0, task_turn=0.0, task_share=0.0),
        )
        self.lines: list[Any] = []
        self.told: list[tuple[str, str, dict[str, Any]]] = []
        self.actions: list[Any] = []
        self.now = 1000.0
        self.core = Core(self.config, Tier.SIMULATED, make_id="b")

    def take(self, effects: Any) -> None:
        if effects.line is not None:
            self.lines.append(effects.line)
        self.told += [(one.tenant, one.op, dict(one.fields)) for one in effects.tells]
        self.actions += effects.actions

    def hello(self, name: str, owner: str, role: str = KERNEL) -> None:
        assigned = (GPU,) if role == RUNNER else ()
        identity = Identity(role=role, job=len(self.told) + 1, attempt=1, owner=owner, gpus=1, assigned=assigned, memory=0)
        self.take(self.core.hello(Somebody(name), identity, {"label": f"{owner}.ipynb"}, self.now))

    def say(self, name: str, op: str, **fields: Any) -> None:
        self.take(self.core.said(name, {"op": op, **fields}, self.now))

    def granted(self, name: str) -> dict[str, Any]:
        return [fields for tenant, op, fields in self.told if tenant == name and op == "granted"][-1]

    def compute(self, name: str, seconds: float, request: str) -> None:
        """A cell from its beginning to its end; what has to move for it takes no time."""
        self.say(name, "acquire", request=request, gpus=1)
        self.settle()
        lease = self.granted(name)
        self.now += seconds
        self.say(name, "release", lease=lease["lease"], fence=lease["fence"])

    def settle(self, seconds: float = 0.0) -> None:
        """Everything that is to be done is done, and each move takes so long."""
        while self.actions or self._asked():
            action = self.actions.pop(0) if self.actions else None
            match type(action).__name__:
                case "Gather":
                    self.take(self.core.done(action, action.known, self.now))
                case "MoveOut":
                    self.now += seconds
                    moved = Moved(ending=Ending.DONE, bytes=action.size, seconds=seconds)
                    self.take(self.core.done(action, moved, self.now))
                case "MoveBack":
                    self.now += seconds
                    moved = Moved(ending=Ending.DONE, bytes=sum(action.state.values()), seconds=seconds)
                    self.take(self.core.done(action, moved, self.now))

    def _asked(self) -> bool:
        """Whoever is asked to let go answers at once."""
        found = [(tenant, fields) for tenant, op, fields in self.told if op == "prepare"]
        self.told = [told for told in self.told if told[1] != "prepare"]
        for tenant, fields in found:
            self.say(tenant, "prepared", id=fields["id"])
        return bool(found)

    def status(self, owner: str = "", *, all_of_it: bool = False) -> dict[str, Any]:
        viewer = Identity(role="observer", job=0, attempt=0, owner=owner, gpus=0, sees_all=all_of_it)
        return Status(self.core, lambda: self.now, HostPool(0)).fields(viewer)

    def hour(self) -> list[tuple[str, str, float, float | None]]:
        rows = self.status(all_of_it=True)["hour"]
        return [(row["what"], row["owner"], row["since"] - 1000.0, row["until"] and row["until"] - 1000.0) for row in rows]


def stretch(since: float, until: float, tenant: str = ADA, what: str = "computes") -> Stretch:
    return Stretch(device=GPU, what=what, tenant=tenant, since=since, until=until, seconds=until - since)


def test_who_computed_is_seen_with_what_moved_and_who_does_now() -> None:
    node = Node()
    node.hello(ADA, "ada")
    node.hello(BOB, "bob")
    node.say(ADA, "simulate", bytes=12 * GIB)
    node.say(BOB, "simulate", bytes=12 * GIB)
    node.compute(ADA, 30.0, "a")
    node.now += 10.0
    node.say(BOB, "acquire", request="b", gpus=1)
    node.settle(seconds=4.0)
    node.now += 20.0
    assert node.hour() == [
        ("computes", "ada", 0.0, 30.0),
        ("leaves", "ada", 40.0, 44.0),
        ("computes", "bob", 44.0, None),
    ]


def test_names_in_the_last_hour_and_in_moves_are_for_those_who_may_see_them() -> None:
    node = Node()
    node.hello(ADA, "ada")
    node.hello(BOB, "bob")
    for name in (ADA, BOB):
        node.say(name, "simulate", bytes=12 * GIB)
    node.compute(ADA, 30.0, "a")
    node.say(BOB, "acquire", request="b", gpus=1)
    node._asked()
    node.take(node.core.done(node.actions.pop(), (), node.now))
    shown = node.status("bob")
    assert [(row["what"], row["owner"], row["label"], row["job"], row["mine"]) for row in shown["hour"]] == [
        ("computes", "", "", 0, False),
        ("leaves", "", "", 0, False),
    ]
    (move,) = shown["moves"]
    assert (move["owner"], move["label"], move["job"], move["direction"], move["bytes"]) == ("", "", 0, "out", 12 * GIB)
    (mine,) = node.status("ada")["moves"]
    assert (mine["owner"], mine["label"], mine["mine"]) == ("ada", "ada.ipynb", True)


def test_a_broker_that_starts_again_knows_the_last_hour_and_how_fast_states_move() -> None:
    node = Node()
    node.hello(ADA, "ada")
    node.hello(BOB, "bob")
    for name in (ADA, BOB):
        node.say(name, "simulate", bytes=12 * GIB)
    node.compute(ADA, 30.0, "a")
    node.say(BOB, "acquire", request="b", gpus=1)
    node.settle(seconds=4.0)
    before, rates = node.hour(), node.status(all_of_it=True)["rates"]
    assert rates == [{"way": "simulated", "direction": "out", "rate": 3 * GIB}]
    for lines in (node.lines, [node.core.everything(node.now)]):
        node.core = Core(node.config, Tier.SIMULATED, make_id="b", lines=lines)
        assert node.hour() == before
        assert node.status(all_of_it=True)["rates"] == rates


def test_a_move_says_when_it_should_be_done_and_how_far_it_is() -> None:
    node = Node()
    node.core = Core(node.config, Tier.SIMULATED, make_id="b", rate=float(GIB))
    node.hello(ADA, "ada")
    node.hello(BOB, "bob")
    for name in (ADA, BOB):
        node.say(name, "simulate", bytes=12 * GIB)
    node.compute(ADA, 30.0, "a")
    node.say(BOB, "acquire", request="b", gpus=1)
    node._asked()
    node.take(node.core.done(node.actions.pop(), (), node.now))
    (move,) = node.status(all_of_it=True)["moves"]
    assert (move["done"], move["ends"] - move["since"]) == (None, 12.0)
    node.core.progress(ADA, 3 * GIB, 12 * GIB, node.now + 1.0)
    (move,) = node.status(all_of_it=True)["moves"]
    assert (move["done"], move["ends"] - move["since"]) == (3 * GIB, 4.0), "its own pace says more"
    node.take(node.core.done(node.actions.pop(), Moved(ending=Ending.DONE, bytes=12 * GIB, seconds=4.0), node.now))
    assert node.status(all_of_it=True)["moves"] == []


def test_each_direction_has_a_rate_of_its_own() -> None:
    node = Node()
    node.hello(ADA, "ada")
    node.hello(BOB, "bob")
    for name in (ADA, BOB):
        node.say(name, "simulate", bytes=12 * GIB)
    node.compute(ADA, 1.0, "a")
    node.say(BOB, "acquire", request="b", gpus=1)
    node.settle(seconds=6.0)
    lease = node.granted(BOB)
    node.say(BOB, "release", lease=lease["lease"], fence=lease["fence"])
    node.say(ADA, "acquire", request="c", gpus=1)
    node.settle(seconds=3.0)
    rates = {row["direction"]: row["rate"] for row in node.status(all_of_it=True)["rates"]}
    assert rates["out"] < rates["back"] == 4 * GIB


def test_a_task_hears_for_how_many_people_it_was_paused_and_never_for_whom() -> None:
    node = Node()
    node.hello("300-1", "cleo", RUNNER)
    node.say("300-1", "acquire", request="t", devices=[GPU], lends=True)
    for name, owner in ((ADA, "ada"), (BOB, "bob"), ("201-1", "bob")):
        node.hello(name, owner)
        node.say(name, "simulate", bytes=2 * GIB)
        node.now += 5.0
        node.compute(name, 10.0, "r")
        node.settle()
        node.now += 5.0
        node.take(node.core.time_is_up(node.now))
        node.settle()
    heard = [(op, fields["people"]) for tenant, op, fields in node.told if tenant == "300-1" and op in ("paused", "resumed")]
    assert heard == [("paused", 0), ("resumed", 1), ("paused", 1), ("resumed", 2), ("paused", 2), ("resumed", 2)]
    assert not [
        fields for tenant, _op, fields in node.told if tenant == "300-1" and ("ada" in str(fields) or "bob" in str(fields))
    ]


def test_short_stretches_of_one_tenant_are_one_and_say_how_much_of_it_was_real() -> None:
    hour = DeviceHistory()
    for second in range(0, 40, 2):
        hour.add(stretch(second, second + 1))
        hour.add(stretch(second, second + 1, BOB, "paused"))
    (computed, paused) = hour.shown(GPU, 100.0)
    assert (computed.since, computed.until, computed.seconds) == (0, 39, 20)
    assert (paused.tenant, paused.seconds) == (BOB, 20)
    hour.add(stretch(39, 40, BOB))
    hour.add(stretch(40, 41))
    assert [one.tenant for one in hour.shown(GPU, 100.0) if one.what == "computes"] == [ADA, BOB, ADA], "not over another's head"


def test_the_past_is_bounded_and_says_from_when_on_it_is_known() -> None:
    hour = DeviceHistory()
    for number in range(MOST + 10):
        hour.add(stretch(number, number + 1, f"{number}-1"))
    assert len(hour.shown(GPU, MOST)) == MOST
    assert hour.known_since(GPU) == 10
    assert [one.since for one in hour.shown(GPU, MOST, most=2)] == [MOST + 8, MOST + 9]
    assert hour.known_since(GPU, most=2) == MOST + 8
    assert hour.shown(GPU, 3600.0 + MOST + 9)[0].since == MOST + 9, "and it is an hour"
