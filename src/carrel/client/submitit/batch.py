"""Jobs that are submitted together: until then they are known by their place alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from carrel.client.submitit.job import Job

R = TypeVar("R")


class DelayedJob(Job[R]):
    """A job of a batch that is not submitted yet. It becomes a `Job` in its place."""

    def __init__(self, submit_now: Callable[[], None] | None) -> None:
        self.__dict__["_submit_now"] = submit_now

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_") or name == "become":
            return super().__getattribute__(name)
        submit = self.__dict__.get("_submit_now")
        if submit is None:
            raise AttributeError(
                f"This job is not submitted yet, so it has no {name}. Ask behind `with executor.batch():`, "
                "or say batch(allow_implicit_submissions=True)."
            )
        submit()
        return getattr(self, name)  # it is a job now

    def become(self, job: Job[Any]) -> None:
        """It is submitted: be that job."""
        self.__dict__.clear()
        self.__class__ = type(job)  # type: ignore[assignment]
        self.__dict__.update(job.__dict__)

    def __repr__(self) -> str:
        return "DelayedJob(not submitted yet)"

    def __del__(self) -> None:
        """There is nothing to cancel."""
