"""A search in MLflow's own way: each step is a run of its own below this one, and hands its result on as an artifact."""

import argparse

import mlflow

parser = argparse.ArgumentParser()
parser.add_argument("--components", type=int, default=16)
parser.add_argument("--trials", type=int, default=3)
options = parser.parse_args()

with mlflow.start_run():
    features = mlflow.run(".", "features", parameters={"components": options.components}, env_manager="local")
    print(f"features: run {features.run_id}", flush=True)
    accuracies = {}
    for trial in range(options.trials):
        regularization = 10.0 ** (trial - 1)
        given = {"features": f"runs:/{features.run_id}/features.npz", "regularization": regularization}
        training = mlflow.run(".", "train", parameters=given, env_manager="local")
        accuracies[regularization] = mlflow.get_run(training.run_id).data.metrics["accuracy"]
        print(f"regularization {regularization}: run {training.run_id}, accuracy {accuracies[regularization]:.4f}", flush=True)
    best = max(accuracies, key=accuracies.get)
    mlflow.log_param("best_regularization", best)
    mlflow.log_metric("accuracy", accuracies[best])
    print(f"best: regularization {best}, accuracy {accuracies[best]:.4f}", flush=True)
