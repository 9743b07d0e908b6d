"""Optuna's samplers and pruners for sweeps. The only room that imports Optuna, and not before there is a sweep."""

from carrel.lab.studies.optuna_study import OptunaStudy
