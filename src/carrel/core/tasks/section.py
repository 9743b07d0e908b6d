"""The ``carrel:`` section of an MLproject file, which plain MLflow passes over."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from carrel.core.domain.errors import Invalid
from carrel.core.domain.slurm import ENGINE, SlurmRequest
from carrel.core.domain.task import InputSpec
from carrel.core.submission import (
    Kind,
    Option,
    ResourceOptions,
    SlurmOptions,
    SweepOptions,
    TaskOptions,
    engine_options,
    options_of,
)
from carrel.core.tasks.document import Value
from carrel.core.tasks.parameters import is_uri, refuse_credentials
from carrel.core.tasks.shape import SAME_GPUS

#: Options that may stand in the section, and among its resources. `docs/tasks.md` describes each one.
OPTIONS = {name: option for name, option in options_of(TaskOptions).items() if option.in_files}
_RESOURCES = options_of(ResourceOptions)
SECTION_KEYS = ("resources", "slurm", "inputs", "outputs", "steps", "sweep", *OPTIONS)
RESOURCE_KEYS = tuple(key for name, option in _RESOURCES.items() for key in (name, option.synonym) if key)
INPUT_KEYS = ("path", "uri", "digest")
DEFAULT_OUTPUTS = ("outputs/**",)

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What the section says; None or empty where it says nothing."""

    options: TaskOptions = field(default_factory=TaskOptions)
    inputs: tuple[InputSpec, ...] = ()
    outputs: tuple[str, ...] = DEFAULT_OUTPUTS
    #: For `carrel sweep`; a task that is run alone has nothing to do with it.
    sweep: SweepOptions = field(default_factory=SweepOptions)


def read_section(value: Value) -> Section:
    """Read the section; raise `Invalid` for anything that is not understood."""
    said = value.mapping(tuple(dict.fromkeys((*SECTION_KEYS, *engine_options()))))
    options = {name: read_value(option.kind, said[name]) for name, option in OPTIONS.items() if name in said}
    if "resources" in said:
        options["resources"] = read_resources(said["resources"])
    if "slurm" in said:
        options["slurm"] = _slurm(said["slurm"])
    others = {name: declared for name, declared in engine_options().items() if name in said and name != ENGINE}
    options["engines"] = {name: _declared(said[name], declared) for name, declared in others.items()}
    return Section(
        options=TaskOptions(**options),
        inputs=read_inputs(said["inputs"]) if "inputs" in said else (),
        outputs=tuple(_glob(item) for item in said["outputs"].items()) if "outputs" in said else DEFAULT_OUTPUTS,
        sweep=SweepOptions(**_declared(said["sweep"], options_of(SweepOptions))) if "sweep" in said else SweepOptions(),
    )


def read_value(kind: Kind, value: Value) -> Any:
    """Return what is written here as a value of this kind; raise `Invalid` with its place for one that it cannot be."""
    if kind.plain is list:
        parts = [text for item in value.items() for text in _at(item, kind, [item.text()])]
        return kind.read(value.key, parts)
    if kind.plain is dict:
        pairs = {key: (item, "" if item.empty else item.text()) for key, item in value.mapping().items()}
        return {key: text for key, (item, one) in pairs.items() for text in _at(item, kind, {key: one}).values()}
    return _at(value, kind, _plain(value, kind))


def _plain(value: Value, kind: Kind) -> Any:
    if kind.plain is bool:
        return value.truth()
    if kind.plain is int:
        if kind.truth is not None and value.text().lower() in ("true", "false"):
            return kind.truth if value.truth() else 0
        return value.integer()
    return value.text()


def _at(value: Value, kind: Kind, plain: Any) -> Any:
    try:
        return kind.read(value.key, plain)
    except Invalid as error:
        raise value.wrong(error.message, error.remedy) from None


def read_resources(value: Value) -> ResourceOptions:
    """Read what a task has on each of its nodes."""
    said = value.mapping(RESOURCE_KEYS)
    found: dict[str, Any] = {}
    for name, option in _RESOURCES.items():
        given = {key: read_value(option.kind, said[key]) for key in (name, option.synonym) if key in said}
        if len(set(given.values())) > 1:
            facts = " and ".join(f"{key} is {one}" for key, one in given.items())
            raise said[option.synonym].wrong(f"{facts}.", SAME_GPUS)
        if given:
            found[name] = next(iter(given.values()))
    return ResourceOptions(**found)


def _slurm(value: Value) -> SlurmRequest:
    asked = SlurmRequest(**_declared(value, options_of(SlurmOptions)))
    return replace(asked, exclusive={"true": "exclusive", "false": ""}.get(asked.exclusive.lower(), asked.exclusive))


def _declared(value: Value, options: Mapping[str, Option]) -> dict[str, Any]:
    """Read the table of an engine."""
    said = value.mapping(tuple(options))
    return {name: read_value(option.kind, said[name]) for name, option in options.items() if name in said}


def read_inputs(value: Value, steps: Collection[str] = ()) -> tuple[InputSpec, ...]:
    """Read what is brought; an address may begin with the name of one of the `steps`, too."""
    found: list[InputSpec] = []
    if value.is_mapping:
        for path, item in value.mapping().items():
            found.append(_input(item, path, item.mapping(("uri", "digest")) if item.is_mapping else {"uri": item}, steps))
    else:
        for item in value.items():
            said = item.mapping(INPUT_KEYS)
            if "path" not in said:
                raise item.wrong("an input has no path.", "Say where it shall appear: path: data/train.csv")
            found.append(_input(item, said["path"].text(), said, steps))
    for one in found:
        for other in found:
            if one is not other and (one.path == other.path or one.path.startswith(other.path + "/")):
                raise value.wrong(
                    f'the inputs "{other.path}" and "{one.path}" are in each other\'s way.', "Give each a place of its own."
                )
    return tuple(found)


def _input(value: Value, path: str, said: Mapping[str, Value], steps: Collection[str]) -> InputSpec:
    if "uri" not in said:
        raise value.wrong(f'the input "{path}" has no uri.', "Say where it comes from: uri: https://host/train.csv")
    uri = said["uri"].text()
    if not is_uri(uri) and uri.partition("/")[0] not in steps:
        raise said["uri"].wrong(
            f'"{uri}" is not a URI.', "Start it with file:, https:, s3: … (files of the project need not be named)."
        )
    refuse_credentials(uri, f"{value.file}, line {said['uri'].line}")
    digest = said["digest"].text().lower() if "digest" in said else None
    if digest is not None and not _DIGEST.fullmatch(digest):
        raise said["digest"].wrong(f'"{digest}" is not a digest.', 'A digest is "sha256:" and 64 hexadecimal digits.')
    return InputSpec(path=_inside(value, path), uri=uri, digest=digest)


def _inside(value: Value, path: str) -> str:
    plain = posixpath.normpath(path)
    if not path or "\0" in path or plain.startswith("/") or plain.split("/")[0] in ("..", "."):
        raise value.wrong(f'"{path}" is not a place in the working directory.', "Give a relative path without ..")
    return plain


def _glob(value: Value) -> str:
    pattern = value.text()
    if not pattern or "\0" in pattern or pattern.startswith("/") or ".." in pattern.split("/"):
        raise value.wrong(f'"{pattern}" does not name files in the working directory.', 'Write it like "outputs/**" or "*.csv".')
    return pattern
