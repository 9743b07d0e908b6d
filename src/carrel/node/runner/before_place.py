"""What is done for a job before it has a place (attempt 0): nothing is started."""

from __future__ import annotations

from dataclasses import replace

from carrel.core.domain.job import JobState, Reason
from carrel.node.runner.endings import Ending
from carrel.node.runner.prepare import Preparation
from carrel.node.staging.failed import NotKept


def make_ready(preparation: Preparation, *, fetched_by: float) -> Ending:
    """Build the environment and fetch inputs, as the launch says. `fetched_by`: monotonic seconds. Raises as `Preparation.run`.

    The environment comes first: it takes minutes, and where it fails nothing need be fetched.
    """
    message = "What it needs before it is placed is here."
    if preparation.launch.build:
        preparation.build()
    try:
        if preparation.launch.stage_in:
            replace(preparation, deadline=fetched_by).stage_in()
    except NotKept as error:
        message = f"Its inputs are fetched when it has its place: {error.message}"
    return Ending(state=JobState.COMPLETED, reason=Reason(code="Completed", message=message))
