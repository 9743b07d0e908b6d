"""Compares the predictions of a submission with the labels, and writes outputs/scores.json and outputs/replicates.json.

The predictions are whatever came out of a participant's code. Exit code 3 says that they are at fault, any other code that the
organiser's data are.
"""

import csv
import json
import os
import sys
from collections import defaultdict
from pathlib import Path

import metrics

PREDICTIONS = Path("predictions/events.csv")
HEADER = ["recording", "start", "end", "confidence"]
#: What the file may have: bytes, rows, and characters of a cell that is shown in an error.
MOST_BYTES = 1_000_000
MOST_ROWS = 10_000
SHOWN = 40
#: Resamples of patients, the same for each submission, by which the lab says how far a score would move with other patients.
RESAMPLES, SEED = 1000, 1
#: The exit code that says: the participant did this.
PARTICIPANT = 3


class WrongPredictions(Exception):
    """The file of predictions is at fault; the message says where."""


def read_predictions(file: Path, durations: dict[str, float]) -> dict[str, list[metrics.Event]]:
    """Return the predicted events of each recording.

    :raises WrongPredictions: if the file is too large, has another form, or has events that cannot be in these recordings.
    """
    found: defaultdict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for line, row in enumerate(_rows(file), start=2):
        if len(row) != len(HEADER):
            raise WrongPredictions(f"line {line} has {len(row)} columns: needs {', '.join(HEADER)}")
        if row[0] not in durations:
            raise WrongPredictions(f"line {line} names the recording {row[0][:SHOWN]!r}, which is none of the test recordings")
        try:
            start, end, confidence = map(float, row[1:])
        except ValueError:
            raise WrongPredictions(f"line {line} has {','.join(row[1:])[:SHOWN]!r} where three numbers belong") from None
        found[row[0]].append((start, end, confidence))
    for name, events in found.items():
        if problem := metrics.problem_of(events, durations[name]):
            raise WrongPredictions(f"recording {name}: {problem}")
    return {name: [metrics.Event(start, end) for start, end, _ in events] for name, events in found.items()}


def _rows(file: Path) -> list[list[str]]:
    """Return the rows below the header."""
    if file.is_symlink() or not file.is_file():
        raise WrongPredictions("there is no such file: the submission ended the program before its events were written")
    if (size := file.stat().st_size) > MOST_BYTES:
        raise WrongPredictions(f"it has {size} bytes, and may have {MOST_BYTES}: predict fewer events")
    try:
        rows = list(csv.reader(file.read_text(encoding="utf-8").splitlines(), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise WrongPredictions(f"it is no table ({type(error).__name__}): needs lines of {','.join(HEADER)}") from None
    if not rows or rows[0] != HEADER:
        raise WrongPredictions(f"its first line is not {','.join(HEADER)}")
    if len(rows) - 1 > MOST_ROWS:
        raise WrongPredictions(f"it has {len(rows) - 1} events, and may have {MOST_ROWS}: predict fewer events")
    return rows[1:]


def read_reference(directory: Path) -> tuple[dict[str, float], dict[str, list[metrics.Event]], dict[str, str]]:
    """Return the duration of each recording in seconds, its labelled events, and its patient."""
    with (directory / "recordings.csv").open(newline="") as stream:
        recordings = list(csv.DictReader(stream))
    durations = {row["recording"]: float(row["duration"]) for row in recordings}
    labelled: defaultdict[str, list[metrics.Event]] = defaultdict(list)
    with (directory / "events.csv").open(newline="") as stream:
        for row in csv.DictReader(stream):
            labelled[row["recording"]].append(metrics.Event(float(row["start"]), float(row["end"])))
    if not labelled or not labelled.keys() <= durations.keys():
        raise SystemExit(
            f"{directory}/events.csv has no labels, or labels of recordings that recordings.csv beside it does not have."
        )
    return durations, dict(labelled), {row["recording"]: row["patient"] for row in recordings}


def main() -> None:
    durations, labelled, patients = read_reference(Path(os.environ["CARREL_REFERENCE"]))
    try:
        predicted = read_predictions(PREDICTIONS, durations)
    except WrongPredictions as error:
        print(f"{PREDICTIONS}: {error}", file=sys.stderr)
        sys.exit(PARTICIPANT)
    result = metrics.scores(durations, labelled, predicted)
    of_patients: defaultdict[str, list[metrics.Recording]] = defaultdict(list)
    for name, patient in patients.items():
        of_patients[patient].append(metrics.count(durations[name], labelled.get(name, ()), predicted.get(name, ())))
    outputs = Path("outputs")
    outputs.mkdir(exist_ok=True)
    (outputs / "scores.json").write_text(json.dumps(result, indent=2) + "\n")
    resampled = metrics.replicates(of_patients, number=RESAMPLES, seed=SEED)
    (outputs / "replicates.json").write_text(json.dumps(resampled) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
