"""Jobs for simulations: measured from a trace, and generated like it."""

from generator.fit import FittedJobs, fit_jobs
from generator.fitted_philly import FITTED
from generator.jobs import generate_jobs

__all__ = ["FITTED", "FittedJobs", "fit_jobs", "generate_jobs"]
