"""What root alone may read of the machine, and so everything that a lab starts which runs as root."""

from __future__ import annotations

import os
from collections.abc import Iterator

from carrel.node.containment.walls import Bind

_FILES = ("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-")


def covers_for_root() -> Iterator[Bind]:
    """Cover these files with nothing, where this process is root's."""
    if os.geteuid() == 0:
        for path in _FILES:
            if os.path.exists(path):  # noqa: PTH110
                yield Bind("/dev/null", path)
