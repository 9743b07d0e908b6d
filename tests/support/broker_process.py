"""A real broker in a process of its own, for tests: simulated devices, and jobs that exist as far as a broker looks.

with start_broker(tmp_path, devices=2) as broker:
    session = broker.session(7, owner="alice")          # launch file, claim (held by this process), job token
    kernel = subprocess.Popen([...], env={**os.environ, **session.variables})
    broker.kill(); broker.restart()                     # as often as one likes; leases persist
    broker.status()                                     # what the node's own observer sees
    broker.journal()                                    # every line that was ever written, over all restarts

With `still`, its time stands still: slices, timers and charges go on by `broker.advance(seconds)` and by nothing else.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from carrel.core.control.launching import job_token
from carrel.core.domain.launch import Launch, LaunchPaths
from carrel.core.domain.lease import LendingRules
from carrel.core.domain.node import Device
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.domain.serial import to_plain
from carrel.core.domain.session import SessionSpec
from carrel.core.domain.task import TaskSpec
from carrel.core.domain.units import GIB
from carrel.core.spool import Spool, take_claim
from carrel.node.broker.client_authentication import node_token
from carrel.node.broker.config import BrokerConfig, Simulation, write_config
from carrel.node.broker.journal import read_lines
from carrel.node.broker.process import listens
from carrel.node.devices.discover import discover
from carrel.node.leases.protocol import OBSERVER, VERSION, decode, encode
from carrel.testing.waiting import PATIENCE, wait_until
from support import still_broker

#: How many journals of killed brokers are kept for `journal`.
_ALL = 100_000


@dataclass(frozen=True, slots=True)
class FakeJob:
    """A job that runs as far as a broker can see; nothing of it really does."""

    id: int
    attempt: int
    token: str
    #: What `carrel.notebooks.jupyter` and a kernel find in their environment because of it.
    variables: Mapping[str, str]


@dataclass(slots=True)
class BrokerProcess:
    """`python -m carrel.node.broker` as a child process. `kill` is SIGKILL."""

    directory: Path
    config: BrokerConfig
    socket: Path
    secret: bytes
    #: Variables of the broker's process, beyond ours.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: The moment that it is for the broker (Unix seconds); None: its time is everybody's.
    moment: float | None = None
    process: subprocess.Popen[bytes] | None = None
    _claims: dict[int, int] = field(default_factory=dict)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that are lent."""
        return self.config.devices

    @property
    def node_token(self) -> str:
        """The token of an observer who sees every name."""
        return node_token(self.secret)

    @property
    def log(self) -> Path:
        """What the broker said."""
        return self.directory / "broker.log"

    def session(
        self,
        job: int,
        *,
        owner: str = "alice",
        gpus: int = 1,
        reserve: bool = False,
        attempt: int = 1,
        shares: tuple[int, ...] = (),
        memory: int = 2 * GIB,
    ) -> FakeJob:
        """A running session that borrows `gpus` devices for a cell; `shares` and `memory` are what it has of Slurm."""
        spec = SessionSpec(directory=str(self.directory), gpus=gpus, reserve=reserve)
        given = self.devices[:gpus] if reserve else ()
        return self._job(job, attempt, owner, JobKind.SESSION, spec, given, shares=shares, memory=memory)

    def task(
        self,
        job: int,
        *,
        devices: int | tuple[Device, ...] = 1,
        owner: str = "alice",
        attempt: int = 1,
        shares: tuple[int, ...] = (),
    ) -> FakeJob:
        """A running task that placement gave these devices (a number: the first so many); `shares` are what it has of Slurm."""
        given = self.devices[:devices] if isinstance(devices, int) else devices
        return self._job(job, attempt, owner, JobKind.TASK, None, given, shares=shares)

    def worker(self, job: int, *, owner: str = "alice", gpus: int = 1, shares: tuple[int, ...] = ()) -> FakeJob:
        """A running worker of a pool that borrows `gpus` devices for a call; `shares` are what it has of Slurm."""
        return self._job(job, 1, owner, JobKind.TASK, None, (), shares=shares, borrows=gpus)

    def end(self, job: FakeJob) -> None:
        """The job does not run any more: its claim is free, so its token opens nothing."""
        os.close(self._claims.pop(job.id))

    def _job(
        self,
        job: int,
        attempt: int,
        owner: str,
        kind: JobKind,
        session: SessionSpec | None,
        devices: tuple[Device, ...],
        *,
        shares: tuple[int, ...] = (),
        memory: int = 2 * GIB,
        borrows: int = 0,
    ) -> FakeJob:
        at = Spool(Path(self.config.spool)).attempt(job, attempt)
        at.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        launch = Launch(
            job_id=job,
            attempt=attempt,
            kind=kind,
            owner=owner,
            name=f"{kind.value}-{job}",
            account="lab",
            qos="interactive",
            node=self.config.node,
            task=TaskSpec(entry_point="main", command="true", snapshot="", session=session, borrows=borrows),
            resources=Resources(gpus=len(devices), memory=memory),
            devices=devices,
            shares=shares,
            paths=LaunchPaths(environments="", snapshots="", blobs="", broker=str(self.socket)),
        )
        at.launch.write_text(json.dumps(to_plain(launch)))
        claim = take_claim(at.claim, os.getpid())
        assert claim is not None, f"attempt {attempt} of job {job} was made before"
        self._claims[job] = claim
        token = job_token(self.secret, job, attempt)
        variables = {
            "CARREL_JOB_ID": str(job),
            "CARREL_ATTEMPT": str(attempt),
            "CARREL_TOKEN": token,
            "CARREL_BROKER": str(self.socket),
            "CARREL_SESSION_GPUS": str(session.gpus if session is not None else 0),
            **({"CARREL_SESSION_RESERVED": "1"} if session is not None and session.reserve else {}),
            "CUDA_VISIBLE_DEVICES": ",".join(device.uuid for device in devices),
        }
        return FakeJob(job, attempt, token, variables)

    # --- the process --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the broker and wait until it listens. Raises `RuntimeError` with its log when it ends."""
        self._let_go()
        still = self.moment is not None
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    *(("-P", still_broker.__file__) if still else ("-m", "carrel.node.broker")),
                    "--config",
                    str(self.directory / "config.json"),
                    "--socket",
                    str(self.socket),
                ],
                stdin=subprocess.PIPE if still else subprocess.DEVNULL,
                stdout=subprocess.PIPE if still else log,
                stderr=log,
                env={**os.environ, **self.environment, still_broker.VARIABLE: str(self.moment)},
            )
        process = self.process
        wait_until(lambda: listens(self.socket) or process.poll() is not None, self.log.read_text)
        if process.poll() is not None:
            raise RuntimeError(f"The broker does not listen (exit code {process.returncode}):\n{self.log.read_text()}")

    def advance(self, seconds: float) -> None:
        """So many seconds go by for a broker whose time stands still; returns when what was due by then is done."""
        assert self.moment is not None, "its time is everybody's"
        self.moment += seconds
        if self.process is None or self.process.poll() is not None:
            return
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        line = f"{self.moment!r}\n".encode()
        self.process.stdin.write(line)
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer in (line, b""), answer  # it may end by it

    def _let_go(self) -> None:
        """Close the pipes of a process that has ended."""
        for pipe in (self.process.stdin, self.process.stdout) if self.process is not None else ():
            if pipe is not None:
                pipe.close()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(timeout=PATIENCE)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout=PATIENCE)

    def restart(self, **changes: Any) -> None:
        """Kill it if it runs, and start it again on the same state; `changes` are new values of its configuration."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        if changes:
            self.config = replace(self.config, **changes)
            write_config(self.directory / "config.json", self.config)
        self.start()

    def close(self) -> None:
        """End it, and let go of the jobs."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        self._let_go()
        for claim in self._claims.values():
            os.close(claim)
        self._claims.clear()
        shutil.rmtree(self.socket.parent, ignore_errors=True)

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # --- looking ------------------------------------------------------------------------------------------------------------

    def status(self, token: str | None = None) -> dict[str, Any]:
        """What an observer sees: with a job's token its own, else everything."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.settimeout(PATIENCE)
            stream.connect(str(self.socket))
            stream.sendall(encode("hello", v=VERSION, role=OBSERVER, token=token or self.node_token) + encode("status"))
            with stream.makefile("rb") as lines:
                welcome = decode(lines.readline())
                assert welcome["op"] == "welcome", welcome
                return decode(lines.readline())

    def journal(self) -> list[tuple[float, list[tuple[str, dict[str, Any]]], list[tuple[str, str]]]]:
        """All lines of all journals, oldest first: (time, rows set, rows dropped). A restart repeats what was true then."""
        old = sorted(self.directory.glob("state/journal.jsonl.[0-9]*"))
        return [line for path in [*old, self.directory / "state" / "journal.jsonl"] for line in read_lines(path)]


def start_broker(
    directory: Path,
    *,
    devices: int | tuple[Device, ...] = 1,
    memory: int = 16 * GIB,
    rate: float = 100.0 * GIB,
    state: int = 2 * GIB,
    faults: Mapping[str, float] | None = None,
    seed: int = 0,
    rules: LendingRules | None = None,
    environment: Mapping[str, str] | None = None,
    still: bool = False,
    **options: Any,
) -> BrokerProcess:
    """Start a broker that lends `devices` (a number: simulated ones of `memory` bytes) and wait until it listens.

    `rate`, `state`, `faults` and `seed` are those of `carrel.node.broker.config.Simulation`; `options` are further fields of
    `BrokerConfig` (hold_time, never_suspend, …); `environment` are variables of the broker's process. With `still`, no time goes
    by for it but with `advance`.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    secret = secrets.token_bytes(32)
    secret_file = directory / "secret"
    secret_file.write_text(secret.hex())
    secret_file.chmod(0o600)
    given = discover(simulate=devices, lab="test", memory=memory) if isinstance(devices, int) else devices
    config = BrokerConfig(
        node="testnode",
        devices=given,
        state=str(directory / "state"),
        spool=str(directory / "spool"),
        secret_file=str(secret_file),
        rules=rules or LendingRules(),
        simulation=Simulation(rate=rate, disk_rate=rate, state=state, faults=faults or {}, seed=seed),
        **{"keep_journals": _ALL, **options},
    )
    write_config(directory / "config.json", config)
    # The path of a socket is short (unix(7)), and a test's own directory may not be.
    path = Path(tempfile.mkdtemp(prefix="carrel-broker-")) / "broker.sock"
    broker = BrokerProcess(directory, config, path, secret, environment or {}, moment=float(int(time.time())) if still else None)
    try:
        broker.start()
    except BaseException:
        broker.close()
        raise
    return broker
