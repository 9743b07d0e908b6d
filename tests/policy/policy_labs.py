"""Small labs for the tests of the policy, and a second, simple-minded opinion on what fits when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from carrel.core.domain.expectation import Expect
from carrel.core.domain.node import Device, Node
from carrel.core.domain.partition import Partition
from carrel.core.domain.placement import ArrayLimit, Holding, Placement, Snapshot, Start, Waiting
from carrel.core.domain.qos import QoS
from carrel.core.domain.reservation import Reservation
from carrel.core.domain.resources import Resources
from carrel.core.policy.explain import explain
from carrel.core.policy.order import order_of
from carrel.core.policy.placer import Placer
from carrel.engines.slurm.partition import SlurmPartition, slurm_partition

GIB = 1024**3
NOW = 1_000_000.0
#: GiB of a device by its type, where they are not 80.
MEMORY = {"a100": 40, "t4": 16}


def node(name: str, *types: str, cpus: int = 16, memory: int = 64 * GIB, drained: str | None = None) -> Node:
    """A node with one device per type named; uuids like "n1-0"."""
    devices = tuple(
        Device(uuid=f"{name}-{index}", index=index, type=gpu_type, name=gpu_type, memory=MEMORY.get(gpu_type, 80) * GIB)
        for index, gpu_type in enumerate(types)
    )
    return Node(name=name, cpus=cpus, memory=memory, devices=devices, drained=drained)


def waiting(
    job_id: int, gpus: int = 1, *, ago: float = 0.0, owner: str = "ada", qos: str = "batch", time: int = 3600, **more: object
) -> Waiting:
    """A waiting job, submitted `ago` seconds before NOW; `more` goes to its resources, or to the job."""
    job_fields = {
        key: more.pop(key)
        for key in ("priority", "not_before", "account", "partition", "expected", "array", "grace", "late_by")
        if key in more
    }
    resources = Resources(gpus=gpus, time=time, **{"cpus": 1, "memory": GIB, **more})  # type: ignore[arg-type]
    return Waiting(id=job_id, owner=owner, qos=qos, resources=resources, submitted_at=NOW - ago, **job_fields)  # type: ignore[arg-type]


def holding(
    job_id: int, on: str, *devices: str, left: float = 600.0, owner: str = "bob", qos: str = "batch", **more: object
) -> Holding:
    """A job that holds devices, with `left` seconds to go at most."""
    resources = Resources(gpus=len(devices), **{"cpus": 1, "memory": GIB, **more})  # type: ignore[arg-type]
    return Holding(id=job_id, owner=owner, qos=qos, resources=resources, node=on, devices=devices, ends_by=NOW + left)


def lab(nodes: Iterable[Node], waits: Iterable[Waiting], holds: Iterable[Holding] = (), **more: object) -> Snapshot:
    """A snapshot with one unlimited QoS, "batch", unless `more` says otherwise."""
    fields = {"qos": {"batch": QoS(name="batch")}, **more}
    return Snapshot(nodes=tuple(nodes), waiting=tuple(waits), holding=tuple(holds), **fields)  # type: ignore[arg-type]


# ---- a second opinion -----------------------------------------------------------------------------------------------


@dataclass
class Left:
    """What is free on a node at some moment."""

    cpus: int
    memory: int
    #: Type and memory, by uuid.
    devices: dict[str, tuple[str, int]]


def free_at(snapshot: Snapshot, holds: Iterable[Holding], moment: float, now: float) -> dict[str, Left]:
    """What is free on each node that takes jobs, `moment` being inclusive of what ends then."""
    free = {
        node.name: Left(
            node.cpus, node.memory, {d.uuid: (d.type, d.memory) for d in node.devices if d.uuid not in snapshot.withheld}
        )
        for node in snapshot.nodes
        if node.drained is None
    }
    for held in holds:
        running = held.over_by > moment or moment == now  # Whoever holds something now does, even if it is overdue.
        for share in held.shares if running else ():
            if share.node in free:
                free[share.node].cpus -= held.resources.cpus
                free[share.node].memory -= held.resources.memory
                for uuid in share.devices:
                    free[share.node].devices.pop(uuid, None)
    return free


def suits(wanted: Resources, gpu_type: str, memory: int) -> bool:
    return wanted.gpu_type in (None, gpu_type) and memory >= wanted.gpu_memory


def fits(wanted: Resources, left: Left) -> bool:
    gpus = sum(suits(wanted, *device) for device in left.devices.values())
    return left.cpus >= wanted.cpus and left.memory >= wanted.memory and gpus >= wanted.gpus


def nodes_with_room(wanted: Resources, free: dict[str, Left]) -> int:
    return sum(fits(wanted, left) for left in free.values())


def has_room(wanted: Resources, free: dict[str, Left]) -> bool:
    return nodes_with_room(wanted, free) >= wanted.nodes


def within_limits(job: Waiting, snapshot: Snapshot, holds: Iterable[Holding]) -> bool:
    service, gpus, holds = snapshot.qos[job.qos], job.resources.total_gpus, tuple(holds)
    own = [held for held in holds if (held.owner, held.qos) == (job.owner, job.qos)]
    together = [held for held in holds if (held.account, held.qos) == (job.account, job.qos)]
    everybody = [held for held in holds if held.qos == job.qos]
    array = [held for held in holds if job.array is not None and held.array == job.array]
    if job.array is not None and len(array) >= job.array.at_most:
        return False
    for held, most_jobs, most_gpus in (
        (own, service.max_jobs_per_user, service.max_gpus_per_user),
        (together, service.max_jobs_per_account, service.max_gpus_per_account),
        (everybody, None, service.max_gpus),
    ):
        if most_jobs is not None and len(held) >= most_jobs:
            return False
        if most_gpus is not None and gpus and sum(one.resources.total_gpus for one in held) + gpus > most_gpus:
            return False
    return True


def free_for(job: Waiting, snapshot: Snapshot, holds: Iterable[Holding], moment: float, now: float) -> dict[str, Left]:
    """What is free on the nodes on which `job` may run from `moment` on."""
    part = snapshot.partitions.get(job.partition)
    ends = moment + job.longest
    return {
        name: left
        for name, left in free_at(snapshot, holds, moment, now).items()
        if (part is not None or job.partition == "")
        and (part is None or part.has(name))
        and not any(
            window.covers(name) and window.begin < ends and window.end > moment and not window.admits(job.owner, job.account)
            for window in snapshot.reservations
        )
    }


def first_start(job: Waiting, snapshot: Snapshot, holds: Sequence[Holding], now: float) -> float | None:
    """When `job` can start at the earliest if everything runs to its walltime and nothing else starts."""
    windows = {window.end for window in snapshot.reservations if window.end > now}
    for moment in sorted({now, *windows, *(max(held.over_by, now + 1e-6) for held in holds)}):
        running = [held for held in holds if moment == now or held.over_by > moment]
        room = has_room(job.resources, free_for(job, snapshot, holds, moment, now))
        if room and within_limits(job, snapshot, running):
            return moment
    return None


def as_holding(start: Start, jobs: dict[int, Waiting], now: float) -> Holding:
    job = jobs[start.job_id]
    return Holding(
        id=job.id, owner=job.owner, account=job.account, qos=job.qos, resources=job.resources,
        node=start.node, devices=start.devices, others=start.others, ends_by=now + job.longest,
        due=now + job.seconds, array=job.array, partition=job.partition,
    )  # fmt: skip


def after(snapshot: Snapshot, placement: Placement, now: float) -> list[Holding]:
    """Everything that is held once the decisions are carried out."""
    jobs = {job.id: job for job in snapshot.waiting}
    return [*snapshot.holding, *(as_holding(start, jobs, now) for start in placement.starts)]


def rank(job: Waiting, snapshot: Snapshot) -> tuple[int, float, int]:
    """The documented order, written out once more."""
    service = snapshot.qos.get(job.qos)
    points = (service.priority if service else 0) + job.priority
    worth = points * snapshot.age_weight - job.submitted_at - job.late_by
    worth -= (1 - snapshot.standing.get((job.account, job.owner), 1.0)) * snapshot.share_weight
    return (-int(bool(service and service.preempts)), -(worth + job.resources.total_gpus * snapshot.size_weight), job.id)


def place(snapshot: Snapshot, now: float, *, expect: Expect | None = None) -> Placement:
    """Ask a placer what starts and why the others wait."""
    found = Lab(snapshot)
    found.now = now
    return found.look(expect)


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
        placer.nodes(snapshot.nodes, snapshot.withheld, snapshot.moves)
        placer.rules(snapshot.qos, order_of(snapshot, snapshot.standing), snapshot.partitions, promises=snapshot.promises)
        placer.reservations(snapshot.reservations)

    @property
    def picture(self) -> Snapshot:
        waits, holds = tuple(self.waiting.values()), tuple(self.holding.values())
        return replace(
            self.snapshot, waiting=waits, holding=holds, submit_limits=self.placer.submit_limits, promised=self.placer.kept
        )

    def place(self) -> tuple[Start, ...]:
        """Decide, as a placer does that is told of everything now; carry out what was decided."""
        expected = tuple(Placer.of(self.picture).place(self.now))
        assert tuple(self.look().starts) == expected
        found = tuple(self.placer.place(self.now))
        assert found == expected
        for start in found:
            job = self.waiting.pop(start.job_id)
            self.holding[job.id] = as_holding(start, {job.id: job}, self.now)
        return found

    def look(self, expect: Expect | None = None) -> Placement:
        """What would be decided now, and why the others wait. A placer that is told of everything now says the same."""
        outcome = self.placer.look(self.now, blocked=self.snapshot.blocked, idle=self.snapshot.idle)
        fresh = Placer.of(self.picture).look(self.now)
        assert (outcome.starts, outcome.passed) == (fresh.starts, fresh.passed)
        assert [(promise.job.id, promise.at, promise.indexes) for promise in outcome.promises.made] == [
            (promise.job.id, promise.at, promise.indexes) for promise in fresh.promises.made
        ]
        return explain(outcome, expect)


# ---- random labs ----------------------------------------------------------------------------------------------------

TYPES = ("a100", "h200", "t4")


@st.composite
def nodes(draw: st.DrawFn) -> tuple[Node, ...]:
    return tuple(
        node(
            f"n{number}",
            *draw(st.lists(st.sampled_from(TYPES), max_size=4)),
            cpus=draw(st.integers(2, 8)),
            memory=draw(st.integers(2, 8)) * GIB,
            drained=draw(st.sampled_from([None, None, None, "for repair"])),
        )
        for number in range(draw(st.integers(1, 4)))
    )


@st.composite
def resources(draw: st.DrawFn) -> Resources:
    gpus = draw(st.sampled_from([0, 1, 1, 2, 3, 4]))
    return Resources(
        nodes=draw(st.sampled_from([1, 1, 1, 2])),
        gpus=gpus,
        gpu_type=draw(st.sampled_from([None, *TYPES])) if gpus else None,
        gpu_memory=draw(st.sampled_from([0, 0, 0, 16, 40, 80])) * GIB if gpus else 0,
        cpus=draw(st.integers(1, 6)),
        memory=draw(st.integers(1, 6)) * GIB,
        time=draw(st.sampled_from([60, 300, 1000, 5000])),
    )


QOS_NAMES = ("batch", "short", "free")
ACCOUNTS = {"ada": "physics", "bob": "physics", "cyd": "biology"}


@st.composite
def services(draw: st.DrawFn) -> dict[str, QoS]:
    limit = st.one_of(st.none(), st.integers(0, 4))
    limited = {
        name: QoS(
            name=name,
            max_jobs_per_user=draw(limit),
            max_gpus_per_user=draw(limit),
            max_jobs_per_account=draw(limit),
            max_gpus_per_account=draw(limit),
            max_gpus=draw(limit),
            preempts=draw(st.sampled_from([frozenset(), frozenset({"free"})])),
            priority=draw(st.integers(0, 3)),
        )
        for name in QOS_NAMES[:2]
    }
    return {**limited, "free": QoS(name="free")}


PARTITIONS = ("cats", "dogs")


@st.composite
def partitions(draw: st.DrawFn) -> dict[str, Partition]:
    """None, or two that may have nodes in common, or none at all."""
    if not draw(st.booleans()):
        return {}
    names = st.lists(st.sampled_from(("n0", "n1", "n2", "n3", "n[0-1]", "n*")), max_size=3, unique=True)
    return {name: Partition(name=name, nodes=tuple(draw(names))) for name in PARTITIONS}


@st.composite
def partitions_of_a_site(draw: st.DrawFn) -> dict[str, Partition]:
    """The same, and in one of them Slurm may choose the nodes."""
    found = draw(partitions())
    return {**found, "cats": slurm_partition("cats", SlurmPartition(partition="main"))} if draw(st.booleans()) else found


@st.composite
def reservations(draw: st.DrawFn) -> tuple[Reservation, ...]:
    found = []
    for number in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        begin = NOW + draw(st.sampled_from([-500, 0, 30, 300, 700, 4000]))
        found.append(
            Reservation(
                name=f"r{number}", begin=begin, end=begin + draw(st.sampled_from([100, 600, 5000])),
                nodes=tuple(draw(st.lists(st.sampled_from(("n0", "n1", "n[1-2]", "n*")), min_size=1, max_size=2))),
                users=frozenset(draw(st.sampled_from([(), ("ada",), ("bob", "cyd")]))),
                accounts=frozenset(draw(st.sampled_from([(), (), ("physics",)]))), reason="a course",
            )
        )  # fmt: skip
    return tuple(found)


def names_of(parts: Mapping[str, Partition]) -> st.SearchStrategy[str]:
    """A partition for a job: one of those that there are, or everywhere; rarely one that is gone."""
    return st.sampled_from(["", *parts, *parts, *parts, "gone"] if parts else [""])


@st.composite
def arrays(draw: st.DrawFn, owner: str, qos: str) -> ArrayLimit | None:
    """None, or one of the arrays of that owner in that class; what a number allows is always the same."""
    at_most = draw(st.sampled_from([None, None, 1, 2]))
    if at_most is None:
        return None
    return ArrayLimit(1000 + 10 * at_most + 100 * sorted(ACCOUNTS).index(owner) + (*QOS_NAMES, "gone").index(qos), at_most)


@st.composite
def snapshots(draw: st.DrawFn, most_waiting: int = 12) -> Snapshot:
    machines = draw(nodes())
    uuids = sorted(device.uuid for machine in machines for device in machine.devices)
    withheld = frozenset(draw(st.lists(st.sampled_from(uuids), max_size=2))) if uuids else frozenset()
    owners = st.sampled_from(("ada", "bob", "cyd"))
    names = st.sampled_from(QOS_NAMES)
    empty = Snapshot(nodes=machines, qos=draw(services()), waiting=(), holding=())
    holds: list[Holding] = []
    for number, wanted in enumerate(draw(st.lists(resources(), max_size=6))):
        free = free_at(empty, holds, NOW, NOW)
        wanted = replace(wanted, nodes=1)
        for name, left in free.items():
            if fits(wanted, left):
                owner, name_of_qos = draw(owners), draw(names)
                suited = [uuid for uuid, device in left.devices.items() if suits(wanted, *device)]
                holds.append(
                    Holding(
                        id=100 + number, owner=owner, account=ACCOUNTS[owner], qos=name_of_qos, resources=wanted, node=name,
                        devices=tuple(suited[: wanted.gpus]), ends_by=NOW + draw(st.sampled_from([-50, 30, 250, 300, 2000])),
                        due=draw(st.sampled_from([None, None, NOW - 5, NOW + 250])), array=draw(arrays(owner, name_of_qos)),
                    )
                )  # fmt: skip
                break
    parts = draw(partitions())
    waits = tuple(
        Waiting(
            partition=draw(names_of(parts)), expected=draw(st.sampled_from([None, None, 50, 700])),
            grace=draw(st.sampled_from([0, 10])),
            id=number + 1, owner=(owner := draw(owners)), account=ACCOUNTS[owner], qos=(service := draw(names)),
            array=draw(arrays(owner, service)),
            resources=draw(resources()),
            submitted_at=NOW - draw(st.integers(0, 5)) * 400, priority=draw(st.integers(-2, 2)),
            late_by=draw(st.sampled_from([0.0, 0.0, 700.0])),
            not_before=draw(st.sampled_from([0.0, 0.0, 0.0, NOW + 90])),
        )
        for number in range(draw(st.integers(0, most_waiting)))
    )  # fmt: skip
    factors = st.sampled_from([0.25, 0.5, 1.0])
    return Snapshot(
        nodes=machines,
        qos=empty.qos,
        waiting=waits,
        holding=tuple(holds),
        withheld=withheld,
        moves={uuid: draw(st.integers(0, 3)) * GIB for uuid in uuids if draw(st.booleans())},
        standing={(ACCOUNTS[owner], owner): draw(factors) for owner in ("ada", "bob")},
        share_weight=draw(st.sampled_from([0.0, 800.0])),
        size_weight=draw(st.sampled_from([0.0, 100.0])),
        partitions=parts,
        reservations=draw(reservations()),
    )
