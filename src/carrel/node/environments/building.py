"""From a recipe to a lock, and from a lock to a virtual environment, with uv."""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe
from carrel.core.spool.trees import remove_tree
from carrel.node.environments.errors import EnvironmentFailed
from carrel.node.environments.pythons import Interpreter
from carrel.node.environments.records import LOCK, write_text
from carrel.node.environments.tools import ToolContext

_PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[^\]]*\])?\s*===?\s*[0-9][^\s;,\\]*")
_REQUIREMENTS, _OPTIONS = ".carrel-requirements.in", ".carrel-options.in"
#: Lines that are neither options nor about other files: a lock does not repeat options (where packages are, which kinds).
_NO_OPTION = re.compile(r"\s*(?:[^-\s]|-r|-c|-e|--requirement|--constraint|--editable)")
#: A line of a lock that says what is installed by its content alone.
_HASHED = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[A-Za-z0-9._,\s-]*\])?\s*===?\s*[A-Za-z0-9.+!_-]+\s*(?:;[^@#\\]*?)?(?:\s+--hash=sha256:[0-9a-f]{64})+"
)
_HASH = re.compile(r"\s--hash=(\S+)")
_OPTION = re.compile(r"\s*-(?!r\b|-requirement\b|c\b|-constraint\b|-pre\b|-hash\b|-require-hashes\b|-prefer-binary\b)")
#: No header (it has the command line), no "via" notes: equal sets of packages give equal locks.
_LOCK_FORMAT = ("--no-header", "--no-annotate")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """Where one preparation works, and with what."""

    context: ToolContext
    #: For what runs nobody's code: looking for Pythons, installing what a lock names by its hash. Where builds are not kept apart
    #: it is the same.
    trusted: ToolContext
    uv: Path
    #: Options for every uv command, and for those that look for packages.
    options: tuple[str, ...]
    index_options: tuple[str, ...]
    compile_bytecode: bool
    #: Scratch directory, removed afterwards.
    scratch: Path
    #: The task's directory; only read.
    code: Path

    @property
    def kept_apart(self) -> bool:
        """True where nobody's code may come near what others use."""
        return self.trusted is not self.context


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


def resolve(recipe: EnvironmentRecipe, interpreter: Interpreter, build_context: BuildContext) -> str:
    """Return the lock of a recipe: requirement lines with exact versions and hashes, for this platform and Python."""
    if recipe.kind is EnvironmentKind.UV_LOCK:
        base = stage(recipe, build_context.scratch / "resolve", build_context)
        project = base / _project(recipe)
        arguments = ["export", "--frozen", "--format", "requirements-txt", *_LOCK_FORMAT, "--python", str(interpreter.path)]
        arguments += [] if recipe.needs_code else ["--no-emit-project"]
        output = build_context.context.run(
            [str(build_context.uv), *arguments, *build_context.options],
            cwd=project,
            doing=f"Reading {recipe.source or 'uv.lock'}",
            writable={base: base},
        )
        return _without_comments(output)
    if not any(line.strip() for line in recipe.requirements):
        return ""
    base = stage(recipe, build_context.scratch / "resolve", build_context)
    arguments = ["pip", "compile", _requirements(recipe, base), "--generate-hashes", *_LOCK_FORMAT]
    # The one option of pip's that uv takes from the command line only.
    arguments += ["--prerelease", "allow"] if any(line.strip() == "--pre" for line in recipe.requirements) else []
    arguments += ["--python", str(interpreter.path), *_as_of(recipe), *build_context.options, *build_context.index_options]
    doing = f"Resolving {recipe.source or 'the requirements'}"
    output = build_context.context.run([str(build_context.uv), *arguments], cwd=base, doing=doing, writable={base: base})
    return _with_asked_hashes(recipe, _without_comments(output))


def _with_asked_hashes(recipe: EnvironmentRecipe, lock: str) -> str:
    """Return the lock with the hashes that the recipe names, where it names any of a package: uv puts all of the index there.

    Raises `EnvironmentFailed` where the index has other content than the recipe names.
    """
    asked: dict[str, set[str]] = {}
    for line in recipe.requirements:
        if hashes := _HASH.findall(line):
            asked.setdefault(_package(line), set()).update(hashes)
    lines = []
    for line in requirements_in(lock) if asked else ():
        head, *found = re.split(r"\s+--hash=", line)
        if (wanted := asked.get(_package(line))) is not None:
            found = [one for one in found if one in wanted]
            if not found:
                raise EnvironmentFailed(
                    f"{head} has no file with a hash that {recipe.source or 'the recipe'} names.",
                    remedy="Another file was published under that version, or only hashes of other kinds than sha256 are named.",
                )
        lines.append(" \\\n    ".join([head, *(f"--hash={one}" for one in found)]) + "\n")
    return "".join(lines) or lock


def _package(line: str) -> str:
    """The name of the package of a requirement, as it is compared (PyPA, "Names and normalization")."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0]).lower()


def build(
    recipe: EnvironmentRecipe, lock: str, interpreter: Interpreter, target: Path, build_context: BuildContext, guard: int
) -> None:
    """Make the virtual environment `target` from a lock. `guard` is the lock descriptor that uv inherits."""
    make_venv(interpreter, target, build_context.context, build_context, guard)
    local = recipe.needs_code
    # Editable installs point to their source: it has to stay where the environment stays.
    source = target / "source"
    if requirements_in(lock):
        seen = source if local else build_context.scratch / "build"
        base = stage(recipe, build_context.scratch / "source" if local and build_context.kept_apart else seen, build_context)
        if recipe.kind is EnvironmentKind.UV_LOCK:
            build_context.context.report("installing the packages of uv.lock")
            _sync_project(recipe, base, seen, target, build_context, guard)
        else:
            _report_count(lock, build_context)
            _sync_requirements(recipe, lock, base, seen, target, build_context, guard)
        build_context.context.take(target)
        if local and not re.search(r"^\s*(?:-e|--editable)\s", lock, re.MULTILINE):
            remove_tree(source)
        elif local and base != seen:
            base.rename(source)
    else:
        build_context.context.take(target)
    write_text(target / LOCK, lock)


def build_verified(
    lock: str, interpreter: Interpreter, target: Path, build_context: BuildContext, guard: int, *, options: tuple[str, ...] = ()
) -> None:
    """Make the virtual environment `target` from wheels alone, each of which has a hash in the lock: nobody's code runs.

    Raises `EnvironmentFailed` where that is not enough: something has to be built, or is not where the lab looks.
    """
    try:
        make_venv(interpreter, target, build_context.trusted, build_context, guard)
        if requirements_in(lock):
            _report_count(lock, build_context)
            file = build_context.scratch / "verified.txt"
            file.write_text(lock, encoding="utf-8")
            arguments = ["pip", "sync", str(file), "--require-hashes", "--no-build", "--python", str(target / "bin/python")]
            arguments += [*options, *build_context.options, *build_context.index_options]
            build_context.trusted.run(
                [str(build_context.uv), *arguments], cwd=build_context.scratch, doing="Installing the packages", guard=guard
            )
    except BaseException:
        build_context.trusted.discard(target)
        raise
    build_context.trusted.take(target)


def is_verifiable(lock: str) -> bool:
    """True when a lock says of every package what its content is, and nothing of where to get it."""
    return all(_HASHED.fullmatch(line) for line in requirements_in(lock))


def make_venv(
    interpreter: Interpreter,
    target: Path,
    context: ToolContext,
    build_context: BuildContext,
    guard: int,
    *,
    prompt: str = "carrel",
) -> None:
    """Make an empty virtual environment."""
    arguments = ["venv", "--python", str(interpreter.path), "--no-project", "--prompt", prompt, *build_context.options]
    arguments += ["--clear"] if build_context.kept_apart else []  # in a workroom a build that was killed may have left something
    context.run(
        [str(build_context.uv), *arguments, str(target)], cwd=build_context.scratch, doing="Creating the environment", guard=guard
    )


def _report_count(lock: str, build_context: BuildContext) -> None:
    count = len(requirements_in(lock))
    build_context.context.report(f"installing {count} package{'s' if count != 1 else ''}")


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
        "resolve_as_of: YYYY-MM-DD in the carrel section, --resolve-as-of, or resolve_as_of= of carrel.Executor, with a date "
        "soon after they were published."
    )


def _as_of(recipe: EnvironmentRecipe) -> tuple[str, ...]:
    return () if recipe.as_of is None else ("--exclude-newer", recipe.as_of)


def has_places(recipe: EnvironmentRecipe) -> bool:
    """True when a recipe says where packages are to be looked for, or how."""
    return any(_OPTION.match(line) for text in (*recipe.requirements, *recipe.files.values()) for line in text.splitlines())


def _sync_requirements(
    recipe: EnvironmentRecipe, lock: str, base: Path, seen: Path, target: Path, build_context: BuildContext, guard: int
) -> None:
    file = build_context.scratch / "lock.txt"
    file.write_text(lock, encoding="utf-8")
    arguments = ["pip", "sync", str(file)]
    options = [line for line in recipe.requirements if line.strip() and not _NO_OPTION.match(line)]
    if options:
        (base / _OPTIONS).write_text("\n".join(options) + "\n", encoding="utf-8")
        arguments.append(_OPTIONS)
    # Code of the task and git checkouts have no hash; every hash that there is gets verified in any case.
    if all("--hash=" in line for line in requirements_in(lock)):
        arguments.append("--require-hashes")
    arguments += ["--compile-bytecode"] if build_context.compile_bytecode else []
    # What is needed to build packages is resolved here.
    arguments += ["--python", str(target / "bin/python"), *_as_of(recipe), *build_context.options, *build_context.index_options]
    doing = "Installing the packages"
    build_context.context.run([str(build_context.uv), *arguments], cwd=seen, doing=doing, guard=guard, writable={base: seen})
    (base / _OPTIONS).unlink(missing_ok=True)  # `base` may stay, and an address may hold a password


def _sync_project(
    recipe: EnvironmentRecipe, base: Path, seen: Path, target: Path, build_context: BuildContext, guard: int
) -> None:
    arguments = ["sync", "--frozen", "--python", str(target / "bin/python"), *build_context.options, *build_context.index_options]
    arguments += [] if recipe.needs_code else ["--no-install-project"]
    arguments += ["--compile-bytecode"] if build_context.compile_bytecode else []
    extra = {"UV_PROJECT_ENVIRONMENT": str(target)}
    doing, project = "Installing the packages", seen / _project(recipe)
    command = [str(build_context.uv), *arguments]
    build_context.context.run(command, cwd=project, doing=doing, guard=guard, extra=extra, writable={base: seen})


def stage(recipe: EnvironmentRecipe, base: Path, build_context: BuildContext) -> Path:
    """Lay out what uv reads: the recipe's files, over a copy of the code where a requirement points into it.

    A copy, because building a package writes beside its sources and the job's directory is not ours.
    """
    if recipe.needs_code:
        try:
            shutil.copytree(build_context.code, base, symlinks=True)  # noqa: TID251 - a deep one is refused
        except RecursionError:
            raise EnvironmentFailed("The code cannot be copied for building: its directories are too deep.") from None
        except shutil.Error as error:
            raise EnvironmentFailed(f"The code cannot be copied for building: {error.args[0][0][2]}.") from error
    base.mkdir(exist_ok=True)
    for name, text in recipe.files.items():
        file = base / _inside(name)
        # A link in the code must not lead the lab, which writes here, elsewhere.
        if not Path(os.path.realpath(file.parent)).is_relative_to(os.path.realpath(base)):
            raise EnvironmentFailed(f"{name!r} is behind a link that leaves the code.", remedy="Put a directory there.")
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
