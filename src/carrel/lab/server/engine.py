"""What an engine is to a lab. docs/engines.md shows how to write one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from carrel.core.control.launching import LaunchSettings
from carrel.core.control.rules import RuleBook
from carrel.core.control.sessions import NodeReport
from carrel.core.domain.job import Job
from carrel.core.domain.node import Node
from carrel.core.domain.partition import Partition
from carrel.core.domain.placement import GpuState
from carrel.core.domain.ports import Engine
from carrel.core.domain.task import EngineRequest
from carrel.lab.server.home import LabHome

if TYPE_CHECKING:
    from carrel.engines.deputy.engine import DeputyEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class LabContext:
    """What an engine gets of the lab that it is opened for."""

    home: LabHome
    lab_id: str
    rules: RuleBook
    #: The settings of `carrel.toml`, by name.
    settings: Mapping[str, Any]
    #: Where other machines reach the lab.
    url: str
    environ: Mapping[str, str]
    #: This machine.
    node: Node
    #: Machines that were made from parts and are there now; jobs run on them as on this one.
    composed: Callable[[], tuple[Node, ...]]
    #: Devices of it that its broker keeps for cells, and the state of idle sessions on the others.
    lent: Callable[[], frozenset[str]]
    gpu_state: Callable[[], GpuState]
    #: What the brokers of other machines have said.
    news: Callable[[], Sequence[NodeReport]]


class LabEngine:
    """An engine as one lab has it. What is not defined by an engine is as it stands here."""

    def __init__(self, lab: LabContext) -> None:
        self.lab = lab

    def make(self) -> Engine:
        """Make what starts jobs and tells of them. Called once, when the first job comes (of `local`, when the lab starts)."""
        raise NotImplementedError

    def nodes(self, partition: Partition) -> Sequence[Node]:  # noqa: ARG002 - for those who know
        """The nodes that it may choose for jobs of the partition; none while they are not known."""
        return ()

    def user(self, subject: str) -> str:  # noqa: ARG002 - for those who have others
        """The Unix user as whom the person's jobs run; "" for the lab's own. Raises `Denied` for somebody who has none there."""
        return ""

    def passed(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """What builds in its jobs have of the variables `environ`, which are those of builds on the lab's own machine."""
        return environ

    def check(self, partition: Partition, asked: EngineRequest) -> None:
        """Raise `Invalid`, with the value and the remedy, for what a task of this partition cannot ask for."""

    def launch(self, settings: LaunchSettings) -> LaunchSettings:
        """What its jobs are told, made of what jobs on the lab's own machine are: here, that there is nothing of the lab's there
        but its address."""
        url = self.lab.url
        return replace(
            settings,
            # Inputs are kept on the lab's own machine alone, and another one has limits of its own.
            paths=replace(settings.paths, broker="", residency="", inputs=""),
            limits=replace(settings.limits, disk=0, files=0),
            gateway=url,
            tracking_uri=None if settings.tracking_uri is None else f"{url}/mlflow",
            suspends=False,
            walls=lambda _owner: None,
            remote=True,
        )

    def read_address(self, job: Job) -> bytes | None:  # noqa: ARG002 - for those who know
        """What a session has written about where it is; None where that lies in the lab's spool."""
        return None

    def deputy_of(self, job: Job) -> DeputyEngine | None:  # noqa: ARG002 - for those who have some
        """Whose hands the files of a job's last attempt are in; None when they are the lab's own."""
        return None

    def state(self) -> Sequence[str]:
        """What there is to tell at the lab's start, a line each, where a partition of its is among the rules."""
        return ()
