"""What attaches blocks to machines, by driver (`carrel.core.control.composing.Fabric`)."""

from __future__ import annotations

from carrel.engines.fabric.mig import Host, MigFabric
from carrel.engines.fabric.parts import FabricFile, Fault, read_fabric
from carrel.engines.fabric.simulated import SimulatedFabric

__all__ = ["FabricFile", "Fault", "Host", "MigFabric", "SimulatedFabric", "read_fabric"]
