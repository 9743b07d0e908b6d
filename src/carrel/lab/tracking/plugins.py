"""Which packages offer a backend to `mlflow run`: names are free for all, and two packages can take the same one."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

_GROUP = "mlflow.project_backend"


def rivals(name: str) -> list[EntryPoint]:
    """Return the backends called `name` that are installed here and not Carrel's."""
    return [found for found in entry_points(group=_GROUP, name=name) if not found.value.startswith("carrel.")]
