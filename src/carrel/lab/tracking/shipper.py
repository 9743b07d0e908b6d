"""Takes what the lab has to tell MLflow from the outbox to MLflow, in its own time.

Nothing waits for it. Order holds within a job; jobs do not wait for each other. What MLflow cannot take now is tried again
until it can; what it refuses for good is recorded with its own words, and the rest goes on. Everything may be sent twice
(after a crash between sending and crossing off) and has the same effect as once.
"""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from carrel.core.domain.errors import CarrelError, NotFound, Unavailable
from carrel.lab.store.outbox import OutboxRow, OutboxTable
from carrel.lab.tracking.artifacts import ArtifactStore
from carrel.lab.tracking.batch import Entry, batches, call_arguments, entries_of
from carrel.lab.tracking.rest import MlflowRest, Refused, Troubled
from carrel.lab.tracking.tenancy import DEFAULT_EXPERIMENT_NAME, workspace_of

_log = logging.getLogger(__name__)

#: Items that are looked at together.
_WINDOW = 500
#: Items that are crossed off together.
_CROSS_OFF = 100
#: Seconds that items may gather before they are sent; and where as many come, so that several of one job go together.
_GATHER, _GATHER_MANY, _MANY = 0.05, 1.0, 50
_PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
#: How often something is tried that MLflow itself fails over (5xx) before it counts as refused.
_TRIES = 8
#: Tags that name one job of one lab.
_NAMING_TAGS = ("carrel.lab", "carrel.job_id")


class _Made(Enum):
    """What became of a run that was to be made."""

    NOT = "MLflow refused it"
    BEFORE = "it was there"
    WITH_ITS_OWN = "it has the tags that it was to be made with"
    WITH_ALL = "it has all tags that its job has by now"


class Shipper:
    """A thread that empties an outbox into MLflow."""

    def __init__(
        self,
        outbox: OutboxTable,
        transport: MlflowRest,
        *,
        artifacts: ArtifactStore,
        record: Callable[[int], Mapping[str, Any]] | None = None,
        pauses: Sequence[float] = _PAUSES,
    ) -> None:
        """`artifacts` is where MLflow keeps them; `record` gives the record of a job, for items of that kind; `pauses` are
        seconds between tries."""
        self._outbox = outbox
        self._rest = transport
        self._artifacts = artifacts
        self._record = record
        self._pauses = pauses
        #: The last item that an earlier process may have sent without crossing it off; None before the first look.
        self._earlier: int | None = None
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._idle = threading.Event()
        self._telling = threading.Lock()
        self._thread: threading.Thread | None = None
        self._done: list[int] = []
        self._settled: set[int] = set()
        self._tries: dict[int, int] = {}
        self._uncertain: set[int] = set()
        #: Runs of sweeps and searches, by workspace, experiment and the tags that name them.
        self._parents: dict[tuple[str, ...], str] = {}

    def start(self) -> None:
        """Begin to ship."""
        self._thread = threading.Thread(target=self._run, name="tracking-shipper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End after the call that is under way; what is left stays in the outbox."""
        self._stopped.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def notify(self) -> None:
        """There is something new in the outbox, or MLflow has come up. Cheap; from any thread."""
        with self._telling:
            self._idle.clear()
            self._wake.set()

    def wait_idle(self, timeout: float) -> bool:
        """Wait until the outbox was found empty after the last `notify`; say whether it was."""
        return self._idle.wait(timeout)

    def _run(self) -> None:
        misses = 0
        while not self._stopped.is_set():
            self._wake.clear()
            try:
                found, trouble = self._round(_WINDOW * 2 ** min(misses, 7))
            except CarrelError as error:
                found, trouble = 1, str(error)
            except Exception as error:  # noqa: BLE001  (this thread must outlive all errors of the store or a payload)
                _log.exception("Telling MLflow failed; it is tried again.")
                found, trouble = 1, str(error)
            if trouble:
                misses += 1
                if misses in (1, 10) or misses % 100 == 0:
                    _log.warning("MLflow gets it later: %s", trouble)
                self._stopped.wait(self._pauses[min(misses, len(self._pauses)) - 1])
            elif found:
                misses = 0
                if _MANY <= found < _WINDOW:
                    self._stopped.wait(_GATHER_MANY)
            else:
                misses = 0
                with self._telling:
                    if not self._wake.is_set():
                        self._idle.set()
                self._wake.wait()
                self._stopped.wait(_GATHER)

    def _round(self, window: int) -> tuple[int, str]:
        """Send what waits, oldest first. Returns how many items did, and what went wrong."""
        if self._earlier is None:
            self._earlier = self._outbox.last()
        items = self._outbox.pending(window)
        jobs: dict[int, list[OutboxRow]] = {}
        for item in items:
            jobs.setdefault(item.job_id, []).append(item)
        self._settled.clear()
        trouble, troubled = "", dict[int, str]()
        try:
            for job_id, waiting in jobs.items():
                if self._stopped.is_set():
                    break
                try:
                    self._ship(job_id, waiting)
                except Troubled as error:  # perhaps over this job only: the others go on
                    trouble = troubled[job_id] = str(error)
                except Unavailable as error:
                    trouble = str(error)
                    break
        finally:
            self._cross_off()
        # MLflow fails over everything when its own database is down or its disk is full: nothing is given up for that.
        if self._settled:
            for job_id, words in troubled.items():
                self._count(next(item.id for item in jobs[job_id] if item.id not in self._settled), words)
        return len(items), trouble

    def _count(self, item_id: int, words: str) -> None:
        self._tries[item_id] = self._tries.get(item_id, 0) + 1
        if self._tries[item_id] >= _TRIES:
            self._refuse(item_id, words)

    def _ship(self, job_id: int, items: Sequence[OutboxRow]) -> None:
        """Everything that waits for one job, in order."""
        gathered: list[Entry] = []
        ids: list[int] = []
        new = False
        for item in items:
            if item.kind == "create_run":
                made = self._create(item, _tags_of(items))
                new = made is _Made.WITH_ALL
                if made is not _Made.NOT:
                    gathered += entries_of(item.id, {"params": item.payload.get("params")} | self._adopted_tags(item))
                    ids.append(item.id)
                continue
            if item.kind == "update":
                # A run that was made just now has been given its tags with it: that saves MLflow a call.
                gathered += [entry for entry in entries_of(item.id, item.payload) if not new or entry.group != "tags"]
                ids.append(item.id)
                continue
            if item.kind in ("parent", "end_run"):  # files and values do not mind each other's order, but this is the last word
                self._log(job_id, items, gathered, ids)
                gathered, ids = [], []
            self._single(job_id, item)
        self._log(job_id, items, gathered, ids)

    def _adopted_tags(self, item: OutboxRow) -> dict[str, Any]:
        # A run of the lab's own was made with its tags.
        return {"tags": item.payload.get("tags")} if item.payload.get("adopt") else {}

    def _create(self, item: OutboxRow, tags: Mapping[str, str]) -> _Made:
        """Make the run, if there is none, with all these tags that the job has by now."""
        payload = item.payload
        if self._outbox.run_of(item.job_id) is not None and not payload.get("adopt"):
            return _Made.BEFORE
        workspace = workspace_of(payload["owner"])
        try:
            run_id, experiment_id, made = self._run_for(item, workspace, tags)
        except Refused as error:
            self._refuse(item.id, error.message)
            return _Made.NOT
        self._outbox.set_run(item.job_id, run_id, experiment_id)
        return made

    def _run_for(self, item: OutboxRow, workspace: str, all_tags: Mapping[str, str]) -> tuple[str, str, _Made]:
        payload = item.payload
        if payload.get("adopt"):
            self._rest.ensure_workspace(workspace)
            info = self._rest.run(workspace, payload["adopt"])  # refused when it is not the owner's
            return str(info["run_id"]), str(info["experiment_id"]), _Made.BEFORE
        name = payload.get("experiment") or DEFAULT_EXPERIMENT_NAME
        tags = payload.get("tags") or {}
        for attempt in (1, 2):
            experiment_id = payload.get("experiment_id") or self._rest.experiment(workspace, name)
            if item.id in self._uncertain or item.id <= (self._earlier or 0):
                found = self._rest.find_run(workspace, experiment_id, {key: tags[key] for key in _NAMING_TAGS if key in tags})
                if found is not None:
                    return found, experiment_id, _Made.BEFORE
            # Should MLflow refuse one of the later tags, the run is made without those, and told of them one by one.
            given, made = (all_tags, _Made.WITH_ALL) if attempt == 1 else (tags, _Made.WITH_ITS_OWN)
            try:
                if payload.get("parent"):
                    parent = self._parent_of(workspace, experiment_id, payload["parent"], payload.get("user", ""))
                    given = {**given, "mlflow.parentRunId": parent}
                run_id = self._rest.create_run(
                    workspace,
                    experiment_id,
                    name=payload["run_name"],
                    start_time=payload["start_time"],
                    tags=given,
                    user=payload.get("user", ""),
                )
            except Unavailable:
                self._uncertain.add(item.id)  # it may have been made all the same
                raise
            except Refused:
                if attempt == 2:
                    raise
                self._rest.forget_experiment(workspace, name)  # deleted by its owner perhaps; it is restored
                continue
            self._uncertain.discard(item.id)
            return run_id, experiment_id, made
        raise AssertionError("unreachable")

    def _parent_of(self, workspace: str, experiment_id: str, parent: Mapping[str, Any], user: str) -> str:
        """The run of a sweep or a search, which exists afterwards: this thread alone makes them, so looking first is enough."""
        naming = parent["naming"]
        key = (workspace, experiment_id, *naming.values())
        if key not in self._parents:
            self._parents[key] = self._rest.find_run(workspace, experiment_id, naming) or self._rest.create_run(
                workspace,
                experiment_id,
                name=parent["run_name"],
                start_time=parent["start_time"],
                tags=parent["tags"],
                user=user,
            )
        return self._parents[key]

    def _run_of(self, job_id: int) -> tuple[str, str]:
        run = self._outbox.run_of(job_id)
        if run is None:
            raise NotFound(f"Job {job_id} has no run in MLflow: making one was refused.")
        return run

    def _log(self, job_id: int, items: Sequence[OutboxRow], gathered: Sequence[Entry], ids: Sequence[int]) -> None:
        """Send entries in as few calls as MLflow allows, and cross off the items that they came from."""
        if not ids:
            return
        refused: dict[int, str] = {}
        if gathered:
            try:
                run_id, _ = self._run_of(job_id)
            except NotFound as error:
                refused = dict.fromkeys(ids, error.message)
            else:
                workspace = workspace_of(items[0].payload["owner"])
                for batch in batches(gathered):
                    self._log_batch(workspace, run_id, batch, refused)
        for item_id in ids:
            if item_id in refused:
                self._refuse(item_id, refused[item_id])
            else:
                self._cross(item_id)

    def _log_batch(self, workspace: str, run_id: str, batch: Sequence[Entry], refused: dict[int, str]) -> None:
        """Send a batch; when MLflow refuses it, find out which entries it means, so that the others arrive."""
        try:
            self._rest.log_batch(workspace, run_id, **call_arguments(batch))
        except Refused as error:
            if len(batch) == 1:
                refused[batch[0].item_id] = f"{batch[0].group[:-1]} {batch[0].key}: {error.message}"
                return
            middle = len(batch) // 2
            self._log_batch(workspace, run_id, batch[:middle], refused)
            self._log_batch(workspace, run_id, batch[middle:], refused)

    def _single(self, job_id: int, item: OutboxRow) -> None:
        try:
            workspace = workspace_of(item.payload["owner"])
            if item.kind == "parent":  # of a run that others share, so it does not matter whether this job has one
                experiment_id = self._rest.experiment(workspace, item.payload.get("experiment") or DEFAULT_EXPERIMENT_NAME)
                run_id = self._parent_of(workspace, experiment_id, item.payload["parent"], "")
                if tags := item.payload.get("tags"):
                    self._rest.log_batch(workspace, run_id, tags=tags)
            else:
                run_id, experiment_id = self._run_of(job_id)
            if item.kind in ("parent", "end_run"):
                self._rest.end_run(workspace, run_id, status=item.payload["status"], end_time=item.payload["end_time"])
            elif item.kind == "artifact" and "path" in item.payload:
                with Path(item.payload["path"]).open("rb") as file:
                    self._artifacts.put(workspace, experiment_id, run_id, item.payload["artifact_path"], file)
            elif item.kind in ("artifact", "record"):
                text = item.payload["text"] if item.kind == "artifact" else self._record_text(job_id)
                content = io.BytesIO(text.encode())
                self._artifacts.put(workspace, experiment_id, run_id, item.payload["artifact_path"], content)
            else:
                raise Refused(f'"{item.kind}" is not a kind of item.')
        except (Refused, NotFound) as error:
            self._refuse(item.id, error.message)
        except OSError as error:
            self._refuse(item.id, f"The file is not readable any more: {error}")
        else:
            self._cross(item.id)

    def _record_text(self, job_id: int) -> str:
        if self._record is None:
            raise Refused("Nobody here makes records.")
        return json.dumps(self._record(job_id), indent=2, sort_keys=True) + "\n"

    def _refuse(self, item_id: int, message: str) -> None:
        _log.warning("MLflow does not have item %d of the outbox: %s", item_id, message)
        self._outbox.failed(item_id, message)
        self._settled.add(item_id)
        self._tries.pop(item_id, None)

    def _cross(self, item_id: int) -> None:
        self._tries.pop(item_id, None)
        self._settled.add(item_id)
        self._done.append(item_id)
        if len(self._done) >= _CROSS_OFF:
            self._cross_off()

    def _cross_off(self) -> None:
        if self._done:
            self._outbox.done(self._done)
            self._done.clear()


def _tags_of(items: Sequence[OutboxRow]) -> dict[str, str]:
    """The tags of a job after all these items: of one that comes again the last value."""
    tags: dict[str, str] = {}
    for item in items:
        if item.kind in ("create_run", "update"):
            tags |= {key: str(value) for key, value in (item.payload.get("tags") or {}).items()}
    return tags
