"""The store of environments: found in a millisecond, built once, shared by every job with the same lock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from carrel.core.domain.errors import NotFound
from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe
from carrel.core.spool.trees import scratch_directory
from carrel.node.environments.building import BuildContext, old_pins, requested_python
from carrel.node.environments.conda import find_conda_tool
from carrel.node.environments.confinement import Builds
from carrel.node.environments.equipment import address_secrets, cache_beside, find_uv, workshops
from carrel.node.environments.errors import EnvironmentFailed, EnvironmentTimeout, from_os_error
from carrel.node.environments.guards import OpenGuard, WaitLimit, try_shared
from carrel.node.environments.image_tools import find_image_tool
from carrel.node.environments.images import tidy_image
from carrel.node.environments.inventory import EnvironmentInfo, collect_environments, list_environments, trim_images
from carrel.node.environments.mirrors import read_mirrors
from carrel.node.environments.preparation import Request, find_lock, is_current, is_sound, make_environment
from carrel.node.environments.pythons import NO_DOWNLOADS, Interpreter, find_interpreter, identity, lab_interpreter, platform_tag
from carrel.node.environments.records import Layout, LockEntry, read_lock, read_marker, recipe_key
from carrel.node.environments.tools import ToolContext
from carrel.node.environments.words import Redactor

#: Builds that the collector may remove before they are used, one after the other, until we call it a fault.
_ATTEMPTS = 3
#: Seconds for finding a Python; who submits waits for it.
_CHECK_TIME = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSettings:
    """How this lab builds environments."""

    #: The uv program; None: the one installed beside carrel, else the one on PATH.
    uv: Path | None = None
    #: Python for tasks that ask for none; None: the one that the lab runs on, without its packages.
    python: Path | None = None
    #: True lets uv download a Python that the machine lacks.
    download_python: bool = False
    #: True compiles every module when an environment is built: slower to build, faster first start of each job.
    compile_bytecode: bool = False
    #: Bytes of images that are kept beside those in use; those used longest ago go first. 0: all are kept.
    image_cache: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """An environment that is ready, and held for as long as `hold` is open."""

    digest: str
    #: Its prefix: shared between jobs, to be read only.
    path: Path
    #: Its interpreter.
    python: Path
    #: Implementation and exact version ("cpython-3.11.7").
    version: str
    #: Exact packages with hashes; "" for none.
    lock: str
    #: Digest of the text of `lock`.
    lock_digest: str
    #: True when this call built it, False when it was there or another job built it meanwhile.
    built: bool
    #: Seconds that the preparation took.
    seconds: float
    #: True when a conda tool made it.
    conda: bool
    #: True when it is an image: `path` is the root of its files, and what runs in it sees that as the machine's.
    image: bool
    #: Keep it open while the environment is used: the collector then leaves it alone.
    hold: OpenGuard = field(repr=False, compare=False)


def _never() -> bool:
    return False


@contextmanager
def _advice(recipe: EnvironmentRecipe) -> Iterator[None]:
    """A tool that failed does not know what to do about it; where the recipe tells, that is said."""
    try:
        yield
    except EnvironmentFailed as error:
        advice = "" if error.remedy or isinstance(error, EnvironmentTimeout) else old_pins(recipe)
        if not advice:
            raise
        raise EnvironmentFailed(error.message, remedy=advice, details=error.details) from error


class EnvironmentStore:
    """Prepares, lists and removes the environments under `root`. Safe for any number of processes at a time."""

    def __init__(
        self,
        root: Path,
        *,
        settings: EnvironmentSettings | None = None,
        environ: Mapping[str, str] | None = None,
        builds: Builds | None = None,
    ) -> None:
        """`environ` (default: that of the process) has pip's and uv's configuration; it is read at each preparation.

        With `builds` what runs is kept apart from the lab and from others' builds, and only environments in which nobody's code
        had a hand are shared.
        """
        self._layout = Layout(root.absolute())
        self._settings = settings or EnvironmentSettings()
        self._environ = os.environ if environ is None else environ
        self._builds = builds
        #: What was asked of Python, and is here.
        self._pythons: set[str] = set()

    def prepare(
        self,
        recipe: EnvironmentRecipe,
        *,
        code: Path,
        code_digest: str,
        report: Callable[[str], None],
        deadline: float | None = None,
        stop: Callable[[], bool] = _never,
        log: Path | None = None,
        locked: str | None = None,
    ) -> Environment:
        """Return the environment of a recipe, building it when this machine does not have it.

        `code` is the task's directory (only read, and only where a requirement points into it), `code_digest` its snapshot.
        `report` gets short lines for the job's owner. `deadline` is by `time.monotonic`; `stop` is asked at least every
        0.2 s, and True ends the preparation. What the tools say is appended to `log`. `locked` installs this lock (from a
        record) instead of resolving the requirements anew.

        Raises `EnvironmentFailed` with the tool's words, `EnvironmentTimeout`, `EnvironmentStopped` or `StorageFull`; no
        process is left then. When the environment is there, no process is started at all.
        """
        try:
            request = self._request(recipe, code, code_digest, locked)
            entry = read_lock(self._layout.lock(request.key))
            ready = self._open(entry, request) if entry and is_current(entry) else None
            if ready is not None:
                return ready
            self._layout.prepare()
            patience = WaitLimit(deadline=deadline, stop=stop)
            with scratch_directory(self._layout.work) as scratch:
                build_context = self._bench(request, patience, report, log, scratch)
                try:
                    return self._make(request, build_context)
                finally:
                    tidy_image(build_context)
                    build_context.context.tidy()
        except OSError as error:
            raise from_os_error(error, str(self._layout.root)) from error

    def has(self, recipe: EnvironmentRecipe, *, code_digest: str, locked: str | None = None) -> bool:
        """True when `prepare` would find the environment now. Some small files are read for that, and no process is started."""
        try:
            entry = read_lock(self._layout.lock(self._request(recipe, Path(), code_digest, locked).key))
            if entry is None or not is_current(entry):
                return False
            directory = self._layout.environment(entry.environment)
            marker = read_marker(directory)
            return marker is not None and marker.digest == entry.environment and is_sound(directory, marker)
        except OSError:  # who builds it meets the same, and says so
            return False

    def check(self, recipe: EnvironmentRecipe) -> None:
        """Return when this machine has what building a recipe takes; raise `EnvironmentFailed` with the remedy if not.

        That is a Python that fits, or programs for conda packages or images. Whether the packages exist is for the index to say.
        """
        if recipe.kind is EnvironmentKind.IMAGE:
            find_image_tool(read_mirrors(self._environ).variables)
            return
        if recipe.kind is EnvironmentKind.CONDA:
            find_conda_tool(read_mirrors(self._environ).variables, recipe.source)
            return
        asked = requested_python(recipe)
        if asked is None or asked in self._pythons or self._settings.download_python:
            return
        self._layout.prepare()
        request = self._request(recipe, Path(), "", None)
        patience = WaitLimit(deadline=time.monotonic() + _CHECK_TIME, stop=_never)
        with scratch_directory(self._layout.work) as scratch:
            build_context = self._bench(request, patience, lambda _line: None, None, scratch)
            find_interpreter(
                asked,
                lab=request.lab,
                uv=build_context.uv,
                options=build_context.options,
                context=build_context.context,
                cwd=build_context.scratch,
            )
        self._pythons.add(asked)

    def hold(self, digest: str) -> OpenGuard:
        """Keep a finished environment from being removed until the hold is closed; raises `NotFound` without one."""
        directory = self._layout.environment(digest)
        marker = read_marker(directory)
        hold = try_shared(self._layout.guard(digest)) if marker is not None and marker.digest == digest else None
        if hold is None or read_marker(directory) != marker:
            if hold is not None:
                hold.close()
            raise NotFound(f"There is no environment {digest} here.")
        hold.touch()
        return hold

    def list(self) -> Sequence[EnvironmentInfo]:
        """Return every environment, the least recently used first."""
        return list_environments(self._layout)

    def collect(
        self, *, unused_for: float, keep: frozenset[str] = frozenset(), now: float, dry_run: bool = False
    ) -> Sequence[EnvironmentInfo]:
        """Remove environments unused for `unused_for` seconds at `now` (Unix), none of them in `keep` or in use now."""
        try:
            self._layout.prepare()
            return collect_environments(self._layout, unused_for=unused_for, keep=keep, now=now, dry_run=dry_run)
        except OSError as error:
            raise from_os_error(error, str(self._layout.root)) from error

    def _request(self, recipe: EnvironmentRecipe, code: Path, code_digest: str, locked: str | None) -> Request:
        started = time.monotonic()
        mirrors = read_mirrors(self._environ)
        lab, platform = lab_interpreter(), platform_tag()
        if self._settings.python is not None:
            lab = Interpreter(path=self._settings.python, version="")
        if locked is not None and recipe.kind not in (EnvironmentKind.REQUIREMENTS, EnvironmentKind.IMAGE):
            # A uv.lock is its own lock, no packages need none, and conda's list is for the record only.
            locked = None
        maker = self._builds.name if self._builds is not None else ""
        key = recipe_key(
            recipe,
            lab=(str(lab.path), lab.version or str(identity(lab.path))),
            platform=platform,
            mirrors=mirrors.fingerprint,
            code_digest=code_digest,
            locked=locked,
            maker=maker,
        )
        return Request(
            recipe=recipe,
            code=code,
            code_digest=code_digest,
            locked=locked,
            mirrors=mirrors,
            lab=lab,
            platform=platform,
            maker=maker,
            key=key,
            started=started,
        )

    def _bench(
        self, request: Request, patience: WaitLimit, report: Callable[[str], None], log: Path | None, scratch: Path
    ) -> BuildContext:
        lines = [*request.recipe.requirements, *request.recipe.files.values()]
        secrets = {secret for line in lines for word in line.split() if "://" in word for secret in address_secrets(word)}
        redactor = Redactor(request.mirrors.secrets | secrets)
        variables = dict(request.mirrors.variables)
        if "UV_CACHE_DIR" not in variables:
            variables.update(cache_beside(self._layout.root, variables))
        # Where the nodes of a cluster find them too.
        variables.setdefault("UV_PYTHON_INSTALL_DIR", str(self._layout.root / "pythons"))
        uv = find_uv(self._settings.uv, variables)
        plain = ToolContext(
            variables=variables,
            patience=patience,
            redactor=redactor,
            report=lambda line: report(redactor.clean(line)),
            log=log,
        )
        context, trusted = workshops(plain, self._builds, self._layout.root, scratch, uv)
        return BuildContext(
            context=context,
            trusted=trusted,
            uv=uv,
            options=() if self._settings.download_python else (NO_DOWNLOADS,),
            index_options=request.mirrors.options,
            compile_bytecode=self._settings.compile_bytecode,
            scratch=scratch,
            code=request.code,
        )

    def _open(self, entry: LockEntry, request: Request, *, built: bool = False) -> Environment | None:
        """Return the finished environment of a lock, held; None when it is not there or not sound."""
        directory = self._layout.environment(entry.environment)
        marker = read_marker(directory)
        if marker is None or marker.digest != entry.environment:
            return None
        hold = try_shared(self._layout.guard(entry.environment))
        if hold is None:
            return None
        prefix = directory / marker.prefix
        # Looked at again under the lock.
        if read_marker(directory) != marker or not is_sound(directory, marker):
            hold.close()
            return None
        hold.touch()
        return Environment(
            digest=marker.digest,
            path=prefix,
            python=prefix / "bin/python",
            version=marker.python,
            lock=entry.lock,
            lock_digest=marker.lock_digest,
            built=built,
            seconds=time.monotonic() - request.started,
            conda=request.recipe.kind is EnvironmentKind.CONDA,
            image=request.recipe.kind is EnvironmentKind.IMAGE,
            hold=hold,
        )

    def _make(self, request: Request, build_context: BuildContext) -> Environment:
        for note in request.mirrors.notes:
            build_context.context.report(note)
        with _advice(request.recipe):
            entry = find_lock(request, self._layout, build_context)
        for _ in range(_ATTEMPTS):
            with _advice(request.recipe):
                entry, built = make_environment(entry, request, self._layout, build_context)
            ready = self._open(entry, request, built=built)
            if ready is not None:
                if ready.image and ready.built and self._settings.image_cache:
                    trim_images(self._layout, self._settings.image_cache, ready.digest)
                return ready
            build_context.context.patience.check()
        raise EnvironmentFailed(
            f"The environment {entry.environment} was built and is not there.", remedy="Submit again; look at what removes it."
        )
