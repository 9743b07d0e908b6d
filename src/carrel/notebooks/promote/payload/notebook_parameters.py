"""The parameters of a notebook, as papermill reads them. `carrel promote` put this file beside notebook_runner.py.

Source: papermill's documentation, "Parameterize". Needs no package; Python 3.9 and newer.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from typing import Any, Optional

_TRUTHS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def read_defaults(document: Any) -> dict[str, Any]:
    """Return the names that the cell for parameters gives a plain value, with it; a cell of an earlier run counts after it."""
    found: dict[str, Any] = {}
    for tag in ("parameters", "injected-parameters"):
        index = tagged(document, tag)
        if index is None:
            continue
        lines = "".join(document["cells"][index]["source"]).split("\n")
        source = "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in lines)
        for statement in ast.parse(source).body:
            if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
                continue
            for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
                if isinstance(target, ast.Name):
                    try:
                        found[target.id] = ast.literal_eval(statement.value)
                    except (ValueError, TypeError, SyntaxError):
                        found.pop(target.id, None)
    return found


def read_values(document: Any, words: Sequence[str]) -> dict[str, Any]:
    """Return the values that a command line gives: in the type of the default where there is one, else as Python reads them."""
    defaults = read_defaults(document)
    values: dict[str, Any] = {}
    rest = list(words)
    while rest:
        name, given, text = rest.pop(0).partition("=")
        plain = name[2:].replace("-", "_")
        if not name.startswith("--") or not plain.isidentifier() or not (given or rest):
            sys.exit(f'notebook_runner.py: "{name}": parameters are written --NAME=VALUE.')
        try:
            values[plain] = _read(text if given else rest.pop(0), defaults.get(plain))
        except ValueError as error:
            sys.exit(f"notebook_runner.py: {name}: {error}")
    return values


def tagged(document: Any, tag: str) -> Optional[int]:
    """Return the index of the first code cell with a tag, or None."""
    for index, cell in enumerate(document["cells"]):
        tags = cell.get("metadata", {}).get("tags")
        if cell["cell_type"] == "code" and isinstance(tags, list) and tag in tags:
            return index
    return None


def _read(text: str, default: Any) -> Any:
    if isinstance(default, bool):
        if text.lower() not in _TRUTHS:
            raise ValueError(f'"{text}" is neither true nor false')
        return _TRUTHS[text.lower()]
    if isinstance(default, (int, float, str)):
        return type(default)(text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
