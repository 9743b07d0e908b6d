"""Second step: trains on the features of the first."""

import argparse
import json
from pathlib import Path

import mlflow
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

parser = argparse.ArgumentParser()
parser.add_argument("--features", required=True)
parser.add_argument("--regularization", type=float, default=1.0)
options = parser.parse_args()

data = np.load(options.features)
train_x, test_x, train_y, test_y = train_test_split(
    data["features"] / 16, data["labels"], random_state=0, stratify=data["labels"]
)
model = LogisticRegression(C=1 / options.regularization, max_iter=500).fit(train_x, train_y)
accuracy = float(model.score(test_x, test_y))
print(f"accuracy {accuracy:.4f} on {len(test_y)} digits", flush=True)

mlflow.log_metric("accuracy", accuracy)
Path("outputs").mkdir(exist_ok=True)
Path("outputs/metrics.json").write_text(json.dumps({"accuracy": accuracy}) + "\n")
