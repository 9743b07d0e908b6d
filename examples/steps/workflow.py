"""Two steps in MLflow's own way: each is a run of its own below this one, and hands its result on as an artifact."""

import argparse

import mlflow

parser = argparse.ArgumentParser()
parser.add_argument("--components", type=int, default=16)
parser.add_argument("--regularization", type=float, default=1.0)
options = parser.parse_args()

with mlflow.start_run():
    features = mlflow.run(".", "features", parameters={"components": options.components}, env_manager="local")
    print(f"features: run {features.run_id}", flush=True)
    training = mlflow.run(
        ".",
        "train",
        parameters={"features": f"runs:/{features.run_id}/features.npz", "regularization": options.regularization},
        env_manager="local",
    )
    print(f"train: run {training.run_id}", flush=True)
    accuracy = mlflow.get_run(training.run_id).data.metrics["accuracy"]
    mlflow.log_metric("accuracy", accuracy)
    print(f"accuracy {accuracy:.4f}", flush=True)
