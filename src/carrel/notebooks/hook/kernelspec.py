"""The kernel spec of a session (jupyter_client's documentation, "Kernel specs")."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: The directory with the hook and nothing else: of Carrel's own package nothing becomes importable in the user's environment.
HOOK_DIRECTORY = Path(__file__).parent / "front"


def kernel_spec(python: Path, display_name: str) -> Mapping[str, Any]:
    """The spec of a kernel that runs in the environment of `python`, with the hook in front."""
    path = os.pathsep.join(part for part in (str(HOOK_DIRECTORY), os.environ.get("PYTHONPATH", "")) if part)
    return {
        "argv": [str(python), "-m", "carrel_kernel", "-f", "{connection_file}"],
        "display_name": display_name,
        "language": "python",
        "interrupt_mode": "signal",
        "metadata": {"debugger": True},
        "env": {"PYTHONPATH": path, **_residency()},
    }


def _residency() -> Mapping[str, str]:
    """What has a kernel that borrows GPUs, and its children, load the residency library; nothing but kernels has it."""
    library = os.environ.get("CARREL_SESSION_RESIDENCY", "")
    if not library or os.environ.get("CARREL_SESSION_RESERVED") or os.environ.get("CARREL_SESSION_GPUS", "0") == "0":
        return {}
    before = os.environ.get("LD_PRELOAD", "")
    # The first lease says which devices the process sees, also those of its children.
    return {"LD_PRELOAD": f"{library}:{before}" if before else library, "CARREL_DEVICES": "lease"}


def install(directory: Path, *, python: Path, display_name: str) -> None:
    """Write the spec as the kernel `python3` of the Jupyter data directory `directory`."""
    place = directory / "kernels" / "python3"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    (place / "kernel.json").write_text(json.dumps(kernel_spec(python, display_name)))
