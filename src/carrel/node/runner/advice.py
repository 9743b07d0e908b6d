"""What the last words of a command that failed say about its environment."""

from __future__ import annotations

import re
from pathlib import Path

from carrel.core.domain.task import EnvironmentRecipe
from carrel.core.spool.foreign import read_last
from carrel.node.runner.endings import Ending

#: Bytes of the log's end that are looked at.
_TAIL = 8192
#: What is said where packages of one year meet those of another: setuptools has lost pkg_resources, numpy has become 2.
_ANOTHER_YEAR = re.compile(
    rb"No module named 'pkg_resources'|module 'numpy' has no attribute|numpy\.dtype size changed|compiled using NumPy 1\.x"
)


def advice(ending: Ending, recipe: EnvironmentRecipe, log: Path) -> list[str]:
    """Return what to do about a command that met packages too new for those that its recipe pins; nothing for any other."""
    if ending.reason.code != "NonZeroExitCode":
        return []
    try:
        words = _ANOTHER_YEAR.search(read_last(log, _TAIL))
    except OSError:
        return []
    if words is None:
        return []
    from carrel.node.environments.building import old_pins

    proposal = old_pins(recipe)
    return [f"It said: {words[0].decode()}. {proposal}"] if proposal else []
