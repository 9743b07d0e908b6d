"""Compares the predictions of a submission with the answers, and writes outputs/scores.json.

The predictions are what came out of a participant's code. Exit code 3 says that they are at fault.
"""

import json
import os
import sys
from pathlib import Path

import measure
import pandas as pd

PREDICTIONS = Path("predictions/predictions.csv")
#: Bytes that it may have.
MOST = 500_000_000
#: The exit code that says: the participant did this.
PARTICIPANT = 3


def read_predictions(rows):
    """Return the predictions in the order of `rows`. Raises `ValueError` for what is wrong with them."""
    if PREDICTIONS.is_symlink() or not PREDICTIONS.is_file() or PREDICTIONS.stat().st_size > MOST:
        raise ValueError("there is no such file, or it is too large")
    found = pd.read_csv(PREDICTIONS, converters={"prediction": str} if measure.COLUMNS == ["prediction"] else None)
    if list(found.columns) != ["row", *measure.COLUMNS]:
        raise ValueError(f"its columns are not row, {', '.join(measure.COLUMNS)}")
    if sorted(found["row"]) != sorted(rows):
        raise ValueError("it has other rows than the test data")
    found = found.set_index("row").loc[rows]
    if problem := measure.problem_of(found):
        raise ValueError(problem)
    return found


def main():
    truth = measure.read(Path(os.environ["CARREL_REFERENCE"]) / "answers.csv").set_index("row")[measure.ANSWER]
    try:
        predicted = read_predictions(list(truth.index))
    except (ValueError, TypeError, OSError) as error:
        print(f"{PREDICTIONS}: {error}", file=sys.stderr)
        sys.exit(PARTICIPANT)
    Path("outputs").mkdir(exist_ok=True)
    scores = {measure.TASK["metric"]: measure.score(truth, predicted)}
    Path("outputs/scores.json").write_text(json.dumps(scores) + "\n")
    print(json.dumps(scores))


if __name__ == "__main__":
    main()
