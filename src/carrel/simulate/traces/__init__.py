"""Readers of recorded workloads, one module for each format. They are strict: what cannot be read is an error with its line."""

from carrel.simulate.traces.muri import read_muri
from carrel.simulate.traces.reading import FORMS, read_trace

__all__ = ["FORMS", "read_muri", "read_trace"]
