"""200 trials of 5 s beside plain Optuna; 200 trials whose server and workers are killed ten times.

`python benchmarks/sweeps_beside_optuna.py [TRIALS]`, ten minutes. Optuna has as many threads (`n_jobs`) as the lab has trials
at once; a trial waits 5 s and reports a value. In the second part both sweeps have the same seed; a killed worker is the
process of a trial that runs, by SIGKILL, and its job is tried again.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import optuna

from carrel import Client
from carrel.testing.waiting import wait_until
from carrel.wire import v1
from figure import Figure
from support.lab_process import start_lab

AT_ONCE, SECONDS, KILLS = 8, 5.0, 10
_RESOURCES = v1.ResourceRequest(memory="64M", cpus=1)
_DISTRIBUTIONS = {"x": "uniform(-10, 10)", "y": "uniform(-10, 10)"}
_TRIAL = """
import os, sys, time
from pathlib import Path
import carrel
x, y = (float(sys.argv[sys.argv.index(name) + 1]) for name in ("--x", "--y"))
trace, seconds = Path(sys.argv[sys.argv.index("--trace") + 1]), float(sys.argv[sys.argv.index("--seconds") + 1])
running = trace / f"running-{os.getpid()}"
running.touch()
for step in range(5):
    time.sleep(seconds / 5)
    carrel.report((x - 2) ** 2 + (y + 1) ** 2 + 4 - step, step)
with (trace / "ended").open("a") as ended:
    print(os.environ["CARREL_TRIAL"], file=ended)
running.unlink()
"""


def measure(scratch: Path, trials: int) -> list[Figure]:
    """All figures."""
    (scratch / "train.py").write_text(_TRIAL)
    ours = trials * 60 / _sweep(scratch, "quick", trials, sampler="tpe", seconds=SECONDS)[0]
    theirs = trials * 60 / _optuna(trials)
    quiet = _sweep(scratch, "quiet", trials, sampler="random", seconds=1.0)[1]
    disturbed = _sweep(scratch, "disturbed", trials, sampler="random", seconds=1.0, kills=KILLS)[1]
    same = all(one.parameters == other.parameters for one, other in zip(quiet.all_trials, disturbed.all_trials, strict=True))
    return [
        Figure(name=f"{trials} trials of {SECONDS:g} s, {AT_ONCE} at once: a sweep", value=ours, unit="trials/min"),
        Figure(name=f"the same: Optuna, n_jobs={AT_ONCE}", value=theirs, unit="trials/min"),
        Figure(name="sweep ÷ Optuna", value=ours / theirs, unit="×", at_least=0.8),
        Figure(name=f"{KILLS} times killed: trials with the parameters of the undisturbed", value=float(same), unit=""),
        Figure(name="best, undisturbed", value=float(quiet.best or 0), unit="(trial)"),
        Figure(name="best, disturbed", value=float(disturbed.best or 0), unit="(trial)"),
    ]


def _sweep(
    scratch: Path, name: str, trials: int, *, sampler: str, seconds: float, kills: int = 0
) -> tuple[float, v1.SweepDetail]:
    """How long it took, and what came of it. Each trial has ended once."""
    home, trace, chance = scratch / name, scratch / f"{name}-trace", random.Random(1)
    trace.mkdir()
    lab = start_lab(home, "--cpus", str(AT_ONCE), simulate_gpus=0)
    options = {"metric": "loss", "trials": trials, "parallel": AT_ONCE, "sampler": sampler, "seed": 7}
    with Client(home=home) as client:
        began = time.perf_counter()
        sweep = client.sweep_project(
            scratch / "train.py",
            distributions=_DISTRIBUTIONS,
            options=options,
            parameters={"trace": str(trace), "seconds": str(seconds)},
            resources=_RESOURCES,
            retries=kills,
        )
        for kill in range(1, kills + 1):
            wait_until(lambda kill=kill: len(_ended(trace)) > trials * kill // (kills + 2), timeout=600)  # type: ignore[misc]
            lab.kill()
            with suppress(ProcessLookupError):
                os.kill(int(chance.choice(list(trace.glob("running-*"))).name.partition("-")[2]), signal.SIGKILL)
            lab = start_lab(home, "--cpus", str(AT_ONCE), simulate_gpus=0)
        wait_until(lambda: client.sweep(sweep.id).state != "RUNNING", timeout=1200)
        took, found = time.perf_counter() - began, client.sweep(sweep.id)
    assert found.counts == {"COMPLETED": trials}, found.counts
    assert Counter(_ended(trace)) == Counter(range(1, trials + 1))
    if kills:
        tried = sum(_attempts(home, trial.job_id or 0) > 1 for trial in found.all_trials)
        print(f"{tried} trials had more than one attempt", flush=True)
    lab.end_jobs()
    lab.stop()
    return took, found


def _attempts(home: Path, job_id: int) -> int:
    with Client(home=home) as client:
        return len(client.job(job_id).attempts)


def _ended(trace: Path) -> list[int]:
    path = trace / "ended"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def _optuna(trials: int) -> float:
    def objective(trial: optuna.Trial) -> float:
        x, y = trial.suggest_float("x", -10, 10), trial.suggest_float("y", -10, 10)
        time.sleep(SECONDS)
        return (x - 2) ** 2 + (y + 1) ** 2

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=7, constant_liar=True))
    began = time.perf_counter()
    study.optimize(objective, n_trials=trials, n_jobs=AT_ONCE)
    return time.perf_counter() - began


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="carrel-bench-") as directory:
        for figure in measure(Path(directory), int(sys.argv[1]) if sys.argv[1:] else 200):
            print(figure.row(), flush=True)
