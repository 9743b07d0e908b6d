"""Jobs for simulations: measured from a trace, and generated like it."""

from carrel.simulate.generator.fit import FittedJobs, fit_jobs
from carrel.simulate.generator.fitted_philly import FITTED
from carrel.simulate.generator.jobs import generate_jobs

__all__ = ["FITTED", "FittedJobs", "fit_jobs", "generate_jobs"]
