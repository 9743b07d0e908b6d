"""Later jobs beside a baseline: metrics of runs are read once, and a tracking server that is silent is not asked for all."""

from __future__ import annotations

from collections import Counter

import httpx
import pytest
import sqlalchemy as sa
from gateway_lab import Rig

from carrel.core.comparison import Metrics
from carrel.core.control.baselines import Baselines
from carrel.core.domain.launch import StoredFile
from carrel.lab.gateway import drift
from carrel.lab.gateway.baselines import baseline_table
from carrel.lab.gateway.comparing import Comparing
from carrel.lab.gateway.drift import Drifts
from carrel.lab.store.tables import jobs
from carrel.wire.v1 import API, BaselineTable


class Runs:
    """What a tracking server has, and how often each run was asked for."""

    def __init__(self) -> None:
        self.loss: dict[str, float] = {}
        self.asked: Counter[str] = Counter()
        self.silent = False

    def __call__(self, _owner: str, run_id: str) -> Metrics:
        self.asked[run_id] += 1
        if self.silent:
            return Metrics(missing="The tracking server did not answer.")
        value = self.loss[run_id]
        return Metrics(last={"loss": value}, curves={"loss": {0: 1.0, 1: value}})


def ended(rig: Rig, http: httpx.Client, runs: Runs, loss: float) -> int:
    job = int(http.post(f"{API}/jobs", json={"snapshot": rig.upload("ada")}).raise_for_status().json()["id"])
    rig.engine.run(job)
    rig.engine.end(job, outputs=(StoredFile(path="outputs/a", size=1, digest=rig.store_blob(b"a")),))
    rig.wait_for(lambda: rig.store.jobs.get(job).state.ended)  # type: ignore[union-attr]
    runs.loss[f"run{job}"] = loss
    with rig.store.database.write() as connection:
        connection.execute(sa.update(jobs).where(jobs.c.id == job).values(run_id=f"run{job}"))
    return job


@pytest.fixture
def runs() -> Runs:
    return Runs()


@pytest.fixture
def drifts(rig: Rig, runs: Runs) -> Drifts:
    comparing = Comparing(lab=rig.lab, snapshots=rig.snapshots, metrics=runs)
    return Drifts(baselines=Baselines(store=rig.store.baselines, lab=rig.lab), comparing=comparing)


def table(rig: Rig, drifts: Drifts) -> BaselineTable:
    caller = rig.caller("ada")
    (one,) = drifts.baselines.list(caller)
    return baseline_table(drifts, caller, one)


def said(found: BaselineTable) -> list[str]:
    return [row.drift.words if row.drift is not None else "" for row in found.rows]


@pytest.mark.gate
def test_by_how_much_metrics_moved_and_runs_are_read_once(rig: Rig, ada: httpx.Client, runs: Runs, drifts: Drifts) -> None:
    first = ended(rig, ada, runs, 0.5)
    drifts.baselines.set(rig.caller("ada"), first, project=None, tolerance=1e-6, ignored=())
    later = [ended(rig, ada, runs, value) for value in (0.5, 0.5 + 1e-8, 0.6)]
    found = table(rig, drifts)
    assert [row.job for row in found.rows] == later
    assert said(found) == ["bit-identical", "within 1e-06", "different from step 1 on"]
    moved = found.rows[2].drift
    assert moved is not None
    assert [(one.what, one.before, one.after) for one in moved.moved_metrics] == [("loss", "0.5", "0.6")]
    assert moved.moved_metrics[0].relative == pytest.approx(0.2)
    assert said(table(rig, drifts)) == said(found)
    assert [runs.asked[f"run{job}"] for job in later] == [1, 1, 1]


def test_a_silent_tracking_server_is_not_asked_for_each_and_asked_again_later(
    rig: Rig, ada: httpx.Client, runs: Runs, drifts: Drifts
) -> None:
    first = ended(rig, ada, runs, 0.5)
    drifts.baselines.set(rig.caller("ada"), first, project=None, tolerance=0, ignored=())
    for loss in [0.5] * 4:
        ended(rig, ada, runs, loss)
    table(rig, drifts)
    for loss in [0.7] * 3:
        ended(rig, ada, runs, loss)
    runs.silent = True
    runs.asked.clear()
    assert said(table(rig, drifts)) == ["bit-identical"] * 4 + ["not known"] * 3
    assert set(runs.asked) == {f"run{first}"}
    runs.silent = False
    assert said(table(rig, drifts)) == ["bit-identical"] * 4 + ["different from step 1 on"] * 3


def test_what_takes_too_long_is_left_for_the_next_answer(
    rig: Rig, ada: httpx.Client, runs: Runs, drifts: Drifts, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ended(rig, ada, runs, 0.5)
    drifts.baselines.set(rig.caller("ada"), first, project=None, tolerance=0, ignored=())
    ended(rig, ada, runs, 0.5)
    monkeypatch.setattr(drift, "_AT_ONCE", 0.0)
    (row,) = table(rig, drifts).rows
    assert (row.state, row.drift) == ("COMPLETED", None)
    monkeypatch.undo()
    assert said(table(rig, drifts)) == ["bit-identical"]


def test_a_calibration_without_metrics_yet_is_not_concluded(rig: Rig, ada: httpx.Client, runs: Runs, drifts: Drifts) -> None:
    caller, first = rig.caller("ada"), ended(rig, ada, runs, 0.5)
    baseline = drifts.baselines.set(caller, first, project=None, tolerance=0, ignored=())
    job = drifts.calibrate(caller, baseline.id, fresh=False).job
    rig.engine.run(job)
    rig.engine.end(job, outputs=(StoredFile(path="outputs/a", size=1, digest=rig.store_blob(b"a")),))
    rig.wait_for(lambda: rig.store.jobs.get(job).state.ended)  # type: ignore[union-attr]
    found = drifts.calibration(caller, baseline.id, job)  # its run is not known to the lab
    assert (found.outcome, found.known_at) == ("not known", None)
    assert drifts.calibrate(caller, baseline.id, fresh=False).job == job
    runs.loss[f"run{job}"] = 0.6
    with rig.store.database.write() as connection:
        connection.execute(sa.update(jobs).where(jobs.c.id == job).values(run_id=f"run{job}"))
    found = drifts.calibration(caller, baseline.id, job)
    assert (found.outcome, found.told) == ("moved", "different from step 1 on; loss +20 %")
    assert drifts.calibrate(caller, baseline.id, fresh=False).job != job
