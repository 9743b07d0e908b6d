"""The variables with which a job runs inside an environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

#: Variables that would make an interpreter look outside its environment (python(1), ENVIRONMENT VARIABLES).
_PYTHON_STRAYS = ("PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "__PYVENV_LAUNCHER__")
#: What another activated environment leaves behind.
_OTHER_ENVIRONMENT = (
    "VIRTUAL_ENV",
    "VIRTUAL_ENV_PROMPT",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "CONDA_PROMPT_MODIFIER",
    "CONDA_SHLVL",
    "UV_PROJECT_ENVIRONMENT",
)


def activate(prefix: Path, base: Mapping[str, str], *, conda: bool, keep_pythonpath: bool = False) -> dict[str, str]:
    """Return `base` changed so that `python` and installed commands are those of the environment in `prefix`.

    `bin` of the environment comes first in PATH; the environment of the lab itself and any other that was active leave
    it, so that a task never runs on packages that its record does not name. PYTHONPATH is dropped unless asked for.
    conda activation scripts are not run.
    """
    strays = _PYTHON_STRAYS + _OTHER_ENVIRONMENT + (() if keep_pythonpath else ("PYTHONPATH",))
    variables = {name: value for name, value in base.items() if name not in strays}
    variables["PATH"] = os.pathsep.join([str(prefix / "bin"), *clean_path(base)])
    variables["CONDA_PREFIX" if conda else "VIRTUAL_ENV"] = str(prefix)
    return variables


def clean_path(environ: Mapping[str, str]) -> list[str]:
    """Return the directories of PATH without those of the lab's own and of any activated environment."""
    prefixes = [environ.get("VIRTUAL_ENV"), environ.get("CONDA_PREFIX")]
    if sys.prefix != sys.base_prefix:
        prefixes.append(sys.prefix)
    foreign = {os.path.normpath(f"{prefix}/bin") for prefix in prefixes if prefix}
    entries = (environ.get("PATH") or os.defpath).split(os.pathsep)
    return [entry for entry in entries if entry and os.path.normpath(entry) not in foreign]
