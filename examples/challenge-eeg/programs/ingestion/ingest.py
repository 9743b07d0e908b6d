"""Runs a submission on the test signals, one recording at a time, and writes what it finds to outputs/events.csv.

The participant's code is `submission/model.py`, with `predict(signal, rate)` and, if it needs one, `load(directory)`. What that
code prints is dropped, and of its errors only type and place are told, so that no test signal gets into the log. But it runs in
this process, so this is no wall. The labels are safe because this job does not have them, and the scoring program believes
nothing that comes from here.
"""

import builtins
import csv
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from numbers import Real
from pathlib import Path
from typing import NoReturn

import numpy as np

SUBMISSION = Path("submission").absolute()
OUTPUTS = Path("outputs").absolute()
#: Events of one recording. There are never more than a few seizures in five minutes.
MOST_EVENTS = 500
#: The exit code that says: the participant did this.
PARTICIPANT = 3

Prediction = tuple[float, float, float]


class WrongResult(Exception):
    """The submission returned what is no list of events."""


def refuse(message: str) -> NoReturn:
    print(message, file=sys.stderr, flush=True)
    # Nothing that the submission has registered for the end runs any more, and no thread of it is waited for.
    os._exit(PARTICIPANT)


def place_of(error: BaseException, files: set[str]) -> str:
    """Return file and line of the submission where an error arose."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno or 1))
    for file, line in reversed(places):
        if file in files:
            return f"submission/{Path(file).relative_to(SUBMISSION)}:{line}"
    return "submission/model.py"


def type_of(value: object) -> str:
    """Return the name of a value's type or base that is Python's or numpy's: those of the submission could say anything."""
    known = {**vars(np), **vars(builtins)}
    return next(kind.__name__ for kind in type(value).__mro__ if known.get(kind.__name__) is kind)


@contextmanager
def silenced() -> Iterator[None]:
    """Drop what is printed meanwhile, by Python or by a library below it."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)
        for descriptor in (*kept, nowhere):
            os.close(descriptor)


@contextmanager
def participants_code(files: set[str], doing: str) -> Iterator[None]:
    """Run code of the submission: silent, and each of its errors ends this program with one line."""
    try:
        with silenced():
            yield
    except WrongResult as error:
        refuse(f"{doing}: {error}. It returns a list of (start_s, end_s, confidence).")
    except BaseException as error:  # noqa: BLE001 - also SystemExit: a submission does not end this program
        refuse(f"{doing}: {type_of(error)} at {place_of(error, files)}")


def read_events(result: object) -> list[Prediction]:
    """Return the events of a result of `predict`, which may be anything."""
    if not isinstance(result, Iterable) or isinstance(result, (str, bytes, dict)):
        raise WrongResult(f"predict returned {_kind(result)}")
    events: list[Prediction] = []
    for number, event in enumerate(islice(result, MOST_EVENTS + 1)):
        if number == MOST_EVENTS:
            raise WrongResult(f"predict returned more than {MOST_EVENTS} events for one recording")
        if not isinstance(event, (tuple, list, np.ndarray)) or len(event) != 3:
            raise WrongResult(f"event {number} of the result is {_kind(event)}")
        for value in event:
            if not isinstance(value, Real):
                raise WrongResult(f"event {number} of the result has {_kind(value)} where a number belongs")
        events.append((float(event[0]), float(event[1]), float(event[2])))
    return events


def _kind(value: object) -> str:
    """Return a few words on a value that say nothing of its content."""
    if value is None:
        return "None"
    length = f" of length {len(value)}" if isinstance(value, (tuple, list, str)) else ""
    return f"a value of type {type_of(value)}{length}"


def load_model(files: set[str]) -> Callable[[np.ndarray, int], object]:
    """Return the submission's `predict`, with its parameters loaded."""
    file = SUBMISSION / "model.py"
    if str(file) not in files:
        refuse("submission/model.py is missing. It is the file with predict(signal, rate); put it at the top of the submission.")
    with participants_code(files, "importing the submission"):
        sys.path.insert(0, str(SUBMISSION))
        spec = importlib.util.spec_from_file_location("model", file)
        assert spec is not None
        assert spec.loader is not None
        model = importlib.util.module_from_spec(spec)
        sys.modules["model"] = model
        spec.loader.exec_module(model)
    predict = getattr(model, "predict", None)
    if not callable(predict):
        refuse("submission/model.py has no function predict(signal, rate). Define it there.")
    load = getattr(model, "load", None)
    if load is not None:
        with participants_code(files, "load"):
            load(SUBMISSION)
    return predict


def write_events(rows: list[tuple[str, Prediction]]) -> None:
    """Write the predictions into a new file, whatever the submission has put in its place."""
    extra = sorted(entry.name for entry in OUTPUTS.iterdir()) if OUTPUTS.is_dir() and not OUTPUTS.is_symlink() else ["outputs"]
    if extra:
        refuse(
            f"The submission wrote into outputs/ ({len(extra)} entries). Only this program writes there: keep values in memory."
        )
    with (OUTPUTS / "events.csv").open("x", newline="") as stream:
        table = csv.writer(stream, lineterminator="\n")
        table.writerow(["recording", "start", "end", "confidence"])
        table.writerows([name, *event] for name, event in rows)


def main() -> None:
    inputs = Path(os.environ["CARREL_INPUT"])
    with (inputs / "recordings.csv").open(newline="") as stream:
        recordings = [(row["recording"], int(row["rate"])) for row in csv.DictReader(stream)]
    OUTPUTS.mkdir(exist_ok=True)
    files = {str(path) for path in SUBMISSION.rglob("*.py") if path.is_file()}
    predict = load_model(files)
    rows: list[tuple[str, Prediction]] = []
    for name, rate in recordings:
        signal = np.load(inputs / "signals" / f"{name}.npy", allow_pickle=False).astype(np.float32)
        with participants_code(files, f"predict for recording {name}"):
            events = read_events(predict(signal, rate))
        rows += [(name, event) for event in events]
    write_events(rows)
    print(f"{len(recordings)} recordings, {len(rows)} events", flush=True)
    # Threads and exit handlers of the submission do not run on after the predictions are written.
    os._exit(0)


if __name__ == "__main__":
    main()
