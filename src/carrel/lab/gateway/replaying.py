"""A task as the record of a job has it, in the place of what the code's own files say: checked as they are."""

from __future__ import annotations

import json
from dataclasses import replace

from carrel.core.domain.errors import Invalid
from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe, ReplayOf
from carrel.core.tasks import TaskDescription
from carrel.core.tasks.command import script_command
from carrel.core.tasks.document import read_yaml
from carrel.core.tasks.environment import find_recipe
from carrel.core.tasks.files import ProjectFiles
from carrel.core.tasks.locks import with_lock
from carrel.core.tasks.mlproject import read_project
from carrel.core.tasks.section import read_section
from carrel.wire.v1 import ReplayRequest, TaskRequest

_WHERE = "the record"


def described_again(request: TaskRequest, replay: ReplayRequest, files: ProjectFiles) -> TaskDescription:
    """Return the description of the task that is repeated. `files` are those of its code, which say how its environment is made.

    Raises `Invalid` as for a file that says the same.
    """
    besides = [name for name in ("script", "arguments", "strict", "step") if getattr(request, name)]
    if besides:
        raise Invalid(f"A record has the whole command; {besides[0]} says nothing beside it.", remedy="Leave it out.")
    texts = (replay.command, request.entry_point, *request.parameters, *request.parameters.values())
    if any("\0" in text for text in texts):
        raise Invalid("The command or a parameter has a zero byte.", remedy="Send it without.")
    inputs = [one.model_dump(exclude_none=True) for one in replay.inputs]
    staged = [{"path": path, "uri": uri} for path, uri in replay.path_parameters.items()]
    said = {"inputs": inputs + staged, "outputs": replay.outputs}
    # JSON is YAML: the same eyes read it that read the section of a project file.
    section = read_section(read_yaml(json.dumps({key: value for key, value in said.items() if value}), _WHERE))
    places = {one["path"] for one in staged}
    project = read_project(files)
    declared = project is not None and request.entry_point in (*project.entry_points, *project.steps)
    script = request.entry_point if not declared and script_command(request.entry_point) is not None else None
    return TaskDescription(
        name=replay.name,
        entry_point=request.entry_point,
        command=replay.command,
        parameters=dict(request.parameters),
        path_parameters={one.path: one.uri for one in section.inputs if one.path in places},
        environment=find_recipe(files, project, script) if replay.environment else EnvironmentRecipe(),
        inputs=tuple(one for one in section.inputs if one.path not in places),
        outputs=section.outputs if replay.outputs else (),
    )


def environment_again(recipe: EnvironmentRecipe, replay: ReplayRequest) -> EnvironmentRecipe:
    """Return the recipe with what it came to when the job ran: its lock, and its Python."""
    if replay.lock is not None:
        recipe = with_lock(recipe, replay.lock)
    own = recipe.kind in (EnvironmentKind.IMAGE, EnvironmentKind.CONDA)  # they bring a Python of their own
    if replay.python is None or own or not recipe.wanted:
        return recipe
    return replace(recipe, python=replay.python)


def origin(replay: ReplayRequest) -> ReplayOf:
    """Return which job it repeats."""
    return ReplayOf(lab=replay.lab, job=replay.job)
