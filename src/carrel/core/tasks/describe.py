"""Turning a project directory into the description of a task."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from carrel.core.domain.errors import Invalid
from carrel.core.domain.suggest import nearest, suggest
from carrel.core.domain.task import EnvironmentRecipe, InputSpec
from carrel.core.submission import SweepOptions, TaskOptions
from carrel.core.submission.kinds import LONGEST_ARGUMENT
from carrel.core.tasks.command import append, fill, script_command
from carrel.core.tasks.environment import find_recipe
from carrel.core.tasks.files import DirectoryFiles, ProjectFiles, shell_options
from carrel.core.tasks.mlproject import EntryPoint, Project, read_project
from carrel.core.tasks.parameters import Parameter, ParameterType, checked, is_uri, staged_path
from carrel.core.tasks.section import DEFAULT_OUTPUTS, Section


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDescription:
    """What the files of a task say; what they leave open is None."""

    name: str
    entry_point: str
    #: The shell command line, with every parameter in its place and quoted.
    command: str
    #: Values as text: given ones, and defaults.
    parameters: Mapping[str, str] = field(default_factory=dict)
    #: Staged before the command starts: place in the working directory -> URI (see `TaskSpec.path_parameters`).
    path_parameters: Mapping[str, str] = field(default_factory=dict)
    environment: EnvironmentRecipe = field(default_factory=EnvironmentRecipe)
    inputs: tuple[InputSpec, ...] = ()
    outputs: tuple[str, ...] = DEFAULT_OUTPUTS
    #: What they say about it beyond this.
    options: TaskOptions = field(default_factory=TaskOptions)
    #: Notes for the submitter.
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a command that no program can be started with."""
        size = len(os.fsencode(self.command))
        if size > LONGEST_ARGUMENT:
            longest = max(self.parameters, key=lambda name: len(self.parameters[name]), default=None)
            raise Invalid(
                f"The command has {size:,} bytes; Linux starts one of {LONGEST_ARGUMENT:,} at most (execve(2)).",
                remedy=("Pass long values" if longest is None else f'Pass the value of "{longest}"') + " in a file.",
            )


def describe(
    directory: Path | ProjectFiles,
    *,
    entry_point: str = "main",
    parameters: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    script: str | None = None,
    strict: bool = False,
    step: str | None = None,
    jobs: Mapping[str, int] | None = None,
) -> TaskDescription:
    """Return the description of the task in `directory`, or of one `script` in it.

    `parameters` are values by name (MLflow's ``-P``); one that is not declared becomes ``--name value`` behind the command.
    One that is nearly the name of a declared one is noted; with `strict` one that is not declared is an error.
    `step` names one of the project's steps, whose inputs are of the `jobs` of other steps; a value is taken where it declares it.
    `arguments` follow as they are. Raises `Invalid` with file, line, key and the nearest valid key for anything that is wrong.
    """
    files = DirectoryFiles.open(directory) if isinstance(directory, Path) else directory
    if step is not None:
        return _describe_step(files, step, dict(parameters or {}), dict(jobs or {}))
    given = dict(parameters or {})
    if script is not None and entry_point not in ("main", script):
        raise Invalid(f'Both a script ("{script}") and an entry point ("{entry_point}") are named.', remedy="Name one of them.")
    project = read_project(files)
    chosen = script if script is not None else entry_point
    section = project.section if project is not None else Section()
    declared = None if project is None or script is not None else project.entry_points.get(chosen)
    path = None if declared is not None else _script_path(files, project, chosen, is_script=script is not None)
    values = _check_given(given, arguments)
    notes: tuple[str, ...] = ()
    if declared is not None:
        notes = _undeclared(chosen, declared, values, strict=strict)
        command, values, staged = _from_entry_point(files, section, chosen, declared, values, arguments)
    else:
        assert path is not None
        options = shell_options(files, path) if path.endswith(".sh") else []
        command, staged = append(script_command(path, options) or "", values, arguments), {}
    return TaskDescription(
        name=_name(files, project, path),
        entry_point=chosen if path is None else path,
        command=command,
        parameters=values,
        path_parameters=staged,
        environment=find_recipe(files, project, path),
        inputs=section.inputs,
        outputs=section.outputs,
        options=_options(project),
        notes=notes,
    )


def _describe_step(files: ProjectFiles, name: str, given: Mapping[str, str], jobs: Mapping[str, int]) -> TaskDescription:
    project = read_project(files)
    step = project.steps.get(name) if project is not None else None
    if project is None or step is None:
        raise Invalid(f'There is no step "{name}".', remedy=suggest(name, project.steps if project else (), what="Steps"))
    missing = [other for other in step.after if other not in jobs]
    if missing:
        raise Invalid(f'The step "{name}" needs the job of {", ".join(missing)}.', remedy="`carrel run` submits all steps.")
    if step.command is None:
        entry_point = project.entry_points[step.entry_point]
    else:
        entry_point = EntryPoint(command=step.command, parameters={key: Parameter(name=key) for key in step.parameters})
    declared = {key: value for key, value in given.items() if key in entry_point.parameters}
    inputs = (*project.section.inputs, *step.inputs_from(jobs))
    section = replace(project.section, inputs=inputs)
    values = _check_given({**step.parameters, **declared}, ())
    _undeclared(name, entry_point, values, strict=True)
    command, values, staged = _from_entry_point(files, section, name, entry_point, values, ())
    return TaskDescription(
        name=f"{_name(files, project, None)}.{name}",
        entry_point=step.entry_point or name,
        command=command,
        parameters=values,
        path_parameters=staged,
        environment=find_recipe(files, project, None),
        inputs=inputs,
        outputs=section.outputs,
        options=step.options.over(_options(project)),
    )


def describe_sweep(files: ProjectFiles) -> SweepOptions:
    """Return what the project file says of sweeps; nothing where there is none. Raises `Invalid` as `describe` does."""
    project = read_project(files)
    return SweepOptions() if project is None else project.section.sweep


def _options(project: Project | None) -> TaskOptions:
    if project is None:
        return TaskOptions()
    options = project.section.options
    return replace(options, variables={**project.variables, **options.variables})


def _undeclared(name: str, entry_point: EntryPoint, given: Mapping[str, str], *, strict: bool) -> tuple[str, ...]:
    """Return what to say of parameters that are not declared, but nearly; raise `Invalid` for any of them with `strict`."""
    notes = []
    for key in given:
        if key in entry_point.parameters:
            continue
        meant = nearest(key, [parameter for parameter in entry_point.parameters if parameter not in given])
        fact = f'The entry point "{name}" declares no parameter "{key}"'
        if strict:
            raise Invalid(f"{fact}.", remedy=suggest(meant or key, entry_point.parameters, what="Parameters"))
        if meant is not None:
            notes.append(f'{fact}: it is passed on as --{key}. Did you mean "{meant}"?')
    return tuple(notes)


def _from_entry_point(
    files: ProjectFiles, section: Section, name: str, entry_point: EntryPoint, given: Mapping[str, str], arguments: Sequence[str]
) -> tuple[str, dict[str, str], dict[str, str]]:
    """Return the command, all values, and what is staged for ``path`` parameters."""
    missing = [key for key, parameter in entry_point.parameters.items() if key not in given and parameter.default is None]
    if missing:
        extra = [key for key in given if key not in entry_point.parameters]
        hint = f" Undeclared: {', '.join(extra)}." if extra else ""
        raise Invalid(
            f'The entry point "{name}" needs a value for {", ".join(missing)}.',
            remedy=f"Say {' '.join(f'-P {key}=VALUE' for key in missing)}, or write a default into the project file.{hint}",
        )
    promised = [item.path for item in section.inputs]
    values: dict[str, str] = {}
    placed: dict[str, str] = {}
    staged: dict[str, str] = {}
    for key, parameter in entry_point.parameters.items():
        value = given.get(key, parameter.default)
        assert value is not None
        values[key] = placed[key] = checked(parameter, value, files, promised)
        if parameter.type is ParameterType.PATH and is_uri(value):
            placed[key] = staged_path(key, value)
            staged[placed[key]] = value
    extras = {key: value for key, value in given.items() if key not in values}
    command = append(fill(entry_point.command, placed), extras, arguments)
    return command, values | extras, staged


def _check_given(given: Mapping[str, str], arguments: Sequence[str]) -> dict[str, str]:
    for name, value in given.items():
        if not name or "\0" in name or "\0" in value:
            raise Invalid(
                f'Parameter "{name}": a name and a value are needed, without zero bytes.', remedy="Give it like -P name=value."
            )
    for argument in arguments:
        if "\0" in argument:
            raise Invalid("An argument has a zero byte.")
    return dict(given)


def _script_path(files: ProjectFiles, project: Project | None, chosen: str, *, is_script: bool) -> str:
    """Return the script that `chosen` names, relative to the directory; raise `Invalid` when it names none."""
    path = posixpath.normpath(chosen) if chosen else ""
    if script_command(path) is not None:
        if files.kind(path) == "file" and not path.startswith(".."):
            return path
        raise Invalid(f'The script "{chosen}" is not in the project.', remedy=_scripts(files))
    if is_script:
        raise Invalid(f'"{chosen}" is not a script.', remedy="A script is a .py or .sh file.")
    if project is None:
        raise Invalid(
            f'There is no MLproject file, so no entry point "{chosen}".',
            remedy=f"Name a script, or write an MLproject file. {_scripts(files)}",
        )
    raise Invalid(
        f'{project.file} has no entry point "{chosen}".',
        remedy=suggest(chosen, project.entry_points, what="Entry points") + " A .py or .sh file is an entry point too.",
    )


def _scripts(files: ProjectFiles) -> str:
    found = sorted(name for name in files.names() if name.endswith((".py", ".sh")))[:8]
    return f"Scripts here: {', '.join(found)}." if found else "There are no .py or .sh files at its top."


def _name(files: ProjectFiles, project: Project | None, path: str | None) -> str:
    if project is not None and project.name:
        return project.name
    if path is not None:
        return posixpath.splitext(posixpath.basename(path))[0]
    return files.name or "task"
