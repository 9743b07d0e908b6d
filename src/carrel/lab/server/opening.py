"""A lab is opened: with `carrel.lab.server.up`, the only place where every room meets the others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from carrel.core.control.administration import Administration
from carrel.core.control.borrowing import Borrowing
from carrel.core.control.cells import Cells
from carrel.core.control.collecting import Collecting
from carrel.core.control.drains import Drains
from carrel.core.control.gpu_use import GpuUse
from carrel.core.control.held_users import HeldUsers
from carrel.core.control.history import newest_ended, of_name
from carrel.core.control.keepers import keepers
from carrel.core.control.lab import Lab
from carrel.core.control.lab_files import LabFiles, blob_file
from carrel.core.control.lab_policy import LabPolicy
from carrel.core.control.launching import LaunchSettings
from carrel.core.control.loop import ControlLoop
from carrel.core.control.loop_settings import LoopSettings
from carrel.core.control.ports import Collected, untold
from carrel.core.control.rules import RuleBook
from carrel.core.control.storage import StorageWatch
from carrel.core.control.tokens import Tokens
from carrel.core.control.users import Users, nothing_to_do
from carrel.core.control.verifications import Verifications
from carrel.core.domain.job import Job
from carrel.core.domain.launch import LaunchLimits, LaunchPaths, PreparingLimits
from carrel.core.domain.nouns import CHALLENGES, DRAINS, RESERVATIONS, TEAMS
from carrel.core.domain.partition import LOCAL, read_cluster
from carrel.core.domain.units import GIB
from carrel.core.domain.user import Role, User
from carrel.core.gpu_use.habits import gpu_memory_taken
from carrel.core.snapshots import SnapshotStore
from carrel.core.spool import Spool
from carrel.core.spool.disk import disk_of
from carrel.core.submission.own_name import own_name
from carrel.engines.deputy.engine import DeputyEngine
from carrel.engines.nursery import passed
from carrel.engines.router import Router
from carrel.engines.task_client import pack_client
from carrel.lab.audit import AuditLog
from carrel.lab.server.device_watch import DeviceWatch
from carrel.lab.server.engine import LabContext
from carrel.lab.server.engines import LabEngines
from carrel.lab.server.fabric import LabFabric
from carrel.lab.server.home import LabHome
from carrel.lab.server.home_location import remember
from carrel.lab.server.identity import read_identity
from carrel.lab.server.isolation import LabIsolation
from carrel.lab.server.lending import Lender, NoLender, socket_directory
from carrel.lab.server.node_reports import NodeReports
from carrel.lab.server.preload import library_for
from carrel.lab.server.preparable import Preparable
from carrel.lab.server.private_files import secret_files
from carrel.lab.server.retention import RetentionService
from carrel.lab.server.rucio import rucio_of
from carrel.lab.server.settings import Settings
from carrel.lab.server.tracking import artifacts_of
from carrel.lab.server.training_data import TrainingData
from carrel.lab.server.whose_code import WhoseCode
from carrel.lab.store import Database, Store
from carrel.lab.store.secrets import LabSeal
from carrel.lab.tracking.describe import Describer
from carrel.node.devices import discover, this_node
from carrel.node.environments import EnvironmentSettings, EnvironmentStore
from carrel.node.runner.collecting import collect_outputs, remove_work
from carrel.node.runner.outputs import sweep_drafts

if TYPE_CHECKING:
    from carrel.lab.server.authority import Authority


class LabWorkDirectories:
    """Implements `carrel.core.control.collecting.WorkDirectories`."""

    def __init__(
        self, spool: Spool, blobs: Path, limit: int, *, deputy_of: Callable[[Job], DeputyEngine | None] = lambda _job: None
    ) -> None:
        """`limit`: bytes of outputs that are stored of one attempt. `deputy_of` says in whose hands a job's files are."""
        self._spool = spool
        self._blobs = blobs
        self._limit = limit
        self._deputy_of = deputy_of

    def store(self, job: Job) -> Collected:
        """Store what the job's patterns name. Raises `NotFound` when there is no working directory any more."""
        deputy = self._deputy_of(job)
        if deputy is not None:
            found = deputy.collect(job.id, job.attempt, self._limit)
        else:
            found = collect_outputs(self._spool.attempt(job.id, job.attempt), self._blobs, self._limit)
        return Collected(files=tuple(found.files), notes=tuple(found.notes), failure=found.failure, left=found.left)

    def remove(self, job: Job) -> None:
        """Nothing is left there that anybody needs."""
        deputy = self._deputy_of(job)
        if deputy is not None:
            deputy.remove_work(job.id, job.attempt)
        else:
            remove_work(self._spool.attempt(job.id, job.attempt))


#: The part of the disk that a job may take, and the memory that what prepares one may take at least, where no setting says it.
_DISK_PART, _PREPARING = 4, 4 * GIB


@dataclass(slots=True, kw_only=True)
class RunningLab:
    """A lab whose parts are up; `close` takes them down in the right order, and jobs go on."""

    home: LabHome
    settings: Settings
    store: Store
    engine: Router
    loop: ControlLoop
    lab: Lab
    code: SnapshotStore
    url: str
    secret: bytes
    lender: Lender | NoLender
    watch: DeviceWatch
    borrowing: Borrowing
    reports: NodeReports
    engines: LabEngines
    whose_code: WhoseCode
    storage: StorageWatch
    retention: RetentionService
    isolation: LabIsolation
    audit: AuditLog
    fabric: LabFabric

    def close(self) -> None:
        """Stop deciding, stop watching, close the database."""
        self.fabric.close()
        self.retention.close()
        self.storage.close()
        self.watch.close()
        self.lender.close()
        self.reports.close()
        self.loop.stop()
        self.engine.close()
        self.borrowing.close()
        self.lab.tokens.close()
        self.store.close()
        self.audit.close()


def open_lab(
    home: LabHome,
    settings: Settings,
    url: str,
    rules: RuleBook,
    authority: Authority | None = None,
) -> RunningLab:
    """Wire store, engine and loop; nothing runs yet but the engine's nursery."""
    store = Store(Database(settings.database) if settings.database else Database.at(home.database))
    lab_id = store.lab_id()
    secret = home.secret()
    found = this_node(
        discover(
            simulate=settings.simulate_gpus,
            lab=lab_id,
            memory=settings.simulate_memory,
            visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        )
    )
    whole = replace(found, cpus=settings.cpus or found.cpus, memory=settings.memory or found.memory)
    fabric = LabFabric(
        settings.fabric,
        home.path,
        store,
        time.time,
        node=whole,
        took=lambda owner, name: gpu_memory_taken(of_name(store.jobs, owner, name)),
        grace=settings.grace_time,
    )
    node = fabric.rest(whole)
    spool, code = Spool(home.spool), SnapshotStore(home.snapshots, limit=settings.snapshot_limit, files=settings.snapshot_files)
    # Nobody else writes here while this process holds the lab: what is half done was left by one that was killed.
    code.sweep(time.time())
    sweep_drafts(home.blobs, time.time())
    lends = settings.sessions and bool(node.devices)
    drains = Drains(store.of(DRAINS))
    lender = (
        Lender(home=home, settings=settings, node=node, secret=secret, clock=time.time, drained=drains.reasons)
        if lends
        else NoLender()
    )
    slurm_url = (settings.slurm_url or url).rstrip("/")
    reports = NodeReports(home.reports, secret=secret, clock=time.time)
    engines = LabEngines(
        LabContext(
            home=home,
            lab_id=lab_id,
            rules=rules,
            settings=settings.values,
            url=slurm_url,
            environ=os.environ,
            node=node,
            composed=fabric.machines.nodes,
            lent=lender.lent,
            gpu_state=lender.gpu_state,
            news=reports.nodes,
        )
    )
    whose_code = WhoseCode(read_identity(settings.slurm_identity), allowed=settings.run_users_code_as_lab)
    engine = Router(
        route=lambda launch: read_cluster(launch.node)[0],
        make=lambda name: engines.of(name).make(),
        own=engines.of(LOCAL).make(),
        admit=whose_code.check_launch,
    )
    disk = settings.disk_limit or disk_of(home.spool).total // _DISK_PART
    preparing = settings.prepare_memory or min(node.memory, max(_PREPARING, node.memory // 4))
    isolation = LabIsolation(
        home,
        settings.values,
        PreparingLimits(memory=preparing, disk=disk, files=settings.disk_files),
        secret_files(settings.values, settings.rules),
        0 if whose_code.strict else len(store.people.list()),  # where jobs run as their owners, nobody's code runs here
    )
    launch = LaunchSettings(
        paths=LaunchPaths(
            environments=str(home.environments),
            snapshots=str(home.snapshots),
            blobs=str(home.blobs),
            broker=lender.socket,
            residency=library_for(settings.residency, node.devices) if lends else "",
            closed=tuple(dict.fromkeys([str(home.path), *(os.path.realpath(part) for part in home.parts.values())])),
            files=str(home.files),
            inputs=str(home.path / "inputs"),
            client=str(pack_client(home.path / "client")),
            bodies=str(body_socket(home).parent),
        ),
        limits=LaunchLimits(
            prepare=settings.prepare_time,
            warning=settings.warning_time,
            grace=settings.grace_time,
            log=settings.log_limit,
            outputs=settings.output_limit,
            disk=disk,
            files=settings.disk_files,
            inputs=settings.input_limit or 0,
            input_files=settings.input_files,
            input_cache=settings.input_cache,
            image_cache=settings.image_cache,
        ),
        gateway=url,
        authority=authority.text if authority is not None else "",
        tracking_uri=f"{url}/mlflow" if settings.tracking else None,
        variables={"CARREL_LAB_ID": lab_id},
        suspends=lends and not all(device.simulated for device in node.devices),
        download_python=settings.download_python,
        rucio=rucio_of(settings.values),
        walls=TrainingData(isolation, store.of(CHALLENGES), store.of(TEAMS), home.challenges),
    )
    here = launch
    launch = replace(launch, of_engine=lambda name: engines.of(name).launch(here))
    storage = StorageWatch(home.path, home.parts, floor=settings.disk_floor)
    held = HeldUsers(store.people)
    describer = Describer(lab_id=lab_id, spool=spool, blob=lambda digest: blob_file(home.blobs, digest), url=url)
    remember(home)
    loop = ControlLoop(
        jobs=store.jobs,
        events=store.events,
        engine=engine,
        clock=time.time,
        settings=LoopSettings(
            rules=rules,
            launch=launch,
            secret=secret,
            drained=drains.apply,
            fault=drains.fault,
            reserved=lambda: (*store.of(RESERVATIONS).all(), *fabric.machines.reservations()),
            machines=fabric.jobs,
            withdrawal=describer.withdrawn if settings.tracking else untold,
            halted=storage.halted,
            held=held.current,
            built=partial(engines.is_built, environ=passed(os.environ)),
            start_ranges=store.start_ranges,
        ),
        make_room=storage.make_room,
        describe=describer.change if settings.tracking else None,
        history=partial(newest_ended, store.jobs),
    )
    audit = AuditLog(home.audit, clock=time.time)
    watch = DeviceWatch(
        node.devices,
        drains=drains,
        holders=lambda uuid: [job for number in holders_of(uuid, loop, lender) if (job := store.jobs.get(number)) is not None],
        events=store.events,
        audit=audit,
        changed=loop.look_again,
        clock=time.time,
    )
    artifacts = artifacts_of(home.path) if settings.tracking else None
    retention = RetentionService(
        home, settings, store, artifacts, audit, lambda reasons: loop.look_again() if held.fill(reasons) else None
    )
    policy = LabPolicy(
        rules=rules,
        cluster=engines.nodes,
        unix_user=engines.user,
        here=whose_code.check,
        understood=engines.check,
        preparable=Preparable(
            EnvironmentStore(home.environments, settings=EnvironmentSettings(download_python=settings.download_python)),
            launch.rucio,
        ).check,
    )
    tokens = Tokens(store=store.tokens, clock=time.time, check_account=policy.account)
    lab = Lab(
        jobs_store=store.jobs,
        event_store=store.events,
        people=store.people,
        tokens=tokens,
        users=Users(
            people=store.people,
            tokens=tokens,
            jobs=store.jobs,
            held=held,
            changed=loop.changed,
            clock=time.time,
            withdrawal=describer.withdrawn if settings.tracking else untold,
            # Where jobs run as their owners, nobody's code runs here.
            second_comes=nothing_to_do if whose_code.strict else isolation.begin,
            isolation=(lambda _running: "") if whose_code.strict else isolation.tell,
        ),
        held=held.current,
        unknown_devices=watch.unknown,
        session_jobs=settings.session_jobs,
        task_jobs=settings.task_jobs,
        administration=Administration(
            people=store.people,
            rules=rules,
            drains=store.of(DRAINS),
            nodes=engine.nodes,
            look_again=loop.look_again,
            clock=time.time,
        ),
        job_machines=fabric.jobs,
        keepers=(
            *keepers(store, store.people, rules, time.time, nodes=engine.nodes, look_again=loop.look_again, seal=LabSeal(secret)),
            *fabric.keepers(lambda caller: policy.account(caller.account, caller.user)),
        ),
        engine=engine,
        loop=loop,
        policy=policy,
        files=LabFiles(spool=spool, blobs=home.blobs, code=code),
        retention=retention.retention,
        collecting=Collecting(
            store.jobs,
            LabWorkDirectories(spool, home.blobs, settings.output_limit, deputy_of=partial(engines.deputy_of, router=engine)),
        ),
        storage=storage,
        verifications=Verifications(store=store.verifications, describe=describer.verified if settings.tracking else untold),
        cells=Cells(store=store.cells),
        gpu_use=GpuUse(store=store.gpu_use, clock=time.time, co2_per_kwh=settings.co2_per_kwh),
        clock=time.time,
        secret=secret,
        lab_id=lab_id,
        describe_submission=describer.submission if settings.tracking else untold,
        describe_withdrawal=describer.withdrawn if settings.tracking else untold,
        describe_sweep=describer.sweep if settings.tracking else untold,
        tell_search=(lambda job, *about: store.outbox.add(job.id, describer.search(job, *about), now=time.time()))
        if settings.tracking
        else untold,
        refused_by_tracking=store.outbox.refused,
    )
    _know_the_owner(home, lab)
    return RunningLab(
        home=home,
        settings=settings,
        store=store,
        engine=engine,
        loop=loop,
        lab=lab,
        code=code,
        url=url,
        secret=secret,
        lender=lender,
        watch=watch,
        borrowing=Borrowing(jobs=store.jobs, use=loop.use, clock=time.time),
        reports=reports,
        engines=engines,
        whose_code=whose_code,
        storage=storage,
        retention=retention,
        isolation=isolation,
        audit=audit,
        fabric=fabric,
    )


def holders_of(device: str, loop: ControlLoop, lender: Lender | NoLender) -> set[int]:
    """The jobs that have a device now, and the sessions and workers whose cells and calls do."""
    jobs = {held.id for held in loop.holding() if device in held.devices}
    return jobs | {int(lease["job"]) for lease in lender.status().get("leases", ()) if device in lease["devices"]}


def body_socket(home: LabHome) -> Path:
    """Where files of large arguments and results of calls are had. It has a directory of its own, which jobs see."""
    place = socket_directory(home.run) / "bodies"
    place.mkdir(mode=0o700, exist_ok=True)
    return place / "lab"


def _know_the_owner(home: LabHome, lab: Lab) -> None:
    """The person who starts the lab is its first administrator, and signs in with the token file."""
    name = own_name()
    if lab.people.get(name) is None:
        lab.people.add(User(subject=name, name=name, role=Role.ADMIN), now=time.time())

    def make() -> str:
        return lab.tokens.hand_out(name, name="of the lab's home", by=name, lifetime=None)[1]

    if not lab.tokens.is_valid(home.first_token(make)):
        # The database is new, or the token was revoked on purpose or by accident: a fresh one replaces it.
        home.token.unlink()
        home.first_token(make)
