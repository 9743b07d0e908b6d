"""How many random examples a test tries: few in `make quick` and `make test`, many in `make soak`."""

from __future__ import annotations

import os

#: The variable with what every number of examples is multiplied by.
VARIABLE = "CARREL_EXAMPLES"


def examples(number: int) -> int:
    """Return how many examples a test tries that tries `number` of them in `make test-all`."""
    return max(3, round(number * float(os.environ.get(VARIABLE, "1"))))
