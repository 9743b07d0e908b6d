"""Files that are covered: what walls hide that is no directory, and what root alone may read of the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from carrel.node.containment.walls import Bind

_FILES = ("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-")


def covers(hidden: Sequence[str]) -> Iterator[Bind]:
    """Cover with nothing what is hidden and no directory, and what everything that a lab of root's starts could read."""
    for path in (*hidden, *(_FILES if os.geteuid() == 0 else ())):
        if os.path.exists(path) and not os.path.isdir(path):  # noqa: PTH110, PTH112
            yield Bind("/dev/null", path)
