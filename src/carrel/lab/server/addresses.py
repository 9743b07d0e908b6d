"""Where running sessions take connections: what is known of it, and whether they do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.job import Job
from carrel.core.domain.ports import Clock
from carrel.core.spool import Spool
from carrel.core.spool.foreign import read_regular
from carrel.notebooks.address import LONGEST, Address, UnixAddress, read_address
from carrel.notebooks.proxy import takes_connections

#: Seconds for which a file is believed, and for which a session that was not reached is left alone.
_FRESH, _PAUSE = 5.0, 1.0


def read_from(spool: Spool) -> Callable[[Job], bytes | None]:
    """Read what a session on another machine has written about where it is: None while it has not.

    Nothing else of the lab's reads files that belong to a session's owner in order to reach it.
    """

    def read(job: Job) -> bytes | None:
        path = spool.attempt(job.id, job.attempt).session_address
        with suppress(FileNotFoundError):
            return _read(path)
        # Over the network the absence of a file is remembered for a while, unless its directory is read (nfs(5), acdirmax).
        with suppress(OSError):
            if path in path.parent.iterdir():
                return _read(path)
        return None

    return read


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, LONGEST)
    except FileNotFoundError:
        raise
    except OSError:
        return b""  # its owner has put something else there, which is no address


@dataclass(slots=True)
class _Known:
    read_at: float
    address: Address | None
    ready: bool = False
    tried_at: float | None = None
    trouble: str = ""


class SessionAddresses:
    """Of each attempt of a session that runs. Thread-safe."""

    def __init__(self, *, spool: Spool, read: Callable[[Job], bytes | None], monotonic: Clock) -> None:
        self._spool = spool
        self._read = read
        self._monotonic = monotonic
        self._guard = threading.Lock()
        self._known: dict[tuple[int, int], _Known] = {}

    def find(self, job: Job) -> Address | None:
        """Where the session takes connections; None while it has not said so."""
        return self._look(job).address

    def ready(self, job: Job) -> bool:
        """True when it was reached there."""
        known = self._look(job)
        if known.address is None or known.ready:
            return known.ready
        now = self._monotonic()
        if known.tried_at is None or now - known.tried_at > _PAUSE or isinstance(known.address, UnixAddress):
            known.tried_at = now
            why = takes_connections(known.address)
            known.ready = not why
            if why and not isinstance(known.address, UnixAddress):
                known.trouble = (
                    f"JupyterLab runs, but the lab does not reach it at {known.address.host}, port {known.address.port}: {why}. "
                    "It is tried again; a firewall may be in between (slurm_session_ports)."
                )
        return known.ready

    def trouble(self, job: Job) -> str:
        """Why a session that runs is not reached, for its owner; "" when nothing is known to be wrong."""
        known = self._known.get((job.id, job.attempt))
        return known.trouble if known is not None and not known.ready else ""

    def keep(self, jobs: Iterable[Job]) -> None:
        """Forget all others."""
        present = {(job.id, job.attempt) for job in jobs}
        with self._guard:
            for key in [key for key in self._known if key not in present]:
                del self._known[key]

    def _look(self, job: Job) -> _Known:
        key, now = (job.id, job.attempt), self._monotonic()
        with self._guard:
            known = self._known.get(key)
        if known is not None and known.address is not None and now - known.read_at < _FRESH:
            return known
        address, trouble = self._address(job)
        with self._guard:
            # A file that cannot be read for a moment does not mean that the session is not there any more.
            if known is not None and (known.address == address or address is None):
                known.read_at, known.trouble = now, trouble or known.trouble
                return known
            known = self._known[key] = _Known(now, address, trouble=trouble)
            return known

    def _address(self, job: Job) -> tuple[Address | None, str]:
        if not job.handed_over:
            return UnixAddress(str(self._spool.attempt(job.id, job.attempt).session_socket)), ""
        data = self._read(job)
        try:
            return (None, "") if data is None else (read_address(data), "")
        except CarrelError as error:
            return None, str(error)
