"""What an engine hands to a runner: one attempt of one job, complete in itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from carrel.core.domain.array import ArrayElement
from carrel.core.domain.job import JobState, Reason
from carrel.core.domain.network import Network
from carrel.core.domain.node import Device
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import Launcher, TaskSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTracking:
    """What the job needs to reach its MLflow run. The token is in a file of its own, never here."""

    #: Address for MLFLOW_TRACKING_URI.
    uri: str
    #: None while the lab has not made the run yet; a runner whose environment holds mlflow then waits for it.
    run_id: str | None = None
    experiment_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPaths:
    """Where things are on the node."""

    #: Environments, content-addressed.
    environments: str
    #: Code snapshots, content-addressed.
    snapshots: str
    #: Stored outputs, content-addressed.
    blobs: str
    #: Unix datagram socket that takes a line when the journal has grown ("<job> <attempt>"); may be absent or dead.
    doorbell: str = ""
    #: The same for runners on other machines: "host:port/word", where UDP datagrams with the word and that line are taken.
    bell: str = ""
    #: Unix socket of the node's broker; "" where devices are not lent.
    broker: str = ""
    #: The residency library, which programs that borrow or lend devices load (LD_PRELOAD); "": none.
    residency: str = ""
    #: Directories of the lab's own: no input may name what lies there, although the runner can read it.
    closed: tuple[str, ...] = ()
    #: The owner's own files among them; "" where there are none.
    files: str = ""
    #: Where inputs of the owner's are kept that were fetched before; "": nowhere.
    inputs: str = ""
    #: Directories of the machine that are seen in images, too, as the owner may use them.
    shown: tuple[str, ...] = ()
    #: The client for tasks (`carrel.engines.task_client`); "": there is none.
    client: str = ""
    #: Directory with the socket at which programs get files of large arguments and results of calls; "": there is none.
    bodies: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRucio:
    """Where the lab's Rucio is, and where it is to bring data."""

    #: Addresses of its server, and of who signs people in there ("": the same).
    url: str
    auth: str = ""
    #: An RSE expression.
    rse: str
    #: "BEGINNING=DIRECTORY": what addresses of files there begin with, and where this machine has these files; "": nowhere.
    path: str = ""
    #: Seconds that a rule of ours holds.
    lifetime: int = 14 * 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparingLimits:
    """What building an environment and fetching inputs may take, each program by itself; 0: no limit."""

    #: Bytes.
    memory: int = 0
    #: Bytes on the disk, and files.
    disk: int = 0
    files: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchWalls:
    """What the command does not see of the machine, where users' code is kept apart from the lab and from each other."""

    #: Directories, and files, that are empty for it, but for what it was given.
    hidden: tuple[str, ...] = ()
    #: Directories in which it sees the entries that are there when it starts, and no later ones.
    frozen: tuple[str, ...] = ()
    #: What it sees, read-only, although it lies below them.
    readable: tuple[str, ...] = ()
    #: Data of challenges among them, which it sees in an image, too.
    data: tuple[str, ...] = ()
    #: Its home directory, made when it is missing; "": it has none.
    home: str = ""
    #: What it has of the network.
    network: Network = Network.ON
    #: Processes and threads that it may have at once; 0: as many as the machine allows.
    processes: int = 0
    preparing: PreparingLimits = field(default_factory=PreparingLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLimits:
    """Times and sizes that the runner enforces beside the job's own resources."""

    #: Seconds for building the environment and staging inputs.
    prepare: int = 3600
    #: Seconds for fetching inputs before the job is placed: that holds nothing, and data may have to come from tape.
    fetch: int = 7 * 86400
    #: Seconds before the end of the walltime at which SIGTERM warns the job, beside that at the end; 0: not at all.
    warning: int = 0
    #: Seconds between SIGTERM and SIGKILL, when the job is cancelled and when its walltime is over.
    grace: int = 10
    #: Bytes of log that are kept; what is beyond is counted and dropped with a note.
    log: int = 1024**3
    #: Bytes of outputs that are stored for one attempt.
    outputs: int = 50 * 1024**3
    #: Bytes on the disk, and files, that a job may take while it runs; 0: no limit.
    disk: int = 0
    files: int = 0
    #: Bytes, and files, of one input that is staged; 0: no limit.
    inputs: int = 0
    input_files: int = 0
    #: Bytes of inputs that are kept for the owner's next jobs; 0: none.
    input_cache: int = 0
    #: Bytes of unpacked images that are kept for the next jobs; 0: all of them.
    image_cache: int = 0
    #: Seconds between samples of CPU, memory and GPU use.
    sample: float = 5.0
    #: Bytes beyond the job's memory that it may take: GPU state that was moved to host memory counts as its own.
    suspended: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One attempt of one job. Written to the spool before the runner starts; `attempt` is the fence."""

    job_id: int
    attempt: int
    kind: JobKind
    owner: str
    name: str
    account: str
    qos: str
    #: Where Slurm chooses the node: what stands for it (`carrel.core.domain.partition`), until the job has one.
    node: str
    task: TaskSpec
    resources: Resources
    devices: tuple[Device, ...]
    paths: LaunchPaths
    limits: LaunchLimits = field(default_factory=LaunchLimits)
    #: Address of the gateway, for CARREL_URL; the job's own token lies beside the launch file.
    gateway: str = ""
    #: Certificate (PEM) of who signs the gateway's, where that is the lab itself; "": somebody whom the machine trusts.
    authority: str = ""
    tracking: LaunchTracking | None = None
    #: True lets uv fetch a Python that the machine lacks.
    download_python: bool = False
    #: True for a task that gives its devices to cells for a while and goes on.
    lends: bool = False
    #: Shares of its one GPU that a task asks of Slurm, where it gives it to cells on a cluster's node; 0: all of the GPU.
    shards: int = 0
    #: Positions on the node of the GPUs of which Slurm has given it shares, where the node's broker lends them.
    shares: tuple[int, ...] = ()
    #: True when the lab's machine is another one: a session takes its connections over the network then.
    remote: bool = False
    #: TCP ports for that ("40000-40999"); "" for any.
    session_ports: str = ""
    #: None: the lab has none.
    rucio: LaunchRucio | None = None
    #: What is done for the job before it has a place, under the number 0, where nothing is started: its inputs that lie elsewhere
    #: are fetched, and kept for its attempts; its environment is built.
    stage_in: bool = False
    build: bool = False
    #: What such a fetch has found; None: there was none, or nobody knows any more.
    staged: InputsReady | None = None
    #: None: it sees what the process that starts it sees.
    walls: LaunchWalls | None = None
    #: Which element of which array it is, if any.
    element: ArrayElement | None = None
    #: True when the lab hands over another element of that array right after this one, which an engine may wait for.
    more_elements: bool = False
    #: Environment variables that the lab sets for the command, beyond those of the task.
    variables: Mapping[str, str] = field(default_factory=dict)
    #: As `Node.parts`.
    parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def before_place(self) -> bool:
        """True when nothing is started: only what the job's attempts will need is seen to."""
        return self.stage_in or self.build

    @property
    def is_group(self) -> bool:
        """True when it is more than one process that the runner starts itself."""
        return self.resources.nodes * self.task.tasks_per_node > 1 or self.task.launcher is not Launcher.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a job used: one sample, or the sum at its end."""

    #: Processor seconds so far, all processes.
    cpu_seconds: float = 0.0
    #: Bytes resident now.
    memory: int = 0
    #: Largest `memory` seen so far.
    memory_peak: int = 0
    #: Percent busy, and bytes in use, by the device's UUID, or on a cluster by node and position ("node3/gpu0"); empty where NVML
    #: is absent.
    gpu_utilization: Mapping[str, float] = field(default_factory=dict)
    gpu_memory: Mapping[str, int] = field(default_factory=dict)
    #: Means of `gpu_utilization` over so many samples, those in which the command was not stopped; by the same names.
    gpu_mean: Mapping[str, float] = field(default_factory=dict)
    gpu_samples: int = 0
    #: The same of streaming multiprocessors (NVML's GPM): percent of them that had work. Empty before Hopper.
    gpu_sm: Mapping[str, float] = field(default_factory=dict)
    gpu_sm_mean: Mapping[str, float] = field(default_factory=dict)
    #: Largest `gpu_memory` seen so far.
    gpu_memory_peak: Mapping[str, int] = field(default_factory=dict)
    #: Joules that each GPU took while the command was not stopped; in one sample, since its driver was loaded.
    gpu_energy: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One stored output."""

    #: Relative to the working directory.
    path: str
    size: int
    #: "sha256:…", its name in the blob store.
    digest: str
    #: Unix time at which its content was given up; None: it is stored.
    removed_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The runner owns the attempt; no other runner ever will."""

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparing:
    """A step before the command starts; `message` is for the owner."""

    message: str
    #: An engine's own reason code, while the job waits for what this engine knows of; None: `Preparing`.
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentReady:
    """The environment exists; `lock` is the digest of its lock in the blob store."""

    digest: str
    lock: str
    python: str
    built: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InputsReady:
    """Inputs lie in the working directory; digests by path."""

    digests: Mapping[str, str]
    #: By path, the address of exactly what was taken, where the task's address may name something else later.
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The command runs."""

    pid: int
    #: What the machine is: CPU model, memory, GPUs, driver, kernel; for the record.
    hardware: Mapping[str, str] = field(default_factory=dict)
    #: Seeds and other variables that make a run repeatable, as they were set.
    seeds: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What the job uses now."""

    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised:
    """The command hardly uses its GPUs, and why that probably is."""

    #: CamelCase constant; `message` says it in words.
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspended:
    """Every process of the command is stopped, and what the attempt had of its devices is given back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The command goes on, on the devices that it had."""

    #: For how long it was stopped.
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """Cells have the command's devices for a while; its walltime stands still, unless it is Slurm's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """The command has its devices again, with its GPU state as it was."""

    #: For how long it was paused.
    seconds: float
    #: For how many people it was until now, in all its pauses; None where nobody said.
    people: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The attempt is over, and how. Always the last record of a journal."""

    state: JobState
    reason: Reason
    exit_code: int | None = None
    signal: int | None = None
    usage: Usage = field(default_factory=Usage)
    outputs: tuple[StoredFile, ...] = ()
    #: True when the failure is not the task's own (a full disk, a lost device): it may be tried again at no cost.
    retryable: bool = False
    #: True when it may go on after its walltime, and has changed what it keeps for its next attempt.
    checkpointed: bool = False
    #: True when outputs that were not stored are in its working directory, which stays until they are collected.
    uncollected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """Bytes of a journal that a disk has lost or changed; written by nobody, found by who reads it."""

    offset: int
    size: int


JournalRecord = (
    Claimed
    | Preparing
    | EnvironmentReady
    | InputsReady
    | Started
    | Sampled
    | Advised
    | Suspended
    | Resumed
    | Paused
    | Continued
    | Ended
    | Damaged
)

#: Name of each record in a journal line.
RECORD_TYPES: dict[str, type] = {
    "claimed": Claimed,
    "preparing": Preparing,
    "environment": EnvironmentReady,
    "inputs": InputsReady,
    "started": Started,
    "sampled": Sampled,
    "advised": Advised,
    "suspended": Suspended,
    "resumed": Resumed,
    "paused": Paused,
    "continued": Continued,
    "ended": Ended,
    "damaged": Damaged,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Journaled:
    """One line of a runner's journal."""

    #: Unix seconds, by the node's clock.
    at: float
    record: JournalRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """News of one attempt, from an engine to the control loop."""

    job_id: int
    attempt: int
    #: New journal lines, oldest first.
    entries: tuple[Journaled, ...] = ()
    #: Bytes of the journal that are read up to and with `entries`.
    offset: int = 0
    #: True when `entries` stand in no journal: the engine itself says why the runner has not begun.
    beside: bool = False
    #: Bytes of log so far, or None when that is not news.
    log_size: int | None = None
    #: True when the runner does not exist any more and left no `Ended`: evidence, not suspicion.
    gone: bool = False
    #: True when it is gone and its command had not begun: nothing of the job was done.
    unbegun: bool = False
