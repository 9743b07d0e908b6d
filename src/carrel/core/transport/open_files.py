"""How many descriptors a process may have: the lab and its brokers all that there are, users' commands fewer.

The kernel counts descriptors on their way (SCM_RIGHTS, unix(7)) for all processes of a Unix user together, and compares the sum
with the limit of the one that sends. As a command's limit is the smaller one, commands cannot keep the lab from sending.
"""

from __future__ import annotations

import resource

#: The most that is asked for where the system allows more: some programs close every number there can be.
_MOST = 2**20
#: Of a command: data loaders open many, and a million makes such programs slow.
_OF_A_COMMAND = 65536


def raise_limit() -> int:
    """Raise this process' limit (setrlimit(2)) to the highest that it may have; return it."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else min(_MOST, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def limit_command() -> None:
    """In the process that becomes a user's command: leave a quarter to the lab, which has the same limit."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OF_A_COMMAND if hard == resource.RLIM_INFINITY else min(_OF_A_COMMAND, hard * 3 // 4)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
