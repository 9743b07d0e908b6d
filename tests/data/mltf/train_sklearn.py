"""The training script is not in the text; this one uses what the project pins, as its text says scripts are written."""

import mlflow
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

mlflow.autolog()
features, labels = load_iris(return_X_y=True)
with mlflow.start_run():
    model = LogisticRegression(max_iter=500).fit(features, labels)
    print(f"accuracy {model.score(features, labels):.3f} with mlflow {mlflow.__version__}")
