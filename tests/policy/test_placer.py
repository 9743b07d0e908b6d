"""A `Placer` that is told of each change decides what `place` decides for the whole picture."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_labs import (
    ACCOUNTS,
    NOW,
    QOS_NAMES,
    as_holding,
    names_of,
    nodes,
    partitions,
    reservations,
    resources,
    services,
    snapshots,
)

from carrel.domain.node import Node
from carrel.domain.placement import Holding, Snapshot, Start, Waiting
from carrel.policy.order import order_of
from carrel.policy.place import place
from carrel.policy.placer import Placer


class Lab:
    """The picture, and a placer that has been told of it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.now = NOW
        self.waiting = {job.id: job for job in snapshot.waiting}
        self.holding = {held.id: held for held in snapshot.holding}
        self.placer = Placer()
        self.tell()
        for held in snapshot.holding:
            self.placer.hold(held)
        for job in snapshot.waiting:
            self.placer.wait(job)

    def wait(self, job: Waiting) -> None:
        self.waiting[job.id] = job
        self.holding.pop(job.id, None)
        self.placer.wait(job)

    def hold(self, held: Holding) -> None:
        self.holding[held.id] = held
        self.waiting.pop(held.id, None)
        self.placer.hold(held)

    def forget(self, job_id: int) -> None:
        self.waiting.pop(job_id, None)
        self.holding.pop(job_id, None)
        self.placer.forget(job_id)

    def change(self, **fields: object) -> None:
        self.snapshot = replace(self.snapshot, **fields)  # type: ignore[arg-type]
        self.tell()

    def tell(self) -> None:
        snapshot, placer = self.snapshot, self.placer
        placer.nodes(snapshot.nodes, snapshot.withheld)
        placer.rules(snapshot.qos, order_of(snapshot, snapshot.standing), snapshot.partitions, promises=snapshot.promises)
        placer.reservations(snapshot.reservations)

    def place(self) -> tuple[Start, ...]:
        """Decide both ways; carry out what was decided."""
        picture = replace(self.snapshot, waiting=tuple(self.waiting.values()), holding=tuple(self.holding.values()))
        expected = place(picture, self.now).starts
        found = tuple(self.placer.place(self.now))
        assert found == expected
        for start in found:
            job = self.waiting.pop(start.job_id)
            self.holding[job.id] = as_holding(start, {job.id: job}, self.now)
        return found


WHAT_HAPPENS = [
    "submit",
    "submit",
    "end",
    "end",
    "cancel",
    "refuse",
    "later",
    "rank",
    "reload",
    "parts",
    "windows",
    "nodes",
    "start",
]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(snapshots(), st.sampled_from([1, 1, 2, 5]), st.data())
def test_it_decides_what_place_decides_whatever_happens(snapshot: Snapshot, promises: int, data: st.DataObject) -> None:
    lab = Lab(replace(snapshot, promises=promises))
    lab.place()
    for step in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(WHAT_HAPPENS)):
            case "submit":
                owner = data.draw(st.sampled_from(sorted(ACCOUNTS)))
                lab.wait(
                    Waiting(
                        id=1000 + step, owner=owner, account=ACCOUNTS[owner],
                        qos=data.draw(st.sampled_from([*QOS_NAMES, "gone"])), resources=data.draw(resources()),
                        submitted_at=lab.now - data.draw(st.integers(0, 3)),
                        partition=data.draw(names_of(lab.snapshot.partitions)),
                        priority=data.draw(st.integers(0, 2)), not_before=data.draw(st.sampled_from([0.0, 0.0, lab.now + 50])),
                    )
                )  # fmt: skip
            case "end" if lab.holding:
                lab.forget(data.draw(st.sampled_from(sorted(lab.holding))))
            case "cancel" if lab.waiting:
                lab.forget(data.draw(st.sampled_from(sorted(lab.waiting))))
            case "refuse":
                for start in lab.place():
                    if data.draw(st.booleans()):
                        held = lab.holding[start.job_id]
                        again = Waiting(
                            id=held.id, owner=held.owner, account=held.account, qos=held.qos, resources=held.resources,
                            submitted_at=lab.now, not_before=lab.now + 5,
                        )  # fmt: skip
                        lab.wait(again)
            case "start" if lab.holding:
                held = lab.holding[data.draw(st.sampled_from(sorted(lab.holding)))]
                lab.hold(replace(held, ends_by=held.ends_by + data.draw(st.integers(0, 400))))
            case "later":
                lab.now += data.draw(st.sampled_from([1.0, 45.0, 60.0, 1000.0]))
            case "rank":
                factors = st.sampled_from([0.25, 0.5, 1.0])
                lab.change(standing={(ACCOUNTS[owner], owner): data.draw(factors) for owner in ACCOUNTS})
            case "reload":
                lab.change(qos=data.draw(services()))
            case "parts":
                lab.change(partitions=data.draw(partitions()), promises=data.draw(st.sampled_from([1, 1, 3])))
            case "windows":
                lab.change(reservations=data.draw(reservations()))
            case "nodes":
                kept = {node.name: node for node in data.draw(nodes())}
                same = [kept.get(node.name, node) if data.draw(st.booleans()) else node for node in lab.snapshot.nodes]
                lab.holding = {
                    key: held for key, held in lab.holding.items() if _there(held, same) or bool(lab.placer.forget(key))
                }
                lab.change(nodes=tuple(same))
        lab.place()


def _there(held: Holding, machines: list[Node]) -> bool:
    """True when the machine still has what is held."""
    return any(
        machine.name == held.node and {device.uuid for device in machine.devices} >= set(held.devices) for machine in machines
    )
