"""Notebooks that are kept as scripts, with ``# %%`` between their cells, and environments in which they run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from carrel.node.environments.mirrors import read_mirrors

#: What people have in the environments of their notebooks: a gigabyte.
PACKAGES = (
    *("ipykernel", "numpy", "pandas", "matplotlib", "scikit-learn", "torch==2.13.0"),
    *("lightning", "transformers", "accelerate", "ipywidgets", "tqdm"),
)


def cells_of(script: Path) -> list[str]:
    """The code cells."""
    found: list[list[str]] = []
    code = False
    for line in script.read_text().splitlines():
        if line.startswith("# %%"):
            code = "[markdown]" not in line
            if code:
                found.append([])
        elif code:
            found[-1].append(line)
    return ["\n".join(lines).strip() for lines in found]


def make_environment(prefix: Path, packages: Sequence[str]) -> Path:
    """A new virtual environment; returns its interpreter. PyTorch comes from where pip looks first."""
    uv = Path(sys.executable).parent / "uv"
    variables = {**os.environ, **read_mirrors(os.environ).variables}
    python = prefix / "bin/python"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, prefix], check=True, env=variables)
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *packages], check=True, env=variables)
    return python
