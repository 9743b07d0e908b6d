"""What a researcher describes: code, environment, inputs, parameters, resources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from carrel.core.domain.launcher import Launcher as Launcher
from carrel.core.domain.network import Network
from carrel.core.domain.session import SessionSpec
from carrel.core.domain.slurm import ENGINE, SlurmRequest

#: Schemes of what the lab keeps itself.
LAB_SCHEMES = ("job", "runs", "models", "mlflow-artifacts")
_HERE = frozenset({"", "file", "git+file", *LAB_SCHEMES})
#: Below the directory of outputs: the order in which samples were shown, a file for each rank.
ORDER = "order"
#: An option that names a place for packages inside the code.
_LOCAL_OPTION = re.compile(r"^\s*(?:-f|--find-links)[\s=]+(?!\S*://)(?!/)", re.MULTILINE)


class EnvironmentKind(StrEnum):
    """Where a task's environment comes from."""

    NONE = "none"
    REQUIREMENTS = "requirements"
    UV_LOCK = "uv_lock"
    CONDA = "conda"
    IMAGE = "image"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRecipe:
    """How to build an environment: resolved from the task's files at submit, locked and built by the runner.

    The same recipe text always gives the same digest; the lock that it resolves to is kept with the record.
    """

    kind: EnvironmentKind = EnvironmentKind.NONE
    #: Which file of the task said so, for messages ("python_env.yaml"); "" when none did.
    source: str = ""
    #: Python version as asked ("3.11", ">=3.10"), or None for the lab's own.
    python: str | None = None
    #: Requirement lines for REQUIREMENTS; the text of the file for UV_LOCK and CONDA is in `files`. For IMAGE its name alone.
    requirements: tuple[str, ...] = ()
    #: Further files that the build needs, by path relative to the task's directory, with their text.
    files: Mapping[str, str] = field(default_factory=dict)
    #: The lock of an earlier run that this one repeats: it is installed as it is, and nothing is resolved anew.
    lock: str | None = None
    #: Requirements are resolved as if nothing newer had been published: "2023-12-01T00:00:00Z". None: as of now.
    as_of: str | None = None
    #: For what it is resolved anew although the lab keeps what the same recipe came to before; None: that is taken.
    anew: str | None = None
    #: True when a requirement points into the code directory (``-e .``, ``./pkg``): the code is then part of the key.
    local: bool = False

    @property
    def wanted(self) -> bool:
        """True when there is an environment to build; else the command has the machine's own Python."""
        return self.kind is not EnvironmentKind.NONE or self.python is not None

    @property
    def needs_code(self) -> bool:
        """True when building takes files from the code directory, so that the code is part of the environment."""
        return self.local or any(_LOCAL_OPTION.search(line) for line in self.requirements)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """One input, staged before the command starts."""

    #: Where it appears, relative to the working directory.
    path: str
    #: ``file:``, ``https:``, ``s3:`` … anything that fsspec opens.
    uri: str
    #: Expected digest ("sha256:…"), or None to take what is there.
    digest: str | None = None

    @property
    def lies_elsewhere(self) -> bool:
        """True when it has to be fetched from outside of the lab and its machine."""
        scheme, colon, _ = self.uri.partition(":")
        return bool(colon) and scheme not in _HERE


@dataclass(frozen=True, slots=True, kw_only=True)
class GitState:
    """Where the code came from. The diff is what `git apply` needs to get from the commit to what ran."""

    commit: str
    branch: str | None = None
    #: Remote address without credentials.
    remote: str | None = None
    dirty: bool = False
    diff: str = ""
    #: True when the diff was too large to keep; the snapshot holds the code in any case.
    diff_truncated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingTarget:
    """An MLflow run that exists already (made by ``mlflow run``); without one the lab makes a run of its own.

    For an element of an array it is the parent of a run of its own.
    """

    run_id: str
    experiment_id: str
    #: None: the lab's own tracking server.
    uri: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOf:
    """Which step of which pipeline a job is."""

    name: str
    #: What the steps that were submitted together have in common.
    pipeline: str
    #: The jobs of the steps before it, by their names: those that it waits for, and those whose result was taken again.
    jobs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantOf:
    """Of which job a job is a variant: that one with some facts of another, to see which of them make results differ."""

    first: str
    second: str
    #: What is as in the second, in words; nothing: it is the first again, or the second.
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOf:
    """The job of this lab or another one that a job repeats, as its submitter says."""

    #: Id of the lab.
    lab: str
    job: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChallengeProgram:
    """Which program of a challenge a job is, for which submission. It has no home, and reads these directories of the lab's."""

    challenge: str
    submission: int
    #: "ingestion" or "scoring".
    stage: str
    #: Absolute; no other job sees them.
    readable: tuple[str, ...]


#: What is asked of one engine: of Slurm its own value, of others what their options say, by name.
EngineRequest = SlurmRequest | Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """Everything that was decided at submit; frozen with the job and never looked up again."""

    entry_point: str
    #: The shell command line, with every parameter in its place and quoted.
    command: str
    #: Digest of the code snapshot ("sha256:…"); "" for a session, whose files lie in its own directory.
    snapshot: str
    #: Directory inside the snapshot in which the command runs.
    directory: str = "."
    #: Values as text, defaults filled in and types checked.
    parameters: Mapping[str, str] = field(default_factory=dict)
    environment: EnvironmentRecipe = field(default_factory=EnvironmentRecipe)
    inputs: tuple[InputSpec, ...] = ()
    #: Parameters of type ``path`` whose value is a URI: place in the working directory (``inputs/<parameter>/<last part of
    #: the URI>``, which the command already holds) -> URI. Staged like inputs before the command starts.
    path_parameters: Mapping[str, str] = field(default_factory=dict)
    #: Glob patterns relative to the working directory.
    outputs: tuple[str, ...] = ("outputs/**",)
    launcher: Launcher = Launcher.NONE
    #: Processes of the command on each node (Slurm's --ntasks-per-node).
    tasks_per_node: int = 1
    #: Environment variables that the submitter set; never secrets.
    variables: Mapping[str, str] = field(default_factory=dict)
    #: Names of the owner's secrets, which the command finds in environment variables of the same names.
    secrets: tuple[str, ...] = ()
    experiment: str | None = None
    tracking: TrackingTarget | None = None
    git: GitState | None = None
    #: The job that this one repeats, if any.
    rerun_of: int | None = None
    #: The jobs between which it stands (`carrel why`); None: it was not made of two.
    variant_of: VariantOf | None = None
    #: The job, of another lab perhaps, whose record it was made of, if any.
    replay_of: ReplayOf | None = None
    #: What makes it interactive; None for a task.
    session: SessionSpec | None = None
    #: The pool for which it carries out calls; None: it is work of its own, with a run of its own.
    pool: int | None = None
    #: GPUs that it borrows for each call, as a session does for each cell; 0: it has those of its job, if any.
    borrows: int = 0
    #: The sweep of which it is a trial, and its number there; None: it is none.
    sweep: int | None = None
    trial: int | None = None
    #: None: it is a user's. Nobody can ask for this: the lab makes such jobs, as a user of its own.
    challenge: ChallengeProgram | None = None
    #: What is asked of Slurm beyond resources; None when nothing is.
    slurm: SlurmRequest | None = None
    #: What is asked of other engines, by their names; None when nothing is.
    engines: Mapping[str, Mapping[str, Any]] | None = None
    #: How often it goes on, from what its attempts left in their checkpoint directory, after it reached its walltime.
    requeue: int = 0
    #: Seconds before the end of its walltime at which it gets SIGTERM; None: at the end, or as the lab does it if it goes on.
    warning: int | None = None
    #: What it wants of the network, where it is less than the lab gives; None: what the lab gives.
    network: Network | None = None
    #: `carrel run --deterministic`: the seed of what is random, and libraries use what is the same each time. None: not so.
    deterministic_seed: int | None = None
    #: "record": the order in which loaders show samples is an output (`ORDER`). The number of a job: they have that job's, and it
    #: is recorded again. None: neither.
    order: str | None = None
    #: Which step of which pipeline it is; None: of none.
    step: StepOf | None = None
    #: Notes for the submitter about what was asked for; also the first lines of the log.
    notes: tuple[str, ...] = ()

    @property
    def asks(self) -> Mapping[str, EngineRequest]:
        """What is asked of engines, by their names; empty when nothing is that only one engine understands."""
        return {**({} if self.slurm is None else {ENGINE: self.slurm}), **(self.engines or {})}

    @property
    def order_of(self) -> str | None:
        """The job whose order of samples is repeated, or None."""
        return None if self.order in (None, "record") else self.order

    @property
    def order_place(self) -> str:
        """Where that order is staged, relative to the working directory."""
        return f"inputs/{ORDER}-of-{self.order_of}"

    @property
    def all_inputs(self) -> tuple[InputSpec, ...]:
        """What is staged: its inputs, then its path parameters by their places, then the order of samples that it repeats."""
        order = () if self.order_of is None else (InputSpec(path=self.order_place, uri=f"job:{self.order_of}/outputs/{ORDER}"),)
        return self.inputs + tuple(InputSpec(path=path, uri=uri) for path, uri in sorted(self.path_parameters.items())) + order
