"""The steps of a project: ``steps`` in the section ``carrel`` of an MLproject, each of which is run as a job."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter

from carrel.core.domain.suggest import suggest
from carrel.core.domain.task import InputSpec
from carrel.core.submission import TaskOptions
from carrel.core.tasks.document import Value
from carrel.core.tasks.section import OPTIONS, read_inputs, read_resources, read_value

#: Options of a task that may differ from step to step.
STEP_OPTIONS = {name: OPTIONS[name] for name in ("partition", "qos")}
#: Keys of a step. `docs/pipelines.md` describes each one.
STEP_KEYS = ("entry_point", "command", "parameters", "inputs", "resources", *STEP_OPTIONS, "after")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step."""

    name: str
    #: The entry point that it runs; "" where it has a command of its own.
    entry_point: str = ""
    command: Value | None = None
    #: Values for the entry point, or those that stand in the command.
    parameters: Mapping[str, str] = field(default_factory=dict)
    #: What is brought for it; an address "STEP/outputs/x" is among the outputs of that step.
    inputs: tuple[InputSpec, ...] = ()
    #: What it says of itself; the project has the rest.
    options: TaskOptions = field(default_factory=TaskOptions)
    #: Names of the steps that have to end well before it starts.
    after: tuple[str, ...] = ()
    #: Names of all parameters that it takes: those of its entry point, or those that stand in its command.
    takes: tuple[str, ...] = ()

    def inputs_from(self, jobs: Mapping[str, int]) -> tuple[InputSpec, ...]:
        """Return the inputs, with the outputs of other steps as those of their jobs, by the names of the steps."""
        found = []
        for item in self.inputs:
            step, slash, path = item.uri.partition("/")
            found.append(replace(item, uri=f"job:{jobs[step]}{slash}{path}") if step in self.after else item)
        return tuple(found)


def read_steps(value: Value, entry_points: Mapping[str, Collection[str]]) -> dict[str, Step]:
    """Return the steps by name, each after those that it needs; raise `Invalid` for anything that is not understood.

    `entry_points` are those of the project, with the names of their parameters.
    """
    said = value.mapping()
    steps = {name: _step(name, one, tuple(said), entry_points) for name, one in said.items()}
    try:
        order = list(TopologicalSorter({name: step.after for name, step in steps.items()}).static_order())
    except CycleError as error:
        raise value.wrong(f"the steps wait for each other: {' after '.join(error.args[1])}.", "Take one of these away.") from None
    return {name: steps[name] for name in order}


def later_steps(steps: Mapping[str, Step], first: str) -> frozenset[str]:
    """Return `first` and all steps that need it, directly or not; `steps` as `read_steps` returns them."""
    found = {first}
    for name, step in steps.items():
        if found.intersection(step.after):
            found.add(name)
    return frozenset(found)


def _step(name: str, value: Value, names: tuple[str, ...], entry_points: Mapping[str, Collection[str]]) -> Step:
    if not _NAME.fullmatch(name):
        raise value.wrong(f'"{name}" cannot be the name of a step.', "Use letters, digits, _ and -, a letter first.")
    said = value.mapping(STEP_KEYS)
    if "entry_point" in said and "command" in said:
        raise value.wrong(f'the step "{name}" has an entry point and a command.', "Keep one of them.")
    entry_point = "" if "command" in said else said["entry_point"].text() if "entry_point" in said else name
    if entry_point and entry_point not in entry_points:
        raise said.get("entry_point", value).wrong(
            f'the step "{name}" runs the entry point "{entry_point}", which is not there.',
            suggest(entry_point, entry_points, what="Entry points"),
        )
    inputs = read_inputs(said["inputs"], steps=names) if "inputs" in said else ()
    named = [_named(item, names) for item in said["after"].items()] if "after" in said else []
    needed = [first for item in inputs if (first := item.uri.partition("/")[0]) in names]
    options = {key: read_value(option.kind, said[key]) for key, option in STEP_OPTIONS.items() if key in said}
    if "resources" in said:
        options["resources"] = read_resources(said["resources"])
    parameters = {key: item.text() for key, item in (said["parameters"].mapping() if "parameters" in said else {}).items()}
    return Step(
        name=name,
        entry_point=entry_point,
        command=said.get("command"),
        parameters=parameters,
        inputs=inputs,
        options=TaskOptions(**options),
        after=_once([*needed, *named]),
        takes=tuple(entry_points[entry_point] if entry_point else parameters),
    )


def _named(value: Value, names: Collection[str]) -> str:
    name = value.text()
    if name not in names:
        raise value.wrong(f'there is no step "{name}".', suggest(name, names, what="Steps"))
    return name


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
