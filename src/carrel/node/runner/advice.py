"""Advice about a command that failed for want of packages, files or memory of its GPU."""

from __future__ import annotations

import re
from pathlib import Path

from carrel.core.domain.packages import package_of
from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe
from carrel.core.spool.foreign import read_last
from carrel.node.runner.endings import Ending

#: Bytes of the log's end that are looked at.
_TAIL = 8192
#: What is said where packages of one year meet those of another: setuptools has lost pkg_resources, numpy has become 2.
_ANOTHER_YEAR = re.compile(
    rb"No module named 'pkg_resources'|module 'numpy' has no attribute|numpy\.dtype size changed|compiled using NumPy 1\.x"
)
#: Last lines of tracebacks of Python's, and what libraries say of a GPU that is full.
_NO_FILE = re.compile(rb"^FileNotFoundError: \[Errno 2\] No such file or directory: '([^'\n]{1,200})'", re.MULTILINE)
_GPU_FULL = re.compile(rb"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|RESOURCE_EXHAUSTED: Out of memory")
_MISSING = re.compile(rb"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)


def advice(ending: Ending, recipe: EnvironmentRecipe, log: Path) -> list[str]:
    """Return what to do about it, by what the command said at its end; nothing where it is something else."""
    if ending.reason.code != "NonZeroExitCode":
        return []
    try:
        said = read_last(log, _TAIL)
    except OSError:
        return []
    words = _ANOTHER_YEAR.search(said)
    if words is not None:
        from carrel.node.environments.building import old_pins

        if proposal := old_pins(recipe):
            return [f"It said: {words[0].decode()}. {proposal}"]
    if missing := _MISSING.findall(said):
        return [_missing(missing[-1].decode(), recipe)]
    if files := _NO_FILE.findall(said):
        return [
            f"It did not find {files[-1].decode(errors='replace')}. What .gitignore names does not travel with the code, and "
            "files that lie elsewhere are inputs of the task; paths begin at the directory of the code."
        ]
    if _GPU_FULL.search(said):
        return ["The memory of its GPU was full. Use smaller batches, or ask for a GPU with more memory (`--gpu-memory`)."]
    return []


def _missing(module: str, recipe: EnvironmentRecipe) -> str:
    package, top = package_of(module), module.partition(".")[0]
    where = {
        EnvironmentKind.NONE: "name it in a requirements.txt beside the code, or in the script itself "
        f"(`uv add --script SCRIPT {package}`)",
        EnvironmentKind.IMAGE: "install it in the image",
    }.get(recipe.kind, f"add it to {recipe.source or 'what the task requires'}")
    runs = "the machine's own Python, which runs a task that names no packages" if not recipe.wanted else "the task's environment"
    return (
        f"{top} is not installed in {runs}. If it is the package {package}: {where}. If it is code of yours, it did not travel."
    )
