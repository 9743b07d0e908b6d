"""Trains a small network on the handwritten digits that come with scikit-learn, and says after each epoch how well it does."""

import argparse
import json
import os
from pathlib import Path

import joblib
import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--learning-rate", type=float, default=0.01)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

images, labels = load_digits(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split(
    images / 16, labels, test_size=0.25, random_state=options.seed, stratify=labels
)
model = MLPClassifier(hidden_layer_sizes=(64,), learning_rate_init=options.learning_rate, random_state=options.seed)
history = []
for epoch in range(1, options.epochs + 1):
    model.partial_fit(train_x, train_y, classes=np.unique(labels))
    loss = float(log_loss(test_y, model.predict_proba(test_x)))
    accuracy = float(model.score(test_x, test_y))
    history.append({"epoch": epoch, "loss": loss, "accuracy": accuracy})
    print(f"epoch {epoch}/{options.epochs}  loss {loss:.4f}  accuracy {accuracy:.4f}", flush=True)

outputs = Path("outputs")
(outputs / "model").mkdir(parents=True, exist_ok=True)
joblib.dump(model, outputs / "model" / "model.joblib")
(outputs / "metrics.json").write_text(json.dumps({"parameters": vars(options), "history": history}, indent=2) + "\n")

if "MLFLOW_RUN_ID" in os.environ:  # run by Carrel or by `mlflow run`: the run exists, and is found by itself
    import mlflow

    for row in history:
        mlflow.log_metrics({"loss": row["loss"], "accuracy": row["accuracy"]}, step=row["epoch"])
