"""What every preparation needs at hand: the uv program, a cache that can be linked from, and what must not be shown."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from carrel.environments.errors import EnvironmentFailed
from carrel.environments.words import secrets_in


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
            "uv is not installed, and environments are built with it.", remedy="Run `pip install 'carrel[server]'`."
        )
    return Path(found)
