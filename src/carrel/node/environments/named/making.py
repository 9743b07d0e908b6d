"""Building named environments with uv, and looking at those that others built."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from carrel.core.domain.errors import Invalid
from carrel.core.domain.launch import LaunchWalls
from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe
from carrel.core.spool.trees import scratch_directory
from carrel.node.environments.building import (
    BuildContext,
    build_verified,
    is_verifiable,
    make_venv,
    requested_python,
    requirements_in,
    resolve,
    stage,
)
from carrel.node.environments.conda import explicit_lock
from carrel.node.environments.confinement import Builds
from carrel.node.environments.equipment import address_secrets, cache_beside, find_uv, workshops
from carrel.node.environments.errors import EnvironmentFailed, EnvironmentTimeout
from carrel.node.environments.guards import WaitLimit
from carrel.node.environments.mirrors import read_mirrors
from carrel.node.environments.named.changes import freeze, site_packages
from carrel.node.environments.pythons import Interpreter, find_interpreter, lab_interpreter, probe
from carrel.node.environments.records import write_text
from carrel.node.environments.tools import ToolContext
from carrel.node.environments.words import Redactor

#: What a kernel needs, and what makes `pip install` work; the oldest ipykernel is the oldest one that notebooks are tested with.
BASICS = ("ipykernel>=6.29", "pip")
#: Tells about a prefix without importing what is installed there (ipykernel alone takes half a second).
_PROBE = """
import importlib.metadata as found, json, platform, sys, sysconfig
def version(name):
    try:
        return found.version(name)
    except found.PackageNotFoundError:
        return None
print(json.dumps({"python": sys.implementation.name + "-" + platform.python_version(), "ipykernel": version("ipykernel"),
    "pip": version("pip"), "sites": sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How one preparation is to be done, and for how long."""

    report: Callable[[str], None]
    #: By `time.monotonic`, or None.
    deadline: float | None = None
    stop: Callable[[], bool] = lambda: False
    #: File that gets what the tools say.
    log: Path | None = None

    @property
    def patience(self) -> WaitLimit:
        """The same, as tools take it."""
        return WaitLimit(deadline=self.deadline, stop=self.stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Where tools and their configuration come from."""

    #: The directory of all environments: scratch space and, where the usual one is on another disk, uv's cache.
    root: Path
    environ: Mapping[str, str]
    uv: Path | None = None
    #: What builds of an owner do not see of the machine; None: they are not kept apart.
    walls: Callable[[str], LaunchWalls | None] = lambda _owner: None

    @contextmanager
    def build_context(self, owner: str, work: Work, recipe: EnvironmentRecipe | None = None) -> Iterator[BuildContext]:
        """A place to work for an owner, removed afterwards."""
        mirrors = read_mirrors(self.environ)
        lines = [] if recipe is None else [*recipe.requirements, *recipe.files.values()]
        secrets = {secret for line in lines for word in line.split() if "://" in word for secret in address_secrets(word)}
        redactor = Redactor(mirrors.secrets | secrets)
        variables = dict(mirrors.variables)
        scratch = self.root / "work"
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        if "UV_CACHE_DIR" not in variables:
            variables.update(cache_beside(self.root, variables))
        for note in mirrors.notes:
            work.report(note)
        with scratch_directory(scratch) as directory:
            plain = ToolContext(
                variables=variables,
                patience=work.patience,
                redactor=redactor,
                report=lambda line: work.report(redactor.clean(line)),
                log=work.log,
            )
            seen, uv = self.walls(owner), find_uv(self.uv, variables)
            builds = Builds(owner=owner, walls=seen) if seen is not None else None
            context, trusted = workshops(plain, builds, self.root, directory, uv)
            yield BuildContext(
                context=context,
                trusted=trusted,
                uv=uv,
                options=("--no-python-downloads",),
                index_options=mirrors.options,
                compile_bytecode=False,
                scratch=Path(directory),
                code=Path(directory),
            )
            context.tidy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a prefix that others made says about itself."""

    prefix: Path
    python: str
    #: Directories of its packages.
    sites: tuple[str, ...]


def interpreter_for(request: str | None, build_context: BuildContext) -> Interpreter:
    """Return the Python for a version request; None: the lab's own, outside its virtual environment."""
    return find_interpreter(
        request,
        lab=lab_interpreter(),
        uv=build_context.uv,
        options=build_context.options,
        context=build_context.trusted,
        cwd=build_context.scratch,
    )


def lock_of(recipe: EnvironmentRecipe, build_context: BuildContext) -> tuple[str, Interpreter]:
    """Resolve a recipe together with `BASICS`; return the lock and the Python that it is for."""
    if recipe.kind is EnvironmentKind.CONDA:
        raise Invalid(
            "An environment of conda packages is not built here.",
            remedy="Make it with your conda tool, put ipykernel into it, and name its path.",
        )
    interpreter = interpreter_for(requested_python(recipe), build_context)
    if recipe.kind is EnvironmentKind.UV_LOCK:
        recipe = _unlocked(recipe, interpreter, build_context)
    elif recipe.local:
        raise Invalid(
            f"{recipe.source or 'The requirements'} point into a directory, and only their text came here.",
            remedy="Take these lines out, and install them in a session: `%pip install -e /path/to/it`.",
        )
    wanted = tuple(line for line in recipe.requirements if line.strip() != "--require-hashes")
    recipe = replace(recipe, kind=EnvironmentKind.REQUIREMENTS, requirements=(*wanted, *BASICS))
    build_context.context.report(f"resolving {recipe.source}" if recipe.source else "resolving what a kernel needs")
    return resolve(recipe, interpreter, build_context), interpreter


def build(lock: str, interpreter: Interpreter, target: Path, build_context: BuildContext, guard: int) -> None:
    """Make a virtual environment `target` with exactly what the lock names. `guard` is a lock that uv inherits."""
    if not (build_context.kept_apart and is_verifiable(lock) and _from_verified(lock, interpreter, target, build_context, guard)):
        _from_anything(lock, interpreter, target, build_context, guard)
    link_uv(target, build_context.uv)
    add_kernel(target, build_context, guard)


def _from_verified(lock: str, interpreter: Interpreter, target: Path, build_context: BuildContext, guard: int) -> bool:
    """Take what others have fetched as well, where the lock's hashes say all; copied, because its owner will write into it."""
    try:
        build_verified(lock, interpreter, target, build_context, guard, options=("--link-mode", "copy"))
    except EnvironmentTimeout:
        raise
    except EnvironmentFailed:
        return False
    return True


def _from_anything(lock: str, interpreter: Interpreter, target: Path, build_context: BuildContext, guard: int) -> None:
    make_venv(interpreter, target, build_context.context, build_context, guard, prompt=target.parent.name)
    count = len(requirements_in(lock))
    build_context.context.report(f"installing {count} package{'s' if count != 1 else ''}")
    file = build_context.scratch / "lock.txt"
    file.write_text(lock, encoding="utf-8")
    arguments = ["pip", "sync", str(file), "--python", str(target / "bin/python"), *build_context.options]
    if all("--hash=" in line for line in requirements_in(lock)):
        arguments.append("--require-hashes")
    first = build_context.context.attempt(
        [str(build_context.uv), *arguments, "--offline"], cwd=build_context.scratch, guard=guard
    )
    if first.status != 0:
        # Not everything is in the cache: look at the index, which takes longer and may not be there.
        arguments += build_context.index_options
        build_context.context.run(
            [str(build_context.uv), *arguments], cwd=build_context.scratch, doing="Installing the packages", guard=guard
        )
    build_context.context.take(target)


def build_overlay(base: Found, target: Path, build_context: BuildContext, guard: int) -> None:
    """Make a virtual environment that reads the packages of `base` and takes what is installed from now on."""
    python = base.prefix / "bin/python"
    version = probe(python, build_context.context, build_context.scratch)
    make_venv(
        Interpreter(path=python, version=version), target, build_context.context, build_context, guard, prompt=target.parent.name
    )
    build_context.context.take(target)
    link_uv(target, build_context.uv)
    for site in site_packages(target):
        # A line that starts with "import" is run (Python's `site` module): path files of the base are then read as well.
        adding = "; ".join(f"site.addsitedir({path!r})" for path in base.sites)
        write_text(site / "carrel-base.pth", f"import site; {adding}\n")
    arguments = [
        "pip",
        "install",
        "pip",
        "--python",
        str(target / "bin/python"),
        *build_context.options,
        *build_context.index_options,
    ]
    command = [str(build_context.uv), *arguments]
    build_context.context.run(command, cwd=build_context.scratch, doing="Installing pip", guard=guard, writable={target: target})


def add_kernel(target: Path, build_context: BuildContext, guard: int | None = None) -> bool:
    """Install ipykernel and pip where they are missing (a lock may lack them, a user may have removed them)."""
    missing = [line for line in BASICS if not has_package(target, line.partition(">")[0])]
    if missing:
        build_context.context.report(f"installing {' and '.join(missing)}")
        arguments = [
            "pip",
            "install",
            *missing,
            "--python",
            str(target / "bin/python"),
            *build_context.options,
            *build_context.index_options,
        ]
        doing = f"Installing {missing[0]}"
        command = [str(build_context.uv), *arguments]
        build_context.context.run(command, cwd=build_context.scratch, doing=doing, guard=guard, writable={target: target})
    return bool(missing)


def is_complete(prefix: Path) -> bool:
    """True when all of `BASICS` are installed."""
    return all(has_package(prefix, line.partition(">")[0]) for line in BASICS)


def has_package(prefix: Path, name: str) -> bool:
    """True when a package is installed in the environment itself; `name` has no hyphen in it."""
    return any(any(site.glob(f"{name}-*.dist-info/METADATA")) for site in site_packages(prefix))


def link_uv(prefix: Path, uv: Path) -> None:
    """Put the lab's uv into the environment, for `!uv pip install`; one that its user installed stays."""
    # Two sessions may start at once, and its user may have put something else there; without uv there is still pip.
    with suppress(OSError):
        programs = os.open(prefix / "bin", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if (prefix / "bin/uv").is_symlink() and not (prefix / "bin/uv").exists():
                os.unlink("uv", dir_fd=programs)
            os.symlink(uv, "uv", dir_fd=programs)
        finally:
            os.close(programs)


def installed(prefix: Path) -> str:
    """Return the lock of a prefix that others made: conda's explicit list for a conda prefix, requirement lines else."""
    return explicit_lock(prefix) if is_conda(prefix) else freeze(prefix)


def is_conda(prefix: Path) -> bool:
    """True for a conda prefix."""
    return (prefix / "conda-meta").is_dir()


def look_at(prefix: Path, build_context: BuildContext) -> Found:
    """Return what a prefix that others made has; raise `EnvironmentFailed` when no kernel can run there, saying what to do."""
    python = prefix / "bin/python"
    if not os.access(python, os.X_OK):
        raise EnvironmentFailed(
            f"{prefix} is no virtual environment or conda prefix: there is no bin/python that can be run.",
            remedy="Name the directory that has bin/python in it.",
        )
    answer = build_context.context.run([str(python), "-I", "-c", _PROBE], cwd=build_context.scratch, doing=f"Looking at {prefix}")
    try:
        said = json.loads(answer)
        found = Found(prefix=prefix, python=str(said["python"]), sites=tuple(map(str, said["sites"])))
    except (ValueError, KeyError, TypeError) as error:
        raise EnvironmentFailed(f"{python} does not answer as a Python does.") from error
    if said.get("ipykernel") is None:
        raise EnvironmentFailed(
            f"{prefix} has no ipykernel, without which there is no kernel for notebooks; nothing is installed there by the lab.",
            remedy=f"Run: {_how_to_add(prefix, has_pip=said.get('pip') is not None)}",
        )
    return found


def _how_to_add(prefix: Path, *, has_pip: bool) -> str:
    if is_conda(prefix):
        return f"conda install -p {prefix} ipykernel"
    if has_pip:
        return f"{prefix}/bin/python -m pip install ipykernel"
    return f"uv pip install --python {prefix}/bin/python ipykernel"


def _unlocked(recipe: EnvironmentRecipe, interpreter: Interpreter, build_context: BuildContext) -> EnvironmentRecipe:
    """Turn a uv.lock into requirement lines with exact versions and hashes, without code of the project itself."""
    if recipe.local:
        build_context.context.report(
            "what lies in the project's own directory is left out: install it in a session with %pip install -e"
        )
    project = stage(replace(recipe, local=False), build_context.scratch / "project", build_context)
    arguments = ["export", "--frozen", "--format", "requirements-txt", "--no-header", "--no-annotate"]
    arguments += ["--no-emit-local", "--python", str(interpreter.path), *build_context.options]
    doing = f"Reading {recipe.source}"
    text = build_context.context.run([str(build_context.uv), *arguments], cwd=project, doing=doing, writable={project: project})
    return replace(recipe, requirements=tuple(requirements_in(text)), files={}, local=False)
