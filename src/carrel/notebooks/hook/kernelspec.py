"""The kernel spec of a session (jupyter_client's documentation, "Kernel specs")."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from carrel.core.domain.packages import INSTALLED_AS

#: The directory with the hook and nothing else. Of Carrel's own package the client alone becomes importable in the user's
#: environment: a copy, at the end of the import path (`carrel.engines.task_client`).
HOOK_DIRECTORY = Path(__file__).parent / "front"


def kernel_spec(python: Sequence[str], display_name: str) -> Mapping[str, Any]:
    """The spec of a kernel that `python` starts, with the hook in front."""
    parts = (str(HOOK_DIRECTORY), os.environ.get("PYTHONPATH", ""), client_path(os.environ.get("CARREL_SESSION_CLIENT", "")))
    path = os.pathsep.join(part for part in parts if part)
    return {
        "argv": [*python, "-m", "carrel_kernel", "-f", "{connection_file}"],
        "display_name": display_name,
        "language": "python",
        "interrupt_mode": "signal",
        "metadata": {"debugger": True},
        "env": {"PYTHONPATH": path, "CARREL_INSTALLED_AS": json.dumps(INSTALLED_AS), **_residency()},
    }


def client_path(client: str) -> str:
    """What PYTHONPATH names so that the client in this directory can be imported; "" when there is none."""
    return f"{client}/hook" if client else ""


def _residency() -> Mapping[str, str]:
    """What has a kernel that borrows GPUs, and its children, load the residency library; nothing but kernels has it."""
    library = os.environ.get("CARREL_SESSION_RESIDENCY", "")
    if not library or os.environ.get("CARREL_SESSION_RESERVED") or os.environ.get("CARREL_SESSION_GPUS", "0") == "0":
        return {}
    before = os.environ.get("LD_PRELOAD", "")
    # The first lease says which devices the process sees, also those of its children.
    return {"LD_PRELOAD": f"{library}:{before}" if before else library, "CARREL_DEVICES": "lease"}


def install(directory: Path, *, python: Sequence[str], display_name: str) -> None:
    """Write the spec as the kernel `python3` of the Jupyter data directory `directory`."""
    place = directory / "kernels" / "python3"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    (place / "kernel.json").write_text(json.dumps(kernel_spec(python, display_name)))
