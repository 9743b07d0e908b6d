"""The JSON schema of an MLproject file (JSON Schema, draft 2020-12), for editors: they complete keys and mark what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from carrel.core.domain.slurm import ENGINE
from carrel.core.submission import Kind, Option, ResourceOptions, SlurmOptions, SweepOptions, engine_options, options_of
from carrel.core.tasks.mlproject import DOCKER_KEYS, ENTRY_POINT_KEYS, PROJECT_KEYS
from carrel.core.tasks.parameters import SPELLINGS, ParameterType
from carrel.core.tasks.section import INPUT_KEYS, OPTIONS
from carrel.core.tasks.steps import STEP_KEYS, STEP_OPTIONS

_TEXT = {"type": ["string", "number", "boolean"]}
_TEXTS = {"type": "array", "items": _TEXT}


def task_schema() -> dict[str, Any]:
    """Return the schema. What it lets through may still be wrong in ways that only the lab can tell."""
    parameter = {"enum": [*ParameterType, *SPELLINGS]}
    entry_point = {
        "parameters": {
            "type": ["object", "null"],
            "additionalProperties": {
                "anyOf": [parameter, _object({"type": parameter, "default": {}}, "A type and a value that it has by default.")]
            },
        },
        "command": {"type": "string", "description": "The command line; {name} stands for the value of a parameter."},
    }
    assert tuple(entry_point) == ENTRY_POINT_KEYS
    top = {
        "name": _TEXT | {"description": "Name of the project."},
        "python_env": _TEXT
        | {"description": "File of the environment: python_env.yaml, requirements.txt, pyproject.toml, uv.lock."},
        "conda_env": _TEXT | {"description": "File of the environment, as conda has it."},
        "docker_env": _object({key: {} for key in DOCKER_KEYS}, "The image that it runs in."),
        "entry_points": {"type": "object", "additionalProperties": _object(entry_point, "One way to run it.")},
        "carrel": _object(_section(), "What the task asks of the lab."),
    }
    assert tuple(top) == PROJECT_KEYS
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "MLproject",
        **_object(top, "A project of MLflow's, with a section for Carrel."),
    }


def _section() -> dict[str, Any]:
    one_input = {"type": ["object", "string"], "properties": dict.fromkeys(INPUT_KEYS, _TEXT)}
    return {
        "resources": _object(_options(options_of(ResourceOptions)), "What it has on each of its nodes."),
        "slurm": _object(_options(options_of(SlurmOptions)), "What is asked of Slurm beyond this."),
        **{
            name: _object(_options(one), f"What is asked of the engine {name}.")
            for name, one in engine_options().items()
            if name != ENGINE
        },
        "inputs": {
            "anyOf": [{"type": "array", "items": one_input}, {"type": "object", "additionalProperties": one_input}],
            "description": "What is brought before it starts: where it appears, and where it comes from.",
        },
        "steps": {
            "type": ["object", "null"],
            "additionalProperties": _object(_step(), "One step of the pipeline."),
            "description": "Tasks that need what others of them made.",
        },
        "outputs": _TEXTS | {"description": "Patterns of files that are kept."},
        "sweep": _object(_options(options_of(SweepOptions)), "What `carrel sweep` does, where its command line does not say."),
        **_options(OPTIONS),
    }


def _step() -> dict[str, Any]:
    one_input = {"type": ["object", "string"], "properties": dict.fromkeys(INPUT_KEYS, _TEXT)}
    found: dict[str, Any] = {
        "entry_point": _TEXT | {"description": "What it runs; without it, the entry point of its own name."},
        "command": {"type": "string", "description": "The command line, in the place of an entry point."},
        "parameters": {"type": ["object", "null"], "additionalProperties": _TEXT, "description": "Values of parameters."},
        "inputs": {
            "anyOf": [{"type": "array", "items": one_input}, {"type": "object", "additionalProperties": one_input}],
            "description": "What is brought before it starts; STEP/outputs/x is what another step made.",
        },
        "resources": _object(_options(options_of(ResourceOptions)), "What it has on each of its nodes."),
        **_options(STEP_OPTIONS),
        "after": _TEXTS | {"description": "Steps that have to end well before it."},
    }
    assert tuple(found) == STEP_KEYS
    return found


def _options(options: Mapping[str, Option]) -> dict[str, Any]:
    found = {}
    for name, option in options.items():
        found[name] = _value(option.kind) | {"description": option.help}
        if option.synonym:
            found[option.synonym] = _value(option.kind) | {"description": f"The same as {name}."}
    return found


def _value(kind: Kind) -> dict[str, Any]:
    if kind.choices:
        return {"enum": list(kind.choices)}
    if kind.plain is bool:
        return {"type": "boolean"}
    if kind.plain is list:
        return _TEXTS
    if kind.plain is dict:
        return {"type": ["object", "null"], "additionalProperties": {}}
    if kind.plain is int:
        bounds = {"minimum": kind.least, "maximum": kind.most}
        number = {"type": "integer", **{name: bound for name, bound in bounds.items() if bound is not None}}
        return number if kind.truth is None else {"anyOf": [number, {"type": "boolean"}]}
    return dict(_TEXT)


def _object(properties: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {
        "type": ["object", "null"],
        "properties": dict(properties),
        "additionalProperties": False,
        "description": description,
    }
