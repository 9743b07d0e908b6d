"""Tests of what `benchmarks/` holds of the field (baselines, generated jobs, other groups' traces) import it from there."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
