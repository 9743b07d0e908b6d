"""First step: turns the digits into a few features each."""

import argparse
from pathlib import Path

import mlflow
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

parser = argparse.ArgumentParser()
parser.add_argument("--components", type=int, default=16)
options = parser.parse_args()

images, labels = load_digits(return_X_y=True)
reduction = PCA(options.components, random_state=0)
features = reduction.fit_transform(images)
print(f"{options.components} features explain {reduction.explained_variance_ratio_.sum():.1%} of the variance", flush=True)

Path("outputs").mkdir(exist_ok=True)
np.savez("outputs/features.npz", features=features, labels=labels)
mlflow.log_artifact("outputs/features.npz")
