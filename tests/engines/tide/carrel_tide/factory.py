"""What the entry point names: reads `carrel.toml`, and opens the engine for a lab."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from carrel.core.control.launching import LaunchSettings
from carrel.core.domain.errors import Invalid, Unavailable
from carrel.core.domain.launch import Launch
from carrel.core.domain.partition import Capabilities, Partition, read_cluster
from carrel.core.domain.ports import Engine
from carrel.core.domain.qos import JobKind
from carrel.core.domain.task import EngineRequest
from carrel.core.spool import Spool
from carrel.engines.local import LocalEngine
from carrel.lab.server.engine import LabContext, LabEngine
from carrel_tide.engine import TideEngine
from carrel_tide.options import QUAYS


@dataclass(frozen=True, slots=True, kw_only=True)
class TidePartition:
    """What `carrel.toml` says of a partition."""

    #: Directory with a mark for each quay that the water has reached.
    quays: Path

    def shown(self) -> Mapping[str, str | int | None]:
        """What `carrel lab` shows of it."""
        return {"place": f"Tide: the quays in {self.quays}"}


class TideLabEngine(LabEngine):
    """The engine as one lab has it."""

    def make(self) -> Engine:
        """Make it, with the lab's own machine below it."""
        lab, spool = self.lab, Spool(self.lab.home.spool)
        machine = LocalEngine(spool=spool, node=lab.node, run_dir=lab.home.run / "tide", environ=lab.environ)
        return TideEngine(machine=machine, spool=spool, mark=self._mark)

    def check(self, partition: Partition, asked: EngineRequest) -> None:
        """The last quay is for pilots."""
        if isinstance(asked, Mapping) and asked.get("quay") == QUAYS:
            raise Invalid(f"quay is {QUAYS}, which is kept for pilots.", remedy=f"Ask for 1 to {QUAYS - 1}.")

    def launch(self, settings: LaunchSettings) -> LaunchSettings:
        """Jobs run on the lab's own machine, with all that they have there."""
        return settings

    def state(self) -> list[str]:
        """A line at the lab's start."""
        return ["jobs start at high water"]

    def _mark(self, launch: Launch) -> Path:
        name = read_cluster(launch.node)[1]
        partition = self.lab.rules.current.partitions.get(name)
        if partition is None or not isinstance(partition.settings, TidePartition):
            raise Unavailable(f'Partition "{name}" has no quays any more.', remedy="Cancel the job.")
        return partition.settings.quays / f"quay{_quay(launch.task.asks)}"


def _quay(asks: Mapping[str, EngineRequest]) -> int:
    asked = asks.get("tide", {})
    return asked.get("quay", 1) if isinstance(asked, Mapping) else 1


class TideFactory:
    """Found by the entry point."""

    title = "Tide"
    keys = ("tide_quays",)
    #: The reason codes that no other engine gives, what each means, and what to do then.
    reasons: Mapping[str, str] = {
        "HighWater": "Its quay waits for high water. It starts by itself then; `--tide-quay` takes it to another quay.",
        "QuayClosed": "Its quay was closed before the water came. Submit it again for another quay.",
    }

    def read(self, name: str, table: Mapping[str, object], where: str) -> Partition:
        """Return the partition. It takes tasks alone, and its engine chooses when and where they run."""
        quays = table.get("tide_quays")
        if not isinstance(quays, str):
            raise Invalid(f"{where}.tide_quays is {quays!r}.", remedy="Name the directory of the quays.")
        can = Capabilities(title=self.title, chooses_nodes=True, kinds=frozenset({JobKind.TASK}))
        return Partition(name=name, engine="tide", capabilities=can, settings=TidePartition(quays=Path(quays)))

    def open(self, lab: LabContext) -> LabEngine:
        """Return the engine for a lab."""
        return TideLabEngine(lab)


FACTORY = TideFactory()
