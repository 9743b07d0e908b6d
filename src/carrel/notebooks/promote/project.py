"""The texts of a task directory: MLproject, the environment's files, and what git shall let through."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import yaml

from carrel.core.domain.task import InputSpec
from carrel.notebooks.promote.environment import Environment
from carrel.notebooks.promote.parameters import Parameter

_WIDE = 10_000


def write_project(
    *,
    heading: str,
    name: str,
    program: str,
    environment_file: str,
    parameters: Sequence[Parameter],
    gpus: int | None,
    inputs: Sequence[InputSpec],
    outputs: Sequence[str],
) -> str:
    """Return the text of MLproject."""
    main: dict[str, Any] = {}
    if parameters:
        main["parameters"] = {item.name: {"type": item.type, "default": item.default} for item in parameters}
    main["command"] = " ".join([f"python {program}", *(f"{item.option}={{{item.name}}}" for item in parameters)])
    carrel: dict[str, Any] = {}
    if gpus:
        carrel["resources"] = {"gpus": gpus}
    if inputs:
        carrel["inputs"] = [{"path": item.path, "uri": item.uri, "digest": item.digest} for item in inputs]
    if outputs:
        carrel["outputs"] = ["outputs/**", *outputs]
    parts: list[dict[str, Any]] = [{"name": name}, {"python_env": environment_file}, {"entry_points": {"main": main}}]
    if carrel:
        parts.append({"carrel": carrel})
    return "".join([f"# {heading}\n", "\n".join(_yaml(part) for part in parts)])


def write_environment(environment: Environment, requirements_file: str, constraints_file: str) -> dict[str, str]:
    """Return the texts of the environment's files: "" for python_env.yaml, and those that it names."""
    said: dict[str, Any] = {}
    if environment.python is not None:
        said["python"] = environment.python
    said["dependencies"] = [f"-r {requirements_file}"]
    lines = [*([f"-c {constraints_file}"] if environment.constraints else []), *environment.requirements]
    texts = {"": _yaml(said), requirements_file: "".join(f"{line}\n" for line in lines)}
    if environment.constraints:
        head = "# All that was installed where the notebook ran: other packages that are needed come in these versions.\n"
        texts[constraints_file] = head + "".join(f"{line}\n" for line in environment.constraints)
    return texts


def write_ignore(paths: Collection[str]) -> str:
    """Return a .gitignore that lets through what belongs to the task, also if those above it exclude it."""
    lines: dict[str, None] = {"/outputs/": None}
    for path in sorted(paths):
        parents = path.split("/")[:-1]
        for depth in range(1, len(parents) + 1):
            lines[f"!/{_literal(posixpath.join(*parents[:depth]))}/"] = None
        lines[f"!/{_literal(path)}"] = None
    return "".join(f"{line}\n" for line in lines)


def _literal(path: str) -> str:
    """A path with what is special in patterns made plain (gitignore(5))."""
    return "".join(f"\\{character}" if character in "\\*?[ " else character for character in path)


def _yaml(value: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True, width=_WIDE)
    return text
