"""The environment of a notebook that is a task: what its session has, or what a file beside it asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from carrel.core.domain.errors import Invalid, NotFound
from carrel.core.domain.task import EnvironmentKind
from carrel.core.tasks import DirectoryFiles
from carrel.core.tasks.environment import find_recipe

#: What running a notebook needs.
RUNNER = ("ipykernel", "nbclient")
_NAME = re.compile(r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[[^\]]*\])?\s*(?P<rest>.*)", re.DOTALL)
_PIN = re.compile(r"===?\s*[A-Za-z0-9.*+!_-]+\s*(?:;.*)?")
_HASH = re.compile(r"\s*\\?\s*--hash[= ]\S+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The packages of a task."""

    #: Lines of requirements.txt.
    requirements: tuple[str, ...]
    #: Version of Python, or None for the lab's own.
    python: str | None
    #: Where the packages come from: a prefix, an environment's name, a file; "" where nothing is known.
    source: str
    #: Further files that the requirements name, with their texts.
    files: Mapping[str, str] = field(default_factory=dict)
    #: What may be missing where the task runs.
    notes: tuple[str, ...] = ()


def locked(text: str, python: str | None, source: str) -> Environment:
    """Return the environment of a lock (lines ``name==version``); raise `Invalid` for a line that names no exact version."""
    packages: dict[str, str] = {}
    notes: list[str] = []
    for raw in re.sub(r"\\\n", " ", text).split("\n"):
        line = _HASH.sub("", re.sub(r"(^|\s)#.*$", "", raw)).strip()
        if not line or (line.startswith("-") and not line.startswith(("-e", "--editable"))):
            continue
        match = _NAME.fullmatch(line)
        address = match["rest"].partition("@")[2].strip() if match and match["rest"].startswith("@") else ""
        if line.startswith(("-e", "--editable", ".", "/", "file:")) or address.startswith("file:"):
            notes.append(f"{line} is installed from a place on one machine: put its code beside the notebook, or publish it.")
        elif match is not None and (address or _PIN.fullmatch(match["rest"])):
            packages[_normal(match["name"])] = line
            if re.search(r"==\s*[^;\s]*\+", line):
                notes.append(f"{line}: the part behind + comes from an index of its own, which the lab must know.")
        else:
            raise Invalid(
                f'The lock has "{line[:80]}", which is no exact version.', remedy="Write it with `uv pip freeze`: name==version."
            )
    return Environment(requirements=_with_runner(packages.values()), python=python, source=source, notes=tuple(notes))


def installed(prefix: Path) -> Environment:
    """Return what is installed in an environment (a virtual environment or a conda prefix); raise `NotFound` when there is none.

    No process is started. A session's lock, which its record has, is written by the same function.
    """
    from carrel.node.environments.named.changes import freeze, site_packages

    sites = list(site_packages(prefix))
    if not sites:
        raise NotFound(f"There is no Python environment in {prefix}.", remedy="Name the directory above its bin/python.")
    match = re.fullmatch(r"python(3\.\d+)t?", sites[0].parent.name)
    text = "".join([*(freeze(base) for base in _bases(prefix, sites)), freeze(prefix)])
    return locked(text, match[1] if match else None, str(prefix))


def described(directory: Path, imports: Sequence[str] = ()) -> Environment:
    """Return what the files beside a notebook ask for, as `carrel run` reads them for a script; raise `Invalid` for a lock.

    `imports`: modules of packages that the notebook imports. Where nothing asks for packages, a note names them.
    """
    recipe = find_recipe(DirectoryFiles.open(directory), None, None)
    if recipe.kind is EnvironmentKind.NONE:
        note = (
            f"The notebook imports {', '.join(imports)}, and no packages are known: name the environment that it ran in "
            "(`carrel promote --environment`), or write a requirements.txt beside it."
        )
        return Environment(requirements=RUNNER, python=None, source="", notes=(note,) if imports else ())
    if recipe.kind is not EnvironmentKind.REQUIREMENTS:
        raise Invalid(
            f"{recipe.source} cannot be completed with what runs a notebook ({' and '.join(RUNNER)}).",
            remedy="Name an environment with `carrel promote --environment`, or write a requirements.txt instead.",
        )
    notes = (f"{recipe.source} names a place of this machine, which does not travel.",) if recipe.local else ()
    return Environment(
        requirements=_with_runner(recipe.requirements),
        python=recipe.python,
        source=recipe.source,
        files=recipe.files,
        notes=notes,
    )


def _with_runner(lines: Iterable[str]) -> tuple[str, ...]:
    said = list(lines)
    names = {_normal(match["name"]) for match in map(_NAME.fullmatch, said) if match}
    return (*said, *(name for name in RUNNER if name not in names))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _bases(prefix: Path, sites: Iterable[Path]) -> list[Path]:
    """Prefixes whose packages an environment reads too: by pyvenv.cfg (PEP 405), or by .pth files (Python's `site`)."""
    found: list[Path] = []
    try:
        settings = (prefix / "pyvenv.cfg").read_text(errors="replace")
    except OSError:
        settings = ""
    if re.search(r"(?mi)^include-system-site-packages\s*=\s*true\s*$", settings):
        home = re.search(r"(?m)^home\s*=\s*(.+?)\s*$", settings)
        found += [Path(home[1]).parent] if home else []
    for site in sites:
        for file in sorted(site.glob("*.pth")):
            for match in re.finditer(
                r"['\"]?(/[^'\"\n;]+?)/lib(?:64)?/python3[^/'\"\n]*/site-packages", file.read_text(errors="replace")
            ):
                base = Path(match[1])
                if base.is_dir() and base not in found:
                    found.append(base)
    return found
