"""Pipelines: the steps that a project declares, each submitted as a job."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carrel.core.domain.errors import CarrelError, Invalid, Unavailable
from carrel.core.domain.suggest import suggest
from carrel.wire import v1

if TYPE_CHECKING:
    from carrel.core.tasks.steps import Step


def steps_of(target: str | Path) -> Mapping[str, Step]:
    """Return the steps that the project in a directory declares, each after those that it needs; none for anything else."""
    from carrel.core.tasks.files import DirectoryFiles
    from carrel.core.tasks.mlproject import read_project

    directory = Path(target)
    project = read_project(DirectoryFiles.open(directory)) if directory.is_dir() else None
    return {} if project is None else project.steps


class PipelineCalls:
    """The part of a `carrel.Client` that is about pipelines."""

    submit_project: Callable[..., v1.JobView]
    cancel: Callable[[int], v1.JobView]

    def submit_pipeline(
        self,
        target: str | Path,
        *,
        from_step: str | None = None,
        cache: bool | None = None,
        parameters: Mapping[str, str] | None = None,
        **task: Any,
    ) -> dict[str, v1.JobView]:
        """Submit the steps of the project in a directory; return their jobs by name, in an order in which they can run.

        A step whose result is there from an earlier job is not run again (`JobView.cached`), unless `cache` is False. With
        `from_step` that step and those after it are run again, and the others are taken from earlier jobs also where the code
        was another then. A value in `parameters` is for every step that takes it. `task` is
        as for `submit_project`. If this is interrupted, the steps that were submitted run; the next time, what ended well is
        taken from the cache. If the lab refuses a step, those that were submitted before it are cancelled.
        """
        from carrel.core.tasks.steps import later_steps

        steps = steps_of(target)
        if not steps:
            raise Invalid(f"The project {target} declares no steps.", remedy="Write them in its section carrel, under steps.")
        if from_step is not None and from_step not in steps:
            raise Invalid(f'There is no step "{from_step}".', remedy=suggest(from_step, steps, what="Steps"))
        taken = {key for step in steps.values() for key in step.takes}
        if unknown := [key for key in parameters or {} if key not in taken]:
            raise Invalid(
                f'No step takes a parameter "{unknown[0]}".', remedy=suggest(unknown[0], sorted(taken), what="Parameters")
            )
        again = later_steps(steps, from_step) if from_step is not None else frozenset()
        pipeline, found = secrets.token_hex(16), dict[str, v1.JobView]()
        for name, step in steps.items():
            try:
                jobs = {other: job.id for other, job in found.items()}
                found[name] = self.submit_project(
                    target,
                    step=v1.StepRequest(name=name, pipeline=pipeline, jobs=jobs, any_code=from_step is not None),
                    parameters=parameters,
                    cache=cache is not False and name not in again,
                    dependency=f"afterok:{':'.join(str(found[other].id) for other in step.after)}" if step.after else None,
                    **task,
                )
            except CarrelError as error:
                error.message = f"Step {name}: {error.message}"
                # Where the lab is away, or takes no more now, the next time goes on from those that were submitted.
                for job in () if isinstance(error, Unavailable) else found.values():
                    if not job.cached:
                        with suppress(CarrelError):  # it has ended
                            self.cancel(job.id)
                raise
        return found
