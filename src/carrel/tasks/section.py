"""The ``carrel:`` section of an MLproject file, which plain MLflow passes over."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from carrel.domain.errors import Invalid
from carrel.domain.task import InputSpec
from carrel.domain.units import parse_duration, parse_size
from carrel.tasks.document import Value
from carrel.tasks.overrides import ResourceOverrides
from carrel.tasks.parameters import is_uri, refuse_credentials

#: Keys of the section, and of its parts. `docs/tasks.md` describes each one.
SECTION_KEYS = (
    *("resources", "qos", "partition", "account", "experiment"),
    *("inputs", "outputs", "retries", "preemptible", "variables"),
)
RESOURCE_KEYS = ("gpus", "gpu_type", "gpu_memory", "cpus", "memory", "time")
INPUT_KEYS = ("path", "uri", "digest")
MAX_RETRIES = 100
DEFAULT_OUTPUTS = ("outputs/**",)

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
#: The lab's own variables; a task that sets one would be told apart from itself.
_RESERVED = "CARREL_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What the section says; None or empty where it says nothing."""

    resources: ResourceOverrides = field(default_factory=ResourceOverrides)
    qos: str | None = None
    partition: str | None = None
    account: str | None = None
    experiment: str | None = None
    inputs: tuple[InputSpec, ...] = ()
    outputs: tuple[str, ...] = DEFAULT_OUTPUTS
    retries: int | None = None
    preemptible: bool | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


def read_section(value: Value) -> Section:
    """Read the section; raise `Invalid` for whatever is not understood."""
    said = value.mapping(SECTION_KEYS)
    names = {key: said[key].text() for key in ("qos", "partition", "account", "experiment") if key in said}
    retries = said["retries"].integer() if "retries" in said else None
    if retries is not None and retries > MAX_RETRIES:
        raise said["retries"].wrong(f"retries is {retries}.", f"At most {MAX_RETRIES}.")
    return Section(
        resources=_resources(said["resources"]) if "resources" in said else ResourceOverrides(),
        qos=names.get("qos"),
        partition=names.get("partition"),
        account=names.get("account"),
        experiment=names.get("experiment"),
        inputs=_inputs(said["inputs"]) if "inputs" in said else (),
        outputs=tuple(_glob(item) for item in said["outputs"].items()) if "outputs" in said else DEFAULT_OUTPUTS,
        retries=retries,
        preemptible=said["preemptible"].truth() if "preemptible" in said else None,
        variables=_variables(said["variables"]) if "variables" in said else {},
    )


def check_variable(name: str) -> str | None:
    """Return what is wrong with the name of an environment variable, or None."""
    if not _VARIABLE.fullmatch(name):
        return "is not a name of a variable: use letters, digits and _"
    if name.startswith(_RESERVED):
        return f"is the lab's own: names that start with {_RESERVED} are set by the lab"
    return None


def _resources(value: Value) -> ResourceOverrides:
    said = value.mapping(RESOURCE_KEYS)
    cpus = said["cpus"].integer() if "cpus" in said else None
    if cpus == 0:
        raise said["cpus"].wrong("cpus is 0.", "A job needs at least 1.")
    return ResourceOverrides(
        gpus=said["gpus"].integer() if "gpus" in said else None,
        gpu_type=said["gpu_type"].text() if "gpu_type" in said else None,
        gpu_memory=_measured(said["gpu_memory"], parse_size) if "gpu_memory" in said else None,
        cpus=cpus,
        memory=_measured(said["memory"], parse_size) if "memory" in said else None,
        time=_measured(said["time"], parse_duration) if "time" in said else None,
    )


def _measured(value: Value, parse: Callable[[str], int]) -> int:
    text = value.text()
    try:
        return parse(text)
    except Invalid as error:
        raise value.wrong(f"{value.key}: {error.message}", error.remedy) from None


def _inputs(value: Value) -> tuple[InputSpec, ...]:
    found: list[InputSpec] = []
    if value.is_mapping:
        for path, item in value.mapping().items():
            found.append(_input(item, path, item.mapping(("uri", "digest")) if item.is_mapping else {"uri": item}))
    else:
        for item in value.items():
            said = item.mapping(INPUT_KEYS)
            if "path" not in said:
                raise item.wrong("an input has no path.", "Say where it shall appear: path: data/train.csv")
            found.append(_input(item, said["path"].text(), said))
    for one in found:
        for other in found:
            if one is not other and (one.path == other.path or one.path.startswith(other.path + "/")):
                raise value.wrong(
                    f'the inputs "{other.path}" and "{one.path}" are in each other\'s way.', "Give each a place of its own."
                )
    return tuple(found)


def _input(value: Value, path: str, said: Mapping[str, Value]) -> InputSpec:
    if "uri" not in said:
        raise value.wrong(f'the input "{path}" has no uri.', "Say where it comes from: uri: https://host/train.csv")
    uri = said["uri"].text()
    if not is_uri(uri):
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


def _variables(value: Value) -> dict[str, str]:
    variables: dict[str, str] = {}
    for name, item in value.mapping().items():
        fault = check_variable(name)
        if fault:
            raise item.wrong(f'"{name}" {fault}.')
        variables[name] = "" if item.empty else item.text()
        if "\0" in variables[name]:
            raise item.wrong(f'the value of "{name}" has a zero byte.')
    return variables
