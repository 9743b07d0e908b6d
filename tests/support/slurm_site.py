"""A real Slurm cluster on this machine, for tests: munge, MariaDB, slurmdbd, slurmctld and several slurmd.

Everything lives in one temporary directory and listens on loopback, on ports of its own, so there may be several at a time.
The daemons are children of the test's process and die with it, however it dies; what else a killed one left behind, its
jobs and its directory, the next cluster removes.
"""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from carrel.testing.waiting import PATIENCE, wait_until
from support.slurm_configuration import CLUSTER, Layout, write_configuration
from support.slurm_leftovers import PREFIX, SiteError, free_ports, kill_marked, lock, remove, sweep
from support.slurm_services import USERS, Finished, add_associations, start_database, start_munge

__all__ = ["PACKAGES", "USERS", "SiteError", "SlurmSite", "missing_programs", "sweep"]

#: The programs without which there is no cluster, and Debian's packages of them.
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "slurmdbd", "mariadbd", "mysql_install_db", "setpriv")
PACKAGES = "munge slurmctld slurmd slurm-client slurmdbd mariadb-server util-linux"

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
#: What the services of a cluster run with.
_UMASK = 0o022


def missing_programs() -> list[str]:
    """Return which programs a cluster lacks here."""
    return [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]


class SlurmSite:
    """One cluster. A context manager: inside it runs, afterwards nothing is left of it."""

    def __init__(self, *, nodes: int = 4, accounting: bool = True, **options: Any) -> None:
        """Nothing is started yet; `options` are further fields of `support.slurm_configuration.Layout`."""
        self._size = nodes
        self._options = {"accounting": accounting, **options}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = -1
        #: Set by `start`.
        self.layout: Layout

    @property
    def root(self) -> Path:
        """The directory of the cluster."""
        return self.layout.root

    @property
    def shared(self) -> Path:
        """A directory that all nodes see and everybody may write to."""
        return self.root / "shared"

    @property
    def environ(self) -> dict[str, str]:
        """Variables with which Slurm's commands find this cluster."""
        return {
            "PATH": _PATH,
            "LANG": "C.UTF-8",
            "HOME": os.environ.get("HOME", "/"),
            "USER": getpass.getuser(),
            "SLURM_CONF": str(self.layout.conf),
            "SLURM_TIME_FORMAT": "standard",
        }

    # --- life ---------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Bring everything up; returns when all nodes are idle. Raises `SiteError`, and then leaves nothing behind."""
        sweep()
        # A cluster's files are read by its users, whatever this process' user keeps to themselves.
        umask = os.umask(_UMASK)
        try:
            self._start_or_again()
        finally:
            os.umask(umask)

    def _start_or_again(self) -> None:
        for attempt in range(3):
            try:
                self._start()
            except SiteError:
                self.stop()
                if attempt == 2:
                    raise
            except BaseException:
                self.stop()
                raise
            else:
                return

    def _start(self) -> None:
        ports = free_ports(self._size + 2)
        root = Path(tempfile.mkdtemp(prefix=PREFIX))  # short: a socket's path is (unix(7))
        root.chmod(0o755)
        self._lock = lock(root)
        self.layout = Layout(
            root=root,
            user=getpass.getuser(),
            controller_port=ports[0],
            database_port=ports[1],
            node_ports=tuple(ports[2:]),
            **self._options,
        )
        write_configuration(self.layout)
        self.shared.mkdir(mode=0o777)
        self.shared.chmod(0o1777)
        start_munge(self)
        if self.layout.accounting:
            start_database(self)
            self.start_accounting()
            self.run("sacctmgr", "-i", "-Q", "add", "cluster", CLUSTER)
        self.start_controller()
        for name in self.layout.nodes:
            self.start_node(name)
        if self.layout.accounting:
            add_associations(self)
        self.wait_for_idle_nodes()

    def stop(self) -> None:
        """End everything that belongs to the cluster, jobs too, and remove its directory. Again is harmless."""
        if not hasattr(self, "layout"):
            return
        for name in list(self._daemons):
            self.kill(name)
        kill_marked(f"SLURM_CONF={self.layout.conf}")
        remove(self.root)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def clear(self) -> None:
        """End all jobs, start again what was killed, and wait until all nodes are idle."""
        if self.layout.accounting and "slurmdbd" not in self._daemons:
            self.start_accounting()
        if "slurmctld" not in self._daemons:
            self.start_controller()
        for name in self.layout.nodes:
            if name not in self._daemons:
                self.start_node(name)
        self.mend_nodes()
        jobs = self.run("squeue", "-h", "-o", "%A").out.split()
        if jobs:
            self.run("scancel", "--signal=KILL", "--full", *jobs, check=False)
            self.run("scancel", *jobs, check=False)
        self.wait("slurmctld", lambda: not self.run("squeue", "-h", "-o", "%A", check=False).out.strip())
        self.wait_for_idle_nodes()

    def __enter__(self) -> SlurmSite:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    # --- daemons ------------------------------------------------------------------------------------------------------------

    def start_controller(self) -> None:
        """Start slurmctld and wait until it answers."""
        self.daemon("slurmctld", "slurmctld", "-D")
        self.wait("slurmctld", lambda: "is UP" in self.run("scontrol", "ping", check=False).out)

    def start_node(self, name: str) -> None:
        """Start the slurmd of a node; it registers by itself."""
        self.daemon(name, "slurmd", "-D", "-N", name)

    def start_accounting(self) -> None:
        """Start slurmdbd and wait until it answers."""
        self.daemon("slurmdbd", "slurmdbd", "-D")
        self.wait("slurmdbd", lambda: self.run("sacctmgr", "-n", "show", "cluster", check=False).code == 0)

    def kill(self, daemon: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a daemon ("slurmctld", "slurmdbd", …) or a node's slurmd, and wait for its end.

        What it had started goes on.
        """
        process = self._daemons.pop(daemon)
        process.send_signal(number)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def running(self, daemon: str) -> bool:
        """False when a daemon that was started has ended by itself."""
        return self._daemons[daemon].poll() is None

    def pid(self, daemon: str) -> int:
        """Process id of a daemon, for SIGSTOP and SIGCONT."""
        return self._daemons[daemon].pid

    def break_node(self, name: str) -> None:
        """From now on the prolog of a node fails, and Slurm takes the node out of use; the cluster was made with `prolog`."""
        self.layout.broken(name).touch()

    def fill_spool(self, name: str) -> None:
        """From now on the disk on which a node keeps its jobs' scripts is full; this takes root."""
        spool = self.root / "spool" / name
        self.run("mount", "-t", "tmpfs", "-o", "size=16k", "none", str(spool))
        with suppress(OSError), (spool / "filler").open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    def mend_nodes(self) -> None:
        """No prolog fails any more, no disk is full, and all nodes take jobs again."""
        broken = [name for name in self.layout.nodes if self.layout.broken(name).exists()]
        for name in broken:
            self.layout.broken(name).unlink()
        for name in self.layout.nodes:
            if (self.root / "spool" / name).is_mount():
                self.run("umount", "--lazy", str(self.root / "spool" / name))
                broken.append(name)
        if broken:  # that one takes jobs already is no trouble
            self.run("scontrol", "update", f"nodename={','.join(broken)}", "state=resume", check=False)

    def wait_for_idle_nodes(self) -> None:
        """Wait until every node is there and runs nothing."""

        def idle() -> bool:
            answer = self.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N", check=False).out
            return set(answer.split()) == set(self.layout.nodes)

        self.wait("slurmctld", idle)

    # --- use ----------------------------------------------------------------------------------------------------------------

    def run(
        self,
        *command: str,
        user: str | None = None,
        check: bool = True,
        stdin: str = "",
        environ: Mapping[str, str] | None = None,
    ) -> Finished:
        """Run a command in the cluster's environment, as one of `USERS` (which takes root) or as the user who runs the tests."""
        prefix: Sequence[str] = ()
        variables = {**self.environ, **(environ or {})}
        if user is not None:
            account = pwd.getpwnam(USERS[user])
            prefix = ("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups")
            variables |= {"USER": account.pw_name, "HOME": str(self.shared)}
        done = subprocess.run(
            [*prefix, *command],
            env=variables,
            cwd=self.shared,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if check and done.returncode:
            raise SiteError(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}")
        return Finished(done.returncode, done.stdout, done.stderr)

    def submit(self, script: str, *options: str, user: str | None = None) -> int:
        """Submit a shell script and return the job's id. Its output goes to ``<shared>/<id>.out``."""
        answer = self.run(
            "sbatch", "--parsable", f"--output={self.shared}/%j.out", *options, user=user, stdin=f"#!/bin/sh\n{script}\n"
        )
        return int(answer.out.split(";")[0])

    def state(self, job: int) -> str:
        """The state of a job as the controller knows it, or "" when it does not know the job."""
        return self.run("squeue", "-h", "-t", "all", "-j", str(job), "-o", "%T", check=False).out.strip()

    def wait_for(self, job: int, *states: str) -> str:
        """Wait until a job is in one of `states`, and return which one."""
        self.wait("slurmctld", lambda: self.state(job) in states, f"job {job} is not {' or '.join(states)}")
        return self.state(job)

    def wait_until_saved(self, job: int) -> None:
        """Wait until the controller has written down what it knows of a job that has not ended.

        It does so some seconds after a change. Killed before, it does not know the job, and gives its number to another one.
        """
        file = self.root / "state" / "job_state"
        changed = time.time_ns()
        self.run("scontrol", "update", f"JobId={job}", f"AdminComment={changed}")
        self.wait("slurmctld", lambda: file.exists() and file.stat().st_mtime_ns > changed, "its state is not saved")

    def output(self, job: int) -> str:
        """What a job that `submit` submitted has written."""
        path = self.shared / f"{job}.out"
        return path.read_text() if path.exists() else ""

    # --- inside -------------------------------------------------------------------------------------------------------------

    def daemon(self, name: str, *command: str) -> None:
        """Start a program of the cluster, whose output goes to its log. It ends with this process."""
        if name in self._daemons:
            raise SiteError(f"{name} runs already.")
        with open(self.root / "log" / f"{name}.out", "ab") as output:
            self._daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig=KILL", *command],
                env={**self.environ, "MYSQL_UNIX_PORT": str(self.layout.mariadb_socket)},
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                umask=_UMASK,
                start_new_session=True,  # Ctrl-C at the tests must not end it before the jobs
            )

    def wait(self, daemon: str, happened: Callable[[], bool], complaint: str = "") -> None:
        """Wait until something has happened. Raises with what the daemon said when that has ended, or when it takes too long."""

        def so() -> bool:
            if happened():
                return True
            process = self._daemons.get(daemon)
            if process is not None and process.poll() is not None:
                raise SiteError(f"{daemon} ended with {process.returncode}: {self._said(daemon)}")
            return False

        wait_until(so, lambda: f"{complaint or daemon}. {self._said(daemon)}")

    def _said(self, daemon: str) -> str:
        lines: list[str] = []
        for path in sorted((self.root / "log").glob(f"*{daemon}*")):
            with suppress(OSError):
                lines += path.read_text(errors="replace").splitlines()[-15:]
        return "\n".join(lines)
