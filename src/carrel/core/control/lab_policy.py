"""The rules that a submission meets: which class, which account, which partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from carrel.core.control.rules import RuleBook
from carrel.core.domain.errors import CarrelError, Denied, Impossible, Invalid
from carrel.core.domain.node import Node
from carrel.core.domain.partition import Partition
from carrel.core.domain.qos import JobKind, QoS
from carrel.core.domain.resources import Resources
from carrel.core.domain.slurm import SlurmRequest
from carrel.core.domain.task import EngineRequest, TaskSpec
from carrel.core.domain.user import User
from carrel.core.policy.accounts import accounts_of, choose_account
from carrel.core.policy.feasible import ClusterNodes, feasible, nothing_known
from carrel.core.policy.partitions import (
    choose_partitions,
    choose_qos_in,
    find_partition,
    refuse_without_engine,
    without_harmless,
)

_NOTHING: Mapping[str, EngineRequest] = {}


def the_labs_own(_partition: Partition, _subject: str) -> str:
    """Everybody is who the lab itself is."""
    return ""


def everybody_here(_subject: str) -> None:
    """Everybody's code may run on the lab's own machine."""


def everything_understood(_partition: Partition, _asked: EngineRequest) -> None:
    """The engine is left to refuse what it does not understand."""


def always_preparable(_task: TaskSpec, _partition: Partition | None, _nodes: int = 1) -> None:
    """What a task lacks is found when it is prepared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPolicy:
    """The pure rules that a submission meets."""

    rules: RuleBook
    #: Which nodes an engine that chooses them has for a partition, as far as that is known.
    cluster: ClusterNodes = nothing_known
    #: Tells as which Unix user a person's jobs run in a partition; "": as the lab's own. Raises `Denied` for one who has none.
    unix_user: Callable[[Partition, str], str] = the_labs_own
    #: Raises `Denied` for somebody whose code may not run on the lab's own machine.
    here: Callable[[str], None] = everybody_here
    #: Raises `Invalid` for what a task cannot ask of the engine of its partition.
    understood: Callable[[Partition, EngineRequest], None] = everything_understood
    #: Raises `Impossible` for a task whose inputs or environment can never be had in a partition (None: the lab is one).
    preparable: Callable[[TaskSpec, Partition | None, int], None] = always_preparable

    @property
    def qos(self) -> Mapping[str, QoS]:
        """Classes of service by name; insertion order is the order of listing."""
        return self.rules.current.qos

    @property
    def partitions(self) -> Mapping[str, Partition]:
        """Parts of the lab by name; empty for a lab that is one."""
        return self.rules.current.partitions

    def choose(self, name: str | None, kind: JobKind, partition: str | None = None) -> QoS:
        """The class of service called `name`, or the one for work of this kind (in `partition`) that names none.

        Raises `Invalid`.
        """
        rules = self.rules.current
        part = None if partition is None else find_partition(partition, rules.partitions)
        return choose_qos_in(name, kind, rules.qos, part, default=rules.default_for(kind))

    def partition_here(self, name: str | None) -> tuple[str | None, str]:
        """Return what a partition that a task names is called here, and what to say of it; "" where nothing is."""
        names = self.rules.current.partition_names
        if name is None or name in self.partitions or name not in names:
            return name, ""
        here = names[name]
        meant = f'"{here}"' if here else "no partition in particular"
        return here or None, f'Partition "{name}" is {meant} in this lab.'

    def left_out(self, asked: SlurmRequest | None, partition: str | None) -> tuple[SlurmRequest | None, tuple[str, ...]]:
        """Return what is asked of Slurm without what does no harm when it is left out, and what to say of that."""
        parts = self.partitions
        return without_harmless(asked, None if partition is None else parts.get(partition), parts.values())

    def account(self, name: str | None, user: User) -> str:
        """The account that work of `user` is charged to. Raises `Invalid` and `Denied`."""
        return choose_account(name, user.subject, user.account, self.rules.current.accounts, user.member_of)

    def charged(self, user: User) -> str:
        """The account that work of `user` is charged to where it names none; "" where no account admits them."""
        try:
            return self.account(None, user)
        except Denied:
            return ""

    def accounts_of(self, user: User) -> frozenset[str]:
        """The accounts that `user` is a member of now."""
        return accounts_of(user.subject, user.account, self.rules.current.accounts, user.member_of)

    def admits(self, name: str, user: User) -> bool:
        """True when `user` may charge the account called `name` now."""
        try:
            return self.account(name, user) == name
        except (Denied, Invalid):
            return False

    def check(
        self,
        resources: Resources,
        kind: JobKind,
        qos: QoS,
        nodes: Sequence[Node],
        partition: str | None = None,
        asked: Mapping[str, EngineRequest] = _NOTHING,
        *,
        owner: str,
    ) -> str:
        """Return the partition that the job runs in: the one it names, or the first that can hold it; "" where there are none.

        `asked` is what it asks of engines, by their names. Raises `Impossible` when such a job can never run here, `Invalid` for
        a partition that does not take it, and `Denied` for one where `owner` is nobody.
        """
        parts = self.partitions
        refuse_without_engine(asked, None if partition is None else parts.get(partition), parts.values())
        if not parts and partition is None:
            self.here(owner)
            feasible(resources, kind, qos, nodes, others=self.qos.values())
            return ""
        found = choose_partitions(partition, qos, parts)
        refused: CarrelError | None = None
        for part in found:
            if any(engine != part.engine for engine in asked):
                continue  # only that engine can do what it asks for
            try:
                feasible(
                    resources, kind, qos, nodes,
                    others=self.qos.values(), partition=part, partitions=parts.values(), cluster=self.cluster,
                )  # fmt: skip
                if part.cluster:
                    self.unix_user(part, owner)
                else:
                    self.here(owner)
            except (Impossible, Denied) as error:
                refused = refused or error
            else:
                for request in asked.values():
                    self.understood(part, request)
                return part.name
        raise refused or Impossible(
            f'No partition{" of a cluster" if asked else ""} takes QoS "{qos.name}" any more.',
            remedy="Choose another QoS; `carrel lab` lists them.",
        )
