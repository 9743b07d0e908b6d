"""`carrel run` and `carrel submit` of a project that declares steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from carrel.cli.endings import INTERRUPTED, OK
from carrel.cli.options import simulated_jobs
from carrel.core.domain.errors import Invalid

if TYPE_CHECKING:
    from carrel.client import Client
    from carrel.wire.v1 import JobView


def is_pipeline(task: Mapping[str, Any]) -> bool:
    """True when all steps of a project are meant: it declares some, and no entry point or script is named."""
    from carrel.client.pipelines import steps_of

    return task.get("entry_point", "main") == "main" and bool(steps_of(task["target"]))


def run_pipeline(
    client: Client, task: Mapping[str, Any], *, from_step: str | None, cache: bool | None, follow: bool, as_json: bool
) -> int:
    """Submit the steps, say which of them come from the cache, and with `follow` show the logs of the others."""
    from carrel.cli.screen import paint, print_json

    if task.get("arguments") or task.get("array") or task.get("dependency"):
        raise Invalid(
            "A project of steps takes no arguments, no array and no dependency.",
            remedy="Name an entry point with -e, or leave them out.",
        )
    left_out = ("arguments", "strict", "entry_point", "array", "dependency", "cache")
    said = {name: value for name, value in task.items() if name not in left_out}
    found = client.submit_pipeline(from_step=from_step, cache=cache, **said)
    if as_json and not follow:
        print_json({"steps": {name: job.model_dump(mode="json") for name, job in found.items()}})
    if not as_json:
        width = max(len(name) for name in found)
        for name, job in found.items():
            print(f"{name:<{width}}  job {paint(str(job.id), 'bold')}{'  from the cache' if job.cached else ''}")
    return _follow_all(client, [job for job in found.values() if not job.cached], as_json=as_json) if follow else OK


def _follow_all(client: Client, jobs: list[JobView], *, as_json: bool) -> int:
    """Follow one job after the other; the first that does not end well decides the exit code."""
    from carrel.cli.follow import Follower, task_exit_code
    from carrel.cli.screen import print_json

    for job in jobs:
        if as_json:
            print_json({"type": "submitted", "job": job.model_dump(mode="json")})
        follower = Follower(client, job.id, as_json=as_json, cancels=True)
        if not as_json:
            follower.say_start(job, simulated=job.id in simulated_jobs(client, [job]))
        ended = follower.follow()
        if ended is None:
            return INTERRUPTED
        if as_json:
            print_json({"type": "ended", "job": ended.model_dump(mode="json")})
        else:
            follower.say_end(ended)
        if code := task_exit_code(ended):
            return code
    return OK
