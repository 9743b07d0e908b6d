"""Submissions on their way to the lab: their code, as a task that the lab runs like any other, and the request."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
from pydantic import ValidationError

from carrel.client.executor import pickling
from carrel.client.executor.environment import copy_modules, python_version
from carrel.client.submitit.parameters import Wanted
from carrel.core.domain.errors import Invalid
from carrel.wire import v1

if TYPE_CHECKING:
    from carrel.client import Client

#: Packages of Carrel that go along, so that what was imported here is there, too.
_FACE = ("carrel.client.submitit", "carrel.submitit")
_ENVIRONMENT = "carrel.client.submitit.plugin:CarrelJobEnvironment"


def send(
    client: Client,
    pickled: Sequence[bytes],
    wanted: Wanted,
    *,
    cluster: str,
    requirements: Sequence[str] | None,
    image: str | None,
    modules: Mapping[str, Path],
    requeue: int,
    for_submitit: bool = False,
) -> dict[str, int]:
    """Submit, several as an array; return names of jobs with their numbers, in their order. Raises `CarrelError`."""
    with tempfile.TemporaryDirectory(prefix="carrel-submitit-") as directory:
        write_project(
            Path(directory),
            submissions=pickled,
            requirements=requirements,
            modules=modules,
            cluster=cluster,
            setup=wanted.setup,
            teardown=wanted.teardown,
            one_stream=wanted.one_stream,
            for_submitit=for_submitit,
        )
        snapshot = client.upload(Path(directory))
    first = client.submit(_request(snapshot, wanted, count=len(pickled), image=image, requeue=requeue))
    if first.array_job_id is None:
        return {str(first.id): first.id}
    return {f"{first.array_job_id}_{job.array_task_id}": job.id for job in client.array(first.array_job_id).jobs}


def _request(snapshot: str, wanted: Wanted, *, count: int, image: str | None, requeue: int) -> v1.TaskRequest:
    options: dict[str, Any] = {"name": "submitit", **wanted.options}
    if count > 1:
        options["array"] = f"0-{count - 1}" + (f"%{wanted.parallel}" if wanted.parallel else "")
    if requeue:
        options |= {"requeue": requeue, "warning": f"{wanted.warning}s"}
    if image is not None:
        options["image"] = image
    try:
        return v1.TaskRequest(
            snapshot=snapshot,
            resources=v1.ResourceRequest(**wanted.resources),
            slurm=v1.SlurmRequest(**wanted.slurm) if wanted.slurm else None,
            **options,
        )
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise Invalid(f"The lab does not understand a parameter: {told}.", remedy="docs/functions.md lists them.") from None


def write_project(
    directory: Path,
    *,
    submissions: Sequence[bytes],
    requirements: Sequence[str] | None,
    modules: Mapping[str, Path],
    cluster: str,
    setup: Sequence[str] = (),
    teardown: Sequence[str] = (),
    one_stream: bool = False,
    for_submitit: bool = False,
) -> None:
    """Write a project to `directory`: the pickled submissions by their index, and what carries them out.

    `requirements` None: it runs in an image, which has what it needs. `for_submitit`: functions ask
    submitit itself for their ranks.
    """
    _copy(resources.files("carrel.client.submitit") / "payload" / "carrel_submission", directory / "carrel_submission")
    shutil.copyfile(str(pickling.__file__), directory / "carrel_submission" / "pickling.py")
    for package in _FACE:
        _copy(resources.files(package), directory.joinpath("face", *package.split(".")))
    for package in ("carrel", "carrel.client"):
        text = (resources.files(package) / "__init__.py").read_text()
        directory.joinpath("face", *package.split("."), "__init__.py").write_text(text)
    # By these submitit itself, where a job has it, finds the environment of a job of the lab.
    about = directory / "face" / "carrel_submitit-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: carrel-submitit\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[submitit]\njob_environment = {_ENVIRONMENT}\n")
    (directory / "submissions").mkdir()
    for index, data in enumerate(submissions):
        (directory / "submissions" / f"{index}.pkl").write_bytes(data)
    (directory / "directory").write_text(str(Path.cwd()))
    (directory / "modules").mkdir()
    # The caller's own cloudpickle: what one version writes, another need not understand.
    copy_modules({"cloudpickle": Path(cloudpickle.__file__).parent}, directory / "modules")
    copy_modules(dict(modules), directory / "modules")
    python = python_version()
    environment = ""
    if requirements is not None:
        lines = "".join(f"  - {json.dumps(line)}\n" for line in requirements)
        (directory / "python_env.yaml").write_text(f'python: "{python}"\n' + (f"dependencies:\n{lines}" if lines else ""))
        environment = "python_env: python_env.yaml\n"
    words = f"python -m carrel_submission {python} {cluster}"
    words += (" --one-stream" if one_stream else "") + (" --for-submitit" if for_submitit else "")
    command = command_of(words, setup, teardown)
    text = json.dumps(command.replace("{", "{{").replace("}", "}}"))
    (directory / "MLproject").write_text(f"name: submitit\n{environment}entry_points:\n  main:\n    command: {text}\n")


def command_of(program: str, setup: Sequence[str], teardown: Sequence[str]) -> str:
    """Return lines of shell: what comes before the program, the program, and what comes after it however it ends."""
    if not teardown:
        return "\n".join([*setup, f"exec {program}"] if setup else [program])
    # The shell outlives the SIGTERM that the program acts upon.
    return "\n".join(["trap : TERM", *setup, program, "ended=$?", *teardown, "exit $ended"])


def _copy(source: Traversable, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for item in source.iterdir():
        if item.is_dir() and item.name not in ("__pycache__", "payload"):
            _copy(item, target / item.name)
        elif item.name.endswith(".py"):
            (target / item.name).write_text(item.read_text())
