"""Baselines and calibrations, on every database that a lab may use."""

from __future__ import annotations

from dataclasses import replace

import pytest
from stored import add_jobs, new_job

from carrel.core.domain.baseline import Baseline, Calibration, Drift, Moved, Outcome
from carrel.core.domain.comparison import Agreement
from carrel.lab.store import Store

DRIFT = Drift(
    agreement=Agreement.DIFFERENT,
    tolerance=1e-6,
    outputs=1,
    metrics=1,
    step=3,
    moved_metrics=(Moved(what="loss", before="0.5", after="0.6", relative=0.2),),
    moved_outputs=("model.pt",),
    python="3.11",
    machine="x",
    packages=(),
    others=(Moved(what="node", before="none", after="b"),),
)


def jobs(store: Store, count: int) -> list[int]:
    return add_jobs(store, *[new_job(account="physics")] * count)


def put(store: Store, job: int, owner: str = "ada", project: str = "train") -> Baseline:
    return store.baselines.put(owner=owner, project=project, job=job, tolerance=1e-6, ignored=["*.log"], now=5.0)


def begun(baseline: Baseline, job: int, number: int = 1) -> Calibration:
    return Calibration(baseline=baseline.id, job=job, number=number, by="root", fresh=True, begun_at=6.0)


@pytest.mark.gate
def test_an_owner_has_one_baseline_of_a_project(store: Store) -> None:
    one, two = jobs(store, 2)
    first, theirs, other = put(store, one), put(store, one, "bob"), put(store, one, project="b")
    assert (first.job, first.tolerance, first.ignored, first.set_at) == (one, 1e-6, ("*.log",), 5.0)
    store.baselines.begin(begun(first, two))
    second = put(store, two)
    assert second.id not in (first.id, theirs.id, other.id)
    assert store.baselines.get(first.id) is None
    assert store.baselines.list("ada") == [other, second]
    assert store.baselines.list(None) == [other, second, theirs]
    assert store.baselines.calibrations([second.id, first.id]) == {second.id: [], first.id: []}
    store.baselines.begin(begun(first, two))  # of one that is not there any more
    assert store.baselines.calibrated_by([two]) == {}
    store.baselines.remove(second.id)
    store.baselines.remove(second.id)
    assert store.baselines.list("ada") == [other]


def test_what_came_of_a_calibration_is_kept_once(store: Store) -> None:
    one, two, three = jobs(store, 3)
    baseline = put(store, one)
    store.baselines.begin(begun(baseline, two))
    store.baselines.begin(begun(baseline, two, 7))
    store.baselines.begin(begun(baseline, three, 2))
    known = replace(begun(baseline, two), known_at=9.0, state="COMPLETED", drift=DRIFT, outcome=Outcome.MOVED)
    store.baselines.conclude(known)
    store.baselines.conclude(replace(known, outcome=Outcome.SAME))
    assert store.baselines.calibrations([baseline.id])[baseline.id] == [begun(baseline, three, 2), known]
    store.baselines.collect(two)
    assert store.baselines.calibrations([baseline.id])[baseline.id][1] == replace(known, collected=True)
    assert known.told == "different from step 3 on; loss +20 %; node none -> b"
    assert store.baselines.calibrated_by([one, two, three]) == {two: baseline.id, three: baseline.id}
    assert store.baselines.calibrations([]) == {}
