"""What a report of use reads, on every database that a lab may use."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import sqlalchemy as sa
from prometheus_client.parser import text_string_to_metric_families
from stored import new_job

from carrel.core.control.gpu_use import GpuUse, Whose
from carrel.core.domain.cells import RecordedCell
from carrel.core.domain.errors import Denied, Invalid
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.domain.user import Caller, Role, User
from carrel.core.gpu_use import End, Grouping, Range, UseSums
from carrel.core.gpu_use.groups import monday_before
from carrel.lab.store import Store
from carrel.lab.store.tables import attempts, events, jobs

NEW = new_job(account="physics", resources=Resources(gpus=2, nodes=2))
ALL = Range(0, 10_000)


class Work:
    """Jobs with their attempts, as a lab has left them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._keys = 0

    def job(self, *tries: tuple[float, float | None, float | None, str], ended: float | None = None, **more: object) -> int:
        """A job from 100 on; each attempt as when it had its place, began and ended, and its state."""
        self._keys += 1
        new = replace(NEW, **{name: value for name, value in more.items() if name in NEW.__slots__})  # type: ignore[arg-type]
        made = self.store.jobs.submit(new, now=100.0, key=None, request=str(self._keys), outbox=lambda _job: ())
        number = made.job.id
        state = "PENDING" if ended is None else tries[-1][3] if tries else "CANCELLED"
        numbers = range(1 + int(str(more.get("refused", 0))), 1 + int(str(more.get("refused", 0))) + len(tries))
        with self.store.database.write() as connection:
            values = {"state": state, "ended_at": ended, "attempt": len(tries), "started_at": tries[-1][1] if tries else None}
            connection.execute(sa.update(jobs).where(jobs.c.id == number), values)
            for count, (leased, started, over, how) in zip(numbers, tries, strict=True):
                row = {
                    "job_id": number,
                    "number": count,
                    "node": "bench",
                    "devices": "[]",
                    "state": how,
                    "reason": "",
                    "message": "",
                }
                connection.execute(sa.insert(attempts), {**row, "leased_at": leased, "started_at": started, "ended_at": over})
        return number

    def log(self, job: int, at: float, data: str, kind: str = "log") -> None:
        with self.store.database.write() as connection:
            row = {"at": at, "job_id": job, "owner": "ada", "type": kind, "data": data}
            connection.execute(sa.insert(events), row)

    def cell(self, job: int, since: float, until: float, number: int = 1, outcome: str = "ok") -> None:
        cell = RecordedCell(broker="b", number=number, session=job, attempt=1, process="7-70", asked_at=since, granted_at=since,
                            returned_at=until, seen_at=until, computed=until - since, gpus=1, outcome=outcome,
                            busy=number * 12.5)  # fmt: skip
        self.store.cells.add([cell])


@pytest.fixture
def work(store: Store) -> Work:
    return Work(store)


@pytest.mark.gate
def test_jobs_come_with_all_their_attempts_and_those_without_one(work: Work) -> None:
    work.job((110, 120, 150, "FAILED"), (160, 165, 200, "COMPLETED"), ended=200.0)
    work.job()
    found = sorted(work.store.gpu_use.attempts(ALL, Whose()), key=lambda facts: (facts.last, facts.number))
    assert [(facts.last, facts.number, bool(facts.first)) for facts in found] == [(0, 0, True), (2, 1, True), (2, 2, False)]
    assert {facts.gpus for facts in found} == {4}
    assert (found[1].leased_at, found[1].started_at, found[1].ended_at, found[1].state) == (110, 120, 150, "FAILED")


def test_the_first_attempt_that_is_kept_is_the_first(work: Work) -> None:
    """A cluster refused three; nothing of them is kept."""
    work.job((110, 120, 150, "COMPLETED"), ended=150.0, refused=3)
    assert [(facts.number, bool(facts.first)) for facts in work.store.gpu_use.attempts(ALL, Whose())] == [(4, True)]


@pytest.mark.parametrize(
    ("within", "count"), [(Range(0, 100), 0), (Range(0, 101), 1), (Range(150, 151), 1), (Range(200.5, 300), 0), (ALL, 1)]
)
def test_only_jobs_that_were_there_are_read(work: Work, within: Range, count: int) -> None:
    work.job((110, 120, 200, "COMPLETED"), ended=200.0)
    assert len(list(work.store.gpu_use.attempts(within, Whose()))) == count


def test_a_report_is_of_those_whose_use_the_caller_may_see(work: Work) -> None:
    for owner, account in (("ada", "physics"), ("bob", "physics"), ("bob", "biology")):
        work.job((110, 120, 200, "COMPLETED"), ended=200.0, owner=owner, account=account)
    work.cell(3, 120, 130)
    use = GpuUse(store=work.store.gpu_use, clock=lambda: 1000.0)

    def rows(name: str, role: Role, *accounts: str) -> dict[str, int]:
        caller = Caller(user=User(subject=name, name=name, role=role), accounts=frozenset(accounts))
        found = use.use(caller, begin=0, end=None, by=Grouping.USER)
        return {row: each.jobs for row, each in found.sums.rows.items()}

    assert rows("ada", Role.USER, "physics") == {"ada": 1}
    assert rows("ada", Role.MANAGER, "physics") == {"ada": 1, "bob": 1}
    assert rows("ada", Role.MANAGER, "biology") == {"ada": 1, "bob": 1}
    assert rows("eve", Role.ADMIN) == {"ada": 1, "bob": 2}
    assert rows("eve", Role.OPERATOR, "physics") == {}


def test_sums_of_what_is_stored(work: Work) -> None:
    work.job((110, 120, 150, "FAILED"), (160, 165, 200, "COMPLETED"), ended=200.0)
    session = work.job((110, 111, None, "RUNNING"), kind=JobKind.SESSION, resources=Resources())
    work.cell(session, 190, 240)
    caller = Caller(user=User(subject="root", name="root", role=Role.ADMIN))
    use = GpuUse(store=work.store.gpu_use, clock=lambda: 300.0)
    rows = use.use(caller, begin=0, end=None, by=Grouping.KIND).sums.rows
    assert rows["task"].held == {End.FAILED: 4 * 40, End.COMPLETED: 4 * 40}
    assert (rows["task"].waited, rows["task"].prepared) == (20, 4 * 15)
    assert (rows["session"].sessions, rows["session"].lent, rows["session"].all_held) == (190, 50, 0)
    part = use.use(caller, begin=0, end=200, by=Grouping.KIND).sums.rows["session"]
    assert (part.sessions, part.lent) == (90, 10)
    with pytest.raises(Invalid, match="end before it begins"):
        use.use(caller, begin=200, end=200, by=Grouping.KIND)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("owner", [None, "ada"])
def test_cells_of_a_week_come_together_and_add_up_to_each_of_them(work: Work, seed: int, owner: str | None) -> None:
    """Cells of three sessions around two Mondays, whose sums are made here one by one, from their own seconds."""
    random, monday = Random(seed), 1_700_438_400
    sessions = [
        work.job((110, 111, None, "RUNNING"), kind=JobKind.SESSION, owner=name, qos=f"qos{number}")
        for number, name in enumerate(("ada", "ada", "bob"))
    ]
    told = []
    for number in range(60):
        asked = monday + random.choice((0, 0, 604_800)) + random.randint(-40, 40)
        granted, ended = asked + random.randint(0, 9), asked + random.randint(9, 60)
        computed = random.randint(0, ended - granted)
        told.append(RecordedCell(broker="b", number=number, session=random.choice(sessions), attempt=1, process="7-70",
                                 asked_at=asked, granted_at=granted, returned_at=ended, seen_at=ended, computed=computed,
                                 gpus=random.randint(1, 4), gpu_type="h200" if number % 2 else ""))  # fmt: skip
    work.store.cells.add(told)
    for within in (Range(0, 2 * monday), Range(monday - 20, monday + 30), Range(monday, monday + 604_800), Range(5, monday - 3)):
        for by in (Grouping.QOS, Grouping.GPU_TYPE, Grouping.WEEK):
            sums = UseSums(by, within, 2.0 * monday)
            sums.add_lent(work.store.gpu_use.lent(within, Whose(owner)))
            wanted: dict[str, list[float]] = {}
            for cell in told:
                place = sessions.index(cell.session)
                if (owner == "ada" and place == 2) or not cell.seen_at > cell.granted_at or cell.granted_at >= within.end:
                    continue
                part = 1 / (cell.seen_at - cell.granted_at)
                for second in range(int(cell.asked_at), int(cell.seen_at)):
                    if not within.begin <= second < within.end:
                        continue
                    name = {Grouping.QOS: f"qos{place}", Grouping.GPU_TYPE: cell.gpu_type}.get(by) or (
                        "" if by is Grouping.GPU_TYPE else f"{monday_before(second):.0f}"
                    )
                    row = wanted.setdefault(name, [0.0] * 5)
                    if second < cell.granted_at:
                        row[0] += 1
                        continue
                    paused = cell.seen_at - cell.granted_at - cell.computed
                    more = (0, second == cell.granted_at, part * cell.computed, part * paused, part * cell.computed * cell.gpus)
                    wanted[name] = [sum(pair) for pair in zip(row, more, strict=True)]
            found = {
                name: [use.cells_waited, use.cells, use.cells_computed, use.cells_paused, use.lent]
                for name, use in sums.rows.items()
            }
            for name in found.keys() | wanted.keys():
                assert found.get(name, [0] * 5) == pytest.approx(wanted.get(name, [0] * 5), abs=1e-6), (within, by, name)


def test_first_output_is_that_of_the_first_attempt(work: Work) -> None:
    one = work.job((110, 120, 150, "FAILED"), (160, 165, 200, "COMPLETED"), ended=200.0)
    for at, attempt, offset in ((105, 0, 0), (123, 1, 0), (124, 1, 9), (170, 2, 0)):
        work.log(one, at, f'{{"attempt":{attempt},"offset":{offset},"size":9}}')
    work.job((130, 140, None, "RUNNING"), qos="batch")
    work.job((130, 140, None, "RUNNING"), dependency="afterok:1")
    found = sorted(work.store.gpu_use.starts(ALL, Whose()))
    assert [(facts.qos, facts.leased_at, facts.started_at, facts.output_at) for facts in found] == [
        ("batch", 130, 140, None),
        ("normal", 110, 120, 123),
    ]
    assert [facts.qos for facts in work.store.gpu_use.starts(Range(111, 200), Whose())] == ["batch"]


def test_first_metrics_are_written_down_once_for_each_attempt(work: Work) -> None:
    one = work.job((110, 120, 150, "FAILED"), (160, 165, None, "RUNNING"))
    now = iter((130.0, 140.0, 170.0))
    ada, use = User(subject="ada", name="ada"), GpuUse(store=work.store.gpu_use, clock=lambda: next(now))
    for attempt in (1, 1, 2):
        use.hear_metric(Caller(user=ada, job_id=one, attempt=attempt))
    # Another server, which has not heard of the first.
    replace(use, heard=set()).hear_metric(Caller(user=ada, job_id=one, attempt=1))
    use.hear_metric(Caller(user=ada))
    assert [facts.metric_at for facts in work.store.gpu_use.starts(ALL, Whose())] == [130.0]
    with work.store.database.read() as connection:
        assert connection.execute(sa.select(attempts.c.metric_at).order_by(attempts.c.number)).scalars().all() == [130.0, 140.0]


def test_cells_come_by_session_and_in_their_order(work: Work) -> None:
    kind = {"kind": JobKind.SESSION, "resources": Resources()}
    one, none = work.job((110, 111, None, "RUNNING"), **kind), work.job((110, 112, 200, "COMPLETED"), ended=200.0, **kind)
    work.job((110, 111, None, "RUNNING"), kind=JobKind.SESSION)  # it has GPUs of its own
    work.job(**kind)
    for number, since, outcome in ((1, 150, "ok"), (2, 130, "input")):
        work.cell(one, since, since + 10, number, outcome)
    found = [(cell.session, cell.asked_at, bool(cell.input)) for cell in work.store.gpu_use.cells(ALL, Whose())]
    assert found == [(one, 130, True), (one, 150, False), (none, None, False)]
    use = GpuUse(store=work.store.gpu_use, clock=lambda: 171.0)
    caller = Caller(user=User(subject="ada", name="ada"))
    (row,) = use.sessions(caller, begin=0, end=None, by="user").rows.values()
    assert {name.value: seconds for name, seconds in row.seconds.items() if seconds} == {
        "thinking": 19 + 11, "computed": 20, "input": 10, "unused": 59,
    }  # fmt: skip
    job = work.store.jobs.get(one)
    assert job is not None
    own = use.of_session(job)
    assert own is not None
    assert (own.cells, own.gpu_seconds, own.measured, own.busy, own.seconds["unused"]) == (2, 20, 20, 3.75, 0)


def test_counters_of_prometheus_grow_by_what_was_held_and_lent(work: Work) -> None:
    """An hour's job that began and ended between looks, one that goes on, and a cell that was over before the first look."""
    session = work.job((110, 111, None, "RUNNING"), kind=JobKind.SESSION, resources=Resources(), account='a"b')
    work.cell(session, 100, 130)
    now = 1000.0
    use = GpuUse(store=work.store.gpu_use, clock=lambda: now)
    root = Caller(user=User(subject="root", name="root", role=Role.ADMIN))

    def counted() -> dict[str, dict[tuple[str, ...], float]]:
        families = text_string_to_metric_families(use.counters(root))
        return {one.name: {tuple(row.labels.values()): row.value for row in one.samples} for one in families}

    assert not any(counted().values())
    work.job((950, 960, 1000, "COMPLETED"), (1000, 1000, None, "RUNNING"))
    waits = work.job(qos="batch")
    work.log(waits, 900, '{"position":1,"reason":"Priority"}', "queue")
    work.cell(session, 500, 560, number=2)
    now = 1100.0
    first = counted()
    # Looked at a minute late: from 940 to 1040.
    assert first == {
        "carrel_gpu_seconds": {("physics", "normal", "task"): 4 * 90},
        "carrel_lent_gpu_seconds": {('a"b', "normal", "session"): 60},
        "carrel_lent": {('a"b', "normal", "session"): 1},
        "carrel_wait_seconds": {("batch", "Priority"): 100},
    }
    now = 1105.0
    assert counted() == first
    now = 1160.0
    assert counted()["carrel_gpu_seconds"] == first["carrel_gpu_seconds"] | {("physics", "normal", "task"): 4 * 150}
    with pytest.raises(Denied):
        use.counters(Caller(user=User(subject="ada", name="ada")))


def test_waits_are_told_by_job_until_it_has_its_next_place(work: Work) -> None:
    one = work.job((110, 120, 150, "FAILED"), (160, 165, 200, "COMPLETED"), ended=200.0)
    two, three = work.job(ended=190.0, owner="bob"), work.job(qos="batch")
    for job, at, reason in ((two, 100, "Resources"), (one, 102, "Priority"), (one, 105, "Resources"), (one, 152, "Resources"),
                            (three, 101, "Priority")):  # fmt: skip
        work.log(job, at, f'{{"position":1,"reason":"{reason}"}}', "queue")
    assert [tuple(facts) for facts in work.store.gpu_use.waits(ALL, Whose())] == [
        ("normal", one, "Priority", 102, 110),
        ("normal", one, "Resources", 105, 110),
        ("normal", one, "Resources", 152, 160),
        ("normal", two, "Resources", 100, 190),
        ("batch", three, "Priority", 101, None),
    ]
    assert {facts.job for facts in work.store.gpu_use.waits(ALL, Whose("bob"))} == {two}
    use = GpuUse(store=work.store.gpu_use, clock=lambda: 300.0)
    ada = Caller(user=User(subject="ada", name="ada"))
    assert use.starts(ada, begin=104.0, end=None).waits.classes == {
        "normal": {"Priority": 1.0, "Resources": 13.0},
        "batch": {"Priority": 196.0},
    }


def test_exported_attempts_come_by_job_and_number(work: Work) -> None:
    tried = work.job((110, 120, 150, "FAILED"), (160, 165, 200, "COMPLETED"), ended=200.0, dependency="afterok:9")
    ended_in_line = work.job(ended=130.0)
    waits = work.job()
    found, last = work.store.gpu_use.exported(ALL, Whose(), 300.0, after=0, limit=3)
    assert last == waits
    assert [(one.job, one.attempt, one.submitted_at, one.since, one.ended_at, one.state) for one in found] == [
        (tried, 1, 100, 110, 150, "FAILED"),
        (tried, 2, 150, 160, 200, "COMPLETED"),
        (ended_in_line, 0, 100, None, 130, "CANCELLED"),
        (waits, 0, 100, None, None, "PENDING"),
    ]
    assert [(one.followed, one.depends) for one in found[:3]] == [(True, True), (False, False), (False, False)]
    assert {(one.nodes, one.gpus, one.name, one.account) for one in found} == {(2, 2, "train", "physics")}


def test_exported_pages_leave_nothing_out(work: Work) -> None:
    for number in range(7):
        work.job(*[(110, 120, 150, "FAILED")] * (number % 3), ended=200.0, owner="ada" if number % 2 else "bob")
    for whose, wanted in ((Whose(), [1, 2, 3, 4, 5, 6, 7]), (Whose("ada"), [2, 4, 6])):
        seen: list[int] = []
        after: int | None = 0
        while after is not None:
            found, after = work.store.gpu_use.exported(ALL, whose, 300.0, after=after, limit=2)
            seen += dict.fromkeys(one.job for one in found)
        assert seen == wanted
    assert work.store.gpu_use.exported(Range(201, 300), Whose(), 300.0, after=0, limit=2) == ([], None)


def test_an_exported_attempt_of_a_cluster_had_nothing_before_it_began(work: Work) -> None:
    began = work.job((110, 120, 150, "COMPLETED"), ended=150.0)
    waits = work.job((110, None, None, "PENDING"))
    with work.store.database.write() as connection:
        connection.execute(sa.update(attempts), {"node": "slurm:main"})
    found, _ = work.store.gpu_use.exported(ALL, Whose(), 300.0, after=0, limit=9)
    assert {one.job: (one.since, one.on_cluster) for one in found} == {began: (120, True), waits: (None, True)}


def test_which_devices_were_held_is_read_with_names_and_stops(work: Work) -> None:
    job = work.job((110, 120, 150, "FAILED"), (160, 165, None, "RUNNING"))
    work.job((110, 120, 130, "COMPLETED"), ended=130.0)  # without a device
    with work.store.database.write() as connection:
        connection.execute(sa.update(attempts).where(attempts.c.job_id == job).values(devices='["a","b"]', suspended_seconds=5.0))
    cell = RecordedCell(broker="b", number=1, session=job, attempt=1, process="7-70", asked_at=140.0, granted_at=145.0,
                        seen_at=175.0, computed=20.0, gpus=1, devices=("c",))  # fmt: skip
    work.store.cells.add([cell])
    found = sorted(work.store.gpu_use.held(ALL), key=lambda held: held.since)
    assert [(held.devices, held.since, held.until, held.stopped) for held in found] == [
        (["a", "b"], 110, 150, 5), (["c"], 145, 175, 10), (["a", "b"], 160, None, 5),
    ]  # fmt: skip
    assert {(held.owner, held.account) for held in found} == {("ada", "physics")}
    assert [held.since for held in work.store.gpu_use.held(Range(170, 200))] == [160, 145]
