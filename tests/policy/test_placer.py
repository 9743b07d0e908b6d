"""A `Placer` that is told of each change decides what a new one decides that is told of the whole picture."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_labs import (
    ACCOUNTS,
    GIB,
    QOS_NAMES,
    Lab,
    arrays,
    names_of,
    nodes,
    partitions_of_a_site,
    reservations,
    resources,
    services,
    snapshots,
)

from carrel.core.domain.node import Node
from carrel.core.domain.placement import Holding, Snapshot, Waiting
from carrel.core.domain.submit_limits import SubmitScope
from support.examples import examples

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
    "states",
    "start",
    "full",
    "full",
    "room",
]


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(snapshots(), st.sampled_from([1, 1, 2, 5]), st.data())
def test_it_decides_what_place_decides_whatever_happens(snapshot: Snapshot, promises: int, data: st.DataObject) -> None:
    if data.draw(st.booleans()):
        snapshot = replace(snapshot, partitions=data.draw(partitions_of_a_site()))
    lab = Lab(replace(snapshot, promises=promises))
    lab.place()
    for step in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(WHAT_HAPPENS)):
            case "submit":
                owner, service = data.draw(st.sampled_from(sorted(ACCOUNTS))), data.draw(st.sampled_from([*QOS_NAMES, "gone"]))
                lab.wait(
                    Waiting(
                        id=1000 + step, owner=owner, account=ACCOUNTS[owner],
                        qos=service, resources=data.draw(resources()),
                        submitted_at=lab.now - data.draw(st.integers(0, 3)),
                        partition=data.draw(names_of(lab.snapshot.partitions)), array=data.draw(arrays(owner, service)),
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
                            submitted_at=lab.now, not_before=lab.now + 5, array=held.array, partition=held.partition,
                        )  # fmt: skip
                        lab.wait(again)
            case "start" if lab.holding:
                held = lab.holding[data.draw(st.sampled_from(sorted(lab.holding)))]
                later = data.draw(st.integers(0, 400))
                lab.hold(
                    replace(held, ends_by=held.ends_by + later, due=data.draw(st.sampled_from([None, held.over_by + later])))
                )
            case "later":
                lab.now += data.draw(st.sampled_from([1.0, 45.0, 60.0, 1000.0]))
            case "rank":
                factors = st.sampled_from([0.25, 0.5, 1.0])
                lab.change(standing={(ACCOUNTS[owner], owner): data.draw(factors) for owner in ACCOUNTS})
            case "reload":
                lab.change(qos=data.draw(services()))
            case "parts":
                lab.change(partitions=data.draw(partitions_of_a_site()), promises=data.draw(st.sampled_from([1, 1, 3])))
            case "full":
                scope = SubmitScope(
                    *(data.draw(st.sampled_from([None, *some])) for some in (ACCOUNTS, ACCOUNTS.values(), QOS_NAMES))
                )
                lab.placer.refused(scope, "AssocMaxSubmitJobLimit", "no more")
            case "room" if lab.placer.submit_limits:
                lab.placer.admit(
                    data.draw(st.sampled_from(sorted(lab.placer.submit_limits, key=str))), data.draw(st.integers(1, 3))
                )
            case "windows":
                lab.change(reservations=data.draw(reservations()))
            case "states":
                uuids = sorted(device.uuid for machine in lab.snapshot.nodes for device in machine.devices)
                some = st.lists(st.sampled_from(uuids), unique=True) if uuids else st.just([])
                moves = {uuid: data.draw(st.integers(0, 2)) * GIB for uuid in data.draw(some)}
                lab.change(withheld=frozenset(data.draw(some)), moves=moves)
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
