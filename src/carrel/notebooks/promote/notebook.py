"""Reading notebooks: JSON of nbformat 4, without Jupyter.

Source: the documentation of nbformat, "The Notebook file format".
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from carrel.core.domain.errors import Invalid, NotFound
from carrel.core.domain.units import MIB, format_size

#: Outputs are in the file too; beyond this it is no longer read.
LIMIT = 256 * MIB
#: Characters of all code, which is parsed: that takes a hundred times as much memory, and holds up other threads.
_CODE = MIB
#: Values of the whole JSON: an empty list takes thirty times its two bytes.
_VALUES = 5_000_000
#: How a session's cell asks for GPUs: ``# carrel: gpus=2`` or ``%gpu 2`` at its top, or the tag ``gpus=2``.
_GPUS = re.compile(r"(?m)^\s*(?:#\s*carrel\s*:.*?\bgpus\s*=\s*|%gpu\s+)(\d+)")
_GPU_TAG = re.compile(r"\s*gpus\s*=\s*(\d+)\s*")


def read_notebook(path: Path) -> dict[str, Any]:
    """Return a notebook's document, without outputs; raise `NotFound`, or `Invalid` when it is none or not one of Python."""
    try:
        document = json.loads(_read(path).decode("utf-8-sig"))
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
    metadata = document.setdefault("metadata", {})
    language = _text(metadata, "kernelspec", "language") or _text(metadata, "language_info", "name") or "python"
    if language.lower() != "python":
        raise Invalid(f"{path} is a notebook of {language}.", remedy="Only notebooks of Python can be tasks.")
    _check_cells(document.get("cells"), path)
    return document


def gpus_of(document: dict[str, Any]) -> int:
    """Return the most GPUs that a cell of a notebook asks for."""
    found = [0]
    for cell in document["cells"]:
        if cell["cell_type"] == "code":
            found += [int(match[1]) for match in _GPUS.finditer(cell["source"])]
            tags = cell["metadata"].get("tags")
            matches = [_GPU_TAG.fullmatch(tag) for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
            found += [int(match[1]) for match in matches if match]
    return max(found)


def _read(path: Path) -> bytes:
    if path.is_dir():
        raise Invalid(f"{path} is a directory.", remedy="Name a notebook (.ipynb).")
    try:
        size = path.stat().st_size
        if size > LIMIT:
            raise Invalid(
                f"{path} has {format_size(size)}, more than {format_size(LIMIT)}.", remedy="Clear its outputs and save it."
            )
        data = path.read_bytes()
    except FileNotFoundError:
        raise NotFound(f"There is no notebook {path}.", remedy="Name a file that Jupyter wrote (.ipynb).") from None
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}.", remedy="Correct its permissions.") from error
    if sum(data.count(sign) for sign in (b",", b"[", b"{")) > _VALUES:
        raise Invalid(f"{path} holds more than {_VALUES:,} values.", remedy="Clear its outputs and save it.")
    return data


def _check_cells(cells: Any, path: Path) -> None:
    """Check the cells, and clear them: outputs are no part of a task. Each has its source as one text and some metadata then."""
    if not isinstance(cells, list):
        raise Invalid(f"{path} is not a notebook: it has no list of cells.", remedy="Save it again with Jupyter.")
    for number, cell in enumerate(cells, start=1):
        source = cell.get("source") if isinstance(cell, dict) and isinstance(cell.get("cell_type"), str) else None
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        if not isinstance(source, str):
            raise Invalid(f"{path}: item {number} of its cells is not a cell.", remedy="Save it again with Jupyter.")
        metadata = cell.get("metadata")
        cell.update(source=source, metadata=metadata if isinstance(metadata, dict) else {})
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
    code = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
    if sum(map(len, code)) > _CODE:
        raise Invalid(
            f"{path} has more than {format_size(_CODE)} of code.", remedy="Keep data in files, and name them as inputs."
        )
    if not any(source.strip() for source in code):
        raise Invalid(f"{path} has no code cells.", remedy="There is nothing to run in it.")


def _text(metadata: Any, place: str, key: str) -> str | None:
    said = metadata.get(place) if isinstance(metadata, dict) else None
    found = said.get(key) if isinstance(said, dict) else None
    return found if isinstance(found, str) else None
