"""Inline script metadata (PEP 723): a script that says itself what it needs."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import Any

from carrel.core.domain.errors import Invalid
from carrel.core.domain.suggest import suggest

#: The expression that the specification gives, to be used as it is.
_BLOCK = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
_KEYS = ("dependencies", "requires-python", "tool")
#: Tables of [tool.uv] that change what is installed; dropping them would install something else.
DECISIVE = frozenset(
    {
        "sources",
        "index",
        "index-url",
        "extra-index-url",
        "no-index",
        "find-links",
        "override-dependencies",
        "constraint-dependencies",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptMetadata:
    """What a script's block says."""

    dependencies: tuple[str, ...] = ()
    requires_python: str | None = None


def read_metadata(text: str, file: str) -> ScriptMetadata | None:
    """Return the ``script`` block of a script, or None when it has none; raise `Invalid` when it is wrong."""
    blocks = [match for match in _BLOCK.finditer(text if text.endswith("\n") else text + "\n") if match["type"] == "script"]
    if not blocks:
        return None
    line = text[: blocks[0].start()].count("\n") + 1
    where = f"{file}, line {line}"
    if len(blocks) > 1:
        raise Invalid(f"{where}: more than one script block.", remedy="Keep one of them (PEP 723).")
    content = "".join(row[2:] if row.startswith("# ") else row[1:] for row in blocks[0]["content"].splitlines(keepends=True))
    try:
        said = tomllib.loads(content)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Invalid(f"{where}: the script block is not TOML: {error}.", remedy="See PEP 723.") from None
    for key in said:
        if key not in _KEYS:
            raise Invalid(f'{where}: "{key}" is not a key of a script block.', remedy=suggest(key, _KEYS, what="Keys"))
    refuse_decisive(said, where)
    dependencies, python = said.get("dependencies", []), said.get("requires-python")
    if not isinstance(dependencies, list) or not all(isinstance(item, str) for item in dependencies):
        raise Invalid(f"{where}: dependencies must be a list of texts.", remedy='Write it like dependencies = ["numpy>=2"].')
    if python is not None and not isinstance(python, str):
        raise Invalid(f"{where}: requires-python must be a text.", remedy='Write it like requires-python = ">=3.11".')
    return ScriptMetadata(dependencies=tuple(dependencies), requires_python=python)


def refuse_decisive(said: dict[str, Any], where: str) -> None:
    """Raise `Invalid` when [tool.uv] says where packages come from, which is only understood with a ``uv.lock``."""
    tool = said.get("tool", {})
    uv = tool.get("uv", {}) if isinstance(tool, dict) else {}
    decisive = sorted(DECISIVE & set(uv)) if isinstance(uv, dict) else []
    if decisive:
        raise Invalid(
            f"{where}: [tool.uv] {decisive[0]} is understood only with a lock.",
            remedy="Run `uv lock` in a project with pyproject.toml, or write requirements.txt with --index-url or --find-links.",
        )
