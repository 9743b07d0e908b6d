"""The processes of tenants: watched until they end, connected or not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from carrel.core.transport.reactor import Reactor
from carrel.node.broker.core.rows import TenantRow
from carrel.node.broker.processes import Process, ProcessGone, find, name_of, roots

_log = logging.getLogger(__name__)


class WatchedProcesses:
    """Says when a tenant's process has ended. All methods are called in the loop's thread."""

    def __init__(self, loop: Reactor, *, on_end: Callable[[str], None]) -> None:
        self._loop = loop
        self._on_end = on_end
        self._processes: dict[str, Process] = {}

    def watch_known(self, known: Mapping[str, int]) -> list[str]:
        """Watch the processes of these names (`Process.name`), each with its uid; returns those that have ended."""
        ended = []
        for name, uid in known.items():
            pid, start = map(int, name.split("-"))
            try:
                self.watch(name, find(pid, start, uid))
            except ProcessGone:
                ended.append(name)
        return ended

    def keep(self, tenant: str, process: Process) -> None:
        """Watch a copy of the process, unless the tenant's is watched already."""
        if tenant not in self._processes:
            self.watch(tenant, process.copy())

    def watch(self, tenant: str, process: Process) -> None:
        """Watch a tenant's process until it ends; it is closed then."""
        self._processes[tenant] = process
        self._loop.watch(process.pidfd, lambda: self._ended(tenant))

    def kill(self, tenant: str, number: int) -> None:
        """Send the signal that ends a tenant whose idle timer ran out."""
        process = self._processes.get(tenant)
        if process is None:
            return
        _log.warning("the idle timer of tenant %s ran out while others waited: it is ended (signal %d)", tenant, number)
        try:
            process.kill(number)
        except PermissionError:
            _log.error("process %d belongs to another user and cannot be ended; its GPU stays with it", process.pid)

    def _ended(self, tenant: str) -> None:
        process = self._processes.pop(tenant)
        self._loop.unwatch(process.pidfd)
        process.close()
        self._on_end(tenant)


def descent(process: Process, rows: Mapping[str, TenantRow]) -> dict[str, str]:
    """What a process is called that has no hook: after itself, and the notebook whose kernel has started it."""
    name = name_of(process.pid)
    tenants = {row.pid: row for row in rows.values()}
    parent = tenants.get(roots([process.pid], tenants).get(process.pid, 0))
    if parent is None:
        return {"kernel": "", "label": name}
    return {"kernel": parent.kernel, "label": f"{parent.label} ({name})" if parent.label else name}
