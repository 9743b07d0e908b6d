"""What a task may ask of this engine. Whoever submits tasks imports this, so it needs nothing of the engine's."""

from __future__ import annotations

from dataclasses import dataclass

from carrel.core.submission.kinds import number
from carrel.core.submission.option import option

#: A harbour has so many.
QUAYS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TideOptions:
    """The options of the engine `tide`."""

    quay: int | None = option(
        kind=number(least=1, most=QUAYS),
        flags=("--tide-quay",),
        in_config="tide_quay",
        help="At which quay it waits for the water.",
    )
