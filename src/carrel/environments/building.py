"""From a recipe to a lock, and from a lock to a virtual environment, with uv."""

from __future__ import annotations

import re
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from carrel.domain.task import EnvironmentKind, EnvironmentRecipe
from carrel.environments.errors import EnvironmentFailed
from carrel.environments.pythons import Interpreter
from carrel.environments.records import LOCK, needs_code
from carrel.environments.tools import Workshop

_PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[^\]]*\])?\s*===?\s*[0-9][^\s;,\\]*")
_REQUIREMENTS, _OPTIONS = ".carrel-requirements.in", ".carrel-options.in"
#: Lines that are neither options nor about other files: a lock does not repeat options (where packages are, which kinds).
_NO_OPTION = re.compile(r"\s*(?:[^-\s]|-r|-c|-e|--requirement|--constraint|--editable)")
#: No header (it has the command line), no "via" notes: equal sets of packages give equal locks.
_LOCK_FORMAT = ("--no-header", "--no-annotate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where one preparation works, and with what."""

    workshop: Workshop
    uv: Path
    #: Options for every uv command, and for those that look for packages.
    options: tuple[str, ...]
    index_options: tuple[str, ...]
    compile_bytecode: bool
    #: Scratch directory, removed afterwards.
    scratch: Path
    #: The task's directory; only read.
    code: Path


def requested_python(recipe: EnvironmentRecipe) -> str | None:
    """Return the version that a recipe asks for; for a uv project without one, what its pyproject.toml requires."""
    if recipe.python or recipe.kind is not EnvironmentKind.UV_LOCK:
        return recipe.python
    text = recipe.files.get(str(_project(recipe) / "pyproject.toml"), "")
    try:
        required = tomllib.loads(text).get("project", {}).get("requires-python")
    except (tomllib.TOMLDecodeError, AttributeError):
        return None
    return required if isinstance(required, str) and required.strip() else None


def resolve(recipe: EnvironmentRecipe, interpreter: Interpreter, bench: Bench) -> str:
    """Return the lock of a recipe: requirement lines with exact versions and hashes, for this platform and Python."""
    if recipe.kind is EnvironmentKind.UV_LOCK:
        project = stage(recipe, bench.scratch / "resolve", bench) / _project(recipe)
        arguments = ["export", "--frozen", "--format", "requirements-txt", *_LOCK_FORMAT, "--python", str(interpreter.path)]
        arguments += [] if needs_code(recipe) else ["--no-emit-project"]
        output = bench.workshop.run(
            [str(bench.uv), *arguments, *bench.options], cwd=project, doing=f"Reading {recipe.source or 'uv.lock'}"
        )
        return _without_comments(output)
    if not any(line.strip() for line in recipe.requirements):
        return ""
    base = stage(recipe, bench.scratch / "resolve", bench)
    arguments = ["pip", "compile", _requirements(recipe, base), "--generate-hashes", *_LOCK_FORMAT]
    # The one option of pip's that uv takes from the command line only.
    arguments += ["--prerelease", "allow"] if any(line.strip() == "--pre" for line in recipe.requirements) else []
    arguments += ["--python", str(interpreter.path), *_as_of(recipe), *bench.options, *bench.index_options]
    output = bench.workshop.run([str(bench.uv), *arguments], cwd=base, doing=f"Resolving {recipe.source or 'the requirements'}")
    return _without_comments(output)


def build(recipe: EnvironmentRecipe, lock: str, interpreter: Interpreter, target: Path, bench: Bench, guard: int) -> None:
    """Make the virtual environment `target` from a lock. `guard` is the lock descriptor that uv inherits."""
    venv = ["venv", "--python", str(interpreter.path), "--no-project", "--prompt", "carrel", *bench.options, str(target)]
    bench.workshop.run([str(bench.uv), *venv], cwd=bench.scratch, doing="Creating the environment", guard=guard)
    (target / LOCK).write_text(lock, encoding="utf-8")
    if not requirements_in(lock):
        return
    local = needs_code(recipe)
    # Editable installs point to their source: it has to stay where the environment stays.
    base = stage(recipe, target / "source" if local else bench.scratch / "build", bench)
    if recipe.kind is EnvironmentKind.UV_LOCK:
        bench.workshop.report("installing the packages of uv.lock")
        _sync_project(base / _project(recipe), target, bench, guard, local=local)
    else:
        count = len(requirements_in(lock))
        bench.workshop.report(f"installing {count} package{'s' if count != 1 else ''}")
        _sync_requirements(recipe, lock, base, target, bench, guard)
    if local and not re.search(r"^\s*(?:-e|--editable)\s", lock, re.MULTILINE):
        shutil.rmtree(target / "source")


def requirements_in(lock: str) -> list[str]:
    """Return the requirements of a lock, one text each, continuation lines joined."""
    logical = re.sub(r"\\\s*\n\s*", " ", lock).splitlines()
    return [line.strip() for line in logical if line.strip() and not line.lstrip().startswith("#")]


def installed_packages(prefix: Path) -> tuple[str, ...]:
    """Return "name==version" of what is installed, by its metadata directories (PyPA, "Recording installed projects")."""
    found = [path.name.removesuffix(".dist-info") for path in prefix.glob("lib/python*/site-packages/*.dist-info")]
    return tuple(sorted(name.replace("-", "==", 1) for name in found))


def old_pins(recipe: EnvironmentRecipe) -> str:
    """Return what to do when exact versions cannot be resolved or built; "" where that is not it.

    Packages of another year were published for the setuptools, Cython and numpy of that year, which they seldom name.
    """
    pins = [match[0] for line in recipe.requirements if (match := _PIN.match(line))]
    if recipe.kind is not EnvironmentKind.REQUIREMENTS or recipe.as_of is not None or not pins:
        return ""
    shown = ", ".join(pins[:3]) + (" …" if len(pins) > 3 else "")
    return (
        f"If {shown} {'is' if len(pins) == 1 else 'are'} from another year, have what they need resolved as of then: "
        "resolve_as_of: YYYY-MM-DD in the carrel section, or --resolve-as-of, with a date soon after they were published."
    )


def _as_of(recipe: EnvironmentRecipe) -> tuple[str, ...]:
    return () if recipe.as_of is None else ("--exclude-newer", recipe.as_of)


def _sync_requirements(recipe: EnvironmentRecipe, lock: str, base: Path, target: Path, bench: Bench, guard: int) -> None:
    file = bench.scratch / "lock.txt"
    file.write_text(lock, encoding="utf-8")
    arguments = ["pip", "sync", str(file)]
    options = [line for line in recipe.requirements if line.strip() and not _NO_OPTION.match(line)]
    if options:
        (base / _OPTIONS).write_text("\n".join(options) + "\n", encoding="utf-8")
        arguments.append(_OPTIONS)
    # Code of the task and git checkouts have no hash; every hash that there is gets verified in any case.
    if all("--hash=" in line for line in requirements_in(lock)):
        arguments.append("--require-hashes")
    arguments += ["--compile-bytecode"] if bench.compile_bytecode else []
    # What is needed to build packages is resolved here.
    arguments += ["--python", str(target / "bin/python"), *_as_of(recipe), *bench.options, *bench.index_options]
    bench.workshop.run([str(bench.uv), *arguments], cwd=base, doing="Installing the packages", guard=guard)
    (base / _OPTIONS).unlink(missing_ok=True)  # `base` may stay, and an address may hold a password


def _sync_project(project: Path, target: Path, bench: Bench, guard: int, *, local: bool) -> None:
    arguments = ["sync", "--frozen", "--python", str(target / "bin/python"), *bench.options, *bench.index_options]
    arguments += [] if local else ["--no-install-project"]
    arguments += ["--compile-bytecode"] if bench.compile_bytecode else []
    extra = {"UV_PROJECT_ENVIRONMENT": str(target)}
    bench.workshop.run([str(bench.uv), *arguments], cwd=project, doing="Installing the packages", guard=guard, extra=extra)


def stage(recipe: EnvironmentRecipe, base: Path, bench: Bench) -> Path:
    """Lay out what uv reads: the recipe's files, over a copy of the code where a requirement points into it.

    A copy, because building a package writes beside its sources and the job's directory is not ours.
    """
    if needs_code(recipe):
        try:
            shutil.copytree(bench.code, base, symlinks=True)
        except shutil.Error as error:
            raise EnvironmentFailed(f"The code cannot be copied for building: {error.args[0][0][2]}.") from error
    base.mkdir(exist_ok=True)
    for name, text in recipe.files.items():
        file = base / _inside(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.write_text(text, encoding="utf-8")
    return base


def _requirements(recipe: EnvironmentRecipe, base: Path) -> str:
    """Write the requirement lines to a file in `base` (paths in them are relative to the task's directory); return its name."""
    (base / _REQUIREMENTS).write_text("\n".join(recipe.requirements) + "\n", encoding="utf-8")
    return _REQUIREMENTS


def _project(recipe: EnvironmentRecipe) -> PurePosixPath:
    """Return the directory of uv.lock among the recipe's files."""
    for name in recipe.files:
        if PurePosixPath(name).name == "uv.lock":
            return _inside(name).parent
    raise EnvironmentFailed(
        f"The environment from {recipe.source or 'uv.lock'} has no uv.lock.", remedy="Run `uv lock` and submit again."
    )


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise EnvironmentFailed(f"{name!r} is outside the task's directory.", remedy="Keep files of the environment inside it.")
    return path


def _without_comments(output: str) -> str:
    return "".join(f"{line}\n" for line in output.splitlines() if not line.lstrip().startswith("#"))
