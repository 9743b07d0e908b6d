"""`carrel promote`: from a notebook to a task; `carrel run NOTEBOOK` makes the same in passing."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home, argument, flag, open_client, option
from carrel.cli.screen import clean, paint, print_fields, print_json

if TYPE_CHECKING:
    from carrel.client.travelling import Travelling
    from carrel.notebooks.promote import Environment, Promoted

#: Packages that are named one by one.
_NAMED = 8


def promote_command(
    notebook: Annotated[Path, argument("NOTEBOOK", "A notebook (.ipynb).")],
    output: Annotated[Path | None, option("--output -o", "DIR", "The directory to make.  [beside the notebook]")] = None,
    name: Annotated[str | None, option("--name", "NAME", "Name of the task.  [the notebook's]")] = None,
    environment: Annotated[
        str | None,
        option(
            "--environment -e",
            "NAME|PREFIX",
            "Take the packages of this environment: a name (`carrel env list`) or its directory.  [the session's own]",
        ),
    ] = None,
    include: Annotated[
        list[str] | None, option("--with", "PATH", "A file or directory that travels with the notebook; may be repeated.")
    ] = None,
    force: Annotated[bool, flag("--force", "Write over what an earlier promotion made.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Make a task of a notebook: a directory that runs it from its first cell to its last, ready for `carrel run`."""
    from carrel.notebooks.promote import promote

    packages = _environment(environment, home)
    made = promote(notebook, output, environment=packages, include=include or (), name=name, force=force, environ=os.environ)
    if as_json:
        return print_json(_plain(made))
    _say(made, notebook)
    return OK


@contextmanager
def as_project(task: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Promoted | None]]:
    """Yield a task; one whose target is a notebook has a directory that runs it as its target, until it is sent."""
    notebook = Path(task["target"]).expanduser()
    if notebook.suffix != ".ipynb" or not notebook.is_file():
        yield task, None
        return
    from carrel.notebooks.promote import promote

    with tempfile.TemporaryDirectory(prefix="carrel-notebook-") as scratch:
        words = (task.get("parameters") or {}).values()
        made = promote(notebook, Path(scratch) / "task", include=task.get("include") or (), words=words, environ=os.environ)
        yield {**task, "target": made.directory, "include": ()}, made


def as_sent(sent: Travelling, notebook: Path, made: Promoted) -> Travelling:
    """Return what was sent of a notebook's task as if it lay beside the notebook, where its user looks for files."""
    code = replace(sent.code, directory=notebook.absolute().parent, script=made.program, only=made.files)
    return replace(sent, code=code)


def _environment(given: str | None, home: Path | None) -> Environment | None:
    """What is a directory here is a prefix; other words are names in the lab."""
    from carrel.notebooks.promote import installed, locked

    if given is None:
        return None
    place = Path(given).expanduser()
    if place.is_dir() or given.startswith((".", "/", "~")):
        return installed(place)
    with open_client(home) as client:
        found = client.environment_lock(given)
    version = re.search(r"3\.\d+", found.python)
    return locked(found.text, version[0] if version else None, given)


def _say(made: Promoted, notebook: Path) -> None:
    target = os.path.relpath(made.directory)
    print(f"Made {paint(clean(target) + '/', 'bold')} of {clean(notebook.name)}")
    rows = {
        "parameters": ", ".join(f"{name}={value}" for name, value in made.parameters.items()),
        "packages": _packages(made.environment),
        "files": ", ".join(made.files),
        "GPUs": str(made.gpus) if made.gpus else "",
    }
    print_fields([(f"  {name}", clean(value)) for name, value in rows.items()])
    for note in made.notes:
        print(f"{paint('Please check:', 'yellow')} {clean(note)}")
    given = next((["-P", f"{name}={value}"] for name, value in made.parameters.items()), [])
    print(f"Run it: {clean(shlex.join(['carrel', 'run', target, *given]))}")


def _packages(environment: Environment) -> str:
    lines = [line for line in environment.requirements if not line.startswith("-")]
    named = ", ".join(lines[:_NAMED]) + (f" and {len(lines) - _NAMED} more" if len(lines) > _NAMED else "")
    return f"{named} ({environment.source})" if environment.source else named


def _plain(made: Promoted) -> dict[str, Any]:
    environment = made.environment
    return {
        "directory": str(made.directory.absolute()),
        "name": made.name,
        "program": made.program,
        "parameters": dict(made.parameters),
        "environment": {
            "requirements": list(environment.requirements),
            "python": environment.python,
            "source": environment.source,
        },
        "gpus": made.gpus,
        "files": list(made.files),
        "notes": list(made.notes),
    }
