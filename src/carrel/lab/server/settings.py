"""One table of settings feeds the file, the environment, the command line and the documentation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carrel.core.domain.errors import Invalid
from carrel.core.domain.rules import LabRules
from carrel.lab.audit import READS
from carrel.lab.server.identity import deputy_command, read_identity
from carrel.lab.server.image_paths import shown_in_images
from carrel.lab.server.isolation import check_isolation
from carrel.lab.server.network import check_network
from carrel.lab.server.oidc_settings import check_oidc
from carrel.lab.server.packages import without_missing
from carrel.lab.server.preload import check_choice
from carrel.lab.server.rucio import rucio_of
from carrel.lab.server.rules import TABLES, read_rules
from carrel.lab.server.sign_in_settings import read_sign_in
from carrel.lab.server.toml import Setting, convert, known, read_toml
from carrel.node.staging.git_hosts import GitHosts
from carrel.notebooks.address import read_ports

DEFAULT_PORT = 8642

#: Every setting of `carrel.toml` (top level), of the environment (CARREL_ and the name in capitals) and of `carrel up`.
SETTINGS: tuple[Setting, ...] = (
    Setting("host", "text", "127.0.0.1", "Address to listen on; others than loopback want TLS."),
    Setting("port", "int", DEFAULT_PORT, "Port to listen on; when another program has the default one, a free one is taken."),
    Setting("public_url", "text", None, "Address by which people reach the lab; without it, as it listens."),
    Setting("tls_certificate", "text", None, "File with the certificate (PEM) for TLS; read again when it was renewed."),
    Setting("tls_key", "text", None, "File with its key."),
    Setting("tls_own", "flag", False, "TLS with certificates of the lab's own authority, which clients have to trust."),
    Setting("proxy_secret", "text", None, "What a proxy in front sends as X-Carrel-Proxy, so that its X-Forwarded-* count."),
    Setting("rate_limit", "int", 200, "Requests a second of each user, and of each job; ten times as many at once. 0: no limit."),
    Setting("connection_limit", "int", 8192, "Connections to the lab at once; each user, and each job, has a 16th of them."),
    Setting("database", "text", None, "PostgreSQL URL (postgresql+psycopg://…); without it the lab keeps a SQLite file."),
    Setting("tracking", "flag", True, "Start the MLflow tracking server with the lab."),
    Setting("simulate_gpus", "int", None, "Offer this many simulated GPUs instead of the machine's own."),
    Setting("cpus", "int", None, "Processors that jobs may use; found by itself."),
    Setting("memory", "size", None, "Memory that jobs may use; found by itself."),
    Setting("fabric", "text", None, "File with the parts from which machines are made; without it machines are as they are."),
    Setting("simulate_memory", "size", 16 * 1024**3, "Memory of each simulated GPU."),
    Setting("simulate_swap", "size", 8 * 1024**3, "How much state a simulated GPU moves to or from host memory in a second."),
    Setting("simulate_faults", "text", "", "Faults of simulated GPUs and their shares, for tests (lock_timeout=0.05,lost=0.01)."),
    Setting("sessions", "flag", True, "Offer sessions (notebooks, terminals), and lend GPUs to their cells."),
    Setting("session_qos", "text", None, "Class of service for sessions that name none; the preset says one."),
    Setting("session_host", "text", "{session}.localhost", "Host name of a session's own origin; {session} becomes its label."),
    Setting("session_gpus", "int", 0, "GPUs that tasks and reservations never take: they are kept for cells."),
    Setting("waiting_calls", "int", 1_000_000, "Calls of functions of each user that have not ended, at most."),
    Setting("session_jobs", "int", 32, "Jobs that a session's token may have at once, waiting and running. 0: none."),
    Setting("task_jobs", "int", 2000, "Jobs that tasks of one user may have submitted at once, waiting and running."),
    Setting(
        "linger_time",
        "duration",
        60,
        "How long a GPU is kept for cells after the last one, unless state moves over the bus.",
    ),
    Setting("session_look_time", "duration", 30, "How often the lab looks which sessions are idle."),
    Setting("time_slice", "duration", 60, "How long a cell computes before it can be suspended for others that wait."),
    Setting("task_turn", "duration", 2, "How long a task computes, at least, before its GPUs can be lent to cells (again)."),
    Setting("task_share", "int", 10, "Percent of its time that a task keeps its GPUs although long cells want them."),
    Setting("hold_time", "duration", 1800, "How long GPU state that cannot be moved keeps its GPU while others wait."),
    Setting(
        "residency",
        "text",
        "auto",
        "GPU state moves by carrel-lab-residency where that is installed (auto), or by the driver (off).",
    ),
    Setting(
        "isolation",
        "text",
        None,
        "What keeps jobs on this machine apart: kernel, or none; without it, kernel from two people on.",
    ),
    Setting(
        "job_network", "text", "on", "What jobs on this machine have of the network, at most: on, loopback (and the lab) or off."
    ),
    Setting("process_limit", "int", 8192, "Processes and threads of a job at once, with isolation. 0: no limit."),
    Setting("disk_limit", "size", None, "Room on the disk that a job here may take while it runs; else a quarter of the disk."),
    Setting("disk_files", "int", 2_000_000, "Files and directories that a job here may have while it runs. 0: no limit."),
    Setting("host_memory", "size", None, "Host memory that moved GPU states may take; without it, half of the node's."),
    Setting("host_memory_ready", "int", 25, "Percent of it that is kept ready from the start, on real GPUs."),
    Setting("state_disk", "size", None, "Room on the disk for GPU states that host memory has no room for; none without it."),
    Setting(
        "state_directory", "text", None, "Where they lie then, encrypted: a directory on a local disk; else in the lab's home."
    ),
    Setting("preset", "text", None, "Rules to begin with: default or mlerp; tables of the file change and add to them."),
    Setting("default_qos", "text", None, "Class of service for work that names none; the preset says one."),
    Setting("warning_time", "duration", 30, "How long before its end a task with `requeue` gets SIGTERM."),
    Setting("grace_time", "duration", 10, "How long a job has from SIGTERM to SIGKILL."),
    Setting(
        "default_environment",
        "text",
        "numpy pandas matplotlib scikit-learn",
        'What the environment "default" has at first: requirements, or site/NAME; pip: nothing else.',
    ),
    Setting("environment_quota", "size", None, "Room on the disk for the named environments of each user."),
    Setting("download_python", "flag", False, "Let uv fetch a Python that a task asks for and this machine lacks."),
    Setting("prepare_time", "duration", 3600, "How long building an environment, staging inputs, and storing outputs may take."),
    Setting("prepare_memory", "size", None, "Memory that each may take, with isolation; else a quarter of the machine's."),
    Setting("slurm_url", "text", None, "Address at which the nodes of a Slurm cluster reach the lab; without it, as from here."),
    Setting("slurm_identity", "text", "owner", "Who jobs in Slurm run as: owner, lab, same, map:FILE or command:PROGRAM."),
    Setting("slurm_deputy", "text", None, "Starts the process that acts as the Unix user {user}; without it, sudo does."),
    Setting(
        "run_users_code_as_lab",
        "flag",
        False,
        "Let users' code run as the Unix user who runs the lab, where jobs have owners in Slurm.",
    ),
    Setting(
        "slurm_session_ports", "text", "", "TCP ports of a cluster's nodes that sessions may listen on (40000-40999); else any."
    ),
    Setting("slurm_image_paths", "text", "", "Directories of a cluster's nodes that jobs see in their images: /scratch:/data."),
    Setting("slurm_broker", "text", "", "Socket of `carrel broker` on a cluster's nodes; without it no cell borrows there."),
    Setting(
        "slurm_lend", "int", 0, "Percent of its time for which a task on a cluster's node may be paused for cells; 0: never."
    ),
    Setting("disk_floor", "size", None, "Nothing starts while a disk of the lab's has less room; 1G, or 5 % of a smaller disk."),
    Setting("log_limit", "size", 1024**3, "Log that is kept of one attempt; the rest is dropped with a note."),
    Setting("output_limit", "size", 50 * 1024**3, "Outputs that are stored of one attempt."),
    Setting("user_quota", "size", None, "What each user may have on the disk; else a quarter of it, half for one."),
    Setting("gc_time", "duration", 86400, "How often the lab removes what it need not keep, by itself."),
    Setting("keep_work", "duration", 7 * 86400, "How long the work directory of a lost attempt is kept."),
    Setting("keep_unused", "duration", 86400, "How long code, contents and artifacts that no record names are kept."),
    Setting("keep_logs", "duration", None, "How long logs are kept after the end of their job; for ever without it."),
    Setting("keep_outputs", "duration", None, "How long outputs are kept after the end of their job; for ever without it."),
    Setting("keep_deleted_runs", "duration", 30 * 86400, "How long runs that were deleted in MLflow keep their artifacts."),
    Setting("keep_audit", "duration", None, "How long the audit log is kept, file by file; for ever without it."),
    Setting("keep_calls", "duration", 30 * 86400, "How long calls of functions are kept after their end, with their results."),
    Setting("keep_cached", "duration", 30 * 86400, "How long results for equal calls are kept after their last use."),
    Setting("cached_limit", "size", 20 * 1024**3, "Results for equal calls of each user; those used longest ago go first."),
    Setting(
        "keep_cells",
        "duration",
        365 * 86400,
        "How long it is kept when cells of notebooks had GPUs, and machines from parts their blocks.",
    ),
    Setting("co2_per_kwh", "int", None, "Grams of CO2 for each kWh that GPUs take, in reports of use; not shown without it."),
    Setting("audit_reads", "text", "none", "Which reads the audit log has: none, others (of what is another user's), or all."),
    Setting("snapshot_limit", "size", 1024**3, "Largest code snapshot that is accepted."),
    Setting("snapshot_files", "int", 200_000, "Most files of a code snapshot."),
    Setting("git_hosts", "text", "", "Hosts and networks inside from which the pages fetch repositories: git.lan 10.2.0.0/16."),
    Setting("input_limit", "size", None, "Largest input of a task; no limit without it."),
    Setting("input_files", "int", 1_000_000, "Most files of an input of a task; 0: no limit."),
    Setting("input_cache", "size", 20 * 1024**3, 'Inputs that are kept for the next jobs of each user; "1K" keeps none.'),
    Setting("image_cache", "size", 100 * 1024**3, "Unpacked images that are kept; those used longest ago go first."),
    Setting("rucio_url", "text", "", "Address of a Rucio server, for inputs rucio://SCOPE:NAME; none without it."),
    Setting("rucio_auth", "text", "", "Address of Rucio's server that signs people in; without it, the same."),
    Setting("rucio_rse", "text", "", "The RSE, or RSE expression, to which Rucio brings inputs."),
    Setting("rucio_path", "text", "", "Where the lab has that RSE's files: BEGINNING=DIRECTORY, of their addresses and here."),
    Setting("rucio_lifetime", "duration", 14 * 86400, "How long a rule that is made for an input holds."),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one lab is run with."""

    values: Mapping[str, Any]
    rules: LabRules
    #: What is off because a package is missing: sentences.
    left_out: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None


def read_settings(file: Path, environment: Mapping[str, str], options: Mapping[str, Any]) -> Settings:
    """Settings from `options` (the command line), then the environment, then `file` (may be absent), then the defaults.

    Raises `Invalid` naming the place, the key and the nearest valid key.
    """
    return settings_of(read_toml(file), str(file), environment, options)


def settings_of(tables: dict[str, Any], where: str, environment: Mapping[str, str], options: Mapping[str, Any]) -> Settings:
    """The same of `tables`, which stand at `where`."""
    ruled = {name: tables.pop(name) for name in TABLES if name in tables}
    values = {setting.name: setting.default for setting in SETTINGS}
    values["sign_in"] = read_sign_in(tables.pop("sign_in", {}), where)
    said = {*tables, *(setting.name for setting in SETTINGS if environment.get(_variable(setting)))}
    said |= {name for name, value in options.items() if value is not None}
    for name, value in tables.items():
        setting = _BY_NAME[known(name, _BY_NAME, where)]
        values[name] = convert(setting, value, f"{where}: {name}")
    for setting in SETTINGS:
        variable = _variable(setting)
        if environment.get(variable):
            values[setting.name] = convert(setting, environment[variable], variable)
    for name, value in options.items():
        if value is not None:
            values[name] = convert(_BY_NAME[name], value, f"--{name.replace('_', '-')}")
    named = {key: values[key] for key in ("preset", "default_qos", "session_qos")}
    rules = read_rules(ruled, where, **named)
    check_network(values)
    if values["sign_in"].oidc is not None:
        check_oidc(values["sign_in"].oidc, values, rules.accounts)
    check_choice(values["residency"])
    check_isolation(values["isolation"], values["job_network"])
    if values["audit_reads"] not in READS:
        raise Invalid(f'audit_reads is "{values["audit_reads"]}".', remedy=f"It is one of {', '.join(READS)}.")
    read_identity(values["slurm_identity"])
    deputy_command(values["slurm_deputy"], "somebody")
    read_ports(values["slurm_session_ports"])
    shown_in_images(values["slurm_image_paths"])
    rucio_of(values)
    GitHosts(values["git_hosts"])
    values, left_out = without_missing(values, said)
    if values["sessions"]:
        _check_host(values["session_host"])
    return Settings(values=values, rules=rules, left_out=left_out)


def _variable(setting: Setting) -> str:
    return f"CARREL_{setting.name.upper()}"


def _check_host(host: str) -> None:
    if host.count("{session}") != 1 or not host.startswith("{session}") or "." not in host:
        raise Invalid(f'session_host is "{host}".', remedy='Write it like "{session}.notebooks.example.org".')
