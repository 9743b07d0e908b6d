"""What every preparation needs at hand: the uv program, a cache that can be linked from, and what must not be shown."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from carrel.core.submission.installed import install_command
from carrel.node.environments.confinement import Builds, confine, verified
from carrel.node.environments.errors import EnvironmentFailed
from carrel.node.environments.tools import ToolContext
from carrel.node.environments.words import secrets_in

#: What builds conda environments, in the order in which they are looked for.
CONDA_TOOLS = ("micromamba", "pixi")


def address_secrets(word: str) -> frozenset[str]:
    """Return what is secret in a word of a requirements file."""
    try:
        return secrets_in(word[word.find("=") + 1 :] if word.startswith("--") else word)
    except ValueError:
        return frozenset()


def cache_beside(root: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Keep uv's usual cache where it can hard-link into the store; on another file system use one inside the store."""
    home = variables.get("XDG_CACHE_HOME") or (f"{variables['HOME']}/.cache" if variables.get("HOME") else "")
    usual = Path(home) if home else None
    while usual is not None and not usual.exists() and usual != usual.parent:
        usual = usual.parent
    if usual is not None and os.access(usual, os.W_OK) and usual.stat().st_dev == root.stat().st_dev:
        return {}
    return {"UV_CACHE_DIR": str(root / "cache")}


def workshops(plain: ToolContext, builds: Builds | None, root: Path, scratch: Path, uv: Path) -> tuple[ToolContext, ToolContext]:
    """Return the workshop for an owner's builds, and the one for what runs nobody's code; without `builds` they are one."""
    if builds is None:
        return plain, plain
    conda = [shutil.which(name, path=plain.variables.get("PATH")) for name in CONDA_TOOLS]
    room = confine(builds, root, scratch, plain.variables, (str(uv), *(program for program in conda if program)))
    own, shared = (replace(plain, variables=one.variables(plain.variables), confinement=one) for one in (room, verified(room)))
    return own, shared


def find_uv(configured: Path | None, variables: Mapping[str, str]) -> Path:
    """Return the uv program: the configured one, the one installed beside carrel, or one on PATH; raise `EnvironmentFailed`."""
    if configured is not None:
        return configured
    try:
        import uv
    except ImportError:
        found = shutil.which("uv", path=variables.get("PATH"))
    else:
        try:
            found = str(uv.find_uv_bin())
        except FileNotFoundError:
            found = shutil.which("uv", path=variables.get("PATH"))
    if found is None:
        raise EnvironmentFailed(
            "uv is not installed, and environments are built with it.", remedy=f"Run `{install_command('server')}`."
        )
    return Path(found)
