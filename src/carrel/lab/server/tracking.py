"""Wires the tracking room into the lab: MLflow's process, the proxy before it, and the shipper of what the lab tells it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from carrel.core.comparison import Metrics
from carrel.core.control.lab import Lab
from carrel.core.domain.user import Caller, Role, User
from carrel.lab.gateway.context import TrackingStatus
from carrel.lab.store import Store
from carrel.lab.tracking.artifacts import ArtifactStore
from carrel.lab.tracking.proxy import TrackingProxy
from carrel.lab.tracking.rest import MlflowRest
from carrel.lab.tracking.run_metrics import run_metrics
from carrel.lab.tracking.server import TrackingServer, default_database
from carrel.lab.tracking.shipper import Shipper


def artifacts_of(home: Path) -> ArtifactStore:
    """What MLflow keeps for the lab in `home`."""
    return ArtifactStore(home.absolute() / "mlflow" / "artifacts", default_database(home))


class Tracking:
    """MLflow for one lab, from `start` to `close`."""

    def __init__(self, *, home: Path, store: Store, lab: Lab) -> None:
        self._server = TrackingServer(home, python=sys.executable)
        self._rest = MlflowRest(self._server.socket)
        self._shipper = Shipper(store.outbox, self._rest, artifacts=self._server.artifacts, record=_records_of(lab))
        self._subscribe = lab.subscribe
        self._unsubscribe: list[Callable[[], None]] = []
        self.proxy = TrackingProxy(self._server)

    def start(self) -> None:
        """Begin; the lab does not wait for it."""
        self._unsubscribe = [self._subscribe(self._shipper.notify), self._server.on_change(self._shipper.notify)]
        self._server.start()
        self._shipper.start()

    def status(self) -> TrackingStatus:
        """How MLflow is now."""
        status = self._server.status
        return TrackingStatus(state=status.state.value, message=status.reason)

    def metrics(self, owner: str, run_id: str) -> Metrics:
        """What MLflow has of a run of this user's."""
        return run_metrics(self._rest, owner, run_id)

    def close(self) -> None:
        """End the shipper first: what it has not sent stays in the outbox."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._shipper.stop()
        self._server.stop()
        self._rest.close()


def _records_of(lab: Lab) -> Callable[[int], dict[str, Any]]:
    """The shipper speaks for the lab itself, which sees every job."""
    itself = Caller(user=User(subject="", name="lab", role=Role.ADMIN))
    return lambda job_id: lab.produced.record(itself, job_id)
