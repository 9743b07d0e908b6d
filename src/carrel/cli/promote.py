"""`carrel promote`: from a notebook to a task."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home, open_client

if TYPE_CHECKING:
    from carrel.notebooks.promote import Promoted

#: Packages that are named one by one.
_NAMED = 8


def promote_command(
    notebook: Annotated[Path, typer.Argument(metavar="NOTEBOOK", help="A notebook (.ipynb).", show_default=False)],
    cells: Annotated[
        str | None,
        typer.Option("--cells", metavar="CELLS", help='Only these cells of code, like "3-9,12"; they count from 1.  [all]'),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="The directory to make.  [beside the notebook]")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name of the task.  [the notebook's]")] = None,
    environment: Annotated[
        str | None,
        typer.Option(
            "--environment",
            "-e",
            metavar="NAME|PREFIX",
            help="Take the versions of this environment: a name (`carrel env list`) or its directory.  [the session's own]",
        ),
    ] = None,
    keep_notebook: Annotated[
        bool, typer.Option("--keep-notebook", help="The task runs the notebook itself and returns it executed.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over what an earlier promotion made.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Make a task of a notebook: script, environment, inputs and parameters, ready for `carrel run`."""
    from carrel.cli.screen import print_json
    from carrel.notebooks.promote import promote

    lock, python, prefix = _environment(environment, home)
    made = promote(
        notebook,
        cells,
        output,
        lock=lock,
        python=python,
        prefix=prefix,
        name=name,
        force=force,
        keep_notebook=keep_notebook,
        environ=os.environ,
    )
    if as_json:
        print_json(_plain(made))
    else:
        _say(made, notebook)
    return OK


def _environment(given: str | None, home: Path | None) -> tuple[str | None, str | None, Path | None]:
    """Lock and its Python, or prefix: what is a directory here is one; other words are names in the lab."""
    if given is None:
        return None, None, None
    place = Path(given).expanduser()
    if place.is_dir() or given.startswith((".", "/", "~")):
        return None, None, place
    with open_client(home) as client:
        found = client.environment_lock(given)
    version = re.search(r"3\.\d+", found.python)
    return found.text, version[0] if version else None, None


def _say(made: Promoted, notebook: Path) -> None:
    from carrel.cli.screen import clean, paint, print_fields
    from carrel.cli.words import size
    from carrel.notebooks.promote import Severity
    from carrel.notebooks.promote.selection import write_selection

    target = os.path.relpath(made.directory)
    print(f"Made {paint(clean(target) + '/', 'bold')} of {clean(notebook.name)}")
    rows = {
        "program": f"{made.program}: cells {write_selection(made.cells)}",
        "parameters": ", ".join(f"{item.name}={item.default} ({item.type})" for item in made.parameters),
        "environment": _packages(made),
        "modules": ", ".join(made.modules),
        "data": ", ".join(made.data),
        "inputs": ", ".join(f"{item.path} ({size(made.input_sizes[item.path])}, by digest)" for item in made.inputs),
        "outputs": ", ".join(made.outputs),
        "GPUs": str(made.gpus) if made.gpus else "",
    }
    print_fields([(f"  {name}", clean(value)) for name, value in rows.items()])
    heads = {Severity.CHANGED: "Changed:", Severity.GUESSED: "Guessed:", Severity.CHECK: "Please check:"}
    for weight, head in heads.items():
        notes = [note for note in made.notes if note.weight is weight]
        if notes:
            print(paint(head, "yellow" if weight is Severity.CHECK else "bold"))
            for note in notes:
                print(f"  {clean(f'{note.where}: {note.text}' if note.where else note.text)}")
    given = f" -P {made.parameters[0].name}={made.parameters[0].default}" if made.parameters else ""
    print(f"Run it: carrel run {clean(target)}{clean(given)}")


def _packages(made: Promoted) -> str:
    from carrel.core.domain.units import format_count

    lines = [line for line in made.environment.requirements if not line.startswith("-")]
    if not lines:
        return "Python alone"
    if made.environment.locked:
        source = "the lock" if made.environment_source == "lock" else made.environment_source
        return f"{format_count(len(lines), 'package')} in the versions of {source}"
    named = ", ".join(lines[:_NAMED]) + (" …" if len(lines) > _NAMED else "")
    return f"{named} (guessed from imports: no versions are locked yet)"


def _plain(made: Promoted) -> dict[str, Any]:
    return {
        "directory": str(made.directory.absolute()),
        "name": made.name,
        "program": made.program,
        "cells": list(made.cells),
        "left_out": list(made.left_out),
        "parameters": [
            {"name": item.name, "type": item.type, "default": item.default, "help": item.help} for item in made.parameters
        ],
        "environment": {
            "requirements": list(made.environment.requirements),
            "python": made.environment.python,
            "locked": made.environment.locked,
            "source": made.environment_source,
        },
        "gpus": made.gpus,
        "modules": list(made.modules),
        "data": list(made.data),
        "inputs": [
            {"path": item.path, "uri": item.uri, "digest": item.digest, "size": made.input_sizes[item.path]}
            for item in made.inputs
        ],
        "outputs": list(made.outputs),
        "files": list(made.files),
        "notes": [{"kind": note.weight.value, "cell": note.cell, "line": note.line, "text": note.text} for note in made.notes],
    }
