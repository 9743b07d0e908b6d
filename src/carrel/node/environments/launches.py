"""The store as a launch describes it: for who builds its environment, and for who asks whether that is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from carrel.core.domain.launch import Launch
from carrel.node.environments.confinement import Builds
from carrel.node.environments.store import EnvironmentSettings, EnvironmentStore


def store_of(launch: Launch, environ: Mapping[str, str] | None = None) -> EnvironmentStore:
    """Return the store in which the environment of a launch is built; `environ` as `EnvironmentStore` has it."""
    builds = Builds(owner=launch.owner, walls=launch.walls) if launch.walls is not None else None
    settings = EnvironmentSettings(download_python=launch.download_python, image_cache=launch.limits.image_cache)
    return EnvironmentStore(Path(launch.paths.environments), settings=settings, environ=environ, builds=builds)


def is_built(launch: Launch, environ: Mapping[str, str]) -> bool:
    """True when the environment of a launch is there; `environ` are the variables that its build would have."""
    recipe = launch.task.environment
    store = store_of(launch, environ)
    return store.has(replace(recipe, lock=None), locked=recipe.lock, code_digest=launch.task.snapshot)
