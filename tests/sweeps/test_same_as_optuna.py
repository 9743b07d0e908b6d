"""What samplers and pruners decide is what they decide in a study of Optuna's that lives on in memory.

The lab's side reads its tables and makes the study anew for each decision, and in between is started again and again.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
import sqlalchemy as sa

from carrel.core.control.ports import NewJob, OutboxEntry
from carrel.core.control.sweeps import Sweeps
from carrel.core.domain.distribution import read_distribution
from carrel.core.domain.errors import Invalid
from carrel.core.domain.job import JobState
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.domain.sweep import Direction, Pruner, Sampler, Sweep, SweepSpec, SweepState, Trial
from carrel.core.domain.task import TaskSpec
from carrel.core.domain.user import Caller, User
from carrel.core.policy.next_trial import settled
from carrel.lab.store import Database, Store
from carrel.lab.store.tables import jobs
from carrel.lab.studies import OptunaStudy
from carrel.lab.studies.optuna_study import seed_of

pytestmark = pytest.mark.quick

ADA = Caller(user=User(subject="ada", name="ada"))
SPEC = SweepSpec(
    name="s",
    parameters={"x": read_distribution("x", "uniform(-1, 1)"), "y": read_distribution("y", "int(0, 20)")},
    trials=24,
    parallel=3,
    metric="loss",
    seed=6,
)

#: Of each trial that is carried out: rungs are at 1 and 4, and for Hyperband in three brackets.
LAST = 9


class Jobs:
    """Trials as rows of the lab's table of jobs, which end when the test says so."""

    def __init__(self, database: Database, store: Store) -> None:
        self._database = database
        self._store = store

    def check(self, caller: Caller, spec: SweepSpec) -> None:
        pass

    def start(self, sweep: Sweep, trial: Trial) -> int:
        task = TaskSpec(entry_point="main", command="true", snapshot="sha256:0", sweep=sweep.id, trial=trial.number)
        new = NewJob(
            kind=JobKind.TASK,
            owner=sweep.owner,
            account="default",
            name="s",
            qos="q",
            resources=Resources(cpus=1, memory=2**20, time=60),
            retries=0,
            task=task,
        )
        key = f"{sweep.id}-{trial.number}"
        return self._store.jobs.submit(new, now=1.0, key=key, request="", outbox=lambda _job: ()).job.id

    def end(self, job_id: int, *, by: str) -> None:
        self.ended(job_id, JobState.CANCELLED)

    def describe(self, sweep: Sweep, job_id: int) -> Sequence[OutboxEntry]:
        return ()

    def ended(self, job_id: int, state: JobState) -> None:
        with self._database.write() as connection:
            connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(state=state.value, ended_at=2.0))


class Lab:
    """A server's part that is about sweeps; `restart` is what happens after it was killed."""

    def __init__(self, home: Path) -> None:
        database = Database(f"sqlite:///{home / 'lab.db'}")
        self.store = Store(database)
        self.store.people.add(ADA.user, now=1.0)
        self.jobs = Jobs(database, self.store)
        self.restart()

    def restart(self) -> None:
        self.sweeps = Sweeps(
            store=self.store.sweeps, jobs=self.store.jobs, trial_jobs=self.jobs, study=OptunaStudy(), clock=lambda: 3.0
        )
        self.sweeps.load()

    def trials(self, sweep_id: int) -> list[Trial]:
        return list(self.sweeps.status(ADA, sweep_id).trials)


def sampler_of_optuna(kind: Sampler, seed: int) -> optuna.samplers.BaseSampler:
    if kind is Sampler.TPE:
        return optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    if kind is Sampler.CMAES:
        return optuna.samplers.CmaEsSampler(seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)


PRUNERS: dict[Pruner, Callable[[], optuna.pruners.BasePruner]] = {
    Pruner.NONE: optuna.pruners.NopPruner,
    Pruner.MEDIAN: optuna.pruners.MedianPruner,
    Pruner.HALVING: optuna.pruners.SuccessiveHalvingPruner,
    Pruner.HYPERBAND: optuna.pruners.HyperbandPruner,
}
DISTRIBUTIONS = {"x": optuna.distributions.FloatDistribution(-1, 1), "y": optuna.distributions.IntDistribution(0, 20)}


@pytest.mark.parametrize(
    ("sampler", "pruner", "direction"),
    [
        (Sampler.RANDOM, Pruner.HALVING, Direction.MINIMIZE),
        (Sampler.RANDOM, Pruner.HYPERBAND, Direction.MAXIMIZE),
        (Sampler.TPE, Pruner.HALVING, Direction.MAXIMIZE),
        (Sampler.TPE, Pruner.HYPERBAND, Direction.MINIMIZE),
        (Sampler.TPE, Pruner.MEDIAN, Direction.MINIMIZE),
        (Sampler.CMAES, Pruner.NONE, Direction.MINIMIZE),
        (Sampler.CMAES, Pruner.HYPERBAND, Direction.MAXIMIZE),
    ],
)
def test_decisions_are_those_of_a_study_in_memory(sampler: Sampler, pruner: Pruner, direction: Direction, tmp_path: Path) -> None:
    lab, chance = Lab(tmp_path), random.Random(f"{sampler} {pruner}")
    asked = replace(SPEC, sampler=sampler, pruner=pruner, direction=direction)
    sweep = lab.sweeps.start(ADA, asked)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(study_name=f"sweep-{sweep.id}", direction=direction.value, pruner=PRUNERS[pruner]())
    twins: dict[int, optuna.Trial] = {}
    steps: dict[int, int] = {}
    pruned = failed = 0
    while lab.sweeps.status(ADA, sweep.id).sweep.state is SweepState.RUNNING:
        if chance.random() < 0.2:
            lab.restart()
        lab.sweeps.start_missing()
        for one in lab.trials(sweep.id)[len(twins) :]:
            study.sampler = sampler_of_optuna(sampler, seed_of(asked.seed, one.number))
            twins[one.number] = study.ask(DISTRIBUTIONS)
            assert one.parameters == twins[one.number].params, f"trial {one.number}"
            steps[one.number] = 0
        running = [one for one in lab.trials(sweep.id) if one.ended_at is None]
        if not running:
            continue
        one = chance.choice(running)
        twin, step, job_id = twins[one.number], steps[one.number], one.job_id or 0
        if chance.random() < 0.01:
            failed += 1
            study.tell(twin, state=optuna.trial.TrialState.FAIL)
            lab.jobs.ended(job_id, JobState.FAILED)
            lab.sweeps.job_changed(job_id)
            continue
        x, y = float(one.parameters["x"]), float(one.parameters["y"])
        value = ((x - 0.3) ** 2 + (y - 7) ** 2 / 100) * (1 + 1 / (step + 1)) + chance.random() / 10
        twin.report(value, step)
        itself = replace(ADA, job_id=job_id)
        decided = lab.sweeps.report(itself, sweep.id, one.number, {step: value})
        assert decided is bool(twin.should_prune()), f"trial {one.number} at step {step}"
        if decided:
            pruned += 1
            study.tell(twin, state=optuna.trial.TrialState.PRUNED)
            # A program that does not listen goes on until it is ended.
            assert lab.sweeps.report(itself, sweep.id, one.number, {step + 1: -value})
            assert lab.trials(sweep.id)[one.number - 1].value == value
        elif step == LAST:
            study.tell(twin, value)
            lab.jobs.ended(job_id, JobState.COMPLETED)
        steps[one.number] += 1
        if decided or step == LAST:
            lab.sweeps.job_changed(job_id)
    ended = lab.sweeps.status(ADA, sweep.id).sweep
    assert (ended.state, ended.message, len(twins)) == (SweepState.COMPLETED, "", SPEC.trials)
    assert (pruned > 3) is (pruner is not Pruner.NONE)
    assert pruned + failed < SPEC.trials - 3
    lab.store.close()


@pytest.mark.parametrize("sampler", [Sampler.RANDOM, Sampler.TPE])
def test_sweeps_of_neighbouring_seeds_share_no_trial(sampler: Sampler, tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    begun = [lab.sweeps.start(ADA, replace(SPEC, sampler=sampler, seed=seed, trials=8, parallel=8)) for seed in (0, 1, 2)]
    lab.sweeps.start_missing()
    chosen = [one.parameters["x"] for sweep in begun for one in lab.trials(sweep.id)]
    assert len(set(chosen)) == len(chosen) == 24
    lab.store.close()


def test_cmaes_that_is_not_installed_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path)
    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(Invalid, match="needs the package cmaes") as refused:
        lab.sweeps.start(ADA, replace(SPEC, sampler=Sampler.CMAES))
    assert "[cmaes]'" in refused.value.remedy
    assert lab.sweeps.list(ADA, limit=9) == []
    lab.store.close()


def test_what_cmaes_cannot_choose_is_refused() -> None:
    choices = {"c": read_distribution("c", "categorical(a, b)"), "one": read_distribution("one", "int(3, 3)")}
    with pytest.raises(Invalid, match="and there are 0"):
        settled(replace(SPEC, sampler=Sampler.CMAES, parameters=choices))
    many = {f"p{number}": read_distribution("p", "uniform(0, 1)") for number in range(65)}
    with pytest.raises(Invalid, match="and there are 65"):
        settled(replace(SPEC, sampler=Sampler.CMAES, parameters=many))
    assert settled(replace(SPEC, sampler=Sampler.CMAES)).trials == SPEC.trials
