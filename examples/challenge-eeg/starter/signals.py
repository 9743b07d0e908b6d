"""What the notebook needs beside its own cells: recordings, plots, scores on them, and the submission."""

import csv
import inspect
import io
import json
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import metrics
import numpy as np
from matplotlib.figure import Figure

#: The names of a signal's rows.
CHANNELS = ("F3", "F4", "C3", "C4", "P3", "P4", "O1", "O2")
#: (start, end, confidence) of an event: seconds, seconds, 0 to 1.
Prediction = tuple[float, float, float]
Predict = Callable[[np.ndarray, int], list[Prediction]]


@dataclass(frozen=True)
class Recording:
    """A signal of one patient, with its labels."""

    name: str
    patient: str
    #: Samples a second.
    rate: int
    #: In µV, channels × samples.
    signal: np.ndarray
    events: tuple[metrics.Event, ...]

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.signal.shape[1] / self.rate


def read_recordings(directory: str | Path) -> list[Recording]:
    """Return the recordings of the training data."""
    directory = Path(directory)
    if not (directory / "recordings.csv").exists():
        raise FileNotFoundError(
            f"{directory.absolute()} has no recordings.csv. Link the training data: ln -s PATH_OF_THE_TRAINING_DATA {directory}"
        )
    events: defaultdict[str, list[metrics.Event]] = defaultdict(list)
    with (directory / "events.csv").open(newline="") as stream:
        for row in csv.DictReader(stream):
            events[row["recording"]].append(metrics.Event(float(row["start"]), float(row["end"])))
    with (directory / "recordings.csv").open(newline="") as stream:
        return [
            Recording(
                name=row["recording"],
                patient=row["patient"],
                rate=int(row["rate"]),
                signal=np.load(directory / "signals" / f"{row['recording']}.npy", allow_pickle=False).astype(np.float32),
                events=tuple(events[row["recording"]]),
            )
            for row in csv.DictReader(stream)
        ]


def split_by_patient(recordings: Sequence[Recording], held_out: int) -> tuple[list[Recording], list[Recording]]:
    """Return recordings to learn from, and those of the last patients: as in the challenge, no patient is in both."""
    last = sorted({recording.patient for recording in recordings})[-held_out:]
    return [one for one in recordings if one.patient not in last], [one for one in recordings if one.patient in last]


def label_windows(recording: Recording, windows: int, step: float, window: float) -> np.ndarray:
    """Return for each window whether its middle is in a seizure: one of `window` seconds begins each `step` seconds."""
    middles = np.arange(windows) * step + window / 2
    return np.any([(event.start <= middles) & (middles < event.end) for event in recording.events] or [middles < 0], axis=0)


def score(recordings: Sequence[Recording], predict: Predict) -> dict[str, float]:
    """Return the scores of a `predict` as the challenge computes them, and refuse the same results."""
    predicted: dict[str, list[metrics.Event]] = {}
    for recording in recordings:
        events = predict(recording.signal, recording.rate)
        if problem := metrics.problem_of(events, recording.duration):
            raise ValueError(f"recording {recording.name}: {problem}")
        predicted[recording.name] = [metrics.Event(start, end) for start, end, _ in events]
    durations = {recording.name: recording.duration for recording in recordings}
    return metrics.scores(durations, {recording.name: recording.events for recording in recordings}, predicted)


def plot_recording(
    recording: Recording, predicted: Sequence[Prediction] = (), begin: float = 0, end: float | None = None, spacing: float = 120
) -> Figure:
    """Draw the channels of a recording, `spacing` µV apart, from `begin` to `end` (s): labels in red, predictions in blue."""
    figure, axes = plt.subplots(figsize=(12, 5), layout="constrained")
    times = np.arange(recording.signal.shape[1]) / recording.rate
    for number, channel in enumerate(recording.signal):
        axes.plot(times, channel - number * spacing, color="black", linewidth=0.4)
    for number, event in enumerate(recording.events):
        axes.axvspan(event.start, event.end, color="tab:red", alpha=0.25, label="" if number else "labelled seizure")
    for number, (start, stop, _) in enumerate(predicted):
        axes.axvspan(start, stop, ymax=0.04, color="tab:blue", label="" if number else "predicted seizure")
    axes.set(title=recording.name, xlabel="time (s)", xlim=(begin, end or recording.duration))
    axes.set_yticks([-number * spacing for number in range(len(CHANNELS))], CHANNELS)
    if recording.events or predicted:
        figure.legend(loc="outside upper right", ncols=2)
    return figure


def plot_results(recordings: Sequence[Recording], predict: Predict) -> Figure:
    """Draw a line for each recording: labels in red above, predictions in blue below, the paler the less confident."""
    figure, axes = plt.subplots(figsize=(12, 0.3 * len(recordings) + 1), layout="constrained")
    for number, recording in enumerate(recordings):
        axes.broken_barh([(0, recording.duration)], (number - 0.4, 0.8), color="whitesmoke")
        axes.broken_barh([(event.start, event.duration) for event in recording.events], (number - 0.4, 0.4), color="tab:red")
        for start, end, confidence in predict(recording.signal, recording.rate):
            axes.broken_barh([(start, end - start)], (number, 0.4), color="tab:blue", alpha=0.3 + 0.7 * confidence)
    axes.set(xlabel="time (s)", title="labelled seizures (red, above) and predicted ones (blue, below)")
    axes.set_yticks(range(len(recordings)), [recording.name for recording in recordings])
    axes.invert_yaxis()
    return figure


MODEL = '''"""Made by starter.ipynb."""

from pathlib import Path

import numpy as np


{functions}


PARAMETERS = {{}}


def load(directory):
    """Read what training has found."""
    with np.load(Path(directory) / "parameters.npz") as found:
        PARAMETERS.update(found)


def predict(signal, rate):
    """Return the seizures of one recording: (start_s, end_s, confidence) of each."""
    return {postprocess}({probability}({preprocess}(signal, rate), PARAMETERS))
'''


def pack(
    directory: str | Path,
    preprocess: Callable[..., np.ndarray],
    probability: Callable[..., np.ndarray],
    postprocess: Callable[..., list[Prediction]],
    parameters: dict[str, np.ndarray],
) -> Path:
    """Write a submission: the three functions of the notebook as model.py, and the parameters as arrays.

    The functions may use numpy as `np`, their arguments, and nothing else of the notebook.
    """
    directory = Path(directory)
    directory.mkdir(exist_ok=True)
    sources = [textwrap.dedent(inspect.getsource(function)).rstrip() for function in (preprocess, probability, postprocess)]
    names = {"preprocess": preprocess.__name__, "probability": probability.__name__, "postprocess": postprocess.__name__}
    (directory / "model.py").write_text(MODEL.format(functions="\n\n\n".join(sources), **names))
    np.savez(directory / "parameters.npz", **parameters)
    return directory


#: Runs in a process of its own, where nothing of the notebook is.
RUN = """
import io, json, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import model
model.load(sys.argv[1])
signal = np.load(io.BytesIO(sys.stdin.buffer.read()))
print(json.dumps([[float(value) for value in event] for event in model.predict(signal, int(sys.argv[2]))]))
"""


def check_submission(directory: str | Path, recording: Recording, expected: Sequence[Prediction]) -> None:
    """Run a submission on a recording in another process, and compare what it finds with what the notebook found."""
    words = [sys.executable, "-B", "-c", RUN, str(Path(directory).absolute()), str(recording.rate)]
    signal = io.BytesIO()
    np.save(signal, recording.signal)
    done = subprocess.run(words, input=signal.getvalue(), capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{directory}/model.py does not work outside of this notebook:\n{done.stderr.decode()}")
    found = json.loads(done.stdout)
    if not np.allclose(np.array(found).reshape(-1, 3), np.array(expected).reshape(-1, 3)):
        raise RuntimeError(f"{directory}/model.py finds {found} in {recording.name}, and the notebook {list(expected)}.")
