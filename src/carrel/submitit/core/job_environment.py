"""submitit's `core.job_environment`."""

from carrel.client.submitit.job_environment import JobEnvironment

__all__ = ["JobEnvironment"]
