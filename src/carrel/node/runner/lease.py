"""The lease of a whole run: the devices that placement chose are lent to cells too, so the node's broker has the last word."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from carrel.core.domain.errors import Unavailable
from carrel.core.domain.launch import Launch
from carrel.node.leases.client import Broker, Lease, Wait
from carrel.node.leases.protocol import RUNNER

if TYPE_CHECKING:
    from carrel.core.domain.ports import Clock


#: Seconds after which the same reason is reported again, with what its numbers are by then.
_REPEAT = 30.0
#: Seconds for which a task waits on a cluster's node until cells leave the GPU that Slurm has given it: Slurm's limit runs.
LONGEST_WAIT = 180.0
#: Seconds for which a broker is looked for that answered when the job began on a cluster's node.
_NO_BROKER = 30.0


def take_lease(
    launch: Launch,
    token: str,
    *,
    report: Callable[[str], None],
    stop: Callable[[], bool],
    deadline: float,
    monotonic: Clock,
    elsewhere: bool,
    attempt: str,
) -> tuple[Broker, Lease] | None:
    """Wait until the devices of the attempt are its own, and return the connection that holds them; closing it gives them back.

    `attempt` is the attempt's directory. None when there is nothing to take, or when `stop` said so. Raises an error of
    `carrel.core.domain.errors` when it is refused, or when no broker answers until `deadline` (by `monotonic`). With `elsewhere`
    the job can be placed on other devices: it is refused, with the detail code `BLOCKED`, where these cannot be cleared now.
    """
    if not launch.paths.broker or not launch.devices or not token:
        return None
    said, again_at = "", 0.0

    def tell(wait: Wait) -> None:
        nonlocal said, again_at
        if wait.code != said or monotonic() >= again_at:  # the numbers in it change all the time, and grow old
            said, again_at = wait.code, monotonic() + _REPEAT
            report(wait.message)

    shared, waits_until = bool(launch.shares), monotonic() + LONGEST_WAIT
    patience = min(_NO_BROKER, deadline - monotonic()) if shared else deadline - monotonic()
    broker = Broker(launch.paths.broker, token, RUNNER, patience=max(1.0, patience), attempt=attempt)
    try:
        lease = broker.acquire(
            # Where Slurm has given it shares of a device the broker knows which one that is, and no other will do.
            devices=() if shared else [device.uuid for device in launch.devices],
            ends_by=time.time() + launch.resources.time,
            on_wait=tell,
            stop=(lambda: stop() or monotonic() >= waits_until) if shared else stop,
            elsewhere=elsewhere and not shared,
            lends=launch.lends,
        )
    except BaseException:
        broker.close()
        raise
    if lease is None:
        broker.close()
        if shared and not stop():
            raise Unavailable(
                f"Others have not left it within {LONGEST_WAIT:.0f} s, and it does not wait longer.",
                remedy="It goes on beside them.",
            )
        return None
    return broker, lease
