"""Retention in a running lab: its rules from the settings, and the thread that carries them out now and then."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from carrel.core.control.retention import Retention
from carrel.core.domain.errors import CarrelError
from carrel.core.domain.job import Reason
from carrel.core.domain.retention import RetentionRules
from carrel.core.domain.units import format_size
from carrel.core.spool.disk import disk_of
from carrel.lab.audit import AuditLog
from carrel.lab.retention import Collector
from carrel.lab.retention.collector import Places
from carrel.lab.server.home import LabHome
from carrel.lab.server.settings import Settings
from carrel.lab.store import Store
from carrel.lab.tracking.artifacts import ArtifactStore

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


#: Seconds from one look at what users have to the next, at the least, and how many times as long as the look took.
_LOOK, _REST = 1.0, 50.0
#: Seconds until the next one where users have no more room: what they give up is no news of a job.
_FULL = 30.0


class RetentionService:
    """The lab's collector, its view for callers, and its threads."""

    def __init__(
        self,
        home: LabHome,
        settings: Settings,
        store: Store,
        artifacts: ArtifactStore | None,
        audit: AuditLog,
        without_room: Callable[[Mapping[str, Reason]], object],
    ) -> None:
        """`without_room` hears after each look who has as much as a user may have."""
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
        self._without_room = without_room
        self._threads: list[threading.Thread] = []
        #: Something has happened to a job, so users may have more than before, or less.
        self._news = threading.Event()
        self._unsubscribe = store.events.subscribe(self._news.set)
        self.retention = Retention(
            store=store.retention, collector=self._collector, quota=partial(_quota, settings, home, store), clock=time.time
        )

    def start(self) -> None:
        """Collect now and then from now on; the first time after one period, when all journals were read long ago."""
        self._threads = [
            threading.Thread(target=self._run, name="retention", daemon=True),
            threading.Thread(target=self._watch, name="quota", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop; a collection that is under way ends with what it is doing."""
        self._stop.set()
        self._unsubscribe()
        self._news.set()
        self._collector.close()
        for thread in self._threads:
            thread.join()

    def _watch(self) -> None:
        """See who has no more room, whenever something happened. All outputs are added up, so it rests in between."""
        while not self._stop.is_set():
            self._news.clear()
            began = time.monotonic()
            full: Mapping[str, Reason] = {}
            try:
                full = self.retention.without_room()
                self._without_room(full)
            except (CarrelError, OSError) as error:
                _log.warning("What users have on the disk could not be added up: %s", error)
            if not self._stop.wait(max(_LOOK, _REST * (time.monotonic() - began))):
                self._news.wait(_FULL if full else None)

    def _run(self) -> None:
        while not self._stop.wait(self._period):
            found = self._collector.collect()
            freed = sum(one.size for one in found)
            if freed:
                counts = ", ".join(f"{one.count} of {one.kind}" for one in found if one.count)
                _log.info("Removed what need not be kept (%s): %s.", counts, format_size(freed))
