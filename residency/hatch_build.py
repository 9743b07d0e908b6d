"""Compiles the library while the wheel is built."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))
from carrel_residency.build import NAME, compile_library


class Compile(BuildHookInterface[Any]):
    """What hatchling calls."""

    def initialize(self, _version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say that the wheel is one for this platform and for any Python."""
        compile_library(Path(self.root) / "carrel_residency" / NAME, sources=Path(self.root) / "src")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
