"""Retention in a running lab: its rules from the settings, and the thread that carries them out now and then."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial

from carrel.core.control.retention import Retention
from carrel.core.domain.retention import RetentionRules
from carrel.core.domain.units import format_size
from carrel.core.spool.disk import disk_of
from carrel.lab.audit import AuditLog
from carrel.lab.retention import Collector
from carrel.lab.retention.collector import Artifacts, Places
from carrel.lab.server.home import LabHome
from carrel.lab.server.settings import Settings
from carrel.lab.store import Store

_log = logging.getLogger(__name__)


def retention_rules(settings: Settings) -> RetentionRules:
    """The rules as the settings say them."""
    return RetentionRules(
        work=settings.keep_work,
        unused=settings.keep_unused,
        logs=settings.keep_logs,
        outputs=settings.keep_outputs,
        deleted_runs=settings.keep_deleted_runs,
        audit=settings.keep_audit,
        cells=settings.keep_cells,
        calls=settings.keep_calls,
        cached=settings.keep_cached,
        cached_size=settings.cached_limit,
    )


def _quota(settings: Settings, home: LabHome, store: Store) -> int:
    """Bytes that each user may have, so that who fills the disk is stopped before all are (`disk_floor`)."""
    part = 2 if len(store.people.list()) < 2 else 4
    return int(settings.user_quota or disk_of(home.blobs).total // part)


class RetentionService:
    """The lab's collector, its view for callers, and its thread."""

    def __init__(self, home: LabHome, settings: Settings, store: Store, artifacts: Artifacts | None, audit: AuditLog) -> None:
        self._collector = Collector(
            Places(spool=home.spool, snapshots=home.snapshots, blobs=home.blobs, calls=home.calls),
            store.retention,
            rules=partial(retention_rules, settings),
            clock=time.time,
            artifacts=artifacts,
            audit=audit,
            calls=store.calls,
            sweeps=store.sweeps,
        )
        self._period = float(settings.gc_time)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.retention = Retention(
            store=store.retention, collector=self._collector, quota=partial(_quota, settings, home, store), clock=time.time
        )

    def start(self) -> None:
        """Collect now and then from now on; the first time after one period, when all journals were read long ago."""
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; a collection that is under way ends with what it is doing."""
        self._stop.set()
        self._collector.close()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._period):
            found = self._collector.collect()
            freed = sum(one.size for one in found)
            if freed:
                counts = ", ".join(f"{one.count} of {one.kind}" for one in found if one.count)
                _log.info("Removed what need not be kept (%s): %s.", counts, format_size(freed))
