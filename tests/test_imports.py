"""No circles: of two modules at most one knows the other, also where it is for types alone."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from carrel.engines.task_client import PARTS

SOURCES = Path(__file__).parents[1] / "src"


def _modules() -> dict[str, Path]:
    found = {}
    for path in SOURCES.glob("carrel/**/*.py"):
        name = ".".join(path.relative_to(SOURCES).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def _imported(path: Path, modules: dict[str, Path], *, at_once: bool = False) -> set[str]:
    """The modules that one names; `at_once`: those that are imported when it is; of the wire a client may use each name."""
    found = set()
    tree = ast.parse(path.read_text())
    later = [node for block in tree.body if isinstance(block, ast.If) and "wire" in path.parts for node in ast.walk(block)]
    for node in [*tree.body, *later] if at_once else ast.walk(tree):
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


@pytest.mark.slow
@pytest.mark.gate
def test_the_client_that_travels_with_tasks_has_all_that_it_imports() -> None:
    modules = _modules()
    travels = {
        name
        for name, path in modules.items()
        if any((Path("carrel") / part) in (one := path.relative_to(SOURCES), *one.parents) for part in PARTS)
    }
    needed, todo = set[str](), [name for name in travels if not name.startswith("carrel.core")]
    while todo:
        name = todo.pop()
        if name not in needed:
            needed.add(name)
            todo += _imported(modules[name], modules, at_once=True)
    assert len(needed) > 100
    assert needed - travels == set()


@pytest.mark.gate
def test_nothing_is_defined_behind_the_start_of_a_program() -> None:
    """What a program runs must be there by then."""
    for path in SOURCES.glob("carrel/**/*.py"):
        body = ast.parse(path.read_text()).body
        starts = [isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in body]
        assert not any(starts[:-1]), path
