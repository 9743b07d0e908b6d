"""`carrel run` and `carrel submit`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from carrel.cli.endings import INTERRUPTED, OK
from carrel.cli.options import AsJson, Home, open_client, simulated_jobs
from carrel.domain.errors import Invalid

if TYPE_CHECKING:
    from carrel.client import Client
    from carrel.client.travelling import Travelling
    from carrel.wire.v1 import JobView, SlurmRequest

Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="A directory, a .py or .sh script, or a git address.", show_default=False)
]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="-- ARGUMENTS", help="Arguments for a bare script.", show_default=False)
]
Parameters = Annotated[
    list[str] | None, typer.Option("-P", "--param", metavar="NAME=VALUE", help="A parameter of the task; may be repeated.")
]
Strict = Annotated[bool, typer.Option("--strict", help="A parameter that the entry point does not declare is an error.")]
EntryPoint = Annotated[str, typer.Option("-e", "--entry-point", metavar="NAME", help="Which entry point to run.")]
Version = Annotated[str | None, typer.Option(metavar="VERSION", help="Commit, branch or tag of a git address.")]
Nodes = Annotated[int | None, typer.Option(min=1, metavar="N", help="How many nodes, at the same time; the rest is for each.")]
Gpus = Annotated[
    int | None,
    typer.Option("--gpus", "--gpus-per-node", min=0, metavar="N", help="How many GPUs, whole and its own, on each node."),
]
Launcher = Annotated[str | None, typer.Option(metavar="LAUNCHER", help="What starts its processes: torchrun, mpi or none.")]
TasksPerNode = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Processes on each node.  [one; with torchrun one for each GPU]", show_default=False),
]
GpuType = Annotated[str | None, typer.Option(metavar="TYPE", help="Which type of GPU; `carrel nodes` lists them.")]
GpuMemory = Annotated[str | None, typer.Option(metavar="SIZE", help='Memory that each GPU has at least, such as "40G".')]
Cpus = Annotated[int | None, typer.Option(min=1, metavar="N", help="How many processors.")]
Memory = Annotated[str | None, typer.Option(metavar="SIZE", help='How much memory, such as "8G".')]
Time = Annotated[str | None, typer.Option(metavar="DURATION", help='Walltime, such as "2h" or "02:30:00".')]
Qos = Annotated[str | None, typer.Option(metavar="QOS", help="Class of service; `carrel lab` lists them.")]
Partition = Annotated[str | None, typer.Option(metavar="PARTITION", help="Part of the lab; `carrel lab` lists them.")]
Account = Annotated[str | None, typer.Option(metavar="ACCOUNT", help="Account that the use is charged to.")]
Name = Annotated[str | None, typer.Option(metavar="NAME", help="Name of the job.")]
Retries = Annotated[int | None, typer.Option(min=0, metavar="N", help="Further attempts when the task fails.")]
Requeue = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="How often it goes on from its checkpoint when it has reached its walltime."),
]
Warning = Annotated[
    str | None, typer.Option("--warn", metavar="DURATION", help='How long before its walltime it gets SIGTERM, such as "5m".')
]
Network = Annotated[
    str | None,
    typer.Option(metavar="WHICH", help="Less of the network than the lab gives: loopback (the lab alone) or off (nobody)."),
]
Image = Annotated[
    str | None,
    typer.Option(
        "--image",
        "--container",
        metavar="IMAGE",
        help="Run in this image, such as python:3.12-slim, or oci-archive:FILE.",
    ),
]
Dependency = Annotated[
    str | None,
    typer.Option(metavar="CONDITIONS", help="Start after other jobs of the lab, such as afterok:12:13,afterany:14."),
]
Array = Annotated[
    str | None,
    typer.Option("--array", "-a", metavar="INDICES", help="One job for each index: 0-9, 0,3,7-15:2; with %4 four at once."),
]
SlurmOptions = Annotated[
    list[str] | None,
    typer.Option("--slurm-option", metavar="OPTION", help="An option of sbatch, such as --constraint=a100; may be repeated."),
]
Modules = Annotated[
    list[str] | None, typer.Option("--module", metavar="NAME", help="An environment module of the cluster; may be repeated.")
]
NoPreempt = Annotated[bool, typer.Option("--no-preempt", help="It cannot be interrupted: nobody takes its place while it runs.")]
Visible = Annotated[
    str | None,
    typer.Option(metavar="WHO", help="Who may read its log, outputs and record: owner, or account (the members of its account)."),
]
Experiment = Annotated[str | None, typer.Option(metavar="NAME", help="Experiment in the tracking server.")]
Variables = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME[=VALUE]",
        help="A variable for the task, never a secret; without a value, that of here; may be repeated.",
    ),
]
Secrets = Annotated[
    list[str] | None,
    typer.Option("--secret", metavar="NAME", help="A secret of yours for the task (`carrel secret`); may be repeated."),
]
Include = Annotated[
    list[str] | None,
    typer.Option("--with", metavar="PATH", help="A file or directory that travels with the code; may be repeated."),
]
AsOf = Annotated[
    str | None,
    typer.Option(metavar="DATE", help="Resolve requirements as if nothing newer had been published, such as 2023-12-01."),
]
Backend = Annotated[
    str | None, typer.Option("--backend-config", metavar="FILE|JSON", help="MLflow's backend config, with Slurm's names.")
]


def run_command(
    target: Target,
    arguments: Arguments = None,
    parameters: Parameters = None,
    strict: Strict = False,
    entry_point: EntryPoint = "main",
    version: Version = None,
    nodes: Nodes = None,
    gpus: Gpus = None,
    gpu_type: GpuType = None,
    gpu_memory: GpuMemory = None,
    cpus: Cpus = None,
    memory: Memory = None,
    time: Time = None,
    qos: Qos = None,
    partition: Partition = None,
    account: Account = None,
    name: Name = None,
    retries: Retries = None,
    requeue: Requeue = None,
    warning: Warning = None,
    network: Network = None,
    image: Image = None,
    dependency: Dependency = None,
    array: Array = None,
    slurm_options: SlurmOptions = None,
    modules: Modules = None,
    no_preempt: NoPreempt = False,
    visible: Visible = None,
    experiment: Experiment = None,
    variables: Variables = None,
    secrets: Secrets = None,
    include: Include = None,
    resolve_as_of: AsOf = None,
    launcher: Launcher = None,
    tasks_per_node: TasksPerNode = None,
    backend_config: Backend = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not wait for the end; as `carrel submit`.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Run a task, show its log, end with its exit code.

    Ctrl-C asks the lab to cancel the job; a second Ctrl-C leaves it. What is not said here comes from the task's own file.
    """
    given = dict(locals())
    with open_client(home) as client:
        job, sent = _submit(client, given)
        if detach:
            return _say_submitted(client, job, sent, as_json=as_json)
        if job.array_job_id is not None:
            from carrel.cli.arrays import follow_array

            if not as_json:
                _say_code(sent)
            return follow_array(client, job.array_job_id, as_json=as_json)
        return _follow(client, job, sent, as_json=as_json)


def submit_command(
    target: Target,
    arguments: Arguments = None,
    parameters: Parameters = None,
    strict: Strict = False,
    entry_point: EntryPoint = "main",
    version: Version = None,
    nodes: Nodes = None,
    gpus: Gpus = None,
    gpu_type: GpuType = None,
    gpu_memory: GpuMemory = None,
    cpus: Cpus = None,
    memory: Memory = None,
    time: Time = None,
    qos: Qos = None,
    partition: Partition = None,
    account: Account = None,
    name: Name = None,
    retries: Retries = None,
    requeue: Requeue = None,
    warning: Warning = None,
    network: Network = None,
    image: Image = None,
    dependency: Dependency = None,
    array: Array = None,
    slurm_options: SlurmOptions = None,
    modules: Modules = None,
    no_preempt: NoPreempt = False,
    visible: Visible = None,
    experiment: Experiment = None,
    variables: Variables = None,
    secrets: Secrets = None,
    include: Include = None,
    resolve_as_of: AsOf = None,
    launcher: Launcher = None,
    tasks_per_node: TasksPerNode = None,
    backend_config: Backend = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Submit a task and return at once.

    What is not said here comes from the task's own file, then from its class of service.
    """
    given = dict(locals())
    with open_client(home) as client:
        job, sent = _submit(client, given)
        return _say_submitted(client, job, sent, as_json=as_json)


def _submit(client: Client, given: Mapping[str, Any]) -> tuple[JobView, Travelling]:
    """Submit; what stays behind although the code names it is said before. Returns the job, and the code that was sent."""
    from carrel.wire.v1 import ResourceRequest

    sent: list[Travelling] = []

    def packed(travelling: Travelling) -> None:
        sent.append(travelling)
        if not given["as_json"]:
            _warn(travelling.warnings())

    asked = {name: given[name] for name in ("nodes", "cpus", "memory", "gpus", "gpu_type", "gpu_memory", "time")}
    job = client.submit_project(
        given["target"],
        entry_point=given["entry_point"],
        parameters=_pairs(given["parameters"] or (), "-P"),
        arguments=given["arguments"] or (),
        strict=given["strict"],
        version=given["version"],
        name=given["name"],
        qos=given["qos"],
        partition=given["partition"],
        account=given["account"],
        resources=ResourceRequest(**asked),
        backend_config=_backend_config(given["backend_config"]),
        retries=given["retries"],
        requeue=given["requeue"],
        warning=given["warning"],
        network=given["network"],
        image=given["image"],
        dependency=given["dependency"],
        array=given["array"],
        slurm=_slurm(given["slurm_options"] or (), given["modules"] or ()),
        preemptible=False if given["no_preempt"] else None,
        visible=_visible(given["visible"]),
        experiment=given["experiment"],
        variables=_variables(given["variables"] or ()),
        secret_names=given["secrets"] or (),
        launcher=given["launcher"],
        tasks_per_node=given["tasks_per_node"],
        resolve_as_of=given["resolve_as_of"],
        include=given["include"] or (),
        packed=packed,
    )
    if not given["as_json"]:
        _warn(job.notes)
    return job, sent[0]


def _warn(sentences: Iterable[str]) -> None:
    from carrel.cli.screen import clean, paint

    for line in sentences:
        print(f"{paint('warning:', 'yellow', sys.stderr)} {clean(line)}", file=sys.stderr, flush=True)


def _say_code(sent: Travelling) -> None:
    from carrel.cli.screen import clean, paint

    for line in sent.said():
        print(paint(f"  code     {clean(line)}", "dim", sys.stderr), file=sys.stderr, flush=True)


def _slurm(options: Sequence[str], modules: Sequence[str]) -> SlurmRequest | None:
    from carrel.domain.serial import to_plain
    from carrel.domain.slurm import read_options
    from carrel.wire.v1 import SlurmRequest

    if not options and not modules:
        return None
    return SlurmRequest(**{name: value for name, value in to_plain(read_options(options, modules=modules)).items() if value})


def _follow(client: Client, job: JobView, sent: Travelling, *, as_json: bool) -> int:
    from carrel.cli.follow import Follower, task_exit_code
    from carrel.cli.screen import print_json

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
    from carrel.cli.screen import paint, print_json
    from carrel.cli.words import resources

    if as_json:
        print_json(job)
    else:
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


def _pairs(given: Sequence[str], option: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Invalid(f'{option} "{text}" has no value.', remedy=f"Write {option} name=value.")
        if name in found:
            raise Invalid(f'{option} gives "{name}" twice.', remedy="Give it once.")
        found[name] = value
    return found


def _visible(text: str | None) -> Literal["owner", "account"] | None:
    if text == "owner":
        return "owner"
    if text == "account":
        return "account"
    if text is None:
        return None
    raise Invalid(f'A job cannot be visible to "{text}".', remedy="Say owner or account.")


def _variables(given: Sequence[str]) -> dict[str, str]:
    complete = []
    for text in given:
        if "=" not in text and text not in os.environ:
            raise Invalid(f'--env {text}: there is no variable "{text}" here.', remedy=f"Write --env {text}=value.")
        complete.append(text if "=" in text else f"{text}={os.environ[text]}")
    return _pairs(complete, "--env")


def _backend_config(given: str | None) -> dict[str, Any]:
    """MLflow takes the same option: JSON, or the name of a file that holds it."""
    if given is None:
        return {}
    where, text = "--backend-config", given
    if not given.lstrip().startswith("{"):
        where = given
        try:
            text = Path(given).expanduser().read_text()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise Invalid(
                f"The backend config {given} cannot be read: {why}.", remedy="Name a JSON file, or give JSON."
            ) from error
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Invalid(f"{where} is not JSON: {error}.", remedy='Write it like {"mem": "8G", "time": "2:00:00"}.') from error
    if not isinstance(found, dict):
        raise Invalid(f"{where} is not a JSON object.", remedy='Write it like {"mem": "8G", "time": "2:00:00"}.')
    return found
