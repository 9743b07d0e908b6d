"""Where running sessions take connections: what is known of it, and whether they do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
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
    read_at: float = 0.0
    address: Address | None = None
    ready: bool = False
    tried_at: float | None = None
    trouble: str = ""
    #: Held while it is looked for. Its owner decides how long that takes: all others who ask get what is known.
    looking: threading.Lock = field(default_factory=threading.Lock)


class SessionAddresses:
    """Of each attempt of a session that runs. Thread-safe; no session keeps more than one thread waiting."""

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
        if known.address is None or known.ready or not known.looking.acquire(blocking=False):
            return known.ready
        try:
            self._try(known, known.address)
        finally:
            known.looking.release()
        return known.ready

    def _try(self, known: _Known, address: Address) -> None:
        now = self._monotonic()
        if known.tried_at is None or now - known.tried_at > _PAUSE or isinstance(address, UnixAddress):
            known.tried_at = now
            why = takes_connections(address)
            known.ready = not why
            if why and not isinstance(address, UnixAddress):
                known.trouble = (
                    f"JupyterLab runs, but the lab does not reach it at {address.host}, port {address.port}: {why}. "
                    "It is tried again; a firewall may be in between (slurm_session_ports)."
                )

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
        key = (job.id, job.attempt)
        with self._guard:
            known = self._known.setdefault(key, _Known())
        if not known.looking.acquire(blocking=False):
            return known
        try:
            now = self._monotonic()
            if known.address is not None and now - known.read_at < _FRESH:
                return known
            address, trouble = self._address(job)
            known.read_at = self._monotonic()
            # A file that cannot be read for a moment does not mean that the session is not there any more.
            if known.address == address or address is None:
                known.trouble = trouble or known.trouble
            else:
                known.address, known.trouble, known.ready, known.tried_at = address, trouble, False, None
            return known
        finally:
            known.looking.release()

    def _address(self, job: Job) -> tuple[Address | None, str]:
        if not job.handed_over:
            return UnixAddress(str(self._spool.attempt(job.id, job.attempt).session_socket)), ""
        data = self._read(job)
        try:
            return (None, "") if data is None else (read_address(data), "")
        except CarrelError as error:
            return None, str(error)
