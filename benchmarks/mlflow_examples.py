"""MLflow's own examples in a lab: `python benchmarks/mlflow_examples.py CHECKOUT`, with the directory of a checkout of MLflow.

``examples/multistep_workflow`` and ``examples/hyperparam`` are copied, changed as `CHANGES` says (data without the internet,
packages that no longer exist, words that Keras and TensorFlow have removed) and run by the unchanged command
`mlflow run --backend carrel`, each twice, in a lab with one simulated GPU. Printed are the jobs of both runs, what came from the
cache, and the GPUs of the parents.

Needs Java, an index of packages, and some 2 GB of disk for TensorFlow and Spark. `--json` prints numbers for programs.
"""

from __future__ import annotations

import argparse
import csv
import functools
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from carrel.client import Client
from support.lab_process import LabProcess, start_lab

#: File -> (what is written there, what stands there instead, why). `{data}` is the address of the data on this machine.
CHANGES: dict[str, list[tuple[str, str, str]]] = {
    "multistep_workflow/load_raw_data.py": [
        ("http://files.grouplens.org/datasets/movielens/ml-20m.zip", "{data}/ml-20m.zip", "made-up ratings, no internet"),
    ],
    "multistep_workflow/python_env.yaml": [
        ("tensorflow==1.15.2", "tensorflow-cpu", "version 1.15 has no packages for a Python of today"),
        ("  - keras==2.2.4\n", "", "TensorFlow brings its own Keras"),
    ],
    "multistep_workflow/train_keras.py": [
        ("tf.set_random_seed(", "tf.random.set_seed(", "renamed in TensorFlow 2"),
        ("Adam(lr=", "Adam(learning_rate=", "renamed in Keras 3"),
    ],
    "hyperparam/python_env.yaml": [
        ("tensorflow==2.10.0", "tensorflow-cpu", "version 2.10 has no packages for a Python of today"),
        ("  - protobuf<4.0.0\n", "", "TensorFlow and MLflow of today need a later one"),
    ],
    "hyperparam/train.py": [
        ("SGD(lr=", "SGD(learning_rate=", "renamed in Keras 3"),
        (
            "from tensorflow import keras\n",
            "from tensorflow import keras\nkeras.config.enable_unsafe_deserialization()\n",
            "Keras 3 copies no model with a lambda otherwise",
        ),
    ],
}
WINES = "tests/datasets/winequality-white.csv"
#: What each example is started with: its own options, then what its parent asks for, then what its nested runs ask for.
RUNS = {
    "multistep_workflow": (["-P", "max_row_limit=20000"], {"mem": "1G"}, {"cache": True, "mem": "3G", "gpus": 1}),
    "hyperparam": (
        ["-e", "random", "-P", "max_runs=4", "-P", "epochs=2", "-P", "training_data={data}/" + Path(WINES).name],
        {"mem": "1G", "gpus": 1},
        {"cache": True, "mem": "2G", "gpus": 1},
    ),
}
#: What tells in the log of a parent that a step was not run: the lab's words, and those of the example's own search.
FROM_CACHE = re.compile(r"Taken from the cache: job \d+|Found existing run for entrypoint")
RATINGS, PEOPLE, FILMS = 40_000, 400, 300


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run of one example did."""

    example: str
    time: int
    state: str
    seconds: float
    jobs: int
    cached: int
    #: Of the parent, and the most of a step.
    gpus_of_parent: int
    gpus_of_step: int
    #: Times that the parent was stopped for one of its steps.
    stopped: int

    @property
    def share(self) -> float:
        """The part of the steps that came from the cache."""
        return self.cached / max(1, self.jobs + self.cached)


def main(words: Sequence[str] | None = None) -> int:
    """Run; 0 when every run ended well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--example", choices=sorted(RUNS), action="append", help="only this one")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="mlflow-examples-") as room:
        found = measure(given.checkout, Path(room), given.example or sorted(RUNS))
    if given.json:
        print(json.dumps([{**asdict(one), "share": one.share} for one in found]))
    else:
        _table(found)
    return 0 if found and all(one.state == "COMPLETED" for one in found) else 1


def measure(checkout: Path, room: Path, examples: Sequence[str]) -> list[Figures]:
    """Run the examples twice each, in a lab that lives in `room`."""
    data = room / "data"
    data.mkdir()
    _make_ratings(data / "ml-20m.zip")
    shutil.copy(checkout / WINES, data)
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(data)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    lab = start_lab(room / "home", "--cpus", "8", tracking=True, simulate_gpus=1)
    try:
        return [_run(lab, _copy(checkout, room, name, address), name, time_, address) for name in examples for time_ in (1, 2)]
    finally:
        lab.end_jobs()
        lab.stop()
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def _copy(checkout: Path, room: Path, name: str, address: str) -> Path:
    """Return a copy of the example, changed; say each change once."""
    place = room / name
    if place.exists():
        return place
    shutil.copytree(checkout / "examples" / name, place)
    for file, changes in CHANGES.items():
        if not file.startswith(f"{name}/"):
            continue
        path = room / file
        text = path.read_text()
        for old, new, why in changes:
            if old not in text:
                _say(f'{file}: "{old.strip()}" is not there: this MLflow has another version of it.')
            else:
                _say(f'{file}: "{old.strip()}" becomes "{new.strip()}": {why}')
            text = text.replace(old, new.replace("{data}", address))
        path.write_text(text)
    return place


def _run(lab: LabProcess, project: Path, name: str, time_: int, address: str) -> Figures:
    options, parent, nested = RUNS[name]
    config = json.dumps({**parent, "nested": nested})
    program = Path(sys.executable).parent / "mlflow"
    command = [str(program), "run", str(project), "--backend", "carrel", "--backend-config", config]
    command += [word.replace("{data}", address) for word in options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "CARREL_"))}
    environment |= {"CARREL_URL": lab.url, "CARREL_TOKEN": lab.token}
    with Client(url=lab.url, token=lab.token) as client:
        before = {job.id for job in client.jobs(limit=None)}
        began = time.monotonic()
        done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
        seconds = time.monotonic() - began
        jobs = [client.job(job.id) for job in client.jobs(limit=None) if job.id not in before]
        if not jobs:
            raise SystemExit(f"{name}: nothing was submitted:\n{done.stdout}\n{done.stderr}")
        first = min(jobs, key=lambda job: job.id)
        steps = [job for job in jobs if job.parent == first.id]
        if first.state != "COMPLETED" or any(step.state != "COMPLETED" for step in steps):
            _say(f"{name}: {done.stdout}\n{done.stderr}")
        return Figures(
            example=name,
            time=time_,
            state=first.state,
            seconds=round(seconds, 1),
            jobs=len(steps),
            cached=len(FROM_CACHE.findall(b"".join(client.log(first.id)).decode(errors="replace"))),
            gpus_of_parent=len(first.devices),
            gpus_of_step=max((len(step.devices) for step in steps), default=0),
            stopped=sum(event.data.get("state") == "SUSPENDED" for event in client.events(first.id)),
        )


def _make_ratings(file: Path) -> None:
    """The form of MovieLens, made up: everybody's liking of a film follows from two numbers of each, and a little chance."""
    chance = random.Random(7)
    people = [(chance.gauss(0, 1), chance.gauss(0, 1)) for _ in range(PEOPLE)]
    films = [(chance.gauss(0, 1), chance.gauss(0, 1)) for _ in range(FILMS)]
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(["userId", "movieId", "rating", "timestamp"])
    for number in range(RATINGS):
        person, film = chance.randrange(PEOPLE), chance.randrange(FILMS)
        liking = 3 + sum(a * b for a, b in zip(people[person], films[film], strict=True)) + chance.gauss(0, 0.3)
        rows.writerow([person + 1, film + 1, min(5.0, max(0.5, round(liking * 2) / 2)), 1_000_000_000 + number])
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ml-20m/ratings.csv", text.getvalue())


def _table(found: Sequence[Figures]) -> None:
    print(
        "| example | run | ended | seconds | steps run as jobs | steps from the cache | GPUs of parent / step | parent stopped |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for one in found:
        print(
            f"| {one.example} | {one.time} | {one.state} | {one.seconds:g} | {one.jobs} | {one.cached} ({one.share:.0%}) "
            f"| {one.gpus_of_parent}, {one.gpus_of_step} | {one.stopped} |"
        )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
