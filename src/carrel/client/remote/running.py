"""Runs a cell, or a function, in a pool, and gives what came of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from carrel.client.executor import Executor
from carrel.client.remote.failures import Names, raised
from carrel.client.remote.packing import There, load_parts, named, pack
from carrel.client.remote.screen import Screen, notebook_shell
from carrel.client.remote.watching import Watch

CELL_FILE = "<cell In[{}]>"


def run_cell(executor: Executor, order: dict[str, Any], variables: dict[str, Any], whole: Any, label: str) -> dict[str, Any]:
    """Run the source in `order` there; return its outcome, with `back` as it was made. Raises what the cell raises."""
    parts = pack(whole, variables, order["limit"])
    return _run(executor, There("cells", "cell", label), order, parts)


def call_function(
    executor: Executor, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], limit: int
) -> Any:
    """Call `function` there; return its result."""
    label = named(function)
    inside: dict[str, Any] = {label: function, **{f"argument {n}": one for n, one in enumerate(args, 1)}, **kwargs}
    parts = pack((function, args, kwargs), inside, limit, what=f"function {label} and its arguments")
    return _run(executor, There("cells", "call", label), {"limit": limit}, parts)["back"]


def _run(executor: Executor, there: There, order: dict[str, Any], parts: list[Any]) -> dict[str, Any]:
    outcome = Watch(executor, Screen()).call(there, order, parts)
    if outcome["error"] is not None:
        raise raised(outcome, cell_names())
    outcome["back"] = load_parts(outcome["back"])
    return outcome


def cell_names() -> Names:
    """How the notebook names the files of its cells."""
    shell = notebook_shell()

    def name(filename: str) -> str | None:
        if filename.startswith("<cell In[") and filename.endswith("]>"):
            return "Cell " + filename[6:-1]
        try:
            found = shell.compile.format_code_name(filename)
        except AttributeError:  # no shell, or an older one
            return None
        return " ".join(found) if found else None

    return name
