"""Reading which image a task runs in."""

from __future__ import annotations

import re

from carrel.core.domain.errors import Invalid
from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe

#: A name, perhaps with a registry before it, a tag and a digest behind it (github.com/distribution/reference).
_NAME = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?/|\[[0-9a-f:]+\](?::[0-9]{1,5})?/)?"
    r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_ARCHIVE = re.compile(r"(?:oci|docker)-archive:(?!/)(?:(?!\.\.?/)[A-Za-z0-9._-]+/)*(?!\.\.?$)[A-Za-z0-9._-]+")
_LONGEST = 512


def read_image(text: str, source: str = "") -> EnvironmentRecipe:
    """Return the environment that is an image: "python:3.12", "ghcr.io/lab/train@sha256:…" or "oci-archive:FILE".

    A file is one of the task's code. Raises `Invalid` for what is neither.
    """
    name = text.strip().removeprefix("docker://")
    archive = _ARCHIVE.fullmatch(name) is not None
    if len(name) > _LONGEST or not (archive or _NAME.fullmatch(name)):
        raise Invalid(
            f'"{text[:200]}" is not the name of an image.',
            remedy="Write it as a registry has it (python:3.12-slim, ghcr.io/lab/train:1), or oci-archive:FILE or "
            "docker-archive:FILE for a file of the task's code.",
        )
    return EnvironmentRecipe(kind=EnvironmentKind.IMAGE, source=source or "the image", requirements=(name,), local=archive)


def read_session_image(text: str, *, beside: str = "") -> EnvironmentRecipe:
    """Return what the kernels of a session run in; "" is none. `beside`: the environment that it names, too.

    Raises `Invalid` as `read_image`, and for what a session cannot have.
    """
    if not text:
        return EnvironmentRecipe()
    if beside:
        raise Invalid(
            f'The session has the environment "{beside[:200]}" and the image "{text[:200]}".',
            remedy="Name one of them: an image brings its own Python.",
        )
    image = read_image(text)
    if image.local:
        raise Invalid(
            f'The image "{text[:200]}" is a file of a task\'s code, which a session does not have.',
            remedy="Push it to a registry, and name it as that has it.",
        )
    return image
