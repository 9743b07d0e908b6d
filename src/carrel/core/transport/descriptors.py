"""How many descriptors a process may have: what it does when they are all taken is a matter of luck."""

from __future__ import annotations

import resource

#: As many as a server here needs; programs that it starts get the same limit.
_WANTED = 65_536


def most_descriptors() -> int:
    """Take as many as the machine gives this process (setrlimit(2), RLIMIT_NOFILE) and it needs; return how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return wanted if soft == resource.RLIM_INFINITY else soft
