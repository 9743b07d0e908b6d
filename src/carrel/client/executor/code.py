"""The code of a worker, as a task that the lab runs like any other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import cloudpickle

from carrel.client.executor.environment import copy_modules, python_version

_PROJECT = """\
name: worker
{environment}
entry_points:
  main:
    command: "python -m carrel_worker {python}{initializer}"
"""
_ENVIRONMENT = """\
python: "{python}"
dependencies:
"""
#: Files that lie beside a worker's own, and where they are kept below the package `carrel`.
_SHARED = {
    "frames.py": "wire",
    "body_files.py": "client",
    "pickling.py": "client/executor",
    # A worker borrows GPUs as the kernels of sessions do.
    "link.py": "notebooks/hook/front/carrel_kernel",
    "residency.py": "notebooks/hook/front/carrel_kernel",
    "state.py": "notebooks/hook/front/carrel_kernel",
}


def write_worker(
    directory: Path, *, requirements: Sequence[str] | None, modules: dict[str, Path], initializer: str | None
) -> None:
    """Write a worker's project to `directory`. `requirements` None: it runs in an image, which has what it needs."""
    package = directory / "carrel_worker"
    package.mkdir()
    for name, where in _SHARED.items():
        (package / name).write_text(resources.files("carrel").joinpath(where, name).read_text())
    for item in (resources.files("carrel.client.executor") / "payload" / "carrel_worker").iterdir():
        if item.name.endswith(".py"):
            (package / item.name).write_text(item.read_text())
    python = python_version()
    environment = ""
    if requirements is not None:
        lines = "".join(f"  - {json.dumps(line)}\n" for line in requirements)
        text = _ENVIRONMENT.format(python=python) + lines if lines else f'python: "{python}"\n'
        (directory / "python_env.yaml").write_text(text)
        environment = "python_env: python_env.yaml"
    project = _PROJECT.format(environment=environment, python=python, initializer=f" {initializer}" if initializer else "")
    (directory / "MLproject").write_text(project)
    (directory / "modules").mkdir()
    # The caller's own cloudpickle: what one version writes, another need not understand.
    copy_modules({"cloudpickle": Path(cloudpickle.__file__).parent}, directory / "modules")
    copy_modules(modules, directory / "modules")
