"""The cold path: resolve a recipe, wait for other builders or build, and leave a finished environment behind."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe
from carrel.node.environments.building import (
    BuildContext,
    build,
    build_verified,
    has_places,
    installed_packages,
    is_verifiable,
    requested_python,
    resolve,
)
from carrel.node.environments.conda import build_conda, find_conda_tool
from carrel.node.environments.confinement import VERIFIED
from carrel.node.environments.errors import EnvironmentFailed, EnvironmentTimeout
from carrel.node.environments.guards import OpenGuard, wait_exclusive
from carrel.node.environments.images import build_image, pin_image
from carrel.node.environments.inventory import remove_tree
from carrel.node.environments.mirrors import Mirrors
from carrel.node.environments.pythons import Interpreter, find_interpreter, identity, probe
from carrel.node.environments.records import (
    LOCK,
    MARKER,
    Layout,
    LockEntry,
    Marker,
    digest_of,
    environment_digest,
    read_lock,
    read_marker,
    text_digest,
    write_record,
    write_text,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call of `EnvironmentStore.prepare`, with what follows from its arguments."""

    recipe: EnvironmentRecipe
    code: Path
    code_digest: str
    #: A lock to install instead of resolving.
    locked: str | None
    mirrors: Mirrors
    #: The Python for recipes that ask for none; its version is "" when an administrator named it and nobody asked it yet.
    lab: Interpreter
    platform: str
    #: Whose builds it belongs to, where builds are kept apart; else "".
    maker: str
    #: Digest of all the above: the name of the lock.
    key: str
    #: By `time.monotonic`.
    started: float


def is_current(entry: LockEntry) -> bool:
    """True unless the interpreter that the lock was made for was replaced or removed."""
    return not entry.identity or tuple(identity(Path(entry.interpreter))) == entry.identity


def find_lock(request: Request, layout: Layout, build_context: BuildContext) -> LockEntry:
    """Return what the recipe resolves to: the lock that is kept, else a new one. One process at a time resolves it."""
    if request.recipe.kind is EnvironmentKind.CONDA:
        return LockEntry(environment=digest_of("conda", request.key), lock="", interpreter="", version="", identity=())
    path = layout.lock(request.key)

    def known() -> LockEntry | None:
        entry = read_lock(path)
        return entry if entry is not None and is_current(entry) else None

    while True:
        hold = wait_exclusive(
            layout.guard(request.key),
            build_context.context.patience,
            satisfied=lambda: known() is not None,
            waiting=lambda: build_context.context.report("another job resolves the same requirements; waiting for it"),
        )
        if hold is not None:
            with hold:
                entry = _resolve(request, read_lock(path), build_context)
                write_record(path, entry)
                return entry
        found = known()
        if found is not None:
            return found


def make_environment(entry: LockEntry, request: Request, layout: Layout, build_context: BuildContext) -> tuple[LockEntry, bool]:
    """See to it that the environment of a lock exists; return the lock (conda's is known only now) and if this built it.

    Of several callers one builds and the others wait. The environment is not held: look again before using it.
    """
    built = False
    if entry.environment == _digest(request, entry.lock, entry.version, VERIFIED):
        try:
            return entry, _find_or_build(entry, request, layout, build_context, shared=True)
        except EnvironmentTimeout:
            raise
        except EnvironmentFailed:
            build_context.context.report("not all of it comes as wheels that the lab can check: it is made for you alone")
        entry = replace(entry, environment=_digest(request, entry.lock, entry.version, request.maker))
        built = _find_or_build(entry, request, layout, build_context)
        write_record(layout.lock(request.key), entry)
        return entry, built
    built = _find_or_build(entry, request, layout, build_context)
    directory = layout.environment(entry.environment)
    if request.recipe.kind is EnvironmentKind.CONDA and (directory / LOCK).exists():
        entry = replace(entry, lock=(directory / LOCK).read_text(encoding="utf-8"))
        write_record(layout.lock(request.key), entry)
    return entry, built


def _find_or_build(
    entry: LockEntry, request: Request, layout: Layout, build_context: BuildContext, *, shared: bool = False
) -> bool:
    """Return whether this built it; `shared`: from what is verified, for everybody."""
    directory = layout.environment(entry.environment)
    hold = wait_exclusive(
        layout.guard(entry.environment),
        build_context.context.patience,
        satisfied=lambda: is_sound(directory, read_marker(directory)),
        waiting=lambda: build_context.context.report("another job builds this environment; waiting for it"),
    )
    if hold is not None:
        with hold:
            _build(entry, request, layout, build_context, hold, shared=shared)
    return hold is not None


def _digest(request: Request, lock: str, version: str, maker: str) -> str:
    return environment_digest(
        request.recipe, lock=lock, version=version, platform=request.platform, code_digest=request.code_digest, maker=maker
    )


def _maker(request: Request, lock: str) -> str:
    """Whose the environment of a lock is: everybody's where its hashes say all, and it is the lab that looks them up."""
    if not request.maker:
        return ""
    recipe = request.recipe
    plain = recipe.kind is not EnvironmentKind.UV_LOCK and not recipe.local and not has_places(recipe)
    return VERIFIED if plain and is_verifiable(lock) else request.maker


def _resolve(request: Request, stale: LockEntry | None, build_context: BuildContext) -> LockEntry:
    if request.recipe.kind is EnvironmentKind.IMAGE:
        lock = request.locked or pin_image(request.recipe.requirements[0], build_context)
        return LockEntry(
            environment=_digest(request, lock, "", request.maker), lock=lock, interpreter="", version="", identity=()
        )
    asked = requested_python(request.recipe)
    lab = request.lab
    if asked is None and not lab.version and identity(lab.path):
        lab = replace(lab, version=probe(lab.path, build_context.trusted, build_context.scratch))
    interpreter = find_interpreter(
        asked,
        lab=lab,
        uv=build_context.uv,
        options=build_context.options,
        context=build_context.trusted,
        cwd=build_context.scratch,
    )
    if request.locked is not None:
        lock = request.locked
    elif stale is not None and stale.version == interpreter.version:
        # The interpreter moved, or was installed anew: no reason to take other packages.
        lock = stale.lock
    else:
        if request.recipe.kind is not EnvironmentKind.NONE:
            build_context.context.report(f"resolving {request.recipe.source or 'the requirements'}")
        lock = resolve(request.recipe, interpreter, build_context)
    return LockEntry(
        environment=_digest(request, lock, interpreter.version, _maker(request, lock)),
        lock=lock,
        interpreter=str(interpreter.path),
        version=interpreter.version,
        identity=tuple(identity(interpreter.path)),
    )


def is_sound(directory: Path, marker: Marker | None) -> bool:
    """Return whether what the marker says is there; links are followed to an interpreter that may have been removed."""
    if marker is None:
        return False
    prefix = directory / marker.prefix
    return prefix.is_dir() if marker.kind == EnvironmentKind.IMAGE else os.access(prefix / "bin/python", os.X_OK)


def _build(
    entry: LockEntry, request: Request, layout: Layout, build_context: BuildContext, hold: OpenGuard, *, shared: bool
) -> None:
    """Build under an exclusive hold. The marker comes last; without it the directory is nobody's environment."""
    target = layout.environment(entry.environment)
    remove_tree(layout, target)
    try:
        prefix, lock, version = _fill(entry, request.recipe, target, build_context, hold.fd, shared=shared)
        marker = Marker(
            digest=entry.environment,
            lock_digest=text_digest(lock),
            kind=request.recipe.kind.value,
            python=version,
            prefix=str(prefix.relative_to(target)),
            packages=() if request.recipe.kind is EnvironmentKind.IMAGE else installed_packages(prefix),
            created=time.time(),
        )
        write_record(target / MARKER, marker)
        hold.touch()
    except BaseException:
        remove_tree(layout, target)
        build_context.context.discard(target)
        raise


def _fill(
    entry: LockEntry, recipe: EnvironmentRecipe, target: Path, build_context: BuildContext, guard: int, *, shared: bool
) -> tuple[Path, str, str]:
    """Install everything; return the prefix, the lock and the version of its Python."""
    if recipe.kind is EnvironmentKind.IMAGE:
        prefix = build_image(entry.lock, target, build_context, guard)
        write_text(target / LOCK, entry.lock)
        return prefix, entry.lock, ""
    if recipe.kind is not EnvironmentKind.CONDA:
        interpreter = Interpreter(path=Path(entry.interpreter), version=entry.version)
        if shared:
            build_verified(entry.lock, interpreter, target, build_context, guard)
            write_text(target / LOCK, entry.lock)
        else:
            build(recipe, entry.lock, interpreter, target, build_context, guard)
        return target, entry.lock, entry.version
    tool = find_conda_tool(build_context.context.variables, recipe.source)
    prefix, lock, version = build_conda(recipe, tool, target, build_context, guard)
    write_text(target / LOCK, lock)
    return prefix, lock, version
