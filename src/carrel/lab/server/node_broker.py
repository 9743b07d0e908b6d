"""`carrel broker`: the broker of one node of a cluster, which outlives sessions and serves all of that node;
and the process that reports on it."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from carrel.core.domain.errors import Conflict, Invalid, Unavailable
from carrel.core.domain.node import Node
from carrel.lab.server.home import LabHome
from carrel.lab.server.lending import broker_config
from carrel.lab.server.settings import Settings
from carrel.node.broker.client_authentication import node_token
from carrel.node.broker.main import run, take_lock
from carrel.node.devices import discover, this_node
from carrel.node.leases.report import report_key
from carrel.node.leases.reporter import ReporterSettings

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
    secret = secret or home.path / "secret"
    config = replace(
        config,
        rules=replace(config.rules, most_lent=min(max(settings.slurm_lend, 0), 99) / 100),
        secret_file=str(secret),
        shared=True,
    )
    key = config.secret()  # what cannot be read is said now
    # Of each lab for itself: numbers of jobs begin anew in a new one, and what was lent to the old one's is no use of theirs.
    own = state / hashlib.sha256(b"state of " + key).hexdigest()[:16]
    own.mkdir(mode=0o700, exist_ok=True)
    config = replace(config, state=str(own))
    lock = take_lock(state, config)
    if lock is None:
        raise Conflict(f"A broker runs at {socket} already.", remedy="End that one first.")
    reporter = NodeReporter(home, node=node.name, socket=socket, secret=key)
    try:
        say(node)
        reporter.start()
        run(config, own, socket, clock=time.time)
    finally:
        reporter.close()
        socket.unlink(missing_ok=True)
        os.close(lock)


_log = logging.getLogger(__name__)

#: Seconds until one that ended is started again, and in which one that was asked to end does.
_RETRY_SECONDS, _END_SECONDS = 5.0, 5.0


class NodeReporter:
    """The reporter's process, from `start` to `close`. It ends with the broker, however that ends."""

    def __init__(self, home: LabHome, *, node: str, socket: Path, secret: bytes) -> None:
        """`socket` and `secret` are the broker's; reports go into the lab's home, written with the rights of its owner."""
        self._home = home
        self._settings = ReporterSettings(
            socket=str(socket),
            token=node_token(secret),
            directory=str(home.reports),
            key=report_key(secret).hex(),
            node=node,
        )
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, name="reporter", daemon=True)

    def start(self) -> None:
        """Begin; nothing waits for it."""
        self._thread.start()

    def close(self) -> None:
        """Say that the broker has ended. One that is stuck in its file system is left behind."""
        with self._lock:
            self._closing.set()
            process = self._process
        if process is not None:
            with suppress(OSError, ValueError):
                _input(process).write(b"end\n")
            with suppress(OSError, ValueError):
                _input(process).close()
        if self._thread.ident is not None:
            self._thread.join(timeout=_END_SECONDS)

    def _keep(self) -> None:
        while not self._closing.is_set():
            try:
                with self._lock:
                    if self._closing.is_set():
                        return
                    self._process = process = self._begin()
                code = process.wait()
            except OSError as error:
                _log.error("The lab does not hear of this node: %s. It is tried again in %g s.", error, _RETRY_SECONDS)
            else:
                if not self._closing.is_set():
                    _log.error("The reporter ended with code %d; it is started again in %g s.", code, _RETRY_SECONDS)
            self._closing.wait(_RETRY_SECONDS)

    def _begin(self) -> subprocess.Popen[bytes]:
        about = self._home.path.stat()
        rights: dict[str, Any] = {}
        if os.geteuid() == 0 and about.st_uid != 0:
            rights = {"user": about.st_uid, "group": about.st_gid, "extra_groups": []}
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "carrel.node.leases.reporter"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd="/",
            # Ctrl-C is for the broker; the end of its input is for this one.
            start_new_session=True,
            **rights,
        )
        _input(process).write(self._settings.line())
        _input(process).flush()
        return process


def _input(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin
