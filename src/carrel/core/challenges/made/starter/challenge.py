"""What the notebook needs: the data, plots, and a submission run as the challenge runs it."""

import importlib
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import measure
import numpy as np
import pandas as pd
from sklearn.model_selection import GroupShuffleSplit, ShuffleSplit

ANSWER, GROUP = measure.ANSWER, measure.TASK["group"]
#: Cells write into it.
Path("submission").mkdir(exist_ok=True)


def read():
    """Return the training data in two parts: rows to learn from, and others to measure with."""
    table = measure.read("data/train.csv").drop(columns="row")
    groups = table[GROUP] if GROUP else None
    split = (GroupShuffleSplit if GROUP else ShuffleSplit)(n_splits=1, test_size=0.25, random_state=0)
    learning, held_out = next(split.split(table, groups=groups))
    return table.iloc[learning], table.iloc[held_out]


def features_of(table):
    """Return what a submission gets to see of rows."""
    return table.drop(columns=[ANSWER, *([GROUP] if GROUP else [])])


def plot_data(table, most=6):
    """Draw the first columns of numbers against the answer."""
    names = list(features_of(table).select_dtypes("number"))[:most]
    if not names:
        return table[ANSWER].value_counts().plot.barh().figure
    figure, axes = plt.subplots(1, len(names), figsize=(3 * len(names), 3), squeeze=False, layout="constrained")
    for axis, name in zip(axes[0], names, strict=True):
        if measure.CLASSES:
            for value in measure.CLASSES[:8]:
                axis.hist(table[name][table[ANSWER] == value], bins=20, alpha=0.5, label=str(value))
        else:
            axis.plot(table[name], table[ANSWER], ".", markersize=3)
        axis.set_xlabel(name)
    if measure.CLASSES:
        axes[0][0].legend(title=ANSWER)
    return figure


def run(directory, learning, rows):
    """Have the code in a directory learn from some rows and predict others, as the challenge does."""
    directory = str(Path(directory).absolute())
    for name, module in [*sys.modules.items()]:
        if (getattr(module, "__file__", None) or "").startswith(directory):
            del sys.modules[name]  # a cell has written it anew
    sys.path.insert(0, directory)
    try:
        importlib.invalidate_caches()
        model = importlib.import_module("model")
        found = np.asarray(model.predict(model.fit(features_of(learning), learning[ANSWER]), features_of(rows)))
    finally:
        sys.path.remove(directory)
    predicted = pd.DataFrame(found.reshape(len(rows), -1), columns=measure.COLUMNS, index=rows.index)
    if problem := measure.problem_of(predicted):
        raise ValueError(problem)
    return predicted


def plot_result(rows, predicted):
    """Draw predictions against the answers."""
    figure, axis = plt.subplots(figsize=(4.5, 4), layout="constrained")
    if not measure.CLASSES:
        axis.plot(rows[ANSWER], predicted["prediction"].astype(float), ".")
        axis.axline((rows[ANSWER].mean(),) * 2, slope=1, color="gray")
        axis.set(xlabel=ANSWER, ylabel="predicted")
        return figure
    said = predicted.idxmax(axis=1) if measure.TASK["probabilities"] else predicted["prediction"].astype(str)
    counts = pd.crosstab(rows[ANSWER], said).reindex(index=measure.CLASSES, columns=measure.CLASSES, fill_value=0)
    axis.imshow(counts, cmap="Blues")
    for (row, column), count in np.ndenumerate(counts.to_numpy()):
        axis.text(column, row, count, ha="center", va="center")
    axis.set_xticks(range(len(measure.CLASSES)), measure.CLASSES, rotation=45)
    axis.set_yticks(range(len(measure.CLASSES)), measure.CLASSES)
    axis.set(xlabel="predicted", ylabel=ANSWER)
    return figure


def send(name, what, directory="submission"):
    """Try the submission on training data, or submit it. In a session of the lab `import carrel` works everywhere."""
    if not what:
        print(f'To send it: SEND = "submit" above, or\n\n    carrel challenge submit {name} {directory}')
        return
    import carrel

    with carrel.Client() as lab:
        if what == "submit":
            sent = lab.submit_to_challenge(name, Path(directory)).submission
            print(f"Submission {sent.id} was sent. The challenge's page says how it is doing.")
            return
        tried = lab.try_challenge(name, Path(directory))
        for job in (tried.ingestion, tried.scoring):
            state = lab.wait(job).state
            print(b"".join(lab.log(job)).decode(), f"Job {job}: {state}", sep="\n")
