"""`carrel broker`: the broker of one node of a cluster, which outlives sessions and serves all of that node."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from carrel.core.domain.errors import Conflict, Invalid, Unavailable
from carrel.core.domain.node import Node
from carrel.lab.server.home import LabHome
from carrel.lab.server.lending import broker_config
from carrel.lab.server.node_reporter import NodeReporter
from carrel.lab.server.settings import Settings
from carrel.node.broker.main import run, take_lock
from carrel.node.devices import discover, this_node

#: Longest path of a unix socket (unix(7)).
_LONGEST_PATH = 107


def run_broker(
    home: LabHome,
    settings: Settings,
    *,
    socket: Path,
    secret: Path | None,
    simulate: int | None,
    say: Callable[[Node], None],
    name: str | None = None,
) -> None:
    """Lend this node's GPUs to the cells of sessions that Slurm starts here, until SIGTERM or SIGINT.

    `name` is the node's in Slurm, where that is not its host name. `say` gets the node and its devices, just before it
    listens. `secret` is a file with the lab's secret, where that in the lab's home cannot be read here. Raises `Conflict` when a
    broker runs at this socket already.
    """
    if not socket.is_absolute() or len(os.fsencode(socket)) > _LONGEST_PATH:
        raise Invalid(
            f"The broker's socket is {socket}.", remedy='Set slurm_broker to a short path such as "/run/carrel/broker".'
        )
    state = socket.with_name(f"{socket.name}.state")
    try:
        socket.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        state.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise Unavailable(
            f"{error.filename} cannot be made: {error.strerror}.",
            remedy="Start the broker as root, or choose another slurm_broker.",
        ) from error
    node = this_node(discover(simulate=simulate, lab=name or os.uname().nodename, memory=settings.simulate_memory))
    node = replace(node, name=name or node.name)
    config = broker_config(home, settings, node)
    config = replace(
        config,
        rules=replace(config.rules, most_lent=min(max(settings.slurm_lend, 0), 99) / 100),
        state=str(state),
        secret_file=str(secret or home.path / "secret"),
        shared=True,
    )
    key = config.secret()  # what cannot be read is said now
    lock = take_lock(state, config)
    if lock is None:
        raise Conflict(f"A broker runs at {socket} already.", remedy="End that one first.")
    reporter = NodeReporter(home, node=node.name, socket=socket, secret=key)
    try:
        say(node)
        reporter.start()
        run(config, state, socket, clock=time.time)
    finally:
        reporter.close()
        socket.unlink(missing_ok=True)
        os.close(lock)
