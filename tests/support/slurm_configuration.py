"""The configuration files of a Slurm cluster on one machine (slurm.conf(5), gres.conf(5), slurmdbd.conf(5)).

Nothing here starts anything; `support.slurm_site` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: What the cluster is called.
CLUSTER = "lab"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where everything of one cluster is, and how large it pretends to be."""

    root: Path
    #: Who the daemons run as.
    user: str
    controller_port: int
    database_port: int
    #: One for each node.
    node_ports: tuple[int, ...]
    gpus: int = 4
    #: Shares of the GPUs of each node (gres/shard); 0: the cluster has none.
    shards: int = 0
    cpus: int = 8
    #: MB of each node.
    memory: int = 16000
    #: Seconds without an answer after which a node is DOWN.
    node_timeout: int = 60
    #: False: no slurmdbd, so no QoS, no limits and no sacct.
    accounting: bool = True
    #: True: nodes have a prolog, which fails where `broken` says so.
    prolog: bool = False
    #: Further lines of slurm.conf.
    lines: tuple[str, ...] = ()

    @property
    def conf(self) -> Path:
        """slurm.conf; every command of Slurm finds the cluster through SLURM_CONF."""
        return self.root / "etc" / "slurm.conf"

    @property
    def hasty_conf(self) -> Path:
        """The same for commands of which a test knows that nobody will answer: they give up after two seconds."""
        return self.root / "etc" / "hasty.conf"

    @property
    def munge_socket(self) -> Path:
        """Where munged listens."""
        return self.root / "run" / "munge"

    @property
    def mariadb_socket(self) -> Path:
        """Where the database listens, and nowhere else."""
        return self.root / "run" / "mariadb"

    def broken(self, node: str) -> Path:
        """While this file is there, the prolog of a node fails."""
        return self.root / "etc" / f"broken.{node}"

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes."""
        return tuple(f"node{number}" for number, _ in enumerate(self.node_ports, 1))


def write_configuration(layout: Layout) -> None:
    """Write all files below `layout.root`, and the fake GPUs: Slurm wants character devices, and takes links to /dev/null."""
    for name in ("etc", "run", "log", "state", "spool", "dev", "home"):
        (layout.root / name).mkdir(exist_ok=True)
    for number in range(layout.gpus):
        link = layout.root / "dev" / f"gpu{number}"
        if not link.is_symlink():
            link.symlink_to("/dev/null")
    etc = layout.root / "etc"
    layout.conf.write_text(slurm_conf(layout))
    layout.hasty_conf.write_text(slurm_conf(layout).replace("MessageTimeout=10", "MessageTimeout=2"))
    (etc / "gres.conf").write_text(gres_conf(layout))
    (etc / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nConstrainRAMSpace=no\nConstrainDevices=no\n")
    if layout.prolog:
        (etc / "prolog").write_text(f'#!/bin/sh\n[ ! -e "{etc}/broken.$SLURMD_NODENAME" ]\n')
        (etc / "prolog").chmod(0o755)
    if layout.accounting:
        (etc / "slurmdbd.conf").write_text(slurmdbd_conf(layout))
        (etc / "slurmdbd.conf").chmod(0o600)


def gres_conf(layout: Layout) -> str:
    """Return gres.conf."""
    if not layout.gpus:
        return "AutoDetect=off\n"
    shards = f"Name=shard Count={layout.shards}\n" if layout.shards else ""
    return f"AutoDetect=off\nName=gpu Type=fake File={layout.root}/dev/gpu[0-{layout.gpus - 1}]\n{shards}"


def slurmdbd_conf(layout: Layout) -> str:
    """Return slurmdbd.conf. The database is found by its socket (MYSQL_UNIX_PORT), and knows the user by it."""
    return f"""\
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket}
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={layout.database_port}
SlurmUser={layout.user}
PidFile={layout.root}/run/slurmdbd.pid
LogFile={layout.root}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={layout.user}
StorageLoc=slurm_acct
CommitDelay=1
"""


def slurm_conf(layout: Layout) -> str:
    """Return slurm.conf: jobs are scheduled within a second, which no real site would ask of its controller."""
    accounting = "AccountingStorageType=accounting_storage/none"
    if layout.accounting:
        accounting = f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={layout.database_port}
AccountingStoragePass={layout.munge_socket}
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu
PreemptType=preempt/qos
PreemptMode=REQUEUE
PriorityType=priority/multifactor
PriorityWeightQOS=10000"""
    nodes = "\n".join(
        f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={layout.cpus} RealMemory={layout.memory}"
        + (f" Gres=gpu:fake:{layout.gpus}" if layout.gpus else "")
        + (f",shard:{layout.shards}" if layout.shards else "")
        + f" Feature={'fast' if number % 2 else 'slow'} State=UNKNOWN"
        for number, (name, port) in enumerate(zip(layout.nodes, layout.node_ports, strict=True), 1)
    )
    everywhere = ",".join(layout.nodes)
    prolog = f"Prolog={layout.root}/etc/prolog\n" if layout.prolog else ""
    return f"""\
ClusterName={CLUSTER}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={layout.controller_port}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser={layout.user}
SlurmdUser={layout.user}
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket},cred_expire=5
CredType=cred/munge
SlurmctldPidFile={layout.root}/run/slurmctld.pid
SlurmdPidFile={layout.root}/run/slurmd.%n.pid
SlurmctldLogFile={layout.root}/log/slurmctld.log
SlurmdLogFile={layout.root}/log/slurmd.%n.log
StateSaveLocation={layout.root}/state
SlurmdSpoolDir={layout.root}/spool/%n
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
GresTypes=gpu{",shard" if layout.shards else ""}
DefMemPerCPU=256
KillWait=2
MinJobAge=60
MessageTimeout=10
SlurmdTimeout={layout.node_timeout}
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1,bf_continue
{accounting}
{prolog}{"".join(f"{line}{chr(10)}" for line in layout.lines)}{nodes}
PartitionName=main Nodes={everywhere} Default=YES MaxTime=INFINITE State=UP
PartitionName=debug Nodes={layout.nodes[0]} MaxTime=10 DefaultTime=1 PriorityTier=10 State=UP
"""
