"""Keeps the process that tells the lab what a cluster node's broker does (`carrel.node.leases.reporter`)."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from carrel.lab.server.home import LabHome
from carrel.node.broker.client_authentication import node_token
from carrel.node.leases.report import report_key
from carrel.node.leases.reporter import ReporterSettings

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
