"""Locks that a user sends: the requirement lines that an environment came to, with exact versions and hashes.

What the lab itself has resolved it may read as it likes. A lock of a user's is read by two programs, the lab, which decides by it
for whom an environment is made, and uv, which installs it: a line that they could read otherwise is refused. So only what uv
writes is taken, line by line.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace

from carrel.core.domain.errors import Invalid
from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:\[[A-Za-z0-9._,-]+\])?"
_MARKER = r"""(?: ; [A-Za-z0-9_.'"()<>=!~ -]+)?"""
_REQUIREMENT = re.compile(rf"{_NAME}===?[A-Za-z0-9.+!_-]+{_MARKER}")
#: Of somewhere else; what lies beside the code is said as the code says it.
_ADDRESS = re.compile(rf"{_NAME} @ (?:git\+)?https?://[A-Za-z0-9._~:/?#@!$&'()*+,;=%-]+{_MARKER}")
_HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}")
_IMAGE = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}\n?")
_REMEDY = "Send a lock as `carrel record` has it, or none: then the environment is resolved anew."


def with_lock(recipe: EnvironmentRecipe, lock: str) -> EnvironmentRecipe:
    """Return a recipe that is installed as `lock` says. Raises `Invalid` for a lock that is not understood, or not its own.

    A uv.lock is its own lock, and conda's list is for the record only: such recipes stay as they are.
    """
    if recipe.kind is EnvironmentKind.IMAGE:
        if not _IMAGE.fullmatch(lock) or lock.partition("@")[0] != recipe.requirements[0].partition("@")[0]:
            raise Invalid(f"The lock does not pin the image {recipe.requirements[0]}.", remedy=_REMEDY)
    elif recipe.kind is EnvironmentKind.REQUIREMENTS:
        for number, fault in _faults(lock, beside=recipe.requirements if recipe.local else ()):
            raise Invalid(f"The lock, line {number}: {fault}.", remedy=_REMEDY)
    else:
        return recipe
    return replace(recipe, lock=lock)


def _faults(lock: str, *, beside: Collection[str]) -> Iterator[tuple[int, str]]:
    goes_on = False
    number = 0
    for number, line in enumerate(lock.split("\n"), start=1):
        text = line.removesuffix(" \\")
        if goes_on:
            if not _HASH.fullmatch(text):
                yield number, "this is no hash"
        elif text and text not in beside and not _REQUIREMENT.fullmatch(text) and not _ADDRESS.fullmatch(text):
            yield number, f"{text[:80]!r} is not a requirement"
        goes_on = text != line
        if goes_on and not text:
            yield number, "nothing goes on here"
    if goes_on:
        yield number, "it is cut off"
