"""The options of a task for `carrel run` and `carrel submit`; typer reads them from signatures.

The options are those of `carrel.core.submission`; here stands where the code comes from, and what is written differently on a
command line than elsewhere.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carrel.cli.options import argument, flag, option
from carrel.core.domain.errors import Invalid
from carrel.core.domain.slurm import ENGINE
from carrel.core.submission import Option, ResourceOptions, TaskOptions, engine_options, options_of

if TYPE_CHECKING:
    from carrel.wire.v1 import ResourceRequest, SlurmRequest

Target = Annotated[str, argument("TARGET", "A directory, a .py or .sh script, a notebook (.ipynb), or a git address.")]
Arguments = Annotated[list[str] | None, argument("-- ARGUMENTS", "Arguments for a bare script.")]
Parameters = Annotated[list[str] | None, option("-P --param", "NAME=VALUE", "A parameter of the task; may be repeated.")]
Strict = Annotated[bool, flag("--strict", "A parameter that the entry point does not declare is an error.")]
EntryPoint = Annotated[str, typer.Option("-e", "--entry-point", metavar="NAME", help="Which entry point to run.")]
Version = Annotated[str | None, typer.Option(metavar="VERSION", help="Commit, branch or tag of a git address.")]
SlurmOptions = Annotated[
    list[str] | None, option("--slurm-option", "OPTION", "An option of sbatch, such as --constraint=a100; may be repeated.")
]
Include = Annotated[
    list[str] | None, option("--with", "PATH", "A file or directory that travels with the code; may be repeated.")
]
Backend = Annotated[str | None, option("--backend-config", "FILE|JSON", "MLflow's backend config, with Slurm's names.")]


def takes_a_task(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the arguments that describe a task; it gets what `carrel.Client.submit_project` takes of them, as `task`."""
    sources = inspect.signature(_sources, eval_str=True).parameters
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
        if parameter.name != "task"
    ]
    options = [option_parameter(name, option) for name, option in _OPTIONS.items()]
    options += [
        option_parameter(f"{engine}_{name}", one) for engine, declared in _ENGINES.items() for name, one in declared.items()
    ]
    code = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in sources.values()]

    def with_a_task(**given: Any) -> int:
        task = _sources(**{name: given.pop(name) for name in sources})
        task |= said_options({name: given.pop(name) for name in _OPTIONS}, _OPTIONS)
        resources = {name: task.pop(name) for name in _RESOURCES if name in task}
        engines = {
            engine: said_options({name: given.pop(f"{engine}_{name}") for name in declared}, declared)
            for engine, declared in _ENGINES.items()
        }
        slurm = _slurm(task.pop("slurm_options"), engines.pop(ENGINE, {}).get("modules", ()))
        engines = {engine: asked for engine, asked in engines.items() if asked}
        return command(task=task | {"resources": _resources(resources), "slurm": slurm, "engines": engines}, **given)

    with_a_task.__doc__ = command.__doc__
    with_a_task.__name__ = command.__name__
    parameters = [*code[:_BEFORE_OPTIONS], *options, *code[_BEFORE_OPTIONS:], *own]
    with_a_task.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    with_a_task.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_a_task


#: What the help shows of `_sources` before the options: target, arguments, parameters, how strictly, entry point and version.
_BEFORE_OPTIONS = 6
_RESOURCES = options_of(ResourceOptions)
#: In the order in which the help shows them.
_OPTIONS = {name: option for name, option in {**_RESOURCES, **options_of(TaskOptions)}.items() if option.flags}
#: Those of engines, by the engine's name.
_ENGINES = {
    engine: {name: option for name, option in declared.items() if option.flags} for engine, declared in engine_options().items()
}


def option_parameter(name: str, option: Option) -> inspect.Parameter:
    """Return the parameter that typer makes an option of."""
    kind = option.kind
    shown: dict[str, Any] = {"help": option.help, "metavar": option.metavar or kind.metavar or None}
    plain: Any = kind.plain | None
    default: Any = None
    if kind.plain is bool:
        plain, default, shown = bool, False, {"help": option.help}
    elif kind.plain in (list, dict):
        plain = list[str] | None
    elif kind.plain is int:
        shown["min"] = kind.least
    if option.help.rstrip().endswith("]"):
        shown["show_default"] = False
    annotation = Annotated[plain, typer.Option(*option.flags, **shown)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def said_options(given: Mapping[str, Any], declared: Mapping[str, Option]) -> dict[str, Any]:
    """Return what the client takes of the options that were given."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        option = declared[name]
        if value is None or value is False:
            continue
        if option.kind.plain is dict:
            found[name] = _variables(value)
        elif option.kind.plain is bool:
            found[name] = not option.negated
        else:
            if option.kind.closed:
                option.kind.read(name, value)
            found[name] = value
    return found


def _resources(said: Mapping[str, Any]) -> ResourceRequest:
    from carrel.wire.v1 import ResourceRequest

    return ResourceRequest(**said)


def _sources(
    target: Target,
    arguments: Arguments = None,
    parameters: Parameters = None,
    strict: Strict = False,
    entry_point: EntryPoint = "main",
    version: Version = None,
    slurm_options: SlurmOptions = None,
    include: Include = None,
    backend_config: Backend = None,
) -> dict[str, Any]:
    """Return what the client takes of these."""
    return {
        "target": target,
        "arguments": arguments or (),
        "parameters": _pairs(parameters or (), "-P"),
        "strict": strict,
        "entry_point": entry_point,
        "version": version,
        "slurm_options": slurm_options or (),
        "include": include or (),
        "backend_config": _backend_config(backend_config),
    }


def _slurm(options: Sequence[str], modules: Sequence[str]) -> SlurmRequest | None:
    from carrel.core.domain.serial import to_plain
    from carrel.core.domain.slurm import read_options
    from carrel.wire.v1 import SlurmRequest

    if not options and not modules:
        return None
    return SlurmRequest(**{name: value for name, value in to_plain(read_options(options, modules=modules)).items() if value})


def _pairs(given: Sequence[str], option: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Invalid(f'{option} "{text}" has no value.', remedy=f"Write {option} name=value.")
        if name in found:
            raise Invalid(f'{option} gives "{name}" twice.', remedy="Give it once.")
        found[name] = value
    return found


def _variables(given: Sequence[str]) -> dict[str, str]:
    complete = []
    for text in given:
        if "=" not in text and text not in os.environ:
            raise Invalid(f'--env {text}: there is no variable "{text}" here.', remedy=f"Write --env {text}=value.")
        complete.append(text if "=" in text else f"{text}={os.environ[text]}")
    return _pairs(complete, "--env")


def _backend_config(given: str | None) -> dict[str, Any]:
    """MLflow takes the same option: JSON, or the name of a file that holds it."""
    if given is None:
        return {}
    where, text = "--backend-config", given
    if not given.lstrip().startswith("{"):
        where = given
        try:
            text = Path(given).expanduser().read_text()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise Invalid(
                f"The backend config {given} cannot be read: {why}.", remedy="Name a JSON file, or give JSON."
            ) from error
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Invalid(f"{where} is not JSON: {error}.", remedy='Write it like {"mem": "8G", "time": "2:00:00"}.') from error
    if not isinstance(found, dict):
        raise Invalid(f"{where} is not a JSON object.", remedy='Write it like {"mem": "8G", "time": "2:00:00"}.')
    return found
