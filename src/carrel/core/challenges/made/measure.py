"""The measure of this challenge: what a prediction is, and how good it is."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn import metrics

TASK = json.loads((Path(__file__).parent / "task.json").read_text())
ANSWER, CLASSES = TASK["answer"], TASK["classes"]
#: What a submission predicts for each row: a probability for each class, or one value.
COLUMNS = CLASSES if TASK["probabilities"] else ["prediction"]


def read(file):
    """Return a table; answers that are classes are text, whatever they look like."""
    return pd.read_csv(file, converters={ANSWER: str} if CLASSES else None)


def problem_of(predicted):
    """Return what is wrong with a table of predictions, or None."""
    if CLASSES and not TASK["probabilities"]:
        return None if set(predicted["prediction"].astype(str)) <= set(CLASSES) else f"a prediction is none of {CLASSES}"
    values = predicted[COLUMNS].to_numpy(dtype=float)
    if not np.isfinite(values).all():
        return "a prediction is no finite number"
    if not CLASSES:
        return None
    if (values < 0).any() or (values > 1).any() or (abs(values.sum(axis=1) - 1) > 1e-3).any():
        return "the probabilities of a row are from 0 to 1, and their sum is 1"
    return None


def score(truth, predicted):
    """Return how good the predictions are by the measure of the challenge."""
    if not CLASSES:
        said = predicted["prediction"].to_numpy(dtype=float)
        kinds = {
            "rmse": metrics.root_mean_squared_error,
            "mae": metrics.mean_absolute_error,
            "r2": metrics.r2_score,
        }
        return float(kinds[TASK["metric"]](truth, said))
    if not TASK["probabilities"]:
        said = predicted["prediction"].astype(str)
        if TASK["metric"] == "accuracy":
            return float(metrics.accuracy_score(truth, said))
        if TASK["metric"] == "balanced_accuracy":
            return float(metrics.balanced_accuracy_score(truth, said))
        return float(metrics.f1_score(truth, said, labels=CLASSES, average="macro", zero_division=0))
    values = predicted[COLUMNS].to_numpy(dtype=float)
    values = values / values.sum(axis=1, keepdims=True)
    if TASK["metric"] == "log_loss":
        return float(metrics.log_loss(truth, values, labels=CLASSES))
    if len(CLASSES) == 2:
        return float(metrics.roc_auc_score(truth == CLASSES[1], values[:, 1]))
    return float(metrics.roc_auc_score(truth, values, multi_class="ovr", labels=CLASSES))
