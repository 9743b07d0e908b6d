"""The same measurements with Slurm, on this machine and in the same run: what a lab would use otherwise.

A Slurm of its own is brought up in a temporary directory on loopback (munged, slurmctld and one slurmd as the user who runs
this, without accounting), with the scheduler tuned so that nothing but Slurm itself is measured, and stopped by process id.
Debian: apt-get install --no-install-recommends slurm-wlm slurmctld slurmd slurm-client munge
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from figure import Figure, median, percentile

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo")
_SINGLE = 20
_MANY = 500
FIRST_LINE = "Slurm: sbatch → first line, median"
THROUGHPUT = f"Slurm: {_MANY} × sbatch --wrap true, submit to all complete"
_CONF = """
ClusterName=bench
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ctld}
SlurmdPort={slurmd}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket
CredType=cred/munge
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1,sched_max_job_start=0,default_queue_depth=1000
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MinJobAge=30
ReturnToService=2
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={slurmd} CPUs={cpus} RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes=node1 Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


@dataclass(frozen=True, slots=True)
class Slurm:
    """A running Slurm, for its clients."""

    home: Path

    def run(self, *words: str) -> str:
        environment = {**os.environ, "SLURM_CONF": str(self.home / "slurm.conf")}
        return subprocess.run(words, env=environment, cwd=self.home, check=True, capture_output=True, text=True).stdout

    def drain(self) -> None:
        """Return when no job is left."""
        while self.run("squeue", "-h").strip():
            time.sleep(0.02)


def measure(_scratch: Path) -> list[Figure]:
    missing = [program for program in _PROGRAMS if _find(program) is None]
    if missing:
        print(f"  left out: {', '.join(missing)} not found. {__doc__.splitlines()[-1]}", file=sys.stderr)
        return []
    # Socket paths are short.
    home = Path(f"/tmp/carrel-bench-slurm-{secrets.token_hex(3)}")
    home.mkdir(mode=0o755)
    try:
        with running(home) as slurm:
            return [*_first_lines(slurm), *_throughput(slurm)]
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _first_lines(slurm: Slurm) -> list[Figure]:
    script, waits = slurm.home / "stamp.sh", []
    script.write_text("#!/bin/bash\necho $EPOCHREALTIME\n")
    for number in range(_SINGLE + 1):
        out = slurm.home / f"stamp-{number}.out"
        began = time.time()
        slurm.run("sbatch", "-o", str(out), str(script))
        slurm.drain()
        if number:
            waits.append(1000 * (float(out.read_text()) - began))
        time.sleep(0.05 + 0.9 * number / _SINGLE)  # at every phase of Slurm's timers
    return [
        median(FIRST_LINE, waits, "ms"),
        percentile("Slurm: sbatch → first line, p95", waits, "ms", 95),
    ]


def _throughput(slurm: Slurm) -> list[Figure]:
    rates = []
    for _ in range(3):
        began = time.monotonic()
        slurm.run("sh", "-c", f"for i in $(seq {_MANY}); do sbatch -o /dev/null --wrap true >/dev/null; done")
        slurm.drain()
        rates.append(_MANY / (time.monotonic() - began))
    return [median(THROUGHPUT, rates, "jobs/s")]


@contextlib.contextmanager
def running(home: Path) -> Iterator[Slurm]:
    """Bring the daemons up, and stop them whatever happens."""
    with contextlib.ExitStack() as stack:
        key = home / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        (home / "state").mkdir()
        (home / "spool").mkdir()
        values = {
            "ctld": _free_port(),
            "slurmd": _free_port(),
            "user": getpass.getuser(),
            "home": home,
            "host": socket.gethostname(),
            # Slurm starts jobs once a second here: with the machine's own few processors it could run no more than that many
            # each second, so it is told that it has plenty, and runs as many at once as it likes.
            "cpus": 64,
        }
        (home / "slurm.conf").write_text(_CONF.format(**values))
        munge = (f"--key-file={key}", f"--socket={home}/munge.socket", f"--pid-file={home}/munged.pid")
        _daemon(
            stack, home, "munged", "--foreground", "--force", *munge, f"--log-file={home}/munged.log", f"--seed-file={home}/seed"
        )
        _until(lambda: (home / "munge.socket").exists(), "munged")
        _daemon(stack, home, "slurmctld", "-D", "-c", "-f", str(home / "slurm.conf"))
        _daemon(stack, home, "slurmd", "-D", "-N", "node1", "-f", str(home / "slurm.conf"))
        slurm = Slurm(home)
        _until(lambda: _idle(slurm), "an idle node")
        yield slurm


def _idle(slurm: Slurm) -> bool:
    with contextlib.suppress(subprocess.CalledProcessError):
        return slurm.run("sinfo", "-h", "-o", "%t").strip() == "idle"
    return False


def _daemon(stack: contextlib.ExitStack, home: Path, *words: str) -> None:
    program = _find(words[0])
    assert program is not None
    environment = {**os.environ, "SLURM_CONF": str(home / "slurm.conf")}
    log = stack.enter_context((home / f"{words[0]}.out").open("wb"))
    process = subprocess.Popen([program, *words[1:]], env=environment, cwd=home, stdout=log, stderr=log, start_new_session=True)

    def stop() -> None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(stop)


def _until(done: object, what: str) -> None:
    deadline = time.monotonic() + 20
    while not done():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise RuntimeError(f"Slurm did not come up: no {what} after 20 s")
        time.sleep(0.02)


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
