"""Everything before the command starts: directories, code, environment, inputs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from carrel.core.domain.errors import CarrelError, StorageFull
from carrel.core.domain.launch import EnvironmentReady, InputsReady, Launch, Preparing
from carrel.core.domain.session import SessionSpec
from carrel.core.domain.task import EnvironmentKind, InputSpec
from carrel.core.spool import AttemptDirectory
from carrel.core.spool.layout import SHORT_NAME, SHORT_PLACE
from carrel.core.spool.trees import remove_tree
from carrel.node.runner.prepared import Prepared
from carrel.node.runner.report import Reporter
from carrel.node.runner.signals import Cancelled, Signals
from carrel.node.runner.variables import Places

if TYPE_CHECKING:
    from carrel.core.domain.ports import Clock
    from carrel.node.environments import Environment

#: Longest TMPDIR: programs make sockets in it, whose paths have a limit of 108 bytes (unix(7)).
_SHORT = 64


class CodeFailed(CarrelError):
    """The code could not be put into the working directory."""

    code = "code_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """Prepares one attempt.

    `run` raises `Cancelled` and `PreparationTimeout`, and the errors of its parts: `CodeFailed`, `EnvironmentFailed`,
    `InputFailed`, `StorageFull`.
    """

    directory: AttemptDirectory
    launch: Launch
    #: The job's, for what only the lab has.
    token: str = field(repr=False)
    base: Mapping[str, str]
    reporter: Reporter
    signals: Signals
    monotonic: Clock
    #: Monotonic seconds at which it must be done.
    deadline: float

    def run(self) -> Prepared:
        """Prepare."""
        task = self.launch.task
        secrets = self._secrets() if task.secrets else {}
        if task.session is not None:
            return replace(self._session(task.session), secrets=secrets)
        with self._interruptible():
            work = self._unpack()
        cwd = _below(work, task.directory)
        environment = self._environment(cwd)
        if inputs := task.all_inputs:
            with self._interruptible():
                self._stage(inputs, cwd, secrets)
            cwd = _below(work, task.directory)  # others' bytes were read by a process that writes there
        else:
            self.reporter.record(InputsReady(digests={}), ring=False)
        with suppress(FileExistsError):  # the code may bring a file or a link of that name
            (cwd / "outputs").mkdir(parents=True)
        self.directory.checkpoint.mkdir(mode=0o700, exist_ok=True)
        places = Places(
            outputs=cwd / "outputs",
            temporary=make_temporary(self.directory.temporary),
            checkpoint=self.directory.checkpoint,
            attempt=self._elsewhere,
            authority=self._authority(),
        )
        command = Prepared(command=task.command, directory=cwd, places=places, activated=self.base, lock="", secrets=secrets)
        if environment is None:
            return command
        command = replace(command, lock=environment.lock)
        if environment.image:
            from carrel.node.runner.image import variables_inside

            variables = variables_inside(environment.path, self.base, self.launch)
            if self.launch.is_group:
                return replace(command, activated=variables, view=environment.path)
            return replace(command, activated=variables, root=environment.path)
        from carrel.node.environments import activate

        return replace(command, activated=activate(environment.path, self.base, conda=environment.conda))

    def _secrets(self) -> Mapping[str, str]:
        from carrel.node.runner.asking import fetch_secrets

        with self._interruptible():
            return fetch_secrets(self.launch, self.token, self.report, self.monotonic, self.deadline)

    @property
    def _elsewhere(self) -> Path | None:
        return self.directory.path.absolute() if self.launch.remote else None

    def _session(self, session: SessionSpec) -> Prepared:
        """A session works on files that outlive it, in an environment that its user changes."""
        from carrel.node.environments import EnvironmentStopped
        from carrel.node.environments.named import prepare_session_environment

        directory = Path(session.directory)
        try:
            # On another machine than the lab's, a directory that is not there is one that this machine does not see.
            directory.mkdir(mode=0o700, parents=not self.launch.remote, exist_ok=True)
        except OSError as error:
            shared = " It has to be on a file system that all nodes see." if self.launch.remote else ""
            raise CodeFailed(f"The session's directory {directory} cannot be used: {error.strerror}.{shared}") from error
        if self.launch.task.environment.wanted:
            return self._session_in_image(directory)
        self.signals.check()
        began = self.monotonic()
        try:
            found = prepare_session_environment(
                Path(self.launch.paths.environments),
                self.launch.owner,
                session.environment,
                report=self.report,
                deadline=self.deadline,
                stop=self.signals.wanted_elsewhere,
                log=self.directory.environment_log,
                walls=self.launch.walls,
                default=session.default,
            )
        except EnvironmentStopped:
            self.signals.check()
            raise Cancelled from None
        from carrel.node.runner.outputs import store_bytes

        kept = store_bytes(found.lock.encode(), Path(self.launch.paths.blobs)) if found.lock else ""
        ready = EnvironmentReady(
            digest=session.environment, lock=kept, python=found.python, built=False, seconds=round(self.monotonic() - began, 3)
        )
        self.reporter.record(ready, ring=False)
        return self._prepared_session(directory, Path(found.prefix))

    def _session_in_image(self, directory: Path) -> Prepared:
        """JupyterLab is the lab's; its kernels and terminals run in the image."""
        from carrel.node.runner.image import image_place, write_inside

        image = self._environment(directory)
        assert image is not None
        write_inside(self.directory, image.path, self.base, self.launch)
        prepared = self._prepared_session(directory, image.path)
        places = replace(prepared.places, image=image_place(self.directory))
        return replace(prepared, lock=image.lock, places=places, view=image.path)

    def _prepared_session(self, directory: Path, environment: Path) -> Prepared:
        self.reporter.record(InputsReady(digests={}), ring=False)
        return Prepared(
            command=self.launch.task.command,
            directory=directory,
            places=Places(
                outputs=directory,
                temporary=make_temporary(self.directory.temporary),
                environment=environment,
                address=self.directory.session_address if self.launch.remote else None,
                attempt=self._elsewhere,
                authority=self._authority(),
            ),
            activated=self.base,
            lock="",
        )

    def _authority(self) -> Path | None:
        """Write down whom the command trusts when it asks the lab."""
        if not self.launch.authority:
            return None
        path = self.directory.path / "authority.pem"
        path.write_text(self.launch.authority)
        return path

    def report(self, message: str) -> None:
        """Tell the owner what is being done."""
        self.reporter.record(Preparing(message=message))

    def _interruptible(self) -> AbstractContextManager[None]:
        return self.signals.interruptible(self.deadline - self.monotonic())

    def _unpack(self) -> Path:
        from carrel.core.snapshots.extraction import extract

        digest = self.launch.task.snapshot.removeprefix("sha256:")
        work = self.directory.work
        try:
            work.mkdir(mode=0o700)
            extract(Path(self.launch.paths.snapshots) / f"{digest}.tar", work)
        except StorageFull:
            raise
        except (CarrelError, OSError) as error:
            raise CodeFailed(f"The code could not be unpacked: {error}") from error
        return work

    def _environment(self, code: Path) -> Environment | None:
        recipe = self.launch.task.environment
        if not recipe.wanted:
            return None
        from carrel.node.environments import EnvironmentStopped, store_of

        self.signals.check()
        if self.launch.remote and recipe.kind is EnvironmentKind.IMAGE:
            from carrel.node.runner.image import check_node

            check_node()
        try:
            environment = store_of(self.launch).prepare(
                replace(recipe, lock=None),
                locked=recipe.lock,
                code=code,
                code_digest=self.launch.task.snapshot,
                report=self.report,
                deadline=self.deadline,
                stop=self.signals.wanted_elsewhere,
                log=self.directory.environment_log,
            )
        except EnvironmentStopped:
            self.signals.check()
            raise Cancelled from None
        from carrel.node.runner.outputs import store_bytes

        kept = store_bytes(environment.lock.encode(), Path(self.launch.paths.blobs)) if environment.lock else ""
        self.reporter.record(
            EnvironmentReady(
                digest=environment.digest,
                lock=kept,
                python=environment.version,
                built=environment.built,
                seconds=round(environment.seconds, 3),
            ),
            ring=environment.built,
        )
        return environment

    def build(self) -> None:
        """Build the environment for the job's attempts. Raises as `run` does."""
        task = self.launch.task
        code = self.directory.work
        if task.environment.needs_code:
            with self._interruptible():
                code = _below(self._unpack(), task.directory)
        self._environment(code)

    def stage_in(self) -> None:
        """Fetch the inputs that lie elsewhere into what is kept for the owner's jobs. Raises as `run` does, and `NotKept`."""
        task = self.launch.task
        secrets = self._secrets() if task.secrets else {}
        place = Path(self.launch.paths.inputs) / "arriving" / str(self.launch.job_id)
        remove_tree(place)
        place.mkdir(mode=0o700, parents=True)
        try:
            with self._interruptible():
                self._stage(tuple(item for item in task.all_inputs if item.lies_elsewhere), place, secrets, filling=True)
        finally:
            remove_tree(place)

    def _stage(self, inputs: tuple[InputSpec, ...], cwd: Path, secrets: Mapping[str, str], *, filling: bool = False) -> None:
        from carrel.node.staging.apart import stage_apart, stage_here
        from carrel.node.staging.download import Most
        from carrel.node.staging.fetching import Closed
        from carrel.node.staging.lab import LabFiles

        paths, limits, sources = self.launch.paths, self.launch.limits, dict[str, str]()
        stage = stage_here
        if self.launch.walls is not None:
            from carrel.node.runner.walls import staging_walls

            stage = partial(
                stage_apart,
                walls=staging_walls(self.launch.walls, self.directory, paths),
                variables={**self.base, **secrets, "HOME": self.launch.walls.home or "/tmp", "TMPDIR": "/tmp"},
            )
        else:
            # This process lives for one job, and what reads buckets looks for its keys in the environment.
            os.environ.update(secrets)
        found = stage(
            inputs,
            cwd,
            self.report,
            lab=LabFiles(self.launch.gateway, self.token, self.launch.authority),
            closed=Closed(tuple(Path(place) for place in paths.closed), Path(paths.files) if paths.files else None),
            most=Most(limits.inputs, limits.input_files),
            cache=(paths.inputs, limits.input_cache),
            rucio=self.launch.rucio,
            resolved=sources.__setitem__,
            staged=self.launch.staged,
            filling=filling,
        )
        self.reporter.record(InputsReady(digests=found, sources=sources))


def make_temporary(path: Path) -> Path:
    """Make the directory for temporary files, mode 0700: at `path`, or behind a link there when `path` is long."""
    if len(os.fsencode(path)) <= _SHORT:
        path.mkdir(mode=0o700)
        return path
    import tempfile

    short = tempfile.mkdtemp(prefix=SHORT_NAME, dir=SHORT_PLACE)
    path.symlink_to(short)
    return Path(short)


def remove_temporary(directory: AttemptDirectory) -> None:
    """Remove what `make_temporary` made, with its content; another link leads to nothing that is removed."""
    remove_tree(directory.temporary_place)
    if directory.temporary.is_symlink():
        directory.temporary.unlink(missing_ok=True)


def _below(work: Path, directory: str) -> Path:
    cwd = work / directory
    if not is_inside(work, cwd):
        raise CodeFailed(f"The directory {directory!r} is not inside the code.")
    return cwd


def is_inside(work: Path, path: Path) -> bool:
    """Return whether `path`, links followed, is the working directory `work`, itself no link, or lies in it."""
    real, root = os.path.realpath(path), os.path.join(os.path.realpath(work.parent), work.name)  # noqa: PTH118
    return real == root or real.startswith(root + os.sep)
