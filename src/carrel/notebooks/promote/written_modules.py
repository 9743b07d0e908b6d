"""Modules that the notebook itself makes while it runs: no index is asked for them."""

from __future__ import annotations

import ast
import posixpath
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from carrel.notebooks.promote.findings import Findings, Severity
from carrel.notebooks.promote.gather import Said
from carrel.notebooks.promote.mentions import Role
from carrel.notebooks.promote.packages import Import, find_imports, is_standard, package_of

#: Commands that bring a whole directory of files.
_BRINGS = re.compile(r"(?:^|[;&|]\s*)(?:git\s+clone|unzip|tar|wget|curl|cp|mv|gdown)\b")


def imports_of_written(findings: Findings) -> list[Import]:
    """Return what the modules that cells write (``%%writefile helper.py``) import, with the cells' own lines."""
    found: list[Import] = []
    for written in findings.written:
        if not written.path.endswith(".py"):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(written.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            findings.note(Severity.CHECK, f"{written.path} cannot be read as Python: what it imports is not known", written.cell)
            continue
        found += [replace(item, line=written.line + item.line - 1, origin=f"cell {written.cell}") for item in find_imports(tree)]
    return found


def without_written(imports: Iterable[Import], said: Sequence[Said], base: Path, findings: Findings) -> list[Import]:
    """Return the imports that the notebook does not make itself; what is merely likely to be made by a command is noted.

    `base` is the notebook's directory.
    """
    searched = [""] + [posixpath.normpath(one.mention.path) for one in said if one.mention.role is Role.SEARCH]
    paths = [written.path for written in findings.written]
    paths += [one.mention.path for one in said if one.mention.role is Role.WRITE]
    made = {top for path in paths for top in _tops(path, searched)}
    # A command names files that it makes, and files that are there: those are local modules, which were found before.
    told = {
        top: f"{one.mention.path} (cell {one.cell})"
        for one in said
        if one.mention.role is Role.MENTION and one.mention.path.endswith(".py")
        for top in _tops(posixpath.basename(one.mention.path), [""])
    }
    away = [path for path in searched if path and not (base / path).exists()]
    brings = any(_BRINGS.search(command) for command, _, _ in findings.commands)
    kept = []
    for item in imports:
        if item.top in made:
            continue
        if item.top in told and brings:
            findings.note(Severity.CHECK, f"import {item.module} is taken for {told[item.top]}, which a command brings")
        elif away and brings and not item.optional and not _is_known(item):
            findings.note(
                Severity.CHECK,
                f"import {item.module} is looked for in {', '.join(away)}, which is there only while the task runs",
            )
        else:
            kept.append(item)
    return kept


def _is_known(item: Import) -> bool:
    return is_standard(item.module) or package_of(item.module) is not None


def _tops(path: str, searched: Iterable[str]) -> Iterator[str]:
    """Names under which a file can be imported, from the directories in which modules are looked for."""
    whole = posixpath.normpath(path)
    if not whole.endswith(".py") or whole.startswith(("/", "..")):
        return
    for place in searched:
        if place and not whole.startswith(f"{place}/"):
            continue
        first, _, rest = whole.removeprefix(f"{place}/" if place else "").partition("/")
        yield first if rest else first.removesuffix(".py")
