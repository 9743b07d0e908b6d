"""`carrel env create`, `lock`, `share`, `restore`, `remove`: the named environments in which sessions run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from carrel.cli import words
from carrel.cli.endings import INTERRUPTED, OK
from carrel.cli.options import AsJson, Home, argument, flag, open_client, option
from carrel.cli.screen import StatusLine, clean, print_json, print_table
from carrel.core.domain.errors import Invalid
from carrel.core.domain.units import MIB, format_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from carrel.client import Client
    from carrel.wire import v1

Name = Annotated[str, argument("NAME", "One's own, or with its owner: ada/torch, site/torch.")]
Lock = Annotated[str | None, argument("[LOCK]", "Beginning of a lock's digest (`carrel env lock NAME --history`).")]


def create(
    name: Annotated[str, argument("NAME", "What to call it; site/NAME is for everybody (administrators).")],
    python: Annotated[
        str | None, option("--python", "VERSION", "Python, like \"3.11\".  [the project's, else the lab's own]")
    ] = None,
    requirements: Annotated[
        Path | None, option("--requirements -r", "FILE", "Install what a requirements file or a lock names.")
    ] = None,
    project: Annotated[
        Path | None, option("--project", "DIR", "Install what pyproject.toml (and uv.lock, where there is one) name.")
    ] = None,
    source: Annotated[str | None, option("--from", "NAME", "Install what another environment has now.")] = None,
    path: Annotated[
        str | None, option("--from-path", "PREFIX", "Use a virtual environment or conda prefix on the lab's machine as it is.")
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Make an environment for notebooks; ipykernel and pip are added."""
    request: dict[str, Any] = {"name": name, "python": python, "source": source}
    if requirements is not None:
        request |= _requirements(requirements)
    if project is not None:
        request["project"] = _project(project)
    if path is not None:
        request["path"] = os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 - links in it are meant

    from carrel.wire.v1 import EnvironmentRequest

    wanted = EnvironmentRequest.model_validate({key: value for key, value in request.items() if value is not None})
    return _built(home, lambda client, report: client.create_environment(wanted, report=report), as_json=as_json)


def lock(
    name: Name,
    which: Lock = None,
    output: Annotated[Path | None, option("--output -o", "FILE", "Write it to a file.")] = None,
    history: Annotated[bool, flag("--history", "List earlier locks instead.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Print exactly what is installed in an environment, as requirements."""
    if history:
        if which is not None or output is not None:
            raise Invalid("--history goes with no lock and no file.", remedy="Leave them out.")
        return _history(name, home, as_json=as_json)
    with open_client(home) as client:
        found = client.environment_lock(name, which)
    if output is not None:
        try:
            output.write_text(found.text, encoding="utf-8")
        except OSError as error:
            raise Invalid(f"{output} cannot be written: {error.strerror}.", remedy="Name another file.") from error
    if as_json:
        return print_json(found)
    if output is None:
        print(found.text, end="")
    else:
        print(f"{output} has the lock of {found.environment} ({found.digest.removeprefix('sha256:')[:12]}).")
    return OK


def share(
    name: Name,
    subjects: Annotated[
        list[str] | None, option("--with", "USER", 'Let this user use it, or "all"; may be repeated. Others no longer.')
    ] = None,
    off: Annotated[bool, flag("--off", "Let nobody else use it.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Say or show who else may use an environment; they get copies of their own."""
    if off and subjects:
        raise Invalid("--off and --with exclude each other.", remedy="Say one of them.")
    with open_client(home) as client:
        if off or subjects:
            chosen = [] if off else list(subjects or ())
            view = client.share_environment(name, "all" if "all" in chosen else chosen)
        else:
            view = client.environment(name)
    if as_json:
        return print_json(view)
    print(f"{view.name} is shared with {_subjects(view) or 'nobody'}.")
    if view.shared_with:
        print(f"  they use it    carrel notebook --env {view.owner}/{view.name}")
    return OK


def restore(name: Name, which: Lock = None, home: Home = None, as_json: AsJson = False) -> int:
    """Go back to what was installed before, or at the time of an earlier lock."""
    return _built(home, lambda client, report: client.restore_environment(name, which, report=report), as_json=as_json)


def remove(name: Name, home: Home = None, as_json: AsJson = False) -> int:
    """Remove an environment with its history; not while a session uses it."""
    with open_client(home) as client:
        client.remove_environment(name)
    if as_json:
        return print_json({"removed": name})
    print(f"Removed {name}.")
    return OK


def print_named(found: v1.NamedEnvironmentList) -> None:
    """The table of named environments."""
    if not found.environments:
        print("No named environments yet: the first notebook makes its own; `carrel env create NAME` makes others.")
        return
    now = words.now()
    rows = [
        (
            view.name,
            words.size(view.size),
            words.ago(view.used_at, now),
            view.python,
            str(view.packages or ""),
            _subjects(view),
            f"a copy of {view.copy_of}" if view.copy_of else view.source,
        )
        for view in found.environments
    ]
    print_table(("NAME", "SIZE", "LAST USED", "PYTHON", "PACKAGES", "SHARED WITH", "MADE FROM"), rows, right=(1, 4))
    limit = f" of {words.size(found.quota)}" if found.quota is not None else ""
    print(f"Yours use {words.size(found.used)}{limit}.")


def _built(home: Path | None, build: Callable[[Client, Callable[[str], None]], v1.NamedEnvironmentView], *, as_json: bool) -> int:
    line = StatusLine()
    with open_client(home) as client:
        try:
            view = build(client, lambda message: line.show(f"Environment: {message}"))
        except KeyboardInterrupt:
            line.clear()
            return INTERRUPTED
        finally:
            line.clear()
    if as_json:
        return print_json(view)
    parts = [view.python, format_count(view.packages, "package") if view.packages else "", words.size(view.size)]
    print(f"Environment {view.name} is ready: {', '.join(part for part in parts if part)}; from {clean(view.source)}.")
    print(f"  use it    carrel notebook --env {view.name}")
    return OK


def _history(name: str, home: Path | None, *, as_json: bool) -> int:
    with open_client(home) as client:
        view = client.environment(name)
    if as_json:
        return print_json({"name": view.name, "locks": [entry.model_dump(mode="json") for entry in view.locks]})
    if not view.locks:
        print(f"{view.name} is used where it is, in {view.path}: its history is not kept here.")
    else:
        rows = [
            (entry.digest.removeprefix("sha256:")[:12], words.local(entry.at), entry.how, str(entry.packages))
            for entry in reversed(view.locks)
        ]
        print_table(("LOCK", "SINCE", "HOW", "PACKAGES"), rows, right=(3,))
    return OK


def _subjects(view: v1.NamedEnvironmentView) -> str:
    return "everybody" if "all" in view.shared_with else ", ".join(view.shared_with)


def _requirements(file: Path) -> dict[str, Any]:
    """The lines of a requirements file with all that it includes, so that the lab needs nothing else of this machine."""
    from carrel.core.tasks.environment import read_requirements
    from carrel.core.tasks.files import DirectoryFiles

    if not file.is_file():
        raise Invalid(f"{file} is no file.", remedy="Name a requirements file.")
    recipe = read_requirements(DirectoryFiles.open(file.parent), file.name)
    if recipe.local:
        raise Invalid(
            f"{file} names packages by their place on this machine.",
            remedy="Take these lines out, and install them in a session: `%pip install -e /path/to/it`.",
        )
    return {"requirements": list(recipe.requirements), "files": dict(recipe.files)}


def _project(directory: Path) -> dict[str, str]:
    from carrel.core.tasks.files import DirectoryFiles, read_text

    files = DirectoryFiles.open(directory)
    if files.kind("pyproject.toml") != "file":
        raise Invalid(f"There is no pyproject.toml in {directory}.", remedy="Name the directory that has it, or use -r.")
    return {name: read_text(files, name, limit=16 * MIB) for name in ("pyproject.toml", "uv.lock") if files.kind(name) == "file"}
