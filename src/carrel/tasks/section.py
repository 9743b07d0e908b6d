"""The ``carrel:`` section of an MLproject file, which plain MLflow passes over."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from carrel.domain.array import read_array
from carrel.domain.errors import Invalid
from carrel.domain.network import Network, read_network
from carrel.domain.secret import check_secret_name
from carrel.domain.slurm import SlurmRequest
from carrel.domain.task import EnvironmentRecipe, InputSpec, Launcher
from carrel.domain.units import parse_duration, parse_size
from carrel.tasks.dates import read_as_of
from carrel.tasks.document import Value
from carrel.tasks.image import read_image
from carrel.tasks.overrides import ResourceOverrides
from carrel.tasks.parameters import is_uri, refuse_credentials
from carrel.tasks.shape import SAME_GPUS, read_launcher

#: Keys of the section, and of its parts. `docs/tasks.md` describes each one.
SECTION_KEYS = (
    *("resources", "qos", "partition", "account", "experiment"),
    *("inputs", "outputs", "retries", "requeue", "warning", "preemptible", "variables", "secrets", "slurm"),
    *("launcher", "tasks_per_node", "array", "resolve_as_of", "network", "image"),
)
RESOURCE_KEYS = ("nodes", "gpus", "gpus_per_node", "gpu_type", "gpu_memory", "cpus", "memory", "time")
INPUT_KEYS = ("path", "uri", "digest")
SLURM_TABLE_KEYS = ("constraint", "exclusive", "reservation", "mail", "mail_events", "modules", "options")
MAX_RETRIES = 100
#: How often a task goes on that says only that it does.
REQUEUES = 20
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
    #: How often it goes on from its checkpoint after its walltime.
    requeue: int | None = None
    #: Seconds before the end of its walltime at which it is told.
    warning: int | None = None
    preemptible: bool | None = None
    slurm: SlurmRequest = field(default_factory=SlurmRequest)
    variables: Mapping[str, str] = field(default_factory=dict)
    #: Names of the submitter's secrets.
    secrets: tuple[str, ...] = ()
    launcher: Launcher | None = None
    tasks_per_node: int | None = None
    #: As `carrel.domain.array` reads it.
    array: str | None = None
    #: As of which date requirements are resolved, as `read_as_of` reads it.
    resolve_as_of: str | None = None
    network: Network | None = None
    #: The environment that it runs in, where that is an image.
    image: EnvironmentRecipe | None = None


def read_section(value: Value) -> Section:
    """Read the section; raise `Invalid` for whatever is not understood."""
    said = value.mapping(SECTION_KEYS)
    names = {key: said[key].text() for key in ("qos", "partition", "account", "experiment") if key in said}
    retries = said["retries"].integer() if "retries" in said else None
    if retries is not None and retries > MAX_RETRIES:
        raise said["retries"].wrong(f"retries is {retries}.", f"At most {MAX_RETRIES}.")
    requeue = _requeue(said["requeue"]) if "requeue" in said else None
    return Section(
        resources=_resources(said["resources"]) if "resources" in said else ResourceOverrides(),
        qos=names.get("qos"),
        partition=names.get("partition"),
        account=names.get("account"),
        experiment=names.get("experiment"),
        inputs=_inputs(said["inputs"]) if "inputs" in said else (),
        outputs=tuple(_glob(item) for item in said["outputs"].items()) if "outputs" in said else DEFAULT_OUTPUTS,
        retries=retries,
        requeue=requeue,
        warning=_measured(said["warning"], parse_duration) if "warning" in said else None,
        slurm=_slurm(said["slurm"]) if "slurm" in said else SlurmRequest(),
        preemptible=said["preemptible"].truth() if "preemptible" in said else None,
        variables=_variables(said["variables"]) if "variables" in said else {},
        secrets=tuple(dict.fromkeys(_secret(item) for item in said["secrets"].items())) if "secrets" in said else (),
        launcher=_launcher(said["launcher"]) if "launcher" in said else None,
        tasks_per_node=_at_least_one(said["tasks_per_node"]) if "tasks_per_node" in said else None,
        array=_array(said["array"]) if "array" in said else None,
        resolve_as_of=_as_of(said["resolve_as_of"]) if "resolve_as_of" in said else None,
        network=_network(said["network"]) if "network" in said else None,
        image=image_of(said["image"], "the image") if "image" in said else None,
    )


def image_of(value: Value, source: str) -> EnvironmentRecipe:
    """Return the environment that the image of this name is."""
    try:
        return read_image(value.text(), source)
    except Invalid as error:
        raise value.wrong(error.message, error.remedy) from None


def _network(value: Value) -> Network:
    try:
        return read_network(value.text())
    except Invalid as error:
        raise value.wrong(error.message, error.remedy) from None


def _as_of(value: Value) -> str:
    text = value.text()
    try:
        read_as_of(text)
    except Invalid as error:
        raise value.wrong(error.message, error.remedy) from None
    return text


def check_variable(name: str) -> str | None:
    """Return what is wrong with the name of an environment variable, or None."""
    if not _VARIABLE.fullmatch(name):
        return "is not a name of a variable: use letters, digits and _"
    if name.startswith(_RESERVED):
        return f"is the lab's own: names that start with {_RESERVED} are set by the lab"
    return None


def _resources(value: Value) -> ResourceOverrides:
    said = value.mapping(RESOURCE_KEYS)
    gpus = [said[key].integer() for key in ("gpus", "gpus_per_node") if key in said]
    if len(set(gpus)) > 1:
        raise said["gpus_per_node"].wrong(f"gpus is {gpus[0]} and gpus_per_node is {gpus[1]}.", SAME_GPUS)
    return ResourceOverrides(
        nodes=_at_least_one(said["nodes"]) if "nodes" in said else None,
        gpus=gpus[0] if gpus else None,
        gpu_type=said["gpu_type"].text() if "gpu_type" in said else None,
        gpu_memory=_measured(said["gpu_memory"], parse_size) if "gpu_memory" in said else None,
        cpus=_at_least_one(said["cpus"]) if "cpus" in said else None,
        memory=_measured(said["memory"], parse_size) if "memory" in said else None,
        time=_measured(said["time"], parse_duration) if "time" in said else None,
    )


def _requeue(value: Value) -> int:
    """Return how often: a number, or true for as often as is usual."""
    if value.text().lower() in ("true", "false"):
        return REQUEUES if value.truth() else 0
    number = value.integer()
    if number > MAX_RETRIES:
        raise value.wrong(f"requeue is {number}.", f"At most {MAX_RETRIES}.")
    return number


def _slurm(value: Value) -> SlurmRequest:
    said = value.mapping(SLURM_TABLE_KEYS)

    def word(key: str) -> str:
        return said[key].text() if key in said else ""

    def words(key: str) -> tuple[str, ...]:
        return tuple(item.text() for item in said[key].items()) if key in said else ()

    exclusive = word("exclusive")
    return SlurmRequest(
        constraint=word("constraint"),
        exclusive={"true": "exclusive", "false": ""}.get(exclusive.lower(), exclusive),
        reservation=word("reservation"),
        mail=word("mail"),
        mail_events=tuple(event.upper() for event in words("mail_events")),
        modules=words("modules"),
        options=words("options"),
    )


def _at_least_one(value: Value) -> int:
    number = value.integer()
    if number == 0:
        raise value.wrong(f"{value.key} is 0.", "A job needs at least 1.")
    return number


def _launcher(value: Value) -> Launcher:
    try:
        return read_launcher(value.text())
    except Invalid as error:
        raise value.wrong(error.message, error.remedy) from None


def _array(value: Value) -> str:
    try:
        read_array(value.text())
    except Invalid as error:
        raise value.wrong(error.message, error.remedy) from None
    return value.text()


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


def _secret(value: Value) -> str:
    try:
        check_secret_name(value.text())
    except Invalid as error:
        raise value.wrong(error.message, error.remedy) from None
    return value.text()
