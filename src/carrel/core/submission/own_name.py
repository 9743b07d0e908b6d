"""The name of the user of this process."""

from __future__ import annotations

import getpass
import os


def own_name() -> str:
    """Return the name of the Unix user of this process, or ``uid-1234`` where the machine has no name for the user.

    Containers and cluster nodes run processes under numbers that have no entry in passwd(5).
    """
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"
