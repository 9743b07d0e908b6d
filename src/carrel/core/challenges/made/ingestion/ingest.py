"""Has a submission learn from the training data and predict the test rows, and writes outputs/predictions.csv.

The participant's code runs in this process, so this is no wall. The answers are safe because this job does not have them. Its
last line says what is wrong with the code; what stands before it is seen by organisers, and by who tries it on training data.
"""

import os
import sys
import traceback
from pathlib import Path

import measure
import numpy as np
import pandas as pd

SUBMISSION = Path("submission").absolute()
#: The exit code that says: the participant did this.
PARTICIPANT = 3


def refuse(message):
    print(message, file=sys.stderr, flush=True)
    # Nothing that the submission has registered for the end runs any more.
    os._exit(PARTICIPANT)


def place_of(error):
    """Return file and line of the submission where an error arose."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno or 1))
    for file, line in reversed(places):
        if Path(file).is_relative_to(SUBMISSION):
            return f"submission/{Path(file).relative_to(SUBMISSION)}:{line}"
    return "submission/model.py"


def main():
    inputs = Path(os.environ["CARREL_INPUT"])
    train, rows = measure.read(inputs / "train.csv"), measure.read(inputs / "rows.csv")
    features = [column for column in rows.columns if column != "row"]
    if not (SUBMISSION / "model.py").is_file():
        refuse("submission/model.py is missing. It has fit(rows, answers) and predict(model, rows); put it at the top.")
    sys.path.insert(0, str(SUBMISSION))
    doing = "importing model.py"
    try:
        import model

        doing = "fit"
        fitted = model.fit(train[features], train[measure.ANSWER])
        doing = "predict"
        found = np.asarray(model.predict(fitted, rows[features]))
    except BaseException as error:  # noqa: BLE001 - also SystemExit: a submission does not end this program
        traceback.print_exc()
        refuse(f"{doing}: {type(error).__name__} at {place_of(error)}")
    wanted = (len(rows), len(measure.COLUMNS))
    if found.shape not in (wanted, wanted[:1] if wanted[1] == 1 else wanted):
        refuse(f"predict returned an array of the shape {found.shape}: it has to be {wanted}, a row for each row.")
    predicted = pd.DataFrame(found.reshape(wanted), columns=measure.COLUMNS)
    predicted.insert(0, "row", rows["row"])
    Path("outputs").mkdir(exist_ok=True)
    predicted.to_csv("outputs/predictions.csv", index=False)
    print(f"{len(rows)} rows were predicted", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
