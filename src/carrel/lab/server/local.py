"""The engine of the lab's own machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from carrel.core.control.launching import LaunchSettings
from carrel.core.domain.partition import Partition
from carrel.core.domain.ports import Engine
from carrel.core.spool import Spool
from carrel.engines.local import LocalEngine
from carrel.lab.server.engine import LabContext, LabEngine


class LocalLabEngine(LabEngine):
    """Starts runners here."""

    def make(self) -> Engine:
        """Make it; its nursery is started."""
        lab = self.lab
        return LocalEngine(
            spool=Spool(lab.home.spool),
            node=lab.node,
            composed=lab.composed,
            run_dir=lab.home.run / "engine",
            environ=lab.environ,
            lent=lab.lent,
            state=lab.gpu_state,
        )

    def launch(self, settings: LaunchSettings) -> LaunchSettings:
        """They are for this machine as they are."""
        return settings


class LocalFactory:
    """What `engine = "local"` means; nothing else in a partition's table is for it."""

    title = "local"
    keys: Sequence[str] = ()

    def read(self, name: str, table: Mapping[str, object], where: str) -> Partition:  # noqa: ARG002 - there is nothing to read
        """Return the partition."""
        return Partition(name=name)

    def open(self, lab: LabContext) -> LabEngine:
        """Return the engine."""
        return LocalLabEngine(lab)


FACTORY = LocalFactory()
