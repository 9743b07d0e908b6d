"""conda environments, through micromamba or pixi where one is on the machine.

These tools solve and install in one step: the lock is read from what was installed. The environment's digest is then that of
its recipe, not of its lock.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from carrel.core.domain.task import EnvironmentRecipe
from carrel.core.spool.foreign import parse_json, read_regular
from carrel.node.environments.building import BuildContext, installed_packages, stage
from carrel.node.environments.equipment import CONDA_TOOLS
from carrel.node.environments.errors import EnvironmentFailed
from carrel.node.environments.words import without_userinfo

#: Bytes of what is noted of a package: the names of its files among it.
_LONGEST = 64 * 1024**2
#: Private channels carry a token in the path: https://host/t/<token>/channel.
_TOKEN = re.compile(r"/t/[^/]+/")


def find_conda_tool(environ: Mapping[str, str], source: str) -> Path:
    """Return the program that builds conda environments here; raise `EnvironmentFailed` naming what to install."""
    for name in CONDA_TOOLS:
        found = shutil.which(name, path=environ.get("PATH") or os.defpath)
        if found:
            return Path(found)
    raise EnvironmentFailed(
        f"{source or 'conda.yaml'} names conda packages, and neither micromamba nor pixi is on the PATH of this lab.",
        remedy="Have an administrator install micromamba (mamba.readthedocs.io) or pixi (pixi.sh), or list only `python` and "
        "`pip` packages: those are built with uv.",
    )


def build_conda(
    recipe: EnvironmentRecipe, tool: Path, target: Path, build_context: BuildContext, guard: int
) -> tuple[Path, str, str]:
    """Make a conda environment in `target`; return its prefix, its lock and the version of its Python."""
    if recipe.source not in recipe.files:
        raise EnvironmentFailed(f"The text of {recipe.source or 'the conda file'} is missing.", remedy="Submit the task again.")
    if recipe.needs_code:
        raise EnvironmentFailed(
            f"{recipe.source} names conda packages and installs code of the task itself; carrel does not do both.",
            remedy="Take the line with the path out of it, and set PYTHONPATH in the task, or use packages that pip has.",
        )
    base = stage(recipe, build_context.scratch / "conda", build_context)
    file = base / recipe.source
    build_context.context.report(f"building {recipe.source or 'conda.yaml'} with {tool.name}")
    doing = f"Building {recipe.source or 'conda.yaml'}"
    # Packages are hard-linked from a cache, as uv does: keep it on the file system of the environments.
    roots = {"MAMBA_ROOT_PREFIX": build_context.context.variables.get("MAMBA_ROOT_PREFIX") or str(target.parent.parent / "conda")}
    if tool.name == "micromamba":
        steps, prefix = [["create", "--yes", "--prefix", str(target), "--file", str(file)]], target
    else:
        steps = [["init", "--import", str(file), str(target)], ["install", "--manifest-path", str(target / "pixi.toml")]]
        prefix = target / ".pixi/envs/default"
    for step in steps:
        build_context.context.run(
            [str(tool), *step], cwd=build_context.scratch, doing=doing, guard=guard, extra=roots, writable={base: base}
        )
    build_context.context.take(target)
    version = _python_version(prefix)
    if version is None:
        raise EnvironmentFailed(f"{doing} gave an environment without Python.", remedy="Add `python` to its dependencies.")
    return prefix, explicit_lock(prefix), version


def explicit_lock(prefix: Path) -> str:
    """Return conda's explicit list of packages, with what pip installed as comments."""
    lines = ["@EXPLICIT"]
    for record in _records(prefix):
        digest = record.get("md5") or record.get("sha256") or ""
        lines.append(_TOKEN.sub("/t/****/", without_userinfo(str(record.get("url", "")))) + (f"#{digest}" if digest else ""))
    known = {str(record.get("name", "")).lower().replace("_", "-") for record in _records(prefix)}
    names = {package: package.partition("==")[0].lower().replace("_", "-") for package in installed_packages(prefix)}
    lines += [f"# pip {package}" for package, name in names.items() if name not in known]
    return "\n".join(lines) + "\n"


def _records(prefix: Path) -> list[dict[str, object]]:
    found = []
    for file in sorted((prefix / "conda-meta").glob("*.json")):
        try:
            found.append(dict(parse_json(read_regular(file, _LONGEST))))
        except OSError:  # what others' code has built does not say where the lab reads
            continue
        except (ValueError, TypeError) as error:
            raise EnvironmentFailed(f"{file.name} in the new environment cannot be read: {error}.") from error
    return found


def _python_version(prefix: Path) -> str | None:
    versions = [record.get("version") for record in _records(prefix) if record.get("name") == "python"]
    return f"cpython-{versions[0]}" if versions and (prefix / "bin/python").exists() else None
