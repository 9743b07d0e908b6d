"""`carrel why` on planted differences: is the cause named, and how many runs does that take?

`python benchmarks/why.py`. Each case is a project and a changed copy of it, with one cause or several and twelve changes that
change nothing, in a real lab. By hand one would halve the list: runs of the same search with all changes equally likely, and of
one change after another, are counted with the same answers.
"""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from carrel.client import Client
from carrel.wire.v1 import ResourceRequest, WhyView
from figure import Figure, median
from support.lab_process import start_lab
from support.package_index import make_wheel

NOISE = 8
_TRAIN = """\
import array, glob, importlib.util, json, os, pathlib, random, sys
import model, numlib

arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
settings = json.loads(pathlib.Path("settings.json").read_text())
rate = float(arguments["--rate"])
samples = [float(line) for path in sorted(glob.glob("data/*")) for line in open(path)]
samples += [float(line) for line in open("labels.csv")]
random.seed(int(arguments["--seed"]))
random.shuffle(samples)
words = sorted({"a", "b", "c", "d"}, key=hash)
total = 0.0
for step, sample in enumerate(samples):
    total = model.update(total, sample * rate * float(numlib.version), step)
if importlib.util.find_spec("plugin"):
    total += 1
# Sums in as many parts as there are threads.
threads = int(os.environ["OMP_NUM_THREADS"])
parts = [sum(x * 0.1 for x in samples[part::threads]) for part in range(threads)]
total += sum(parts)
if os.environ.get("PRECISION") == "32":
    total = array.array("f", [total])[0]
total += settings["offset"] + len(os.environ.get("FLAVOUR", "")) + len(os.environ.get("CUDA_VISIBLE_DEVICES", "")) * 1e-3
total += len(os.sched_getaffinity(0)) * 0 + int(os.environ.get("CARREL_SEED", "-1")) * 1e-6
if os.access("tool.sh", os.X_OK):
    total += 10
pathlib.Path("outputs/result").write_text(f"{total!r} {words}")
"""
_FILES = {
    "train.py": _TRAIN,
    "other.py": "import model\n\nmodel.DECAY = 1\nimport train\n",
    "model.py": "DECAY = 0.9\n\n\ndef update(total, sample, step):\n    return DECAY * total + sample\n",
    "settings.json": '{"offset": 0, "unused": 1}\n',
    "tool.sh": "#!/bin/sh\n",
    "notes.md": "notes\n",
    "helper.py": "# a helper that nothing imports\nVALUE = 1\n",
}


@dataclass
class Run:
    """One of the two jobs of a case."""

    files: dict[str, str] = field(default_factory=lambda: dict(_FILES))
    packages: dict[str, str] = field(default_factory=lambda: {"numlib": "1.0"} | {f"noise{n}": "1.0" for n in range(NOISE)})
    data: dict[str, str] = field(default_factory=lambda: {f"{n}.csv": f"{n}\n{n}.5\n" for n in range(6)})
    labels: str = "0.25\n0.75\n"
    command: str = "python train.py --rate {rate} --seed {seed} --epochs {epochs}"
    parameters: dict[str, str] = field(default_factory=lambda: {"rate": "0.1", "seed": "1", "epochs": "3"})
    variables: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    resources: dict[str, Any] = field(default_factory=lambda: {"cpus": 1, "memory": "256M"})
    executable: tuple[str, ...] = ()


def _set(name: str, **values: Any) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        there = getattr(run, name)
        if isinstance(there, dict):
            there.update({key: value for key, value in values.items() if value is not None})
            for key in [key for key, value in values.items() if value is None]:
                there.pop(key)
        else:
            setattr(run, name, values["value"])

    return change


def _file(name: str, old: str, new: str) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        assert old in run.files[name]
        run.files[name] = run.files[name].replace(old, new)

    return change


def _all(*changes: Callable[[Run], None]) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        for one in changes:
            one(run)

    return change


@dataclass(frozen=True)
class Case:
    change: Callable[[Run], None]
    #: What `found` of the answer has to be.
    cause: tuple[str, ...]
    answer: str = "explained"


_DATA = ("input:data/3.csv",)
_LINE = _file("model.py", "DECAY = 0.9", "DECAY = 0.8")
CASES: Mapping[str, Case] = {
    "a package": Case(_set("packages", numlib="2.0"), ("package:numlib",)),
    "a package more": Case(_set("packages", plugin="1.0"), ("package:plugin",)),
    "a line of the program": Case(_file("train.py", "x * 0.1", "x * 0.2"), ("code:train.py#",)),
    "a line of a module": Case(_LINE, ("code:model.py#",)),
    "a value of a settings file": Case(_file("settings.json", '"offset": 0', '"offset": 5'), ("code:settings.json",)),
    "a module that shadows a package": Case(_set("files", **{"numlib.py": "version = 3\n"}), ("code:numlib.py",)),
    "a right of a file": Case(_set("executable", value=("tool.sh",)), ("code:tool.sh",)),
    "another program": Case(_set("command", value="python other.py --rate {rate} --seed {seed} --epochs {epochs}"), ("command",)),
    "a parameter": Case(_set("parameters", rate="0.2"), ("parameter:rate",)),
    "a seed": Case(_set("parameters", seed="2"), ("parameter:seed",)),
    "a file of a directory": Case(_set("data", **{"3.csv": "3\n3.25\n"}), _DATA),
    "a file that is missing": Case(_set("data", **{"3.csv": None}), _DATA),
    "an input": Case(_set("labels", value="0.25\n0.8\n"), ("input:labels.csv",)),
    "a variable": Case(_set("variables", FLAVOUR="x"), ("variable:FLAVOUR",)),
    "precision": Case(_set("variables", PRECISION="32"), ("variable:PRECISION",)),
    "threads": Case(_set("variables", OMP_NUM_THREADS="3"), ("setting:OMP_NUM_THREADS",)),
    "a hash seed": Case(_set("variables", PYTHONHASHSEED="7"), ("setting:PYTHONHASHSEED",)),
    "a deterministic seed": Case(_set("options", deterministic=True, deterministic_seed=5), ("setting:deterministic",)),
    "GPUs": Case(_set("resources", gpus=2), ("resource:gpus",)),
    "CPUs": Case(_set("resources", cpus=2), ("setting:OMP_NUM_THREADS",)),
    "a package and a parameter": Case(
        _all(_set("packages", numlib="2.0"), _set("parameters", rate="0.2")), ("package:numlib", "parameter:rate")
    ),
    "a line, a file and a variable": Case(
        _all(_LINE, _set("data", **{"3.csv": "3\n3.25\n"}), _set("variables", FLAVOUR="x")),
        ("code:model.py#", "input:data/3.csv", "variable:FLAVOUR"),
    ),
    "a failure": Case(_file("model.py", "return DECAY", "return 1 / 0 * DECAY"), ("code:model.py#",)),
    "chance": Case(_file("train.py", "random.seed(int(arguments[\"--seed\"]))", "random.seed()"), (), "not deterministic"),
    "the clock": Case(_file("train.py", "total = 0.0", "import time; total = time.time()"), (), "not deterministic"),
    "a number of the job": Case(
        _file("train.py", "total = 0.0", "total = float(os.environ['CARREL_JOB_ID'])"), (), "not deterministic"
    ),
    "a hash seed that is another each time": Case(_set("variables", PYTHONHASHSEED="random"), (), "not deterministic"),
    "a file that no record knows": Case(lambda _run: None, (), "not repeated"),
}  # fmt: skip


def _irrelevant(run: Run) -> None:
    """Twelve changes that change nothing, and two files that follow from those."""
    for number in range(NOISE):
        run.packages[f"noise{number}"] = "2.0"
    run.files["notes.md"] = "other notes\n"
    run.files["helper.py"] = run.files["helper.py"].replace("VALUE = 1", "VALUE = 2")
    run.parameters["epochs"] = "5"
    run.variables["UNUSED"] = "1"


def measure(scratch: Path) -> Iterator[Figure]:
    """All figures."""
    wheels = scratch / "wheels"
    wheels.mkdir()
    for name in ("numlib", "plugin", *(f"noise{number}" for number in range(NOISE))):
        for version in ("1.0", "2.0"):
            make_wheel(wheels, name, version)
    home = scratch / "home"
    home.mkdir(mode=0o700)
    lab = start_lab(home, simulate_gpus=4)
    named, runs, halving, one_by_one = [], [], [], []
    try:
        with Client(home=home) as client:
            for name, case in CASES.items():
                found = _play(client, scratch, name, case, wheels)
                right = found.answer == case.answer and _is(found.found, case.cause)
                named.append(right)
                count = len({run.job for run in found.variants if run.job is not None})
                told = " ".join(found.told) or "?"
                print(f"{'ok  ' if right else 'MISS'} {name}: {count} runs: {told}", file=sys.stderr, flush=True)
                if case.answer == "explained" and len(case.cause) == 1:
                    runs.append(float(count))
                    # Twice as it was and all of it are the same for all ways.
                    halving.append(3.0 + math.ceil(math.log2(len(found.candidates))))
                    one_by_one.append(3.0 + (1 + len(found.candidates)) / 2)
    finally:
        lab.stop()
    causes = [right for right, case in zip(named, CASES.values(), strict=True) if case.answer == "explained"]
    yield Figure(name=f"causes named, of {len(causes)}", value=sum(causes), unit="", at_least=18)
    others = len(named) - len(causes)
    yield Figure(
        name=f"no cause claimed where there is none, of {others}", value=sum(named) - sum(causes), unit="", at_least=others
    )
    yield median("runs for one cause", runs, "")
    yield median("runs by halving, by hand", halving, "")
    yield median("runs by one change after another, by hand", one_by_one, "")


def _play(client: Client, scratch: Path, name: str, case: Case, wheels: Path) -> WhyView:
    place = scratch / name.replace(" ", "-")
    outside = place / "outside"
    first, second = Run(), Run()
    _irrelevant(second)
    case.change(second)
    if case.answer == "not repeated":
        for run in (first, second):
            run.files["train.py"] = _TRAIN.replace("total = 0.0", f"total = float(open({str(outside)!r}).read())")
    numbers = []
    for at, run in enumerate((first, second)):
        _write(place / str(at), run, wheels)
        outside.write_text(str(at))
        job = client.submit_project(
            place / str(at) / "code",
            parameters=run.parameters,
            variables=run.variables,
            resources=ResourceRequest(**run.resources),
            **run.options,
        )
        client.wait(job.id)
        numbers.append(job.id)
    found = client.why(*numbers)
    while not found.answer:
        found = client.why(*numbers, submit=True)
        for one in found.variants:
            if one.job is not None:
                client.wait(one.job)
        found = client.why(*numbers)
    return found


def _write(place: Path, run: Run, wheels: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    code, data = place / "code", place / "data"
    data.mkdir(parents=True)
    code.mkdir()
    for path, text in run.files.items():
        (code / path).write_text(text)
        (code / path).chmod(0o755 if path in run.executable else 0o644)
    for path, text in run.data.items():
        (data / path).write_text(text)
    (place / "labels.csv").write_text(run.labels)
    requirements = [
        "--no-index",
        f"--find-links {wheels}",
        *(f"{name}=={version}" for name, version in sorted(run.packages.items())),
    ]
    (code / "requirements.txt").write_text("\n".join(requirements) + "\n")
    project = [
        "name: planted",
        "python_env: python_env.yaml",
        f"entry_points: {{main: {{parameters: {{rate: float, seed: int, epochs: int}}, command: '{run.command}'}}}}",
        f"carrel: {{inputs: {{data: 'file:{data}', labels.csv: 'file:{place}/labels.csv'}}}}",
    ]
    (code / "MLproject").write_text("\n".join(project) + "\n")
    (code / "python_env.yaml").write_text("dependencies: ['-r requirements.txt']\n")


def _is(found: list[str], cause: tuple[str, ...]) -> bool:
    """Exactly these, each in one part at most."""
    return len(found) == len(cause) and all(any(key.startswith(one) for key in found) for one in cause)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="carrel-bench-") as directory:
        for figure in measure(Path(directory)):
            print(figure.row(), flush=True)
