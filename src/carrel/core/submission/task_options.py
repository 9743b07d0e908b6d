"""What a task may ask for, declared once.

A further option is a field of `TaskOptions` (and a line in `TaskArguments`, for those who check types): the command line, the
client, the API, the section ``carrel`` of an MLproject, MLflow's backend config, the JSON schema and how these are merged follow
from it. What the lab does with it is written where it is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from carrel.core.domain.slurm import SlurmRequest
from carrel.core.submission import kinds
from carrel.core.submission.option import option
from carrel.core.submission.resource_options import ResourceOptions

if TYPE_CHECKING:
    from carrel.core.domain.network import Network
    from carrel.core.domain.task import EnvironmentRecipe, Launcher
    from carrel.core.domain.visible import Visible


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """What one source says about a task: a request, its backend config, the task's own file. None: it says nothing."""

    resources: ResourceOptions = field(default_factory=ResourceOptions)
    qos: str | None = option(
        kind=kinds.WORD, flags=("--qos",), metavar="QOS", in_config="qos", help="Class of service; `carrel lab` lists them."
    )
    partition: str | None = option(
        kind=kinds.WORD,
        flags=("--partition",),
        metavar="PARTITION",
        in_config="partition",
        help="Part of the lab; `carrel lab` lists them.",
    )
    account: str | None = option(
        kind=kinds.NAME, flags=("--account",), metavar="ACCOUNT", in_config="account", help="Account that the use is charged to."
    )
    name: str | None = option(kind=kinds.NAME, flags=("--name",), in_files=False, in_config="job_name", help="Name of the job.")
    retries: int | None = option(kind=kinds.TIMES, flags=("--retries",), help="Further attempts when the task fails.")
    requeue: int | None = option(
        kind=kinds.GOES_ON,
        flags=("--requeue",),
        in_config="requeue",
        help="How often it goes on from its checkpoint when it has reached its walltime.",
    )
    #: Seconds.
    warning: int | None = option(
        kind=kinds.DURATION, flags=("--warn",), help='How long before its walltime it gets SIGTERM, such as "5m".'
    )
    network: Network | None = option(
        kind=kinds.NETWORK,
        flags=("--network",),
        help="Less of the network than the lab gives: loopback (only the lab) or off (nothing).",
    )
    image: EnvironmentRecipe | None = option(
        kind=kinds.IMAGE,
        flags=("--image", "--container"),
        help="Run in this image, such as python:3.12-slim, or oci-archive:FILE.",
    )
    #: As `carrel.core.domain.dependency` reads it.
    dependency: str | None = option(
        kind=kinds.DEPENDENCY,
        flags=("--dependency",),
        in_files=False,
        in_config="dependency",
        help="Start after other jobs of the lab, such as afterok:12:13,afterany:14.",
    )
    #: As `carrel.core.domain.array` reads it.
    array: str | None = option(
        kind=kinds.ARRAY,
        flags=("--array", "-a"),
        in_config="array",
        help="One job for each index: 0-9, 0,3,7-15:2; with %4 four at once.",
    )
    #: What is asked of Slurm beyond this.
    slurm: SlurmRequest = field(default_factory=SlurmRequest)
    #: What is asked of other engines, by their names: options that they declare themselves.
    engines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    preemptible: bool | None = option(
        kind=kinds.TRUTH,
        flags=("--no-preempt",),
        negated=True,
        in_config="preemptible",
        help="It must not be interrupted: no job preempts it while it runs.",
    )
    visible: Visible | None = option(
        kind=kinds.VISIBLE,
        flags=("--visible",),
        in_files=False,
        help="Who may read its log, outputs and record: owner, or account (the members of its account).",
    )
    cache: bool | None = option(
        kind=kinds.TRUTH,
        flags=("--cache",),
        in_config="cache",
        help="Take the result of an earlier job with the same code, parameters, environment and inputs.",
    )
    deterministic: bool | None = option(
        kind=kinds.TRUTH,
        flags=("--deterministic",),
        in_config="deterministic",
        help="Seed what is random, and have libraries use what gives the same result each time.",
    )
    deterministic_seed: int | None = option(
        kind=kinds.SEED, flags=("--deterministic-seed",), help="The seed of --deterministic.  [0]"
    )
    order: str | None = option(
        kind=kinds.ORDER,
        flags=("--order",),
        in_config="order",
        help='Order of samples: "record" keeps it, the number of a job repeats that of the job.',
    )
    experiment: str | None = option(kind=kinds.NAME, flags=("--experiment",), help="Experiment in the tracking server.")
    variables: Mapping[str, str] = option(
        default_factory=dict,
        kind=kinds.VARIABLES,
        flags=("--env",),
        help="A variable for the task, never a secret; without a value, that of here; may be repeated.",
    )
    #: Names.
    secrets: tuple[str, ...] = option(
        (), kind=kinds.SECRETS, flags=("--secret",), help="A secret of yours for the task (`carrel secret`); may be repeated."
    )
    #: As `carrel.core.submission.dates` reads it.
    resolve_as_of: str | None = option(
        kind=kinds.DATE,
        flags=("--resolve-as-of",),
        in_config="resolve_as_of",
        help="Resolve requirements as if nothing newer had been published, such as 2023-12-01.",
    )
    launcher: Launcher | None = option(
        kind=kinds.LAUNCHER, flags=("--launcher",), help="What starts its processes: torchrun, mpi or none."
    )
    tasks_per_node: int | None = option(
        kind=kinds.COUNT, flags=("--tasks-per-node",), help="Processes on each node.  [one; with torchrun one for each GPU]"
    )

    def over(self, other: TaskOptions) -> TaskOptions:
        """Return this, with what it leaves open taken from `other`. Variables and secrets are had from both."""
        said = {name: value for item in fields(self) if (value := getattr(self, name := item.name)) is not None}
        engines = dict.fromkeys((*other.engines, *self.engines))
        both: dict[str, Any] = {
            "resources": self.resources.over(other.resources),
            "slurm": self.slurm.over(other.slurm),
            "engines": {name: {**other.engines.get(name, {}), **self.engines.get(name, {})} for name in engines},
            "variables": {**other.variables, **self.variables},
            "secrets": tuple(dict.fromkeys((*other.secrets, *self.secrets))),
        }
        return replace(other, **{**said, **both})


class TaskArguments(TypedDict, total=False):
    """The same as the client takes it: values as people write them."""

    qos: str | None
    partition: str | None
    account: str | None
    name: str | None
    retries: int | None
    requeue: int | None
    warning: str | None
    network: str | None
    image: str | None
    dependency: str | None
    array: str | None
    preemptible: bool | None
    visible: Literal["owner", "account"] | None
    cache: bool | None
    deterministic: bool | None
    deterministic_seed: int | None
    order: str | None
    experiment: str | None
    variables: Mapping[str, str] | None
    secrets: Sequence[str] | None
    resolve_as_of: str | None
    launcher: str | None
    tasks_per_node: int | None
