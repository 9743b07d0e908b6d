"""The first attempt's task with some facts of the second: what is submitted to see whether they are the cause."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from carrel.core.comparison.command_text import mix_commands
from carrel.core.comparison.line_diff import mix_lines
from carrel.core.comparison.packages import mix_locks
from carrel.core.comparison.settings import DETERMINISTIC, ORDER_OF_SAMPLES
from carrel.core.domain.comparison import Kind
from carrel.core.domain.errors import Invalid
from carrel.core.domain.launcher import Launcher
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import EnvironmentRecipe, InputSpec, TaskSpec
from carrel.core.why.changes import (
    COMMAND,
    ENVIRONMENT,
    GPU,
    LINES,
    PYTHON,
    WALLTIME,
    Change,
    key_of,
    parameter_place,
)

#: Options of requirements that say where packages are, outside of the code.
_SOURCE = re.compile(r"--(index-url|extra-index-url|find-links (/|[a-z+]+://))")
_RESOURCES = {
    "nodes": "nodes",
    "cpus": "cpus",
    "gpus": "gpus",
    "memory": "memory",
    "gpu_memory": "gpu_memory",
    "compose": "compose",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """One of the two attempts, as material for variants."""

    task: TaskSpec
    resources: Resources
    #: What its environment was; None: it had none, or it is not kept.
    lock: str | None = None
    python: str | None = None
    #: Digests of the files of its inputs, by their places.
    inputs: Mapping[str, str] = field(default_factory=dict)
    #: Variables that its command had, of those that decide what libraries compute.
    seeds: Mapping[str, str] = field(default_factory=dict)
    gpu_type: str | None = None
    #: Reads a file of its code; None: it is none, or no text.
    read: Callable[[str], str | None] = lambda _path: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """The first attempt's code with some files of the second's."""

    #: Paths that are as in the second code, or not there if they are not in it.
    taken: frozenset[str] = frozenset()
    #: Files with a text of their own.
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantTask:
    """What is submitted. The task still names the first code where `code` says what it is made of."""

    task: TaskSpec
    resources: Resources
    #: None: the code as it is.
    code: Composition | None = None


def variant_task(first: Half, second: Half, changes: Collection[Change], chosen: Collection[str]) -> VariantTask:
    """Return the first attempt with the changes and parts in `chosen`. Raises `Invalid` for what cannot be put together.

    What else is in `changes` is held at what the first attempt had, also where that followed from something else.
    """
    by_kind: dict[Kind, list[Change]] = {}
    for change in changes:
        by_kind.setdefault(change.kind, []).append(change)
    made = _Making(first, second, by_kind, frozenset(chosen))
    task = dataclasses.replace(
        first.task,
        **made.command(),
        **made.inputs(),
        **made.switches(),
        variables=made.variables(),
        environment=made.environment(),
        tasks_per_node=made.of(first.task.tasks_per_node, second.task.tasks_per_node, "processes on each node"),
        launcher=Launcher(made.of(first.task.launcher, second.task.launcher, "launcher")),
        network=made.of(first.task.network, second.task.network, "network"),
        sweep=None,
        trial=None,
        pool=None,
        step=None,
        tracking=None,
    )
    return VariantTask(task=task, resources=made.resources(), code=made.code())


@dataclass(frozen=True, slots=True)
class _Making:
    first: Half
    second: Half
    changes: Mapping[Kind, list[Change]]
    chosen: frozenset[str]

    def of(self, first: Any, second: Any, path: str, kind: Kind = Kind.RESOURCE) -> Any:
        return second if key_of(kind, path) in self.chosen else first

    def _chosen(self, kind: Kind) -> list[Change]:
        return [change for change in self.changes.get(kind, ()) if change.key in self.chosen]

    def command(self) -> dict[str, Any]:
        mine, theirs = self.first.task, self.second.task
        names = [change.path for change in self._chosen(Kind.PARAMETER)]
        parameters = {name: value for name, value in mine.parameters.items() if name not in names}
        parameters |= {name: theirs.parameters[name] for name in names if name in theirs.parameters}
        values = {
            name: (mine.parameters[name], theirs.parameters[name])
            for name in mine.parameters
            if name in theirs.parameters and mine.parameters[name] != theirs.parameters[name]
        }
        rest = COMMAND in self.chosen
        command, _ = mix_commands(mine.command, theirs.command, values, names, rest=rest)
        whole = {"directory": theirs.directory, "entry_point": theirs.entry_point} if rest else {}
        return {"command": command, "parameters": parameters, **whole}

    def inputs(self) -> dict[str, Any]:
        """Inputs whose content is known are pinned to it: what lies at an address may be another content by now."""
        mine, theirs = self.first.task, self.second.task
        found = {item.path: _pinned(item, self.first) for item in mine.inputs}
        others = {item.path: _pinned(item, self.second) for item in theirs.inputs}
        for change in self.changes.get(Kind.INPUT, ()):
            if change.key in self.chosen:
                found.pop(change.path, None)
                found |= {change.path: others[change.path]} if change.path in others else {}
            elif parts := [part for part in change.parts if part.key in self.chosen]:
                whole = found.pop(change.path)
                taken = {part.path for part in parts}
                found |= _files(whole, self.first, without=taken) | _files(others[change.path], self.second, only=taken)
        places = dict(mine.path_parameters)
        for change in self._chosen(Kind.PARAMETER):
            places = {place: uri for place, uri in places.items() if parameter_place(place) != change.path}
            places |= {place: uri for place, uri in theirs.path_parameters.items() if parameter_place(place) == change.path}
        return {"inputs": tuple(found.values()), "path_parameters": places}

    def switches(self) -> dict[str, Any]:
        mine, theirs = self.first.task, self.second.task
        return {
            "deterministic_seed": self.of(mine.deterministic_seed, theirs.deterministic_seed, DETERMINISTIC, Kind.SETTING),
            "order": self.of(mine.order, theirs.order, ORDER_OF_SAMPLES, Kind.SETTING),
        }

    def variables(self) -> dict[str, str]:
        found = dict(self.first.task.variables)
        for change in (*self.changes.get(Kind.VARIABLE, ()), *self.changes.get(Kind.SETTING, ())):
            half = self.second if change.key in self.chosen else self.first
            values = half.task.variables if change.kind is Kind.VARIABLE else half.seeds
            for name in (change.path, *change.also):
                found.pop(name, None)
                # What a switch of the task sets is set by it again.
                if name in values and name not in (DETERMINISTIC, ORDER_OF_SAMPLES) and (name == change.path or not change.also):
                    found[name] = values[name]
        return found

    def environment(self) -> EnvironmentRecipe:
        if ENVIRONMENT in self.chosen:
            return dataclasses.replace(self.second.task.environment, lock=self.second.lock)
        recipe, lock = self.first.task.environment, self.first.lock
        packages = [change.path for change in self._chosen(Kind.PACKAGE)]
        if packages and lock is not None and self.second.lock is not None:
            lock = mix_locks(lock, self.second.lock, packages)
            if lock is None:
                raise Invalid("The locks cannot be put together.")
            recipe = _with_sources(recipe, self.second.task.environment)
        if any(change.key == PYTHON for change in self.changes.get(Kind.ENVIRONMENT, ())):
            recipe = dataclasses.replace(recipe, python=self.second.python if PYTHON in self.chosen else self.first.python)
        return dataclasses.replace(recipe, lock=lock or recipe.lock)

    def resources(self) -> Resources:
        mine, theirs = self.first.resources, self.second.resources
        values = {name: self.of(getattr(mine, name), getattr(theirs, name), path) for path, name in _RESOURCES.items()}
        gpu_type = self.of(mine.gpu_type, theirs.gpu_type, "gpu_type")
        if self.changes.get(Kind.GPU):
            gpu_type = (self.second if GPU in self.chosen else self.first).gpu_type or gpu_type
        kind = gpu_type if values["gpus"] else None
        values["gpu_memory"] = values["gpu_memory"] if values["gpus"] else 0
        return dataclasses.replace(mine, **values, gpu_type=kind, time=theirs.time if WALLTIME in self.chosen else mine.time)

    def code(self) -> Composition | None:
        taken, texts = set[str](), dict[str, str]()
        for change in self.changes.get(Kind.CODE, ()):
            parts = {int(key.rpartition(LINES)[2]) for part in change.parts if (key := part.key) in self.chosen}
            if change.key in self.chosen:
                taken.add(change.path)
            elif parts:
                texts[change.path] = _mixed(change.path, self.first, self.second, parts)
        return Composition(taken=frozenset(taken), texts=texts) if taken or texts else None


def _with_sources(recipe: EnvironmentRecipe, other: EnvironmentRecipe) -> EnvironmentRecipe:
    """The recipe with the other's places of packages as further ones: a lock says what is installed, and not from where."""
    lines = [line for line in other.requirements if line not in recipe.requirements and _SOURCE.match(line)]
    more = tuple(line.replace("--index-url", "--extra-index-url") for line in lines)
    return dataclasses.replace(recipe, requirements=(*recipe.requirements, *more))


def _mixed(path: str, first: Half, second: Half, parts: Collection[int]) -> str:
    old, new = first.read(path), second.read(path)
    text = None if old is None or new is None else mix_lines(old, new, parts)
    if text is None:
        raise Invalid(f"The lines of {path} cannot be put together.")
    return text


def _pinned(item: InputSpec, half: Half) -> InputSpec:
    digest = half.inputs.get(item.path)
    return item if item.digest or not digest else dataclasses.replace(item, digest=digest)


def _files(
    item: InputSpec, half: Half, *, without: Collection[str] = (), only: Collection[str] | None = None
) -> dict[str, InputSpec]:
    """The files of an input that is a directory, each by itself."""
    inside = {place: digest for place, digest in half.inputs.items() if place.startswith(f"{item.path}/")}
    return {
        place: InputSpec(path=place, uri=f"{item.uri.rstrip('/')}/{place.removeprefix(f'{item.path}/')}", digest=digest)
        for place, digest in inside.items()
        if place not in without and (only is None or place in only)
    }
