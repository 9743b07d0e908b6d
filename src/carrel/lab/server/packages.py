"""Which abilities of a lab need packages that it may have been installed without."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from carrel.core.domain.errors import Invalid
from carrel.core.submission.installed import install_command


@dataclass(frozen=True, slots=True)
class OptionalFeature:
    """What a setting turns on, and what it takes."""

    setting: str
    #: What people call it.
    name: str
    package: str
    #: The extra of Carrel's own distribution that has the package.
    extra: str


ABILITIES = (
    OptionalFeature("tracking", "MLflow", "mlflow", "tracking"),
    OptionalFeature("sessions", "notebooks", "jupyterlab", "notebooks"),
)


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    try:
        return find_spec(package) is not None
    except ImportError:
        return False


def without_missing(
    values: Mapping[str, Any], said: Collection[str], *, installed: Callable[[str], bool] = is_installed
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the settings with that off for which the package is missing, and a sentence about each.

    Raises `Invalid` for what was asked for by name: `said` are the settings that somebody has set.
    """
    found, left_out = dict(values), []
    for ability in ABILITIES:
        if not values[ability.setting] or installed(ability.package):
            continue
        remedy = install_command(ability.extra)
        if ability.setting in said:
            raise Invalid(
                f"{ability.setting} is on, and {ability.package} is not installed.",
                remedy=f"{remedy}, or turn {ability.setting} off.",
            )
        found[ability.setting] = False
        left_out.append(f"{ability.name}: {ability.package} is not installed ({remedy})")
    return found, tuple(left_out)
