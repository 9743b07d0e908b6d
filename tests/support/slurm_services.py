"""What a cluster of the tests needs beside Slurm's own daemons: munge, a database, and who may do what there."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from support.slurm_configuration import Layout

#: Users that every Debian has, so that nobody has to be added to the machine: name in the tests -> name there.
USERS = {"alice": "games", "bob": "news"}

#: Classes of service, as `sacctmgr add qos` takes them.
QOS = (
    "low priority=10 preemptmode=requeue",
    "lowcancel priority=10 preemptmode=cancel",
    "high priority=1000 preempt=low,lowcancel",
    "short maxwall=00:01:00 maxjobsperuser=1 maxsubmitjobsperuser=3 maxtresperuser=gres/gpu=2 flags=DenyOnLimit",
)


@dataclass(frozen=True, slots=True)
class Finished:
    """What a command of Slurm answered."""

    code: int
    out: str
    err: str


class Site(Protocol):
    """A cluster of which daemons can be started."""

    layout: Layout

    @property
    def root(self) -> Path:
        """The directory of the cluster."""
        ...

    def run(self, *command: str, check: bool = True) -> Finished:
        """Run a command in the cluster's environment."""
        ...

    def daemon(self, name: str, *command: str) -> None:
        """Start a program of the cluster."""
        ...

    def wait(self, daemon: str, happened: Callable[[], bool]) -> None:
        """Wait until something has happened that the daemon does."""
        ...


def start_munge(site: Site) -> None:
    """Start munged with a key of its own, and wait until it signs."""
    key = site.root / "etc" / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    run = site.root / "run"
    site.daemon(
        "munged",
        "munged",
        "--foreground",
        f"--key-file={key}",
        f"--socket={site.layout.munge_socket}",
        f"--pid-file={run}/munged.pid",
        f"--seed-file={run}/munged.seed",
        f"--log-file={site.root}/log/munged.log",
    )
    site.wait("munged", lambda: site.run("munge", "-n", "-S", str(site.layout.munge_socket), check=False).code == 0)


def start_database(site: Site) -> None:
    """Make an empty database, start mariadbd for it, and wait until it takes tables."""
    data, path, user = site.root / "database", site.layout.mariadb_socket, site.layout.user
    site.run(
        "mysql_install_db",
        "--no-defaults",
        f"--user={user}",
        f"--datadir={data}",
        "--auth-root-authentication-method=socket",
        f"--auth-root-socket-user={user}",
        "--skip-test-db",
    )
    site.daemon(
        "mariadbd",
        "mariadbd",
        "--no-defaults",
        f"--user={user}",
        f"--datadir={data}",
        f"--socket={path}",
        f"--pid-file={site.root}/run/mariadbd.pid",
        f"--log-error={site.root}/log/mariadbd.log",
        "--skip-networking",
        "--innodb-buffer-pool-size=64M",
        "--innodb-lock-wait-timeout=900",
        "--innodb-flush-log-at-trx-commit=0",
    )
    admin = ("mysql", "--no-defaults", f"--socket={path}", f"--user={user}")
    site.wait("mariadbd", lambda: site.run(*admin, "-e", "create database slurm_acct", check=False).code == 0)


def add_associations(site: Site) -> None:
    """Add the account, the QoS and the users of the tests, and wait until the controller knows them."""
    classes = ",".join(["normal", *(line.split()[0] for line in QOS)])
    site.run("sacctmgr", "-i", "-Q", "add", "account", "research")
    for line in QOS:
        site.run("sacctmgr", "-i", "-Q", "add", "qos", *line.split())
    # A user who may do everything by name, and those whom the tests act as.
    for user in {site.layout.user, *USERS.values()}:
        site.run("sacctmgr", "-i", "-Q", "add", "user", user, "account=research", f"qos={classes}", "defaultqos=normal")
    site.run("sacctmgr", "-i", "-Q", "modify", "user", site.layout.user, "set", "defaultaccount=research")
    # slurmdbd passes on to the controller what is new, a moment later.
    wanted = {site.layout.user, *USERS.values()}

    def known() -> bool:
        answer = site.run("scontrol", "-o", "show", "assoc_mgr", "accounts=research", "flags=assoc", check=False).out
        return all(f"UserName={user}(" in answer for user in wanted)

    site.wait("slurmctld", known)
