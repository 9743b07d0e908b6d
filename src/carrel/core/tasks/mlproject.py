"""Reading MLproject files: MLflow's meaning, strictly.

Source of the meaning: MLflow 3.17's documentation of MLflow Projects and its behaviour. What MLflow passes over in silence
(a misspelt key, a wrong type, a second file of the same name) is an error here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from carrel.core.domain.errors import Invalid
from carrel.core.domain.task import EnvironmentRecipe
from carrel.core.submission.kinds import IMAGE, check_variable
from carrel.core.tasks.command import placeholders
from carrel.core.tasks.document import Value, read_yaml
from carrel.core.tasks.files import ProjectFiles, read_text
from carrel.core.tasks.parameters import Parameter, read_parameter
from carrel.core.tasks.section import Section, read_section, read_value
from carrel.core.tasks.steps import Step, read_steps

#: Keys at the top of the file, and of an entry point. `docs/tasks.md` describes each one.
PROJECT_KEYS = ("name", "python_env", "conda_env", "docker_env", "entry_points", "carrel")
DOCKER_KEYS = ("image", "volumes", "environment")
ENTRY_POINT_KEYS = ("parameters", "command")
_ENVIRONMENTS = ("python_env", "conda_env", "docker_env")
_FILE_NAME = "mlproject"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPoint:
    """One entry point."""

    command: Value
    #: By name, in the order of the file.
    parameters: Mapping[str, Parameter]


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """An MLproject file."""

    #: Its name as it is written in the directory.
    file: str
    name: str | None = None
    #: The environment's file, under "python_env" or "conda_env".
    python_env: str | None = None
    conda_env: str | None = None
    #: The image of "docker_env", or of the carrel section, as the environment that it is.
    image: EnvironmentRecipe | None = None
    #: Variables that "docker_env" sets.
    variables: Mapping[str, str] = field(default_factory=dict)
    entry_points: Mapping[str, EntryPoint] = field(default_factory=dict)
    section: Section = field(default_factory=Section)
    #: By name, each after those that it needs.
    steps: Mapping[str, Step] = field(default_factory=dict)


def find_project(files: ProjectFiles) -> str | None:
    """Return the name of the MLproject file (in any case of letters, as MLflow finds it), or None."""
    found = sorted(name for name in files.names() if name.lower() == _FILE_NAME and files.kind(name) == "file")
    if len(found) > 1:
        raise Invalid(f"There are {len(found)} project files: {', '.join(found)}.", remedy="Keep one of them.")
    return found[0] if found else None


def read_project(files: ProjectFiles) -> Project | None:
    """Return the directory's MLproject, or None when there is none; raise `Invalid` for anything that is not understood."""
    file = find_project(files)
    if file is None:
        return None
    top = read_yaml(read_text(files, file), file)
    said = _top(top)
    environments = [key for key in _ENVIRONMENTS if key in said]
    if len(environments) > 1:
        raise said[environments[1]].wrong(f"{' and '.join(environments)} are both there.", "Keep one of them.")
    section = read_section(said["carrel"]) if "carrel" in said else Section()
    if section.options.image is not None and environments:
        raise said[environments[0]].wrong(
            f"{environments[0]} and the image of the carrel section are both there.", "Keep one of them."
        )
    entry_points = {
        name: _entry_point(name, value)
        for name, value in (said["entry_points"].mapping() if "entry_points" in said else {}).items()
    }
    image, variables = _docker_env(said["docker_env"]) if "docker_env" in said else (section.options.image, {})
    return Project(
        file=file,
        name=said["name"].text() if "name" in said else None,
        python_env=_file(files, said["python_env"]) if "python_env" in said else None,
        conda_env=_file(files, said["conda_env"]) if "conda_env" in said else None,
        entry_points=entry_points,
        image=image,
        variables=variables,
        section=section,
        steps=_steps(said["carrel"], entry_points) if "carrel" in said else {},
    )


def _steps(section: Value, entry_points: Mapping[str, EntryPoint]) -> dict[str, Step]:
    said = section.mapping()
    if "steps" not in said:
        return {}
    if "main" in entry_points:
        raise said["steps"].wrong(
            'steps and an entry point "main" are both there, and it is not clear what is to run.',
            "Call the entry point otherwise.",
        )
    steps = read_steps(said["steps"], {name: tuple(one.parameters) for name, one in entry_points.items()})
    for step in steps.values():
        if step.command is not None:
            placeholders(step.command, step.parameters)
    return steps


def _top(top: Value) -> dict[str, Value]:
    every = top.mapping()
    if "databricks_spark_job" in every:
        raise every["databricks_spark_job"].wrong(
            "databricks_spark_job runs on Databricks only.", "Write an entry point instead."
        )
    return top.mapping(PROJECT_KEYS)


def _docker_env(value: Value) -> tuple[EnvironmentRecipe, dict[str, str]]:
    """Return the image of MLflow's ``docker_env``, and the variables that it sets."""
    said = value.mapping(DOCKER_KEYS)
    if "image" not in said:
        raise value.wrong("docker_env names no image.", "Write one: docker_env: {image: python:3.12-slim}")
    if "volumes" in said:
        raise said["volumes"].wrong(
            "volumes of docker_env are not mounted: a task sees its own files and its owner's home directory, at the same "
            "paths as outside.",
            "Leave volumes out, and name what the task reads as inputs of the carrel section.",
        )
    variables: dict[str, str] = {}
    for item in said["environment"].items() if "environment" in said else ():
        pair = [] if not item.is_list else item.items()
        if len(pair) != 2:
            raise item.wrong(
                "environment of docker_env names a variable without its value, which the lab does not know.",
                "Write [NAME, value], or say the value at submission: --env NAME=value.",
            )
        name = pair[0].text()
        fault = check_variable(name)
        if fault:
            raise item.wrong(f'"{name}" {fault}.')
        variables[name] = pair[1].text()
    return replace(read_value(IMAGE, said["image"]), source="docker_env"), variables


def _file(files: ProjectFiles, value: Value) -> str:
    path = value.text()
    if files.kind(path) != "file":
        raise value.wrong(f'{value.key} names "{path}", which is not a file of the project.', "Name one relative to the project.")
    return path


def _entry_point(name: str, value: Value) -> EntryPoint:
    said = value.mapping(ENTRY_POINT_KEYS)
    if "command" not in said:
        raise value.wrong(f'the entry point "{name}" has no command.', 'Write one: command: "python train.py"')
    parameters = said["parameters"].mapping() if "parameters" in said else {}
    placeholders(said["command"], parameters)  # every entry point is right, not just the one that runs
    return EntryPoint(command=said["command"], parameters={key: read_parameter(key, item) for key, item in parameters.items()})
