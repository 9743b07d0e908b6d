"""What can go wrong while an environment is prepared."""

from __future__ import annotations

import errno

from carrel.core.domain.errors import CarrelError, StorageFull
from carrel.core.spool.disk import full_at

#: What the kernel calls a disk or a quota that is full (errno(3)).
FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})


class EnvironmentFailed(CarrelError):
    """The environment could not be resolved or built; the message has the words of the tool that failed."""

    code = "environment_failed"


class EnvironmentTimeout(EnvironmentFailed):
    """The environment was not ready at the deadline."""

    code = "environment_timeout"


class EnvironmentStopped(CarrelError):
    """The caller asked to stop; nothing half-built is left that a later call would take for whole."""

    code = "environment_stopped"


def from_os_error(error: OSError, where: str) -> CarrelError:
    """Return the error to raise for an operating system error met while working in `where`."""
    if error.errno in FULL_ERRNOS:
        return StorageFull(
            f"There is no room for environments in {where}. {full_at(where, error)}",
            remedy="Remove unused ones with `carrel env gc`, or free the disk, and submit again.",
        )
    return EnvironmentFailed(f"The environment store in {where} cannot be used: {error}.")
