"""Which directories of a cluster's nodes jobs see in their images."""

from __future__ import annotations

from carrel.core.domain.errors import Invalid


def shown_in_images(text: str) -> tuple[str, ...]:
    """Return the directories of "/scratch:/data"; raise `Invalid` for what is none."""
    paths = tuple(part.rstrip("/") for part in text.split(":") if part)
    for path in paths:
        if not path.startswith("/") or ".." in path.split("/"):
            raise Invalid(
                f'slurm_image_paths names "{path or "/"}".',
                remedy="Name directories by their paths, but not the whole machine: /scratch:/data.",
            )
    return paths
