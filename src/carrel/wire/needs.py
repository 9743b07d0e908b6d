"""What the client needs of other packages, where it is a copy that travelled with a task.

This file is read by Python 3.8 and newer, so that an old interpreter gets a sentence and no syntax error.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Iterator  # noqa: UP035 - Python 3.8

#: The first Python that the client is written for.
_OLDEST = (3, 11)
#: Directory beside a copy of the package `carrel`: for each kind of interpreter, by the ending of its compiled modules, packages.
NEEDS = "carrel_needs"
#: Where this copy of Carrel is imported from.
MODULES = Path(__file__).parents[2]


def needs_beside(modules: Path) -> Path:
    """Where packages for this kind of interpreter are, if `modules` is the import path of a copy that travelled."""
    return modules / NEEDS / EXTENSION_SUFFIXES[0][1:]


def add_packages() -> None:
    """Let what the environment lacks be found in the directory beside the copy; where nothing travelled, change nothing."""
    beside = needs_beside(MODULES)
    if str(beside) not in sys.path and beside.is_dir():
        sys.path.append(str(beside))


@contextmanager
def importing(what: str) -> Iterator[None]:
    """Within, modules of the client can be imported. Raises `ImportError` that says what `what` lacks here, and what to do.

    What the environment has itself is used; only what it lacks comes from the directory beside the copy.
    """
    if sys.version_info < _OLDEST:
        found, wanted = (".".join(str(part) for part in version[:2]) for version in (sys.version_info, _OLDEST))
        raise ImportError(f"{what} needs Python {wanted} or newer; this is {found}. Ask for a newer one in the environment.")
    add_packages()
    try:
        yield
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "carrel"):
            raise
        raise ImportError(
            f'{what} needs "{missing}", which cannot be used in this environment: {error}. '
            "Add it to the environment: httpx>=0.28, pydantic>=2.11 and pyyaml>=6 are all that the client needs.",
            name=missing,
        ) from error
