"""What a job needs before it has a place, who waits for it with whom, and what they read meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, auto

from carrel.core.domain.job import Job, Reason
from carrel.core.domain.launch import InputsReady
from carrel.core.domain.partition import Partition
from carrel.core.domain.task import EnvironmentRecipe, InputSpec, TaskSpec

#: Runners that build an environment at once, of everybody and of one owner; as many fetch inputs beside them.
AT_ONCE, EACH = 8, 2
_BUILDS, _FETCHES = "BuildEnvironment", "StageIn"


class Prepares(Enum):
    """What is seen to before a job of a partition has its place."""

    NOTHING = auto()
    #: Its environment and its inputs, by the engine: on a cluster's node.
    THERE = auto()
    #: The same, on the lab's own machine.
    HERE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prerequisite:
    """What is brought once, however many jobs want it."""

    owner: str
    #: Which cluster's nodes it is for; "": the lab's own machine.
    cluster: str = ""
    #: What decides what the environment is; () for a job without one.
    environment: tuple[object, ...] = ()
    #: Inputs that lie elsewhere, and the secrets that may be needed to fetch them.
    inputs: tuple[InputSpec, ...] = ()
    secrets: tuple[str, ...] = ()

    @property
    def environment_alone(self) -> Prerequisite:
        """The same environment, with any inputs."""
        return replace(self, inputs=(), secrets=())

    @property
    def inputs_alone(self) -> Prerequisite:
        """The same inputs, with any environment."""
        return replace(self, environment=())

    @property
    def kind(self) -> str:
        """Among how many it counts: what fetches may take days, and keeps nobody from building."""
        return _FETCHES if self.inputs else _BUILDS


@dataclass(slots=True)
class PrerequisiteWork:
    """One need, and those who wait for it."""

    waiting: dict[int, Job] = field(default_factory=dict)
    #: The job under whose number its runner is; 0: it has not begun.
    carrier: int = 0
    #: True until its environment is there.
    builds: bool = False
    #: How far it is.
    message: str = ""
    found: InputsReady | None = None
    #: Bytes of its runner's log.
    log_size: int = 0
    #: True when a runner was lost while it built: that is tried once more.
    lost: bool = False


def need_of(job: Job, task: TaskSpec, *, keeps_inputs: bool, cluster: str = "") -> Prerequisite:
    """Return what the job needs: its environment, and its inputs if somebody `keeps_inputs`."""
    recipe = task.environment
    wanted = recipe.wanted
    kind_of_node = task.slurm.constraint if cluster and task.slurm is not None else ""
    inputs = tuple(item for item in task.all_inputs if item.lies_elsewhere) if keeps_inputs else ()
    return Prerequisite(
        owner=job.owner,
        cluster=cluster if wanted or inputs else "",
        environment=_identity(recipe, task.snapshot, kind_of_node) if wanted else (),
        inputs=inputs,
        secrets=task.secrets if inputs else (),
    )


def _identity(recipe: EnvironmentRecipe, snapshot: str, kind_of_node: str) -> tuple[object, ...]:
    """Everything of a recipe but which file said so."""
    files = tuple(sorted(recipe.files.items()))
    code = snapshot if recipe.needs_code else ""
    return (recipe.kind, recipe.python, recipe.requirements, files, recipe.lock, recipe.as_of, recipe.local, code, kind_of_node)


def prepared_by(partition: Partition | None) -> Prepares:
    """Return what is seen to for jobs of the partition; None stands for the lab's own machine."""
    if partition is None or partition.capabilities.stage_in:
        return Prepares.HERE
    return Prepares.THERE if partition.capabilities.fetches else Prepares.NOTHING


def why(need: Prerequisite, work: PrerequisiteWork, job_id: int) -> Reason:
    """Why a job that waits for `work` has no place."""
    code = _BUILDS if work.builds else _FETCHES
    if not work.carrier:
        what = " and ".join(
            (["its environment is built"] if work.builds else []) + (["its inputs are fetched"] if need.inputs else [])
        )
        runs = "fetches" if need.inputs else "builds"
        at_once = f"at most {EACH} {runs} of one user, and {AT_ONCE} in all, run at once"
        return Reason(code=code, message=f"{what[:1].upper()}{what[1:]} before it is placed; {at_once}.")
    same = "" if work.carrier == job_id else f", the same as {'that' if work.builds else 'those'} of job {work.carrier},"
    begun = f"environment{same} is being built" if work.builds else f"inputs{same} are fetched before it is placed"
    return Reason(code=code, message=f"Its {begun}: {work.message or 'this begins'}.")


def failure(reason: Reason, job_id: int, carrier: int) -> Reason:
    """Why a job has failed that waited for what a runner under the number `carrier` could not do."""
    if job_id == carrier or reason.code != "EnvironmentFailed":
        return reason
    where = f"It is the environment of job {carrier}, too, whose log says more: `carrel logs {carrier}`."
    return replace(reason, message=f"{reason.message.rstrip()}\n{where}")
