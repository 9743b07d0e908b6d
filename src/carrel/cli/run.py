"""`carrel run` and `carrel submit`, also of arrays and of projects with steps."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from carrel.cli import words
from carrel.cli.endings import INTERRUPTED, OK
from carrel.cli.follow import task_exit_code
from carrel.cli.options import AsJson, Home, flag, open_client, option, simulated_jobs
from carrel.cli.promote import as_project, as_sent
from carrel.cli.screen import STATE_STYLES, clean, paint, print_json
from carrel.cli.task_options import takes_a_task
from carrel.cli.words import resources
from carrel.core.domain.errors import CarrelError, Invalid
from carrel.core.domain.units import format_count

if TYPE_CHECKING:
    from carrel.client import Client
    from carrel.client.travelling import Travelling
    from carrel.wire.v1 import JobView


@takes_a_task
def run_command(
    *,
    task: Mapping[str, Any],
    detach: Annotated[bool, flag("--detach -d", "Do not wait for the end; as `carrel submit`.")] = False,
    from_step: Annotated[
        str | None, option("--from", "STEP", "Of a project's steps, run this one and those after it again.")
    ] = None,
    no_cache: Annotated[bool, flag("--no-cache", "Take nothing from an earlier job.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Run a task, show its log, end with its exit code.

    Ctrl-C asks the lab to cancel the job; a second Ctrl-C leaves it. What is not said here comes from the task's own file.
    """
    with open_client(home) as client:
        cache = False if no_cache else task.get("cache")
        if from_step is not None or is_pipeline(task):
            return run_pipeline(client, task, from_step=from_step, cache=cache, follow=not detach, as_json=as_json)
        job, sent = _submit(client, {**task, "cache": cache}, as_json=as_json)
        if detach:
            return _say_submitted(client, job, sent, as_json=as_json)
        if job.array_job_id is not None:
            if not as_json:
                _say_code(sent)
            return follow_array(client, job.array_job_id, as_json=as_json)
        return _follow(client, job, sent, as_json=as_json)


@takes_a_task
def submit_command(
    *,
    task: Mapping[str, Any],
    dry_run: Annotated[bool, flag("--dry-run -n", "Say when it would start, and submit nothing.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Submit a task and return at once.

    What is not said here comes from the task's own file, then from its class of service.
    """
    with open_client(home) as client:
        if dry_run:
            return _preview(client, task, as_json=as_json)
        if is_pipeline(task):
            return run_pipeline(client, task, from_step=None, cache=task.get("cache"), follow=False, as_json=as_json)
        job, sent = _submit(client, task, as_json=as_json)
        return _say_submitted(client, job, sent, as_json=as_json)


def _preview(client: Client, task: Mapping[str, Any], *, as_json: bool) -> int:
    """Say where the task would stand in line, and what would make it start sooner."""
    if is_pipeline(task):
        raise Invalid("Steps start after each other, so when is not foreseen.", remedy="Name one of the entry points: -e NAME.")
    with as_project(task) as (project, _):
        found = client.preview_project(**project, packed=lambda travelling: None if as_json else _warn(travelling.warnings()))
    if as_json:
        return print_json(found)
    _warn(found.notes)
    asks = words.asked_for(found.resources)
    if found.queue is None:
        print(f"It would start now ({asks}).")
        return OK
    why = words.queue(found.queue.position, found.message, found.queue.estimated_start, words.now())
    print(f"It would wait ({asks}): {clean(why)}")
    for one in found.queue.alternatives:
        print(f"  {words.alternative(one, words.now())}")
    return OK


def _submit(client: Client, task: Mapping[str, Any], *, as_json: bool) -> tuple[JobView, Travelling]:
    """Submit; what stays behind although the code names it is said before. Returns the job, and the code that was sent."""
    sent: list[Travelling] = []

    def packed(travelling: Travelling) -> None:
        sent.append(travelling)
        if not as_json:
            _warn(travelling.warnings())

    with as_project(task) as (project, notebook):
        if notebook is not None and not as_json:
            _warn(notebook.notes)
        job = client.submit_project(**project, packed=packed)
    if not as_json:
        _warn(job.notes)
    return job, as_sent(sent[0], Path(task["target"]), notebook) if notebook is not None else sent[0]


def _warn(sentences: Iterable[str]) -> None:
    for line in sentences:
        print(f"{paint('warning:', 'yellow', sys.stderr)} {clean(line)}", file=sys.stderr, flush=True)


def _say_code(sent: Travelling) -> None:
    for line in sent.said():
        print(paint(f"  code     {clean(line)}", "dim", sys.stderr), file=sys.stderr, flush=True)


def _follow(client: Client, job: JobView, sent: Travelling, *, as_json: bool) -> int:
    from carrel.cli.follow import Follower, task_exit_code

    if as_json:
        print_json({"type": "submitted", "job": job.model_dump(mode="json"), "code": sent.as_json()})
    follower = Follower(client, job.id, as_json=as_json, cancels=True)
    if not as_json:
        follower.say_start(job, simulated=job.id in simulated_jobs(client, [job]))
        _say_code(sent)
    ended = follower.follow()
    if ended is None:
        return INTERRUPTED
    if as_json:
        print_json({"type": "ended", "job": ended.model_dump(mode="json")})
    else:
        follower.say_end(ended)
        if ended.state == "FAILED":
            follower.say_hint(sent.missed(follower.last_output))
    return task_exit_code(ended)


def _say_submitted(client: Client, job: JobView, sent: Travelling, *, as_json: bool) -> int:
    if as_json:
        return print_json(job)
    _say_code(sent)
    simulated = job.id in simulated_jobs(client, [job])
    if job.array_job_id is not None:
        each = resources(job, simulated=simulated)
        print(f"Submitted array {paint(str(job.id), 'bold')}: {job.name}, {job.array} (each {each})")
        print(paint(f"  how far it is: carrel show {job.id}", "dim"))
        return OK
    print(f"Submitted job {paint(str(job.id), 'bold')}: {job.name} ({resources(job, simulated=simulated)})")
    print(paint(f"  follow it: carrel logs -f {job.id}", "dim"))
    return OK


def follow_array(client: Client, array_id: int, *, as_json: bool) -> int:
    """Tell how each job ended, by index, and return the exit code of the first that did not end well.

    The first Ctrl-C asks for the end of all; a second one leaves them.
    """
    view = client.array(array_id)
    if as_json:
        print_json({"type": "submitted", "array": view.model_dump(mode="json")})
    else:
        number, count = paint(str(array_id), "bold", sys.stderr), format_count(len(view.jobs), "job")
        _say(f"Array {number}: {view.jobs[0].name}, {count} ({view.array})")
    try:
        return _tell(client, array_id, as_json=as_json)
    except KeyboardInterrupt:
        _say(f"Cancelling array {array_id}; Ctrl-C again leaves it alone.")
    try:
        client.cancel_array(array_id)
        return _tell(client, array_id, as_json=as_json)
    except CarrelError as error:
        _say(f"It cannot be cancelled: {error}")
    except KeyboardInterrupt:
        _say(f"Left array {array_id}. See how it goes: carrel show {array_id}")
    return INTERRUPTED


def _tell(client: Client, array_id: int, *, as_json: bool) -> int:
    code = OK
    for job in client.wait_array(array_id):
        code = code or task_exit_code(job)
        if as_json:
            print_json({"type": "ended", "job": job.model_dump(mode="json")})
        else:
            _say(_ending(job))
    return code


def _ending(job: JobView) -> str:
    took = words.spent(job, words.now())
    detail = "" if job.state == "COMPLETED" else f": {clean(job.message)}"
    state = paint(job.state, STATE_STYLES.get(job.state, ""), sys.stderr)
    return f"Job {words.number(job)} {state}{f' after {took}' if took else ''}{detail}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def is_pipeline(task: Mapping[str, Any]) -> bool:
    """True when all steps of a project are meant: it declares some, and no entry point or script is named."""
    from carrel.client.pipelines import steps_of

    return task.get("entry_point", "main") == "main" and bool(steps_of(task["target"]))


def run_pipeline(
    client: Client, task: Mapping[str, Any], *, from_step: str | None, cache: bool | None, follow: bool, as_json: bool
) -> int:
    """Submit the steps, say which of them come from the cache, and with `follow` show the logs of the others."""
    if task.get("arguments") or task.get("array") or task.get("dependency"):
        raise Invalid(
            "A project of steps takes no arguments, no array and no dependency.",
            remedy="Name an entry point with -e, or leave them out.",
        )
    left_out = ("arguments", "strict", "entry_point", "array", "dependency", "cache")
    said = {name: value for name, value in task.items() if name not in left_out}
    told: list[Travelling] = []

    def packed(travelling: Travelling) -> None:  # of all steps the same
        if not as_json and not told:
            _warn(travelling.warnings())
        told.append(travelling)

    found = client.submit_pipeline(from_step=from_step, cache=cache, packed=packed, **said)
    if as_json and not follow:
        print_json({"steps": {name: job.model_dump(mode="json") for name, job in found.items()}})
    if not as_json:
        width = max(len(name) for name in found)
        for name, job in found.items():
            print(f"{name:<{width}}  job {paint(str(job.id), 'bold')}{'  from the cache' if job.cached else ''}")
            _warn(() if job.cached and from_step is None else job.notes)
        if from_step is not None:
            _warn(_run_too(task["target"], found, from_step))
    return _follow_steps(client, found, as_json=as_json) if follow else OK


def _run_too(target: Any, found: Mapping[str, JobView], from_step: str) -> Iterable[str]:
    """What there is to say of steps that are not after `from_step`, and are run again all the same."""
    from carrel.client.pipelines import steps_of
    from carrel.core.tasks.steps import later_steps

    asked = later_steps(steps_of(target), from_step)
    if names := [name for name, job in found.items() if not job.cached and name not in asked]:
        yield f"Run as well: {', '.join(names)}. No earlier job did the same, with this code or other."


def _follow_steps(client: Client, steps: Mapping[str, JobView], *, as_json: bool) -> int:
    """Follow one step after the other; the first that does not end well decides the exit code. Ctrl-C is for all of them."""
    from carrel.cli.follow import Follower

    for name, job in steps.items():
        if as_json:
            print_json({"type": "submitted", "step": name, "job": job.model_dump(mode="json")})
        if job.cached:
            continue
        follower = Follower(client, job.id, as_json=as_json, cancels=True)
        if not as_json:
            follower.say_start(job, simulated=job.id in simulated_jobs(client, [job]))
        ended = follower.follow()
        if ended is None:
            return INTERRUPTED
        if as_json:
            print_json({"type": "ended", "step": name, "job": ended.model_dump(mode="json")})
        else:
            follower.say_end(ended)
        if code := task_exit_code(ended):
            _end_pipeline(client, steps, name, cancel=follower.interrupted, as_json=as_json)
            return code
    return OK


def _end_pipeline(client: Client, steps: Mapping[str, JobView], failed: str, *, cancel: bool, as_json: bool) -> None:
    """Say what becomes of the other steps, now that one has failed; with `cancel` they end, too."""
    from carrel.core.domain.dependency import read_dependency
    from carrel.core.domain.job import ENDED

    lost = {steps[failed].id}
    for job in steps.values():
        if job.dependency and lost.intersection(one.job_id for one in read_dependency(job.dependency)):
            lost.add(job.id)
    never = [name for name, job in steps.items() if job.id in lost and name != failed]
    left = {name: job for name, job in steps.items() if job.id not in lost and not job.cached}
    left = {name: job for name, job in left.items() if client.job(job.id).state not in ENDED}
    for job in left.values() if cancel else ():
        if as_json:
            print_json({"type": "cancelling", "job_id": job.id})
        client.cancel(job.id)
    if as_json:
        return
    if never:
        _say(f"Not run without {failed}: {', '.join(never)}.")
    if left:
        said = ", ".join(f"{name} (job {job.id})" for name, job in left.items())
        _say(f"Cancelled, too: {said}." if cancel else f"Going on: {said}.")
    _say("What has ended well is taken from the cache when you run it again.")
