"""One table of settings feeds the file, the environment, the command line and the documentation."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carrel.domain.errors import Invalid
from carrel.domain.qos import JobKind, QoS
from carrel.domain.units import parse_duration, parse_size


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `kind` is "text", "int", "flag", "size" or "duration"; sizes are bytes and durations seconds when read."""

    name: str
    kind: str
    default: Any
    help: str


DEFAULT_PORT = 8642

#: Every setting of `carrel.toml` (top level), of the environment (CARREL_ and the name in capitals) and of `carrel up`.
SETTINGS: tuple[Setting, ...] = (
    Setting("host", "text", "127.0.0.1", "Address to listen on; loopback unless a TLS proxy stands in front."),
    Setting("port", "int", DEFAULT_PORT, "Port to listen on; when another program has the default one, a free one is taken."),
    Setting("database", "text", None, "PostgreSQL URL (postgresql+psycopg://…); without it the lab keeps a SQLite file."),
    Setting("tracking", "flag", True, "Start the MLflow tracking server with the lab."),
    Setting("simulate_gpus", "int", None, "Offer this many simulated GPUs instead of the machine's own."),
    Setting("cpus", "int", None, "Processors that jobs may use; found by itself."),
    Setting("memory", "size", None, "Memory that jobs may use; found by itself."),
    Setting("default_qos", "text", "normal", "Class of service for work that names none."),
    Setting("warning_time", "duration", 30, "How long before its walltime a job gets SIGTERM."),
    Setting("grace_time", "duration", 10, "How long a cancelled job has between SIGTERM and SIGKILL."),
    Setting("prepare_time", "duration", 3600, "How long building an environment and staging inputs may take."),
    Setting("log_limit", "size", 1024**3, "Log that is kept of one attempt; the rest is dropped with a note."),
    Setting("output_limit", "size", 50 * 1024**3, "Outputs that are stored of one attempt."),
    Setting("snapshot_limit", "size", 1024**3, "Largest code snapshot that is accepted."),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}

#: Classes of service of a lab that configures none: sensible for one workstation.
DEFAULT_QOS: tuple[QoS, ...] = (
    QoS(name="normal", default_time=24 * 3600),
    QoS(name="short", default_time=30 * 60, max_time=30 * 60, priority=10),
    QoS(name="batch", kinds=frozenset({JobKind.TASK, JobKind.WORKER}), default_time=24 * 3600, priority=-10),
)

_QOS_KEYS = {
    "kinds": "list of job kinds",
    "default_time": "duration",
    "max_time": "duration",
    "max_jobs_per_user": "int",
    "max_gpus_per_user": "int",
    "priority": "int",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one lab is run with."""

    values: Mapping[str, Any]
    qos: Mapping[str, QoS]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None


def read_settings(file: Path, environment: Mapping[str, str], options: Mapping[str, Any]) -> Settings:
    """Settings from `options` (the command line), then the environment, then `file` (may be absent), then the defaults.

    Raises `Invalid` naming the place, the key and the nearest valid key.
    """
    tables = _read_toml(file)
    qos = _read_qos(tables.pop("qos", None), file)
    values = {setting.name: setting.default for setting in SETTINGS}
    for name, value in tables.items():
        setting = _BY_NAME[_known(name, _BY_NAME, str(file))]
        values[name] = _convert(setting, value, f"{file}: {name}")
    for setting in SETTINGS:
        variable = f"CARREL_{setting.name.upper()}"
        if environment.get(variable):
            values[setting.name] = _convert(setting, environment[variable], variable)
    for name, value in options.items():
        if value is not None:
            values[name] = _convert(_BY_NAME[name], value, f"--{name.replace('_', '-')}")
    if values["default_qos"] not in qos:
        raise Invalid(f'default_qos is "{values["default_qos"]}".', remedy=f"Choose one of: {', '.join(qos)}.")
    return Settings(values=values, qos=qos)


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            return tomllib.load(stream)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Invalid(f"{file} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"{file} is not valid TOML: {error}.") from error


def _known(name: str, valid: Mapping[str, Any], where: str) -> str:
    if name in valid:
        return name
    near = difflib.get_close_matches(name, valid, n=1)
    remedy = f'Did you mean "{near[0]}"?' if near else f"Valid are: {', '.join(valid)}."
    raise Invalid(f'{where}: there is no setting "{name}".', remedy=remedy)


def _convert(setting: Setting, value: Any, where: str) -> Any:
    kind = setting.kind
    if kind == "int" and isinstance(value, str) and value.lstrip("-").isdigit():
        value = int(value)
    if kind == "flag" and isinstance(value, str) and value.lower() in _FLAGS:
        value = _FLAGS[value.lower()]
    try:
        if kind == "size" and isinstance(value, str):
            return parse_size(value)
        if kind == "duration" and isinstance(value, str):
            return parse_duration(value)
    except Invalid as error:
        raise Invalid(f"{where}: {error.message}", remedy=error.remedy) from error
    expected = {"text": str, "int": int, "flag": bool}.get(kind)
    if expected is None or not isinstance(value, expected) or (kind == "int" and isinstance(value, bool)):
        raise Invalid(f"{where} is {value!r}.", remedy=f"It must be {_EXPECTED[kind]}.")
    if isinstance(value, int) and value < 0:
        raise Invalid(f"{where} is {value}.", remedy="It must be 0 or more.")
    return value


_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_EXPECTED = {
    "text": "a text",
    "int": "a whole number",
    "flag": "true or false",
    "size": 'a size such as "8G"',
    "duration": 'a duration such as "2h"',
}


def _read_qos(tables: Any, file: Path) -> dict[str, QoS]:
    if tables is None:
        return {qos.name: qos for qos in DEFAULT_QOS}
    if not isinstance(tables, dict) or not tables or not all(isinstance(table, dict) for table in tables.values()):
        raise Invalid(f"{file}: qos must be tables.", remedy="Write [qos.NAME] with its keys below it.")
    return {name: _one_qos(name, table, f"{file}: qos.{name}") for name, table in tables.items()}


def _one_qos(name: str, table: Mapping[str, Any], where: str) -> QoS:
    fields: dict[str, Any] = {}
    for key, value in table.items():
        kind = _QOS_KEYS[_known(key, _QOS_KEYS, where)]
        if key == "kinds":
            fields[key] = _kinds(value, where)
        elif key == "priority" and isinstance(value, int) and not isinstance(value, bool):
            fields[key] = value
        else:
            fields[key] = _convert(Setting(key, kind, None, ""), value, f"{where}.{key}")
    qos = QoS(name=name, **fields)
    if qos.max_time is not None and qos.default_time > qos.max_time:
        qos = QoS(name=name, **{**fields, "default_time": qos.max_time})
    return qos


def _kinds(value: Any, where: str) -> frozenset[JobKind]:
    valid = {kind.value: kind for kind in JobKind}
    if not isinstance(value, list) or not value or not all(item in valid for item in value):
        raise Invalid(f"{where}.kinds is {value!r}.", remedy=f"It must be a list of: {', '.join(valid)}.")
    return frozenset(valid[item] for item in value)
