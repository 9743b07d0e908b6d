"""Reading MLproject files: MLflow's meaning, strictly.

Source of the meaning: MLflow 3.17's documentation of MLflow Projects and its behaviour. What MLflow passes over in silence
(a misspelt key, a wrong type, a second file of the same name) is an error here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from carrel.domain.errors import Invalid
from carrel.tasks.command import placeholders
from carrel.tasks.document import Value, read_yaml
from carrel.tasks.files import ProjectFiles, read_text
from carrel.tasks.parameters import Parameter, read_parameter
from carrel.tasks.section import Section, read_section

#: Keys at the top of the file, and of an entry point. `docs/tasks.md` describes each one.
PROJECT_KEYS = ("name", "python_env", "conda_env", "docker_env", "entry_points", "carrel")
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
    entry_points: Mapping[str, EntryPoint] = field(default_factory=dict)
    section: Section = field(default_factory=Section)


def find_project(files: ProjectFiles) -> str | None:
    """Return the name of the MLproject file (in any case of letters, as MLflow finds it), or None."""
    found = sorted(name for name in files.names() if name.lower() == _FILE_NAME and files.kind(name) == "file")
    if len(found) > 1:
        raise Invalid(f"There are {len(found)} project files: {', '.join(found)}.", remedy="Keep one of them.")
    return found[0] if found else None


def read_project(files: ProjectFiles) -> Project | None:
    """Return the directory's MLproject, or None when there is none; raise `Invalid` for whatever is not understood."""
    file = find_project(files)
    if file is None:
        return None
    top = read_yaml(read_text(files, file), file)
    said = _top(top)
    environments = [key for key in _ENVIRONMENTS if key in said]
    if len(environments) > 1:
        raise said[environments[1]].wrong(f"{' and '.join(environments)} are both there.", "Keep one of them.")
    return Project(
        file=file,
        name=said["name"].text() if "name" in said else None,
        python_env=_file(files, said["python_env"]) if "python_env" in said else None,
        conda_env=_file(files, said["conda_env"]) if "conda_env" in said else None,
        entry_points={
            name: _entry_point(name, value)
            for name, value in (said["entry_points"].mapping() if "entry_points" in said else {}).items()
        },
        section=read_section(said["carrel"]) if "carrel" in said else Section(),
    )


def _top(top: Value) -> dict[str, Value]:
    every = top.mapping()
    if "databricks_spark_job" in every:
        raise every["databricks_spark_job"].wrong(
            "databricks_spark_job runs on Databricks only.", "Write an entry point instead."
        )
    said = top.mapping(PROJECT_KEYS)
    if "docker_env" in said:
        raise said["docker_env"].wrong(
            "docker_env is not supported yet.",
            "Describe the packages with python_env (python_env.yaml) or conda_env (conda.yaml).",
        )
    return said


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
