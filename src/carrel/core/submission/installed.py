"""What packages that are installed bring to Carrel, by entry points."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from carrel.core.domain.errors import Invalid


def installed(group: str) -> dict[str, Any]:
    """Return what the entry points of a group name, by their names in order. Raises `Invalid` for a name that is there twice."""
    found: dict[str, Any] = {}
    for point in sorted(entry_points(group=group)):
        if point.name in found:
            raise Invalid(f'Two packages bring "{point.name}" ({group}).', remedy="Uninstall one of them.")
        found[point.name] = point.load()
    return found
