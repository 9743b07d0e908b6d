"""What is asked of Slurm for one job, as a value; the arguments of sbatch(1) follow from it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from carrel.core.domain.errors import Invalid
from carrel.engines.slurm.passed import check_passed

#: Seconds that `--signal` may name at most (sbatch(1)).
_LONGEST_NOTICE = 65535
_WORD = re.compile(r"[A-Za-z0-9_.+@:/-]+")
#: What sbatch understands in these options, as far as a pattern says it.
_PATTERNS: dict[str, tuple[re.Pattern[str], str]] = {
    "partition": (re.compile(r"[\w.+-]+(,[\w.+-]+)*"), 'such as "gpu" or "gpu,debug"'),
    "qos": (re.compile(r"[\w.+-]+"), 'such as "normal"'),
    "account": (re.compile(r"[\w.+@-]+"), 'such as "physics"'),
    "constraint": (re.compile(r"[\w.+\-&|*()\[\]:,=]+"), 'such as "a100&nvlink"'),
    "reservation": (re.compile(r"[\w.+-]+(,[\w.+-]+)*"), 'such as "course"'),
    "gpu_type": (re.compile(r"[\w.+-]+"), 'such as "a100"'),
    "mail": (re.compile(r"[^\s,;'\"\\]+@[^\s,;'\"\\]+|[\w.+-]+"), "an address or the name of a user"),
}
MAIL_EVENTS = frozenset(
    {
        "NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT", "TIME_LIMIT", "TIME_LIMIT_90",
        "TIME_LIMIT_80", "TIME_LIMIT_50", "ARRAY_TASKS",
    }
)  # fmt: skip
_EXCLUSIVE = ("", "exclusive", "user", "mcs")
_SIGNALS = frozenset({"HUP", "INT", "QUIT", "ABRT", "USR1", "USR2", "TERM", "CONT", "ALRM", "URG"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A signal before the end of the time limit."""

    signal: str
    #: Before the end, give or take a minute (sbatch(1), --signal).
    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """What is asked of Slurm. An empty or absent field leaves the choice to the site.

    Raises `Invalid` for what Slurm would refuse or, worse, read as something else.
    """

    partition: str = ""
    qos: str = ""
    account: str = ""
    #: Seconds.
    time: int | None = None
    #: Bytes on each node.
    memory: int | None = None
    #: Processors of each task.
    cpus: int | None = None
    #: GPUs on each node.
    gpus: int = 0
    gpu_type: str = ""
    #: Shares of GPUs, in the place of whole ones.
    shards: int = 0
    nodes: int | None = None
    tasks_per_node: int | None = None
    #: Features of nodes.
    constraint: str = ""
    #: "" shares the nodes; "exclusive" gives whole nodes, "user" and "mcs" share them with the same user or label only.
    exclusive: str = ""
    reservation: str = ""
    #: Address, and upon which events.
    mail: str = ""
    mail_events: tuple[str, ...] = ()
    #: Environment modules, loaded in this order.
    modules: tuple[str, ...] = ()
    #: Environment variables of the script.
    variables: Mapping[str, str] = field(default_factory=dict)
    #: True when Slurm may start the job again by itself; False when it must not.
    requeue: bool = False
    notice: Notice | None = None
    #: Further options as sbatch takes them ("--nice=100"); only those that are known and set nothing of the above.
    passed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, (pattern, example) in _PATTERNS.items():
            value = getattr(self, name)
            if value and not pattern.fullmatch(value):
                raise Invalid(f"{name} is {value!r}.", remedy=f"Slurm takes a value {example}.")
        self._check_numbers()
        if self.gpu_type and not self.gpus:
            raise Invalid(f'gpu_type is "{self.gpu_type}" but gpus is 0.', remedy="Ask for gpus too, or leave the type out.")
        if self.exclusive not in _EXCLUSIVE:
            raise Invalid(f"exclusive is {self.exclusive!r}.", remedy=f"It is one of: {', '.join(_EXCLUSIVE[1:])}.")
        unknown = sorted(set(self.mail_events) - MAIL_EVENTS)
        if unknown:
            raise Invalid(f"There is no mail event {unknown[0]!r}.", remedy=f"There are {', '.join(sorted(MAIL_EVENTS))}.")
        if self.mail_events and not self.mail:
            raise Invalid("mail_events are given, but no mail address.", remedy="Add mail, or leave them out.")
        for module in self.modules:
            if not _WORD.fullmatch(module) or module.startswith("-"):
                raise Invalid(f"{module!r} is not the name of a module.", remedy='A module is called such as "cuda/12.4".')
        for name, value in self.variables.items():
            if not _NAME.fullmatch(name) or "\0" in value:
                raise Invalid(f"The environment variable {name!r} cannot be set.", remedy="Use letters, digits and _.")
        check_passed(self.passed)

    def _check_numbers(self) -> None:
        for name in ("time", "memory", "cpus", "nodes", "tasks_per_node"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise Invalid(f"{name} is {number}.", remedy="It is at least 1, or left out.")
        if self.gpus < 0:
            raise Invalid(f"gpus is {self.gpus}.", remedy="Ask for 0 or more.")
        if self.shards < 0 or (self.shards and self.gpus):
            raise Invalid(f"shards is {self.shards}, gpus is {self.gpus}.", remedy="Ask for the one or the other.")
        notice = self.notice
        if notice is not None and not (notice.signal in _SIGNALS and 1 <= notice.seconds <= _LONGEST_NOTICE):
            raise Invalid(
                f"The notice is signal {notice.signal!r}, {notice.seconds} s before the end.",
                remedy=f"The signal is one of {', '.join(sorted(_SIGNALS))}, at most {_LONGEST_NOTICE} s before the end.",
            )


def slurm_time(seconds: int) -> str:
    """Return a duration as Slurm reads it ("D-HH:MM:SS"), rounded up to the minute, which is all that Slurm keeps."""
    minutes = -(-seconds // 60)
    days, rest = divmod(minutes, 24 * 60)
    return f"{days}-{rest // 60:02}:{rest % 60:02}:00"


def slurm_memory(size: int) -> str:
    """Return bytes as Slurm reads them, rounded up to the megabyte ("512M"); 0 would mean all of a node."""
    return f"{max(1, -(-size // 1024**2))}M"


def gres_of(options: SlurmOptions) -> str:
    """Return the generic resources of each node as Slurm reads them ("gpu:a100:2", "shard:1"); "" for none."""
    if options.shards:
        return f"shard:{options.shards}"
    return ":".join(part for part in ("gpu", options.gpu_type, str(options.gpus)) if part) if options.gpus else ""


def sbatch_arguments(
    options: SlurmOptions, *, name: str, comment: str, directory: str, output: str, array: str = ""
) -> list[str]:
    """Return the arguments of sbatch, in a fixed order. What is not asked for is not mentioned.

    The environment is the caller's, as the script goes on from it; so the caller gives sbatch a clean one.
    """
    notice = options.notice
    pairs: Sequence[tuple[str, object]] = (
        ("job-name", name),
        ("array", array),
        ("comment", comment),
        ("chdir", directory),
        ("output", output),
        ("partition", options.partition),
        ("qos", options.qos),
        ("account", options.account),
        ("time", slurm_time(options.time) if options.time else None),
        ("nodes", f"{options.nodes}-{options.nodes}" if options.nodes else None),
        ("ntasks-per-node", options.tasks_per_node),
        ("cpus-per-task", options.cpus),
        ("mem", slurm_memory(options.memory) if options.memory else None),
        ("gres", gres_of(options)),
        ("constraint", options.constraint),
        ("reservation", options.reservation),
        ("mail-user", options.mail),
        ("mail-type", ",".join(options.mail_events)),
        ("signal", f"B:{notice.signal}@{notice.seconds}" if notice else None),
    )
    arguments = ["--parsable", "--open-mode=append", "--export=ALL", "--requeue" if options.requeue else "--no-requeue"]
    arguments += [f"--{option}={value}" for option, value in pairs if value is not None and value != ""]
    if options.exclusive:
        arguments.append("--exclusive" if options.exclusive == "exclusive" else f"--exclusive={options.exclusive}")
    return [*arguments, *options.passed]
