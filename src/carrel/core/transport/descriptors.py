"""How many descriptors a process may have: what it does when they are all taken is a matter of luck.

The kernel counts descriptors on their way (SCM_RIGHTS, unix(7)) for all processes of a Unix user together, and compares the sum
with the limit of the one that sends. As a command's limit is the smaller one, commands cannot keep the lab from sending.
"""

from __future__ import annotations

import resource

#: As many as a server here needs; and those of a user's command: data loaders open many, and a million makes old programs that
#: close every possible descriptor slow.
_WANTED, _OF_A_COMMAND = 131_072, 65_536


def most_descriptors() -> int:
    """Take as many as the machine gives this process (setrlimit(2), RLIMIT_NOFILE) and it needs; return how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return wanted if soft == resource.RLIM_INFINITY else soft


def limit_command() -> None:
    """In the process that becomes a user's command: leave at least a quarter to the lab, which has the same limit."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OF_A_COMMAND if hard == resource.RLIM_INFINITY else min(_OF_A_COMMAND, hard * 3 // 4)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
