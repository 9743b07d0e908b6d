"""Reading notebooks: JSON of nbformat 4, without Jupyter.

Source: the documentation of nbformat, "The Notebook file format".
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carrel.core.domain.errors import Invalid, NotFound
from carrel.core.domain.units import MIB, format_size

#: Outputs are in the file too; beyond this it is no longer read.
LIMIT = 256 * MIB
_CLASSIC_PROMPT = re.compile(r"^(>>>|\.\.\.)( |$)")
_PROMPT = re.compile(r"^(In \[\d+\]: | *\.{3,}:( |$))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A code cell that is not empty."""

    #: From 1, as the numbers beside the cells after "Restart and Run All": cells without code have none.
    number: int
    #: Where it stands among all cells of the file, from 0.
    index: int
    #: Its text, without prompts and without blanks that all of it is indented by.
    source: str
    tags: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Notebook:
    """What a notebook file says."""

    path: Path
    #: "sha256:…" of the file.
    digest: str
    cells: tuple[Cell, ...]
    #: Minor version of Python that it ran with last ("3.11"), or None.
    python: str | None
    #: The whole document, as it is in the file.
    document: Mapping[str, Any]


def read_notebook(path: Path) -> Notebook:
    """Read a notebook; raise `NotFound`, or `Invalid` when it is none, not one of Python, or has no code."""
    data = _read(path)
    try:
        document = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise Invalid(f"{path} is not UTF-8 text.", remedy="Save it again with Jupyter.") from None
    except (ValueError, RecursionError) as error:
        raise Invalid(
            f"{path} is not a notebook: not JSON: {error}.", remedy="Name a file that Jupyter wrote (.ipynb)."
        ) from None
    if not isinstance(document, dict) or not isinstance(document.get("nbformat"), int):
        raise Invalid(f"{path} is not a notebook: it has no nbformat.", remedy="Name a file that Jupyter wrote (.ipynb).")
    if document["nbformat"] != 4:
        remedy = f"Convert it: jupyter nbconvert --to notebook --nbformat 4 {path.name}"
        raise Invalid(f"{path} has the format {document['nbformat']}, and 4 is understood.", remedy=remedy)
    language = _language(document)
    if language != "python":
        raise Invalid(f"{path} is a notebook of {language}.", remedy="Only notebooks of Python can be promoted.")
    cells = tuple(_cells(document, path))
    if not cells:
        raise Invalid(f"{path} has no code cells.", remedy="There is nothing to run in it.")
    digest = hashlib.sha256(data).hexdigest()
    return Notebook(path=path, digest=f"sha256:{digest}", cells=cells, python=_python(document), document=document)


def _read(path: Path) -> bytes:
    if path.is_dir():
        raise Invalid(f"{path} is a directory.", remedy="Name a notebook (.ipynb).")
    try:
        size = path.stat().st_size
        if size > LIMIT:
            raise Invalid(
                f"{path} has {format_size(size)}, more than {format_size(LIMIT)}.", remedy="Clear its outputs and save it."
            )
        return path.read_bytes()
    except FileNotFoundError:
        raise NotFound(f"There is no notebook {path}.", remedy="Name a file that Jupyter wrote (.ipynb).") from None
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}.", remedy="Correct its permissions.") from error


def _cells(document: Mapping[str, Any], path: Path) -> list[Cell]:
    listed = document.get("cells")
    if not isinstance(listed, list):
        raise Invalid(f"{path} is not a notebook: it has no list of cells.", remedy="Save it again with Jupyter.")
    found: list[Cell] = []
    for index, item in enumerate(listed):
        if not isinstance(item, dict) or not isinstance(item.get("cell_type"), str):
            raise Invalid(f"{path}: item {index + 1} of its cells is not a cell.", remedy="Save it again with Jupyter.")
        source = source_of(item)
        if source is None:
            raise Invalid(f"{path}: cell {index + 1} of the file has no source.", remedy="Save it again with Jupyter.")
        if item["cell_type"] == "code" and source.strip():
            found.append(Cell(number=len(found) + 1, index=index, source=plain(source), tags=tags_of(item)))
    return found


def source_of(item: Mapping[str, Any]) -> str | None:
    """Return the text of a cell of the document, or None when it has none."""
    source = item.get("source")
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        source = "".join(source)
    return source.replace("\r\n", "\n").replace("\r", "\n") if isinstance(source, str) else None


def tags_of(item: Mapping[str, Any]) -> frozenset[str]:
    """Return the tags of a cell of the document."""
    metadata = item.get("metadata")
    tags = metadata.get("tags") if isinstance(metadata, dict) else None
    return frozenset(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else frozenset()


def plain(source: str) -> str:
    """Return a cell's text as IPython takes it: prompts that were copied with it go, and so does what all is indented by."""
    lines = source.split("\n")
    first = next((line for line in lines if line.strip()), "")
    prompt = next((prompt for prompt in (_CLASSIC_PROMPT, _PROMPT) if prompt.match(first)), None)
    if prompt is not None:
        lines = [prompt.sub("", line, count=1) for line in lines]
        first = next((line for line in lines if line.strip()), "")
    indent = first[: len(first) - len(first.lstrip())]
    return "\n".join(line.removeprefix(indent) if indent else line for line in lines)


def _language(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    for place, key in (("kernelspec", "language"), ("language_info", "name")):
        said = metadata.get(place) if isinstance(metadata, dict) else None
        if isinstance(said, dict) and isinstance(said.get(key), str):
            return str(said[key]).lower()
    return "python"


def _python(document: Mapping[str, Any]) -> str | None:
    metadata = document.get("metadata")
    said = metadata.get("language_info") if isinstance(metadata, dict) else None
    version = said.get("version") if isinstance(said, dict) else None
    match = re.match(r"(3\.\d+)\b", version) if isinstance(version, str) else None
    return match[1] if match else None
