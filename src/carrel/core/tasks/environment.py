"""Finding out which environment a task asks for. Nothing is resolved here and nothing fetched."""

from __future__ import annotations

import posixpath
import re
import tomllib
from dataclasses import dataclass, replace
from typing import Any

from carrel.core.domain.errors import Invalid
from carrel.core.domain.suggest import suggest
from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe
from carrel.core.domain.units import MIB
from carrel.core.submission.dates import read_as_of
from carrel.core.tasks.document import Value, read_yaml
from carrel.core.tasks.files import ProjectFiles, read_python, read_text
from carrel.core.tasks.mlproject import Project
from carrel.core.tasks.requirements import Requirements

#: Where an environment is looked for, in this order, after a script's own metadata and the files that an MLproject names.
SOURCES = ("python_env.yaml", "conda.yaml", "uv.lock", "pyproject.toml", "requirements.txt")
PYTHON_ENV_KEYS = ("python", "build_dependencies", "dependencies")
CONDA_KEYS = ("name", "channels", "dependencies", "prefix", "platforms")
_LOCK_LIMIT = 16 * MIB
_VERSION = re.compile(r"(?:(?:~=|===?|!=|<=?|>=?)?\s*[0-9]+(?:\.[0-9]+)*(?:\.\*)?(?:[a-z]+[0-9]*)?\s*(?:,|$)\s*)+")
_CONDA_PACKAGE = re.compile(r"(?:[A-Za-z0-9_-]+::)?(?P<name>[A-Za-z0-9._-]+)\s*(?P<version>[=<>!~].*)?")
_PATCH_ANY = re.compile(r"^(?:===?|=)\s*([0-9.]+?)(?:\.\*)?$")


def find_recipe(files: ProjectFiles, project: Project | None, script: str | None) -> EnvironmentRecipe:
    """Return the recipe of a task: a script's own metadata first, then what its MLproject names, then `SOURCES`."""
    if script is not None and script.endswith(".py"):
        metadata = read_metadata(read_python(files, script), script)
        if metadata is not None:
            return _recipe(files, script, metadata.requires_python, list(metadata.dependencies))
    if project is not None and project.python_env is not None:
        return read_python_env(files, project.python_env)
    if project is not None and project.conda_env is not None:
        return read_conda(files, project.conda_env)
    if project is not None and project.image is not None:
        return project.image
    for source in SOURCES:
        if files.kind(source) == "file":
            recipe = _read(files, source)
            if recipe is not None:
                return recipe
    return EnvironmentRecipe()


def resolved_as_of(recipe: EnvironmentRecipe, text: str | None) -> EnvironmentRecipe:
    """Return a recipe that is resolved as of a date; raise `Invalid` where nothing is resolved."""
    if text is None:
        return recipe
    if recipe.kind is not EnvironmentKind.REQUIREMENTS:
        what = {
            EnvironmentKind.NONE: "the task has no environment",
            EnvironmentKind.UV_LOCK: f"{recipe.source} is resolved already",
            EnvironmentKind.CONDA: f"{recipe.source} names conda packages",
            EnvironmentKind.IMAGE: "the task's environment is an image",
        }[recipe.kind]
        raise Invalid(f"resolve_as_of says when requirements are resolved, and {what}.", remedy="Leave it out.")
    return replace(recipe, as_of=read_as_of(text))


def _read(files: ProjectFiles, source: str) -> EnvironmentRecipe | None:
    match source:
        case "python_env.yaml":
            return read_python_env(files, source)
        case "conda.yaml":
            return read_conda(files, source)
        case "uv.lock":
            return read_uv_lock(files)
        case "pyproject.toml":
            return read_pyproject(files)
        case _:
            return read_requirements(files, source)


def read_requirements(files: ProjectFiles, file: str) -> EnvironmentRecipe:
    """Return the recipe of a requirements file with all that it includes."""
    requirements = Requirements(files)
    requirements.add_file(file)
    return _finish(requirements, file, None)


def read_python_env(files: ProjectFiles, file: str) -> EnvironmentRecipe:
    """Return the recipe of MLflow's ``python_env.yaml``. Build dependencies are part of the environment, as in MLflow."""
    said = read_yaml(read_text(files, file), file).mapping(PYTHON_ENV_KEYS)
    requirements = Requirements(files)
    for key in ("build_dependencies", "dependencies"):
        for item in said[key].items() if key in said else ():
            requirements.add(item.text(), f"{file}, line {item.line}")
    return _finish(requirements, file, said["python"].text() if "python" in said else None)


def read_conda(files: ProjectFiles, file: str) -> EnvironmentRecipe:
    """Return the recipe of a conda environment file: REQUIREMENTS when it holds only Python and pip packages, else CONDA."""
    text = read_text(files, file)
    top = read_yaml(text, file)
    if "variables" in (every := top.mapping()):
        raise every["variables"].wrong("variables of a conda file are not set.", "Write them in the carrel section: variables.")
    said = top.mapping(CONDA_KEYS)
    # conda runs pip in the directory of its file.
    requirements, base = Requirements(files), posixpath.dirname(file)
    python, others = None, False
    for item in said["dependencies"].items() if "dependencies" in said else ():
        if item.is_mapping:
            for dependency in item.mapping({"pip"}).get("pip", item).items():
                requirements.add(dependency.text(), f"{file}, line {dependency.line}", base=base, local_base=base)
            continue
        name, version = _conda_package(item)
        if name == "python":
            python = version
        elif name == "pip":
            requirements.add("pip" + ("" if version is None else version if version[0] in "<>!~=" else f"=={version}"), item.file)
        else:
            others = True
    if not others:
        return _finish(requirements, file, python)
    return EnvironmentRecipe(
        kind=EnvironmentKind.CONDA,
        source=file,
        python=_python(python, file),
        files={file: _tidy(text), **requirements.constraints},
        local=requirements.local,
    )


def read_uv_lock(files: ProjectFiles) -> EnvironmentRecipe:
    """Return the recipe of a ``uv.lock`` with its ``pyproject.toml``: exactly these packages, resolved already."""
    if files.kind("pyproject.toml") != "file":
        raise Invalid("uv.lock is there without pyproject.toml.", remedy="Keep both, or remove uv.lock.")
    project, lock = read_text(files, "pyproject.toml"), read_text(files, "uv.lock", limit=_LOCK_LIMIT)
    said, locked = _toml(project, "pyproject.toml"), _toml(lock, "uv.lock")
    python = _table(said, "project", "pyproject.toml").get("requires-python")
    packages = locked.get("package", [])
    sources = [item.get("source", {}) for item in packages if isinstance(item, dict)] if isinstance(packages, list) else []
    return EnvironmentRecipe(
        kind=EnvironmentKind.UV_LOCK,
        source="uv.lock",
        python=_python(python, "pyproject.toml"),
        files={"pyproject.toml": _tidy(project), "uv.lock": _tidy(lock)},
        local=any(
            isinstance(source, dict) and not source.keys().isdisjoint({"editable", "directory", "path"}) for source in sources
        ),
    )


def read_pyproject(files: ProjectFiles) -> EnvironmentRecipe | None:
    """Return the recipe of ``[project]`` in ``pyproject.toml``; None when the file is only there for the settings of tools."""
    file = "pyproject.toml"
    said = _toml(read_text(files, file), file)
    if "project" not in said:
        return None
    project = _table(said, "project", file)
    refuse_decisive(said, file)
    dependencies = project.get("dependencies", [])
    if not isinstance(dependencies, list) or not all(isinstance(item, str) for item in dependencies):
        raise Invalid(
            f"{file}: project.dependencies must be a list of texts.", remedy='Write it like dependencies = ["numpy>=2"].'
        )
    dynamic = project.get("dynamic", [])
    if isinstance(dynamic, list) and "dependencies" in dynamic:
        dependencies = ["."]  # only building the project tells what it depends on
    return _recipe(files, file, project.get("requires-python"), dependencies)


def _recipe(files: ProjectFiles, source: str, python: Any, dependencies: list[str]) -> EnvironmentRecipe:
    requirements = Requirements(files)
    for dependency in dependencies:
        if dependency.lstrip().startswith("-"):
            raise Invalid(f'{source}: "{dependency}" is not a requirement.', remedy="Options belong into requirements.txt.")
        requirements.add(dependency, source)
    return _finish(requirements, source, python)


def _finish(requirements: Requirements, source: str, python: Any) -> EnvironmentRecipe:
    return EnvironmentRecipe(
        kind=EnvironmentKind.REQUIREMENTS,
        source=source,
        python=_python(python, source),
        requirements=requirements.lines(),
        files=dict(sorted(requirements.constraints.items())),
        local=requirements.local,
    )


def _python(text: Any, file: str) -> str | None:
    """Return a version ("3.11") or specifiers (">=3.10,<3.13") without blanks and in order."""
    if text is None:
        return None
    if not isinstance(text, str) or not _VERSION.fullmatch(text.strip()):
        raise Invalid(f'{file}: "{text}" is not a version of Python.', remedy='Write it like "3.11" or ">=3.10".')
    plain = re.sub(r"\s+", "", text).strip(",")
    exact = _PATCH_ANY.match(plain)
    return exact[1] if exact else ",".join(sorted(plain.split(",")))


def _conda_package(item: Value) -> tuple[str, str | None]:
    text = item.text().strip()
    match = _CONDA_PACKAGE.fullmatch(text)
    if match is None:
        raise item.wrong(f'"{text}" is not a conda package.', 'Write it like "python=3.11".')
    version = (match["version"] or "").replace(" ", "") or None
    if version is not None and re.match(r"=[^=]", version):
        version = version[1:].partition("=")[0]  # "=version=build": the build is conda's own
    return match["name"].lower(), version


def _toml(text: str, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Invalid(f"{file}: not TOML: {error}.", remedy="Correct it there.") from None


def _table(said: dict[str, Any], key: str, file: str) -> dict[str, Any]:
    table = said.get(key, {})
    if not isinstance(table, dict):
        raise Invalid(f"{file}: {key} must be a table.", remedy=f"Write it as [{key}].")
    return table


def _tidy(text: str) -> str:
    """Return `text` without blanks at line ends and with one newline at its end."""
    return "\n".join(line.rstrip() for line in text.strip().split("\n")) + "\n"


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
