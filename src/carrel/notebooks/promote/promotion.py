"""From a notebook to a task directory."""

from __future__ import annotations

import errno
import json
import math
import os
import posixpath
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from carrel.client.code import included
from carrel.client.companions import Companions, find_companions
from carrel.core.domain.errors import CarrelError, Conflict, Invalid, NotFound, StorageFull
from carrel.core.domain.units import MIB, format_size
from carrel.core.snapshots import Packed, pack
from carrel.core.tasks import describe
from carrel.notebooks.promote.environment import Environment, described, installed
from carrel.notebooks.promote.payload.notebook_parameters import read_defaults

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_PAYLOAD = Path(__file__).parent / "payload"
#: What runs the notebook, and is in each directory that is made.
RUNNER_FILE = "notebook_runner.py"
_RUNNER = (RUNNER_FILE, "notebook_parameters.py")
_TYPES = {bool: "bool", int: "int", float: "float"}
#: A command must not be broken into several lines.
_WIDE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoted:
    """A task directory that was made."""

    directory: Path
    name: str
    #: The notebook in it.
    program: str
    #: Defaults, by the parameters' names.
    parameters: Mapping[str, bool | int | float | str]
    environment: Environment
    gpus: int
    #: Every file of the directory that was written.
    files: tuple[str, ...]
    #: What may be missing where the task runs, and what to do about it.
    notes: tuple[str, ...]


def promote(
    notebook: Path,
    target: Path | None = None,
    *,
    environment: Environment | None = None,
    include: Sequence[str | Path] = (),
    words: Iterable[str] = (),
    name: str | None = None,
    force: bool = False,
    environ: Mapping[str, str],
) -> Promoted:
    """Make a task directory that runs a notebook, and return what was made and what may be missing in it.

    `target` is the directory to make, by default one named as the notebook beside it. The packages are those of `environment`,
    or of the session that this runs in (``CARREL_SESSION_ENVIRONMENT`` of `environ`), or what a requirements file beside the
    notebook asks for. Modules that its cells import from beside it travel, as those of a bare script do, and so does what
    `include` names, and files that `words` (values of parameters) name.

    Raises `NotFound`, `Invalid`, or `Conflict` when `target` is there, unless `force` allows to write over what an earlier
    promotion made. Nothing is left of a directory that could not be finished.
    """
    document = read_notebook(notebook)
    if name is not None and not _NAME.fullmatch(name):
        raise Invalid(f'"{name}" is no name for a task.', remedy="Use letters, digits, _ and -.")
    chosen = name or re.sub(r"[^A-Za-z0-9_-]+", "_", notebook.stem).strip("_-") or "notebook"
    place = target or notebook.parent / chosen
    _check_target(place, notebook, force=force)
    session = environ.get("CARREL_SESSION_ENVIRONMENT")
    found = find_companions(notebook.absolute(), words)
    if environment is None:
        environment = installed(Path(session)) if session else described(notebook.absolute().parent, found.foreign)
    beside, left = _beside(notebook.absolute(), include, found)
    parameters = _parameters(document, notebook)
    made = Promoted(
        directory=place,
        name=chosen,
        program=f"{chosen}.ipynb",
        parameters=parameters,
        environment=environment,
        gpus=gpus_of(document),
        files=(),
        notes=(*environment.notes, *left),
    )
    texts = _texts(made, document, notebook)
    paths = {entry.path for entry in beside.files} if beside else set()
    for path in sorted(paths & {*texts, ".gitignore"}):
        raise Invalid(f"{path} is beside the notebook, and a file of the task has that name.", remedy="Give it another name.")
    texts[".gitignore"] = _ignore({*texts, *paths})
    _write(place, texts, beside)
    return replace(made, files=tuple(sorted({*texts, *paths})))


def _beside(notebook: Path, include: Sequence[str | Path], found: Companions) -> tuple[Packed | None, list[str]]:
    """Return what travels with a notebook, and a note of what it names and leaves behind."""
    base = notebook.parent
    also = included(include, base)
    only = [path for path in found.files if path != notebook.name]
    left = [path for path in found.left if not any(path == one or path.startswith(f"{one}/") for one in also)]
    notes = []
    if left:
        options = " ".join(f"--with {path}" for path in left[:8])
        notes = [f"The notebook mentions {', '.join(left[:8])}, not sent with it; {options} adds what it needs."]
    return pack(base, only=only, also=also) if only or also else None, notes


def _parameters(document: dict[str, Any], notebook: Path) -> dict[str, bool | int | float | str]:
    try:
        defaults = read_defaults(document)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Invalid(f"The cell with the tag parameters in {notebook} is not Python: {error}.", remedy="Correct it.") from None
    found: dict[str, bool | int | float | str] = {}
    for name, value in defaults.items():
        plain = isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value))
        found[name] = value if plain else repr(value)
    return {name: value for name, value in found.items() if "\0" not in str(value)}


def _texts(made: Promoted, document: dict[str, Any], notebook: Path) -> dict[str, str]:
    """Return the texts of all files that are made, but .gitignore."""
    parameters = {key: {"type": _TYPES.get(type(value), "string"), "default": value} for key, value in made.parameters.items()}
    command = " ".join([f"python {RUNNER_FILE} {made.program}", *(f"--{key}={{{key}}}" for key in parameters)])
    main = {"parameters": parameters, "command": command} if parameters else {"command": command}
    parts: list[dict[str, Any]] = [{"name": made.name}, {"python_env": "python_env.yaml"}, {"entry_points": {"main": main}}]
    if made.gpus:
        parts.append({"carrel": {"resources": {"gpus": made.gpus}}})
    python = {"python": made.environment.python} if made.environment.python else {}
    origin = "".join(character if character.isprintable() else "?" for character in notebook.name)
    return {
        "MLproject": f"# Made by `carrel promote` from {origin}.\n" + "\n".join(_yaml(part) for part in parts),
        "python_env.yaml": _yaml({**python, "dependencies": ["-r requirements.txt"]}),
        "requirements.txt": "".join(f"{line}\n" for line in made.environment.requirements),
        **made.environment.files,
        made.program: json.dumps(document, ensure_ascii=False, indent=1) + "\n",
        **{name: (_PAYLOAD / name).read_text(encoding="utf-8") for name in _RUNNER},
    }


def _yaml(value: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True, width=_WIDE)
    return text


def _ignore(paths: Collection[str]) -> str:
    """Return a .gitignore that lets through what belongs to the task, also if those above it exclude it (gitignore(5))."""
    lines: dict[str, None] = {"/outputs/": None}
    for path in sorted(paths):
        parents = path.split("/")[:-1]
        names = [posixpath.join(*parents[:depth]) + "/" for depth in range(1, len(parents) + 1)]
        lines |= {"!/" + re.sub(r"[\\*?\[ ]", r"\\\g<0>", name): None for name in (*names, path)}
    return "".join(f"{line}\n" for line in lines)


# --- putting it on the disk: whole, or not at all


def _check_target(target: Path, notebook: Path, *, force: bool) -> None:
    here, there = Path(os.path.realpath(notebook.parent)), Path(os.path.realpath(target))
    if here == there or here.is_relative_to(there):
        raise Invalid(f"{target} holds the notebook itself.", remedy="Give the task a directory of its own: --output DIR.")
    if target.exists() and not target.is_dir():
        raise Conflict(f"{target} exists, and is no directory.", remedy="Name another with --output.")
    if target.is_dir() and any(target.iterdir()) and not force:
        raise Conflict(
            f"{target} exists.", remedy="Name another with --output, or write over what an earlier promotion made with --force."
        )


def _write(target: Path, texts: Mapping[str, str], beside: Packed | None) -> None:
    """Write texts and copies below `target`. All is made in another directory and read as a task first."""
    target = Path(os.path.abspath(target))  # noqa: PTH100 - links stay
    new = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        new.mkdir(parents=True)
        try:
            if beside is not None:
                for entry in beside.files:
                    (new / entry.path).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(beside.directory / entry.path, new / entry.path, follow_symlinks=False)
            for path, text in texts.items():
                (new / path).parent.mkdir(parents=True, exist_ok=True)
                (new / path).write_text(text, encoding="utf-8", errors="surrogateescape")
            describe(new)
            if target.is_dir():
                _move_over(new, target)
            else:
                new.rename(target)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    except CarrelError:
        raise
    except OSError as error:
        where = error.filename or target
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"{where} cannot be written: {error.strerror}.", remedy="Free some space.") from error
        raise Invalid(f"{where} cannot be written: {error.strerror}.", remedy="Name another place with --output.") from error


def _move_over(source: Path, target: Path) -> None:
    for where, _, names in os.walk(source):
        below = target / Path(where).relative_to(source)
        below.mkdir(parents=True, exist_ok=True)
        for name in names:
            (Path(where) / name).replace(below / name)


# --- reading notebooks: JSON of nbformat 4, without Jupyter. Source: the documentation of nbformat, "The Notebook file format"

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
