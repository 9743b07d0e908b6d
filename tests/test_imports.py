"""No circles: of two modules at most one knows the other, also where it is for types alone."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src"


def _modules() -> dict[str, Path]:
    found = {}
    for path in SOURCES.glob("carrel/**/*.py"):
        name = ".".join(path.relative_to(SOURCES).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def _imported(path: Path, modules: dict[str, Path]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else node.module for name in inside}
    return found & modules.keys()


@pytest.mark.slow
@pytest.mark.gate
def test_modules_do_not_know_each_other_in_a_circle() -> None:
    modules = _modules()
    assert len(modules) > 500
    graph = {name: _imported(path, modules) - {name} for name, path in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"A circle: {' -> '.join(error.args[1])}")
