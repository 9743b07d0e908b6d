"""The broker's process: `python -m carrel.node.broker --config FILE --socket PATH`. One for each state directory."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import logging
import os
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from carrel.core.domain.errors import CarrelError, Unavailable
from carrel.core.domain.lease import Residency, Tier
from carrel.core.domain.ports import Clock
from carrel.core.spool import Spool
from carrel.core.spool.disk import disk_of
from carrel.core.spool.log_lines import log_to_stderr
from carrel.core.transport.reactor import Reactor
from carrel.node.broker.boot_key import boot_key
from carrel.node.broker.client_authentication import ClientAuthentication
from carrel.node.broker.config import BrokerConfig, read_config
from carrel.node.broker.core.core import Core
from carrel.node.broker.core.effects import Line
from carrel.node.broker.core.ledger import Ledger
from carrel.node.broker.disk import StateDisk
from carrel.node.broker.journal import BrokerJournal, read_lines
from carrel.node.broker.mover import Mover
from carrel.node.broker.pool import HostPool
from carrel.node.broker.pool_allocations import PoolAllocations
from carrel.node.broker.processes import is_alive, wait_for_marked
from carrel.node.broker.service import Service
from carrel.node.broker.simulated import SimulatedSuspender
from carrel.node.devices.machine import available_memory, total_memory
from carrel.node.suspension.ports import Suspender, Target

_log = logging.getLogger("carrel.node.broker")

#: Seconds between two looks whether the lab's directory is still there.
_HOME_SECONDS = 5.0
#: Share of the free host memory that states may take, and for how many seconds a look at it holds.
_HOST_SHARE, _HOST_SECONDS = 0.9, 1.0
#: Share of the machine's memory that is not taken for the pool.
_HOST_FLOOR = 0.05
#: Marks our helper processes, by state directory and broker; and how many seconds those of an earlier broker are waited for.
_HELPER, _LEFTOVER_SECONDS = "CARREL_BROKER_HELPER", 600.0
#: Exit codes: another broker runs here; the configuration is no good.
BUSY, WRONG = 3, 2


def main(words: Sequence[str] | None = None, *, clock: Clock = time.time, loop: Reactor | None = None) -> int:
    """Run a broker until SIGTERM. Returns its exit code. Clock and loop are a test's own, where it owns the time."""
    parser = argparse.ArgumentParser(prog="python -m carrel.node.broker", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the configuration (JSON)")
    parser.add_argument("--socket", type=Path, required=True, help="the unix socket to listen on")
    parser.add_argument("--state", type=Path, help="directory of its journal and lock (default: the configuration's)")
    given = parser.parse_args(words)
    log_to_stderr()
    try:
        config = read_config(given.config)
        state = given.state or Path(config.state)
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = take_lock(state, config)
        if lock is None:
            _log.error("another broker runs in %s", state)
            return BUSY
        run(config, state, given.socket, clock=clock, loop=loop)
    except CarrelError as error:
        _log.error("%s", error)
        return WRONG
    return 0


def take_lock(state: Path, config: BrokerConfig) -> int | None:
    """Be the one broker of `state` until this process ends, and say which; None when there is one already."""
    descriptor = os.open(state / "broker.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    about = {"pid": os.getpid(), "version": config.version, "digest": config.digest()}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(about).encode() + b"\n", 0)
    return descriptor


def run(config: BrokerConfig, state: Path, path: Path, *, clock: Clock = time.time, loop: Reactor | None = None) -> None:
    """Lend until SIGTERM or SIGINT, or until the state directory vanished."""
    loop = loop or Reactor()
    suspender = _suspender(config, state, loop.monotonic)
    capability = suspender.probe()
    tier = Tier.HOLD if config.never_suspend or not config.devices else capability.tier
    _log.info("node %s: %d devices, tier %s %s", config.node, len(config.devices), tier, capability.message)
    journal = BrokerJournal(state / "journal.jsonl", keep=config.keep_journals)
    lines = (Line(at, tuple(rows), tuple(drops)) for at, rows, drops in read_lines(state / "journal.jsonl"))
    rate, back_rate = capability.suspend_rate or None, capability.restore_rate or None
    disk, disk_problem = _state_disk(config, state)
    core = Core(
        config,
        tier,
        make_id=secrets.token_hex(8),
        lines=lines,
        rate=rate,
        back_rate=back_rate,
        disk=disk is not None,
        homes_move=capability.homes_move,
    )
    began = core.everything(clock())
    journal.start(began.rows, began.at)
    if isinstance(suspender, SimulatedSuspender):
        _seed(suspender, core.ledger)
    # Names of pieces are never used again, also not by the next broker, whose clients have those of this one.
    limit = _pool_limit(config)
    given = PoolAllocations()
    given.keep(state / "host_memory.jsonl", clock)
    pool = HostPool(
        limit,
        ready=config.host_memory_ready,
        first=int(clock() * 1000),
        floor=int(total_memory() * _HOST_FLOOR) if limit else 0,
        given=given,
        lives=is_alive,
    )
    pool.start()
    service = Service(
        core,
        loop=loop,
        clock=clock,
        gate=ClientAuthentication(
            secret=config.secret(),
            spool=Spool(Path(config.spool)),
            shared=config.devices if config.shared else None,
        ),
        journal=journal,
        mover=Mover(
            loop,
            suspender,
            margin=config.rules.margin,
            disk=suspender if isinstance(suspender, SimulatedSuspender) else None,
        ),
        suspender=suspender,
        pool=pool,
        host_free=_host_memory(config, loop.monotonic),
        disk=disk,
        disk_free=_disk_room(disk, loop.monotonic),
        disk_problem=disk_problem,
    )
    service.start()
    if isinstance(suspender, SimulatedSuspender):
        service.recover()
    else:
        # Helpers of a broker that was killed finish the call in hand; before that, nobody can take up what they do.
        own = str(os.getpid())
        loop.work(lambda: wait_for_marked(_HELPER, str(state), own, _LEFTOVER_SECONDS), lambda _left: service.recover())
    _stay_home(loop, state)
    service.listen(path, everybody=config.shared)
    loop.heed_signals()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: loop.post(loop.stop))
    _log.info("listening on %s", path)
    loop.run()
    service.close()
    if disk is not None:
        disk.close()
    pool.end()
    suspender.close()
    journal.close()
    _log.info("ended; leases stay as they are")


def _suspender(config: BrokerConfig, state: Path, monotonic: Clock) -> Suspender:
    if config.simulated or not config.devices:
        return SimulatedSuspender(config.simulation, [device.uuid for device in config.devices], monotonic)
    from carrel.node.suspension.cuda import CudaSuspender

    return CudaSuspender(
        devices=[device.uuid for device in config.devices],
        cache=state / "probe.json",
        environment={**os.environ, _HELPER: f"{state}:{os.getpid()}"},
    )


def _seed(suspender: SimulatedSuspender, ledger: Ledger) -> None:
    for row in ledger.tenants.values():
        if row.residency in (Residency.SUSPENDED, Residency.SPILLING, Residency.SPILLED, Residency.RESUMING):
            suspender.seed(Target(pid=row.pid, start=row.start))


def _host_memory(config: BrokerConfig, monotonic: Clock) -> Callable[[], int | None]:
    """How much host memory states may take beside what they take already; None for simulated ones, which take none."""
    if config.simulated:
        return lambda: None
    seen: list[float] = [-_HOST_SECONDS, 0.0]

    def free() -> int | None:
        if monotonic() - seen[0] >= _HOST_SECONDS:
            seen[:] = [monotonic(), available_memory() * _HOST_SHARE]
        return int(seen[1])

    return free


def _state_disk(config: BrokerConfig, state: Path) -> tuple[StateDisk | None, str]:
    """Where states of real devices go that host memory has no room for; None where there is no such place, and why not.

    The second is "" where nobody has asked for such a place.
    """
    if config.simulated or not config.devices or not config.state_directory:
        return None, ""
    # A directory of this broker's own, which removes there all that it does not know.
    own = hashlib.sha256(f"{config.node} {state.absolute()}".encode()).hexdigest()[:16]
    directory = Path(config.state_directory) / own
    if not config.rules.state_disk and not directory.is_dir():
        return None, ""  # and there was none before, from which states must still come back
    try:
        floor = disk_of(directory).floor(config.disk_floor)
        return StateDisk(directory, limit=config.rules.state_disk, floor=floor, key=boot_key(state)), ""
    except Unavailable as error:
        problem = f"{error.message} {error.remedy}"
    except OSError as error:
        problem = f"{directory}: {error.strerror or error}."
    _log.error("no GPU state goes to the disk: %s", problem)
    return None, problem


def _disk_room(disk: StateDisk | None, monotonic: Clock) -> Callable[[], int | None]:
    """How much room the disk has for more; a look at it holds for a while."""
    if disk is None:
        return lambda: None
    seen: list[float] = [-_HOST_SECONDS, 0.0]

    def free() -> int:
        if monotonic() - seen[0] >= _HOST_SECONDS:
            with suppress(OSError):
                seen[:] = [monotonic(), disk.left()]
        return int(seen[1])

    return free


def _pool_limit(config: BrokerConfig) -> int:
    if config.simulated:
        return 0
    return config.rules.host_memory if config.rules.host_memory is not None else int(total_memory() * _HOST_SHARE)


def _stay_home(loop: Reactor, state: Path) -> None:
    """End when the state directory is gone or is another one: the lab was removed."""
    was = state.stat()

    def look() -> None:
        with suppress(OSError):
            now = state.stat()
            if (now.st_dev, now.st_ino) == (was.st_dev, was.st_ino):
                loop.later(_HOME_SECONDS, look)
                return
        _log.error("%s is gone: the lab was removed", state)
        loop.stop()

    loop.later(_HOME_SECONDS, look)
