"""A real lab on SQLite whose engine does what a test says: it writes journals and logs where a runner would."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from carrel.core.comparison import Metrics
from carrel.core.control.administration import Administration
from carrel.core.control.cells import Cells
from carrel.core.control.collecting import Collecting
from carrel.core.control.drains import Drains
from carrel.core.control.event_ports import Event
from carrel.core.control.gpu_use import GpuUse
from carrel.core.control.held_users import HeldUsers
from carrel.core.control.keepers import keepers
from carrel.core.control.lab import Lab
from carrel.core.control.lab_files import LabFiles
from carrel.core.control.lab_policy import LabPolicy
from carrel.core.control.launching import LaunchSettings
from carrel.core.control.loop import ControlLoop
from carrel.core.control.loop_settings import LoopSettings
from carrel.core.control.retention import Retention
from carrel.core.control.rules import RuleBook
from carrel.core.control.sessions import NodeReport, Sessions, SessionStatus
from carrel.core.control.tokens import Tokens
from carrel.core.control.users import Users
from carrel.core.control.verifications import Verifications
from carrel.core.domain.job import Job, JobState, Preemption, Reason
from carrel.core.domain.launch import (
    Ended,
    Journaled,
    JournalRecord,
    Launch,
    LaunchPaths,
    Observation,
    Preparing,
    Started,
    StoredFile,
    Usage,
)
from carrel.core.domain.node import Device, Node
from carrel.core.domain.nouns import DRAINS, RESERVATIONS
from carrel.core.domain.placement import GpuState
from carrel.core.domain.ports import Attempt, Clock
from carrel.core.domain.qos import QoS
from carrel.core.domain.retention import RetentionRules
from carrel.core.domain.rules import LabRules
from carrel.core.domain.storage import LabDisk
from carrel.core.domain.units import GIB
from carrel.core.domain.user import Caller, Role, User
from carrel.core.snapshots import SnapshotStore, pack
from carrel.core.spool import Spool
from carrel.lab.audit import AuditLog
from carrel.lab.gateway import GatewaySettings, Pages, create_app
from carrel.lab.gateway.comparing import no_metrics
from carrel.lab.gateway.context import TrackingStatus
from carrel.lab.retention import Collector
from carrel.lab.retention.collector import Places
from carrel.lab.server.fabric import LabFabric
from carrel.lab.server.opening import LabWorkDirectories
from carrel.lab.server.rules import read_rules
from carrel.lab.server.rules_file import RulesFile
from carrel.lab.signin import Issuer
from carrel.lab.store import Database, Store
from carrel.lab.store.secrets import LabSeal
from carrel.lab.studies import OptunaStudy
from carrel.node.environments.named import NamedEnvironments
from carrel.testing.waiting import PATIENCE, wait_until

V1 = "/api/v1"
QOS = {
    "normal": QoS(name="normal", default_time=3600),
    "short": QoS(name="short", default_time=600, max_time=1800, priority=10),
}
RULES = LabRules(qos=QOS, default_qos="normal", session_qos="normal")
#: The same as they are written.
RULES_FILE = """\
# What everybody has.
[qos.normal]
default_time = "1h"

[qos.short]
default_time = "10m"
max_time = "30m"  # nobody waits longer
priority = 10
"""


class ScriptedDoor:
    """The way into sessions of which nothing runs."""

    shown = SessionStatus(ready=True, connections=2)

    def open(self, job: Job, *, base: str, path: str, token_id: int) -> str:
        return f"{base}open/{job.id}/{path}"

    def address(self, job: Job, *, base: str) -> str:
        return f"{base}sessions/{job.id}"

    def status(self, job: Job) -> SessionStatus:
        return self.shown


@dataclass
class ScriptedLender:
    """A broker that says what a test says."""

    said: dict[str, Any] = field(default_factory=dict)
    socket: str = ""

    def status(self) -> Mapping[str, Any]:
        return self.said


PROJECT = """\
name: greeting
entry_points:
  main:
    parameters:
      who: {type: string, default: world}
      times: {type: int, default: 1}
    command: "echo {who} {times}"
"""


class ScriptedEngine:
    """An engine without processes. `wait_started` waits for a job's start, `say` is what its runner would say."""

    def __init__(self, spool: Spool, nodes: tuple[Node, ...], clock: Clock = time.time) -> None:
        self.spool = spool
        self._nodes = nodes
        self._clock = clock
        self._deliver: Callable[[Sequence[Observation]], None] = lambda _news: None
        self._started: dict[int, tuple[Launch, str]] = {}
        self._offsets: dict[tuple[int, int], int] = {}
        self._changed = threading.Condition()

    def nodes(self) -> tuple[Node, ...]:
        return self._nodes

    def withheld(self) -> frozenset[str]:
        return frozenset()

    def gpu_state(self) -> GpuState:
        return GpuState()

    def observe(self, deliver: Callable[[Sequence[Observation]], None]) -> None:
        self._deliver = deliver

    def start(self, launch: Launch, *, token: str) -> None:
        with self._changed:
            self.spool.attempt(launch.job_id, launch.attempt).path.mkdir(parents=True, exist_ok=True)
            self._started[launch.job_id] = (launch, token)
            self._changed.notify_all()

    def adopt(self, attempts: Iterable[tuple[Attempt, Launch, str]]) -> None:
        assert not list(attempts)

    def cancel(self, job_id: int, attempt: int, *, by: str) -> None:
        self.end(job_id, state=JobState.CANCELLED, reason=Reason(code="Cancelled", message=f"Cancelled by {by}."))

    def preempt(self, job_id: int, attempt: int, preemption: Preemption | None) -> None:
        assert preemption is not None
        self.end(job_id, state=JobState.PREEMPTED, reason=Reason(code="Preempted", message="Its place was taken."))

    def forget(self, job_id: int, attempt: int, *, over: bool = True) -> None:
        pass

    def close(self) -> None:
        pass

    def wait_started(self, job_id: int, attempt: int = 1) -> tuple[Launch, str]:
        with self._changed:
            assert self._changed.wait_for(
                lambda: job_id in self._started and self._started[job_id][0].attempt >= attempt, PATIENCE
            ), f"job {job_id} was not started"
            return self._started[job_id]

    def say(self, job_id: int, *records: JournalRecord, log: bytes = b"") -> None:
        launch, _token = self.wait_started(job_id)
        key = (job_id, launch.attempt)
        path = self.spool.attempt(*key).log
        with path.open("ab") as file:
            file.write(log)
        self._offsets[key] = self._offsets.get(key, 0) + len(records)
        entries = tuple(Journaled(at=self._clock(), record=record) for record in records)
        size = path.stat().st_size if log else None
        self._deliver(
            [Observation(job_id=job_id, attempt=launch.attempt, entries=entries, offset=self._offsets[key], log_size=size)]
        )

    def run(self, job_id: int) -> None:
        self.say(job_id, Preparing(message="Building the environment."), Started(pid=4242, seeds={"PYTHONHASHSEED": "0"}))

    def end(
        self,
        job_id: int,
        *,
        state: JobState = JobState.COMPLETED,
        reason: Reason | None = None,
        exit_code: int | None = 0,
        log: bytes = b"",
        outputs: tuple[StoredFile, ...] = (),
        usage: Usage | None = None,
    ) -> None:
        reason = reason or Reason(code="Completed", message="The command ended with exit code 0.")
        ended = Ended(state=state, reason=reason, exit_code=exit_code, outputs=outputs, usage=usage or Usage())
        self.say(job_id, ended, log=log)


class AmpleStorage:
    """Disks that nobody watches, as `carrel.core.control.storage.StorageWatch`."""

    def disks(self) -> Sequence[LabDisk]:
        """None that are known of."""
        return ()

    def short(self) -> LabDisk | None:
        """None."""
        return None

    def check(self) -> None:
        """Everything is taken."""

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Nothing ever happens."""
        return lambda: None


@dataclass
class Rig:
    home: Path
    lab: Lab
    store: Store
    engine: ScriptedEngine
    snapshots: SnapshotStore
    app: FastAPI
    tokens: Mapping[str, str]
    #: The rules as an administrator has written them, last the newest.
    written: list[LabRules]
    runs: dict[int, tuple[str, str]] = field(default_factory=dict)
    lender: ScriptedLender = field(default_factory=lambda: ScriptedLender())
    door: ScriptedDoor = field(default_factory=lambda: ScriptedDoor())
    #: Set once it is there.
    audit: AuditLog = None  # type: ignore[assignment]
    #: What brokers of a cluster's nodes said.
    nodes: list[NodeReport] = field(default_factory=list)

    def caller(self, name: str) -> Caller:
        return self.lab.authenticate(self.tokens[name])

    def headers(self, name: str = "ada") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[name]}"}

    def upload(self, name: str = "ada", files: Mapping[str, str] | None = None) -> str:
        directory = self.home / "code" / secrets.token_hex(4)
        directory.mkdir(parents=True)
        for path, text in (files or {"MLproject": PROJECT}).items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_text(text)
        packed = pack(directory)
        with packed.open() as stream:
            self.lab.add_snapshot(self.caller(name), packed.digest, stream)
        return packed.digest

    def archive(self, files: Mapping[str, str]) -> tuple[str, bytes]:
        directory = self.home / "code" / secrets.token_hex(4)
        directory.mkdir(parents=True)
        for path, text in files.items():
            (directory / path).write_text(text)
        packed = pack(directory)
        with packed.open() as stream:
            return packed.digest, stream.read()

    def store_blob(self, data: bytes) -> str:
        import hashlib

        name = hashlib.sha256(data).hexdigest()
        path = self.lab.files.blobs / name[:2] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return f"sha256:{name}"

    def wait(self, job_id: int, state: JobState) -> None:
        self.wait_for(lambda: self.store.jobs.get(job_id).state is state)  # type: ignore[union-attr]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition is true. It looks again and again: the end of a call, for one, is no event of the lab's."""
        wait_until(condition)

    def submit(self, http: httpx.Client, name: str = "ada", **body: object) -> int:
        """Submit a task of this user's; `body` is what it asks for."""
        answer = http.post(f"{V1}/jobs", json={"snapshot": self.upload(name), **body})
        assert answer.status_code == 201, answer.text
        return int(answer.json()["id"])

    def running(self, http: httpx.Client, name: str = "ada", **body: object) -> int:
        """A task of this user's that runs."""
        job = self.submit(http, name, **body)
        self.engine.run(job)
        self.wait(job, JobState.RUNNING)
        return job

    def events(self, job_id: int) -> list[Event]:
        return list(self.store.events.after(0, job_id=job_id, owner=None, limit=1000))

    def audited(self) -> bytes:
        """All lines of the audit log, as its files have them."""
        return b"".join(path.read_bytes() for path in sorted((self.home / "audit").glob("*.jsonl")))


def gpu(index: int, *, simulated: bool = True) -> Device:
    return Device(uuid=f"SIM-{index}", index=index, type="simulated", name="Simulated GPU", memory=16 * GIB, simulated=simulated)


#: A fabric of two parts.
FABRIC = 'machines = 1000\n[[blocks]]\nkind = "cpu"\n[[blocks]]\nkind = "gpu"\n'


@contextmanager
def a_lab(
    home: Path,
    *,
    pages: Callable[[Rig], Pages] | None = None,
    cpus: int = 4,
    gpus: int = 2,
    heartbeat: float = 15.0,
    keeps: RetentionRules = RetentionRules(),
    quota: int | None = None,
    clock: Clock = time.time,
    clock_of_work: Clock = time.time,
    run_metrics: Callable[[str, str], Metrics] | None = None,
    poll_interval: int = 5,
    issues: bool = True,
    fabric: str = FABRIC,
    **limits: int,
) -> Iterator[Rig]:
    """`clock` is that of people and their tokens, `clock_of_work` that by which jobs start and end.

    `fabric` are the parts of which machines are made, "" for none. With `run_metrics` the lab has a tracking server, of which no
    pages are served.
    """
    home.mkdir(parents=True, exist_ok=True)
    store = Store(Database.at(home / "lab.db"))
    written = [RULES]
    (home / "carrel.toml").write_text(RULES_FILE)
    parts = home / "fabric.toml"
    parts.write_text(fabric)
    node = Node(name="bench", cpus=cpus, memory=16 * GIB, devices=tuple(gpu(index) for index in range(gpus)))
    machines = LabFabric(str(parts) if fabric else None, home, store, clock_of_work, node=node)
    file = RulesFile(home / "carrel.toml", lambda tables, where: read_rules(tables, where))
    rules = RuleBook(RULES, reread=lambda: written[-1], written=file)
    spool = Spool(home / "spool")
    snapshots = SnapshotStore(home / "snapshots")
    engine = ScriptedEngine(spool, (node,), clock_of_work)
    secret = secrets.token_bytes(32)
    paths = LaunchPaths(environments=str(home / "env"), snapshots=str(home / "snapshots"), blobs=str(home / "blobs"))
    held = HeldUsers(store.people)
    loop = ControlLoop(
        jobs=store.jobs,
        events=store.events,
        engine=engine,
        clock=clock_of_work,
        settings=LoopSettings(
            rules=rules,
            launch=LaunchSettings(paths=paths),
            secret=secret,
            drained=Drains(store.of(DRAINS)).apply,
            reserved=store.of(RESERVATIONS).all,
            held=held.current,
        ),
    )
    places = Places(spool=home / "spool", snapshots=home / "snapshots", blobs=home / "blobs")
    collector = Collector(places, store.retention, rules=lambda: keeps, clock=clock_of_work)
    tokens_of_lab = Tokens(store=store.tokens, clock=clock, check_account=LabPolicy(rules=rules).account)
    lab = Lab(
        jobs_store=store.jobs,
        event_store=store.events,
        people=store.people,
        tokens=tokens_of_lab,
        users=Users(people=store.people, tokens=tokens_of_lab, jobs=store.jobs, held=held, changed=loop.changed, clock=clock),
        held=held.current,
        administration=Administration(
            people=store.people,
            rules=rules,
            drains=store.of(DRAINS),
            nodes=engine.nodes,
            look_again=loop.look_again,
            clock=clock_of_work,
        ),
        keepers=(
            *keepers(
                store, store.people, rules, clock_of_work, nodes=engine.nodes, look_again=loop.look_again, seal=LabSeal(secret)
            ),
            *machines.keepers(lambda caller: caller.user.account),
        ),
        engine=engine,
        loop=loop,
        policy=LabPolicy(rules=rules),
        files=LabFiles(spool=spool, blobs=home / "blobs", code=snapshots),
        retention=Retention(store=store.retention, collector=collector, quota=lambda: quota, clock=clock_of_work),
        collecting=Collecting(store.jobs, LabWorkDirectories(spool, home / "blobs", 1024**3)),
        cells=Cells(store=store.cells),
        gpu_use=GpuUse(store=store.gpu_use, clock=clock_of_work, co2_per_kwh=400),
        verifications=Verifications(store=store.verifications),
        storage=AmpleStorage(),
        clock=clock,
        secret=secret,
        lab_id=store.lab_id(),
    )
    tokens = {}
    for name, role in (("root", Role.ADMIN), ("ada", Role.USER), ("bob", Role.USER)):
        lab.people.add(User(subject=name, name=name.title(), role=role), now=clock_of_work())
        tokens[name] = lab.tokens.hand_out(name, name="of a test", by="root")[1]
    rig = Rig(home=home, lab=lab, store=store, engine=engine, snapshots=snapshots, app=FastAPI(), tokens=tokens, written=written)
    environments = NamedEnvironments(home / "environments")
    sockets = tempfile.mkdtemp(prefix="carrel-rig-", dir="/tmp")  # a socket's path is short
    calls, socket = home / "calls", Path(sockets) / "bodies"
    settings = GatewaySettings(
        git_hosts="127.0.0.0/8",
        home=home,
        uploads=home / "uploads",
        calls=calls,
        body_socket=socket,
        heartbeat=heartbeat,
        **limits,
    )
    audit = rig.audit = AuditLog(home / "audit", clock=clock)
    rig.app = create_app(
        lab,
        settings=settings,
        snapshots=snapshots,
        run_of=rig.runs.get,
        run_metrics=run_metrics or no_metrics,
        tracking_status=lambda: TrackingStatus(state="ready" if run_metrics else "off"),
        pages=pages(rig) if pages else None,
        environments=environments,
        audit=audit,
        calls=store.calls,
        sweeps=(store.sweeps, OptunaStudy()),
        baseline_store=store.baselines,
        challenges=(store, home / "challenges", home / "files"),
        issuer=Issuer(
            store=store.sign_ins,
            tokens=tokens_of_lab,
            find_user=store.people.get,
            clock=clock,
            secret=secret,
            interval=poll_interval,
        )
        if issues
        else None,
        sessions=Sessions(
            lab,
            files=home / "files",
            door=rig.door,
            lender=rig.lender,
            check_environment=environments.check,
            nodes=lambda: rig.nodes,
        ),
    )
    loop.start()
    machines.start(loop.uses, loop.look_again)
    try:
        yield rig
    finally:
        machines.close()
        loop.stop()
        lab.tokens.close()
        store.close()
        audit.close()
        shutil.rmtree(sockets)


@contextmanager
def serve(app: FastAPI) -> Iterator[str]:
    """The application in a real server on loopback."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", access_log=False, loop="uvloop", http="httptools")
    server = uvicorn.Server(config)
    ready = threading.Event()
    startup = server.startup

    async def started(sockets: object = None) -> None:
        await startup(sockets)  # type: ignore[arg-type]
        ready.set()

    server.startup = started  # type: ignore[method-assign, assignment]
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert ready.wait(PATIENCE)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        app.state.close_streams()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server did not stop"


def client(url: str, headers: Mapping[str, str] | None = None) -> httpx.Client:
    return httpx.Client(base_url=url, headers=dict(headers or {}), timeout=PATIENCE)
