"""What is in examples/challenge-eeg: data, measures, the notebook, and two programs with good and hostile submissions."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import nbclient
import nbformat
import pytest
import yaml

from carrel.core.tasks import describe

pytestmark = pytest.mark.quick

EXAMPLE = Path(__file__).parents[2] / "examples" / "challenge-eeg"
#: Exit code: what the participant did.
PARTICIPANT = 3
HEADER = "recording,start,end,confidence\n"
#: Seconds of each recording of small references, so that one false alarm is 86.4 a day.
DURATION = 1000

Times = list[tuple[float, float]]


def run_program(place: Path, **variables: object) -> subprocess.CompletedProcess[str]:
    """Run the program of a directory as its job does."""
    (script,) = [file for file in place.glob("*.py") if file.name != "metrics.py"]
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    return subprocess.run(
        [sys.executable, script.name], cwd=place, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def write_rows(file: Path, rows: Iterable[Iterable[object]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows(rows)


@dataclass
class Scoring:
    """The scoring program in a directory of its own, with a small reference beside it."""

    place: Path

    @property
    def predictions(self) -> Path:
        return self.place / "program" / "predictions" / "events.csv"

    def label(self, **recordings: Times) -> None:
        reference = self.place / "reference"
        rows = [(name, DURATION, name[0]) for name in recordings]
        write_rows(reference / "recordings.csv", [("recording", "duration", "patient"), *rows])
        labels = [(name, *times) for name, events in recordings.items() for times in events]
        write_rows(reference / "events.csv", [("recording", "start", "end"), *labels])

    def predict(self, **recordings: Times) -> None:
        rows = [(name, *times, 0.5) for name, events in recordings.items() for times in events]
        write_rows(self.predictions, [HEADER.strip().split(","), *rows])

    def run(self, reference: Path | None = None) -> subprocess.CompletedProcess[str]:
        return run_program(self.place / "program", CARREL_REFERENCE=reference or self.place / "reference")

    def scores(self, reference: Path | None = None) -> dict[str, float]:
        done = self.run(reference)
        assert (done.returncode, done.stderr) == (0, "")
        found: dict[str, float] = json.loads((self.place / "program" / "outputs" / "scores.json").read_text())
        return found


@pytest.fixture
def scoring(tmp_path: Path) -> Scoring:
    shutil.copytree(EXAMPLE / "programs" / "scoring", tmp_path / "scoring" / "program")
    made = Scoring(tmp_path / "scoring")
    made.predictions.parent.mkdir()
    return made


@dataclass
class Ingestion:
    """The ingestion program in a directory of its own, with a submission and test signals."""

    place: Path
    inputs: Path

    @property
    def events(self) -> Path:
        return self.place / "outputs" / "events.csv"

    def submit(self, code: str) -> None:
        (self.place / "submission").mkdir()
        (self.place / "submission" / "model.py").write_text(code)

    def run(self) -> subprocess.CompletedProcess[str]:
        return run_program(self.place, CARREL_INPUT=self.inputs)


@pytest.fixture
def ingestion(tmp_path: Path, small_inputs: Path) -> Ingestion:
    place = Path(shutil.copytree(EXAMPLE / "programs" / "ingestion", tmp_path / "ingestion"))
    return Ingestion(place, small_inputs)


@pytest.fixture(scope="module")
def small_inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two test recordings of four seconds, of zeros and of ones."""
    numpy = pytest.importorskip("numpy")
    place = tmp_path_factory.mktemp("inputs")
    write_rows(place / "recordings.csv", [("recording", "duration", "rate"), ("zeros", 4, 64), ("ones", 4, 64)])
    (place / "signals").mkdir()
    for name in ("zeros", "ones"):
        numpy.save(place / "signals" / f"{name}.npy", getattr(numpy, name)((8, 256), dtype="float16"))
    return place


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"), seed=1)


def make_data(directory: Path, seed: int) -> Path:
    words = [sys.executable, EXAMPLE / "make_data.py", "--seed", str(seed), "--directory", directory]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return directory


def test_what_the_challenge_names_is_there() -> None:
    challenge = yaml.safe_load((EXAMPLE / "challenge.yaml").read_text())
    files = [*challenge["pages"].values(), challenge["rules"], challenge["starter"], *challenge["baselines"].values()]
    assert [name for name in files if not (EXAMPLE / name).exists()] == []
    for program, kept in (
        ("ingestion", ("outputs/events.csv",)),
        ("scoring", ("outputs/scores.json", "outputs/replicates.json")),
    ):
        task = describe(EXAMPLE / challenge[program])
        assert (task.options.network, task.outputs) == ("off", kept)
    assert {phase["split"] for phase in challenge["phases"]} == {"public", "private"}


def test_the_notebook_measures_as_the_challenge_does() -> None:
    assert (EXAMPLE / "starter" / "metrics.py").read_bytes() == (EXAMPLE / "programs" / "scoring" / "metrics.py").read_bytes()


@pytest.mark.parametrize(
    ("labelled", "predicted", "hits", "misses", "false_alarms", "sensitivity", "alarms"),
    [
        pytest.param([(100, 120)], [(100, 120)], 1, 0, 0, 1, 0, id="exact"),
        pytest.param([(100, 120)], [], 0, 1, 0, 0, 0, id="nothing"),
        pytest.param([(100, 120)], [(105, 125)], 0.75, 0.25, 0.25, 1, 0, id="too late"),
        pytest.param([(100, 120)], [(90, 110)], 0.5, 0.5, 0.5, 1, 0, id="too early"),
        pytest.param([(100, 120)], [(105, 110)], 0.25, 0.75, 0, 1, 0, id="inside"),
        pytest.param([(100, 120)], [(50, 500)], 1, 0, 1, 1, 0, id="all around counts at most 1"),
        pytest.param([(100, 110)], [(100, 104), (106, 110)], 0.8, 0.2, 0, 1, 0, id="two parts"),
        pytest.param([(10, 20), (30, 40), (50, 60), (70, 80)], [(12, 80)], 0.8, 3.2, 1, 1, 0, id="one over four hits the first"),
        pytest.param([(10, 20), (30, 40)], [(15, 32), (32, 40)], 1.3, 0.7, 1, 1, 0, id="the second has one of its own"),
        pytest.param([(100, 120)], [(100, 120), (500, 501)], 1, 0, 1, 1, 1, id="a false alarm"),
        pytest.param([(100, 120)], [(120, 140)], 0, 1, 1, 0, 1, id="to touch is not to overlap"),
    ],
)
def test_events_are_counted_as_defined(
    scoring: Scoring,
    labelled: Times,
    predicted: Times,
    hits: float,
    misses: float,
    false_alarms: float,
    sensitivity: float,
    alarms: int,
) -> None:
    scoring.label(one=labelled)
    scoring.predict(one=predicted)
    taes = 2 * hits / (2 * hits + misses + false_alarms)
    expected = {"taes": taes, "sensitivity": sensitivity, "false_alarms_per_24h": alarms * 86400 / DURATION}
    assert scoring.scores() == pytest.approx(expected)


def test_counts_are_added_up_over_recordings(scoring: Scoring) -> None:
    scoring.label(one=[(100, 120), (200, 220), (300, 320)], two=[(0, 10)], without=[])
    scoring.predict(one=[(100, 120), (200, 220)], without=[(50, 60)])
    expected = {"taes": 2 * 2 / (2 * 2 + 2 + 1), "sensitivity": 0.5, "false_alarms_per_24h": 86400 / (3 * DURATION)}
    assert scoring.scores() == pytest.approx(expected)


def test_resamples_draw_patients_and_the_same_ones_for_each_submission(scoring: Scoring) -> None:
    """Patient x is found whole, patient y not at all: a resample's sensitivity is the part of its draws that are x."""
    scoring.label(x1=[(0, 10)], x2=[(0, 10)], y1=[(0, 10)], y2=[(0, 10)])
    found = []
    for predicted in ({"x1": [(0.0, 10.0)], "x2": [(0.0, 10.0)]}, {"y1": [(0.0, 10.0)], "y2": [(0.0, 10.0)]}):
        scoring.predict(**predicted)
        scoring.scores()
        found.append(json.loads((scoring.place / "program" / "outputs" / "replicates.json").read_text())["sensitivity"])
    assert set(found[0]) == {0.0, 0.5, 1.0}  # never 0.25: recordings of a patient stay together
    assert len(found[0]) == 1000
    assert all(x + y == 1 for x, y in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "its first line is not recording,start,end,confidence"),
        (b"recording,start,end\n", "its first line is not"),
        (b"\xff\xfe", "it is no table (UnicodeDecodeError)"),
        (HEADER + "one,1,2\n", "line 2 has 3 columns"),
        (HEADER + '"one,1,2,0.5\n', "it is no table (Error)"),
        (HEADER + "two,1,2,0.5\n", "line 2 names the recording 'two', which is none of the test recordings"),
        (HEADER + "../one,1,2,0.5\n", "which is none of the test recordings"),
        (HEADER + "one,1,2,0.5\none,soon,2,0.5\n", "line 3 has 'soon,2,0.5' where three numbers belong"),
        (HEADER + "one,nan,2,0.5\n", "the event (nan, 2.0, 0.5) has a value that is no finite number"),
        (HEADER + "one,1,inf,0.5\n", "no finite number"),
        (HEADER + "one,1,2,nan\n", "no finite number"),
        (HEADER + "one,-1,2,0.5\n", "does not lie in the recording: needs 0 <= start < end <= 1000.0"),
        (HEADER + "one,2,1,0.5\n", "does not lie in the recording"),
        (HEADER + "one,2,2,0.5\n", "does not lie in the recording"),
        (HEADER + "one,990,1001,0.5\n", "does not lie in the recording"),
        (HEADER + "one,1,2,1.5\n", "has the confidence 1.5: needs a number from 0 to 1"),
        (HEADER + "one,5,9,0.5\none,1,6,0.5\n", "begins before 6.0, where the one before it ends: merge events that overlap"),
        pytest.param(HEADER + "one,1,2,0\n" * 10_001, "it has 10001 events, and may have 10000", id="many rows"),
        pytest.param(HEADER + "one,1,2,0\n" * 10**6, "bytes, and may have 1000000", id="a million rows"),
        pytest.param(HEADER + "x" * 200_000 + "\n", "it is no table (Error)", id="a long line"),
    ],
)
def test_predictions_that_cannot_be_are_the_participants_fault(scoring: Scoring, content: bytes | str, said: str) -> None:
    scoring.label(one=[(100, 120)])
    scoring.predictions.write_bytes(content if isinstance(content, bytes) else content.encode())
    done = scoring.run()
    assert (done.returncode, done.stderr.count("\n")) == (PARTICIPANT, 1)
    assert done.stderr.startswith("predictions/events.csv: ")
    assert said in done.stderr
    assert len(done.stderr) < 300
    assert not (scoring.place / "program" / "outputs").exists()


def test_predictions_that_lead_elsewhere_are_not_read(scoring: Scoring) -> None:
    scoring.label(one=[(100, 120)])
    scoring.predictions.symlink_to(scoring.place / "reference" / "events.csv")
    done = scoring.run()
    assert (done.returncode, "the submission ended the program" in done.stderr) == (PARTICIPANT, True)


def test_labels_that_cannot_be_are_the_organisers_fault(scoring: Scoring) -> None:
    scoring.label(one=[])
    scoring.predict(one=[(1, 2)])
    done = scoring.run()
    assert (done.returncode, "has no labels" in done.stderr) == (1, True)


@pytest.mark.slow
def test_a_submission_gets_one_recording_at_a_time_and_its_own_files(ingestion: Ingestion) -> None:
    ingestion.submit(
        "import shape\n"
        "import numpy as np\n"
        "def load(directory):\n"
        "    global number\n"
        "    number = float((directory / 'number.txt').read_text())\n"
        "def predict(signal, rate):\n"
        "    assert (str(signal.dtype), *signal.shape, rate) == ('float32', *shape.EXPECTED, 64)\n"
        "    return np.array([[number, 2, signal.mean()]])\n"
    )
    (ingestion.place / "submission" / "shape.py").write_text("EXPECTED = (8, 256)\n")
    (ingestion.place / "submission" / "number.txt").write_text("1.25")
    done = ingestion.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 recordings, 2 events\n", "")
    assert ingestion.events.read_text() == HEADER + "zeros,1.25,2.0,0.0\nones,1.25,2.0,1.0\n"


PREDICT = "def predict(signal, rate):\n    "
WRONG = "It returns a list of (start_s, end_s, confidence).\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("", "submission/model.py has no function predict(signal, rate). Define it there.\n"),
        ("predict = 1", "submission/model.py has no function predict(signal, rate). Define it there.\n"),
        ("def predict(:", "importing the submission: SyntaxError at submission/model.py:1\n"),
        ("import missing_package", "importing the submission: ModuleNotFoundError at submission/model.py:1\n"),
        (
            "def load(directory):\n    open(directory / 'no.npz')\n" + PREDICT + "return []",
            "load: FileNotFoundError at submission/model.py:2\n",
        ),
        (PREDICT + "return signal[9]", "predict for recording zeros: IndexError at submission/model.py:2\n"),
        (PREDICT + "raise SystemExit(0)", "predict for recording zeros: SystemExit at submission/model.py:2\n"),
        (
            "def predict(signal, rate):\n    class Told(ValueError): pass\n    raise Told(signal)",
            "predict for recording zeros: ValueError at submission/model.py:3\n",
        ),
        (
            "import itertools\n" + PREDICT + "return ((i, i + 1, 0.5) for i in itertools.count())",
            "predict for recording zeros: predict returned more than 500 events for one recording. " + WRONG,
        ),
        (PREDICT + "return {'start': 1}", "predict for recording zeros: predict returned a value of type dict. " + WRONG),
        (PREDICT + "return None", "predict for recording zeros: predict returned None. " + WRONG),
        (
            PREDICT + "return [(1, 2)]",
            "predict for recording zeros: event 0 of the result is a value of type tuple of length 2. " + WRONG,
        ),
        (
            PREDICT + "return [(1, 2, 0.5), ('a', 2, 0.5)]",
            "predict for recording zeros: event 1 of the result has a value of type str of length 1 where a number belongs. "
            + WRONG,
        ),
        (
            PREDICT + "open('outputs/kept.txt', 'w').write(str(signal)); return []",
            "The submission wrote into outputs/ (1 entries). Only this program writes there: keep values in memory.\n",
        ),
        (
            "import os\n"
            + PREDICT
            + "os.path.lexists('outputs/events.csv') or os.symlink('/etc/hostname', 'outputs/events.csv')\n"
            "    return []",
            "The submission wrote into outputs/ (1 entries). Only this program writes there: keep values in memory.\n",
        ),
        (
            "import shutil, os\nshutil.rmtree('outputs')\nos.symlink('/tmp', 'outputs')\n" + PREDICT + "return []",
            "The submission wrote into outputs/ (1 entries). Only this program writes there: keep values in memory.\n",
        ),
    ],
)
def test_what_a_submission_does_wrong_is_said_in_one_line_without_its_data(ingestion: Ingestion, code: str, said: str) -> None:
    ingestion.submit(code)
    done = ingestion.run()
    assert (done.returncode, done.stdout) == (PARTICIPANT, "")
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1
    assert ingestion.events.is_symlink() or not ingestion.events.exists()


@pytest.mark.slow
def test_a_submission_without_its_file_is_refused(ingestion: Ingestion) -> None:
    done = ingestion.run()
    assert (done.returncode, done.stderr.startswith("submission/model.py is missing.")) == (PARTICIPANT, True)


@pytest.mark.slow
def test_what_a_submission_prints_is_dropped(ingestion: Ingestion) -> None:
    ingestion.submit(
        "import os, sys\n" + PREDICT + "print(signal); os.write(2, signal.tobytes()); sys.stderr.write('x'); return []"
    )
    done = ingestion.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 recordings, 0 events\n", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"),
    [
        (PREDICT + "return [(float('nan'), 2, 0.5)]", "no finite number"),
        (PREDICT + "return [(1, 3, 0.5), (2, 4, 0.5)]", "merge events that overlap"),
        ("import os\n" + PREDICT + "os._exit(0)", "the submission ended the program before its events were written"),
    ],
)
def test_what_gets_through_the_first_program_is_refused_by_the_second(
    ingestion: Ingestion, scoring: Scoring, code: str, said: str
) -> None:
    ingestion.submit(code)
    assert ingestion.run().returncode == 0
    scoring.label(zeros=[(1, 2)], ones=[])
    if ingestion.events.exists():
        shutil.copy(ingestion.events, scoring.predictions)
    done = scoring.run()
    assert (done.returncode, said in done.stderr) == (PARTICIPANT, True)


def digests(directory: Path) -> dict[str, str]:
    return {
        str(file.relative_to(directory)): sha256(file.read_bytes()).hexdigest() for file in directory.rglob("*") if file.is_file()
    }


@pytest.mark.slow
def test_a_seed_gives_the_same_data_each_time_and_training_data_have_none(data: Path, tmp_path: Path) -> None:
    made = digests(data)
    assert digests(make_data(tmp_path / "again", seed=1)) == made
    other = digests(make_data(tmp_path / "other", seed=2))
    assert other.keys() - made.keys() == set()
    for name in made.keys() & other.keys():
        assert (made[name] == other[name]) == name.startswith("train/"), name


@pytest.mark.slow
def test_labels_are_beside_training_signals_alone_and_no_patient_is_in_two_splits(data: Path) -> None:
    assert sum(file.stat().st_size for file in data.rglob("*.npy")) < 40 * 2**20
    assert {str(file.parent.relative_to(data)) for file in data.rglob("events.csv")} == {
        "train",
        "public/reference",
        "private/reference",
    }
    challenge = yaml.safe_load((EXAMPLE / "challenge.yaml").read_text())
    named = [path for split in challenge["data"].values() for path in split.values()]
    assert [path for path in named if not (data.parent / path.replace("data", data.name, 1) / "recordings.csv").exists()] == []
    patients = []
    for split in ("train", "public/reference", "private/reference"):
        with (data / split / "recordings.csv").open(newline="") as stream:
            patients.append({row["patient"] for row in csv.DictReader(stream)})
    assert [len(found) for found in patients] == [12, 4, 4]
    assert len(set.union(*patients)) == 20


def score_of(submission: Path, data: Path, ingestion: Ingestion, scoring: Scoring) -> float:
    """Return what a submission is worth on the public split."""
    for old in (ingestion.place / "outputs", ingestion.place / "submission"):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(submission, ingestion.place / "submission")
    ingestion.inputs = data / "public" / "input"
    done = ingestion.run()
    assert (done.returncode, done.stderr) == (0, "")
    shutil.copy(ingestion.events, scoring.predictions)
    scores = scoring.scores(data / "public" / "reference")
    columns = [column["column"] for column in yaml.safe_load((EXAMPLE / "challenge.yaml").read_text())["board"]]
    assert sorted(columns) == sorted(scores)
    return scores["taes"]


@pytest.mark.slow
@pytest.mark.gate
def test_the_baselines_get_what_the_pages_say(data: Path, ingestion: Ingestion, scoring: Scoring) -> None:
    assert score_of(EXAMPLE / "baselines" / "zeros", data, ingestion, scoring) == 0
    assert score_of(EXAMPLE / "baselines" / "energy", data, ingestion, scoring) == pytest.approx(0.34, abs=0.01)


@pytest.mark.slow
def test_the_notebook_runs_as_it_is_and_its_submission_beats_the_baselines(
    data: Path, tmp_path: Path, ingestion: Ingestion, scoring: Scoring
) -> None:
    place = Path(shutil.copytree(EXAMPLE / "starter", tmp_path / "starter"))
    (place / "data").symlink_to(data / "train")
    notebook = nbformat.read(place / "starter.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(place)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    said = "".join(output["text"] for output in outputs if output["output_type"] == "stream")
    assert said.endswith("carrel challenge submit eeg submission\n")
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 4
    assert sorted(file.name for file in (place / "submission").iterdir()) == ["model.py", "parameters.npz"]
    assert score_of(place / "submission", data, ingestion, scoring) > 0.5
