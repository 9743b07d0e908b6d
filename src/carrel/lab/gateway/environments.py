"""Named environments for those who call: who may change which, what a request asks for, and building while somebody listens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from carrel.core.domain.errors import CarrelError, Denied, Invalid, NotFound
from carrel.core.domain.task import EnvironmentRecipe
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, Resource, allowed
from carrel.core.tasks.environment import read_pyproject, read_requirements, read_uv_lock
from carrel.lab.gateway.errors import problem_of, problem_of_incident
from carrel.lab.gateway.views import moment
from carrel.node.environments import EnvironmentStopped
from carrel.node.environments.guards import WaitLimit
from carrel.node.environments.named import SITE, SITE_WORD, NamedEnvironments, NamedInfo, Work, full_name
from carrel.node.environments.named.records import split_name
from carrel.wire import v1

log = logging.getLogger("carrel.lab.gateway")

#: Builds at a time; others wait and say so.
_AT_ONCE = 4
#: Seconds that one build may take.
_LONGEST = 3600.0
#: Seconds after which a build that has nothing to say gives a sign of life.
_HEARTBEAT = 15.0
_REQUIREMENTS = "requirements.txt"
_PROJECT = ("pyproject.toml", "uv.lock")


@dataclass(frozen=True, slots=True)
class TextFiles:
    """The files of a project of which only some texts are here (`carrel.core.tasks.files.ProjectFiles`)."""

    texts: Mapping[str, str]

    @property
    def name(self) -> str:
        """Nobody knows."""
        return ""

    def kind(self, path: str) -> str | None:
        """Return "file" for a text that is here."""
        return "file" if path in self.texts else None

    def read(self, path: str, limit: int) -> bytes:
        """Return the bytes of a text; raise `NotFound`, or `Invalid` when it is too long."""
        if path not in self.texts:
            raise NotFound(f"{path} was not sent.")
        data = self.texts[path].encode()
        if len(data) > limit:
            raise Invalid(f"{path} has more than {limit} bytes, which is the most that is read of such a file.")
        return data

    def names(self) -> Iterator[str]:
        """Yield the names."""
        yield from self.texts


class Environments:
    """What the routes do with named environments."""

    def __init__(self, named: NamedEnvironments, *, may_build: Callable[[str], None] = lambda _subject: None) -> None:
        """`may_build` raises `Denied` for somebody whose packages' code may not run here, as it does while they are built."""
        self._named = named
        self._may_build = may_build
        self._closing = threading.Event()
        self._builds = threading.BoundedSemaphore(_AT_ONCE)

    def close(self) -> None:
        """End all builds."""
        self._closing.set()

    # --- looking

    def list(self, caller: Caller) -> v1.NamedEnvironmentList:
        """All that the caller may use."""
        me = caller.user.subject
        found = self._named.list(me)
        return v1.NamedEnvironmentList(
            environments=[_view(info, me, history=False) for info in found],
            used=sum(info.size for info in found if info.record.owner == me),
            quota=self._named.quota,
        )

    def get(self, caller: Caller, name: str) -> v1.NamedEnvironmentView:
        """One environment."""
        return _view(self._named.get(caller.user.subject, name), caller.user.subject)

    def lock(self, caller: Caller, name: str, which: str | None) -> v1.EnvironmentLockText:
        """A lock of it, as it is now or was."""
        lock = self._named.lock(caller.user.subject, name, which)
        return v1.EnvironmentLockText(
            environment=name, digest=lock.digest, at=_moment(lock.at), python=lock.python, text=lock.text
        )

    # --- changing

    def creation(self, caller: Caller, request: v1.EnvironmentRequest) -> Callable[[Work], v1.NamedEnvironmentView]:
        """Check what is asked for; return what makes it."""
        self._may_build(caller.user.subject)
        owner, name = _owner(caller, request.name)
        source = _source(caller, request)
        self._named.check_new(owner, name)
        if isinstance(source, str):
            self._named.lock(caller.user.subject, source)

        def make(work: Work) -> v1.NamedEnvironmentView:
            if isinstance(source, str):
                self._named.copy(owner, name, source, work, caller=caller.user.subject)
            else:
                self._named.create(owner, name, source, work)
            return self.get(caller, _written(owner, name))

        return make

    def restoring(self, caller: Caller, name: str, which: str | None) -> Callable[[Work], v1.NamedEnvironmentView]:
        """Check what is asked for; return what goes back."""
        self._may_build(caller.user.subject)
        owner, bare = _owner(caller, name)
        self._named.check_restore(owner, bare, which)

        def go_back(work: Work) -> v1.NamedEnvironmentView:
            self._named.restore(owner, bare, which, work)
            return self.get(caller, _written(owner, bare))

        return go_back

    def share(self, caller: Caller, name: str, subjects: Sequence[str]) -> v1.NamedEnvironmentView:
        """Let others use it."""
        owner, bare = _owner(caller, name)
        if owner == SITE:
            raise Invalid(f"{name} is everybody's already.")
        self._named.share(owner, bare, subjects)
        return self.get(caller, bare)

    def remove(self, caller: Caller, name: str) -> None:
        """Remove it."""
        owner, bare = _owner(caller, name)
        self._named.remove(owner, bare)

    # --- building while somebody listens

    async def lines(self, build: Callable[[Work], v1.NamedEnvironmentView]) -> AsyncIterator[bytes]:
        """Build in a thread and tell how it goes, one JSON object a line; blank lines are signs of life.

        When nobody listens any more the build is ended, and leaves nothing.
        """
        loop = asyncio.get_running_loop()
        said: asyncio.Queue[v1.EnvironmentProgress] = asyncio.Queue()
        left = threading.Event()

        def say(item: v1.EnvironmentProgress) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(said.put_nowait, item)

        threading.Thread(target=self._build, args=(build, say, left), name="environment", daemon=True).start()
        try:
            while True:
                try:
                    item = await asyncio.wait_for(said.get(), _HEARTBEAT)
                except TimeoutError:
                    yield b"\n"
                    continue
                said_now = {name: part for name, part in item.model_dump(mode="json").items() if part is not None}
                yield json.dumps(said_now).encode() + b"\n"
                if item.message is None:
                    return
        finally:
            left.set()

    def _build(
        self,
        build: Callable[[Work], v1.NamedEnvironmentView],
        say: Callable[[v1.EnvironmentProgress], None],
        left: threading.Event,
    ) -> None:
        def stop() -> bool:
            return left.is_set() or self._closing.is_set()

        work = Work(
            report=lambda message: say(v1.EnvironmentProgress(message=message)), deadline=time.monotonic() + _LONGEST, stop=stop
        )
        try:
            with self._turn(work):
                say(v1.EnvironmentProgress(environment=build(work)))
        except EnvironmentStopped:
            error = EnvironmentStopped("The environment was not made: the lab stops.", remedy="Ask again when it is back.")
            say(v1.EnvironmentProgress(problem=problem_of(error)[0]))
        except CarrelError as error:
            say(v1.EnvironmentProgress(problem=problem_of(error)[0]))
        except Exception:
            incident = secrets.token_hex(6)
            log.exception("incident %s while an environment was built", incident)
            say(v1.EnvironmentProgress(problem=problem_of_incident(incident)))

    @contextlib.contextmanager
    def _turn(self, work: Work) -> Iterator[None]:
        """One of the builds at a time."""
        patience: WaitLimit = work.patience
        if not self._builds.acquire(blocking=False):
            work.report("other environments are being built; waiting for them")
            while not self._builds.acquire(timeout=0.2):
                patience.check()
        try:
            yield
        finally:
            self._builds.release()


def _owner(caller: Caller, text: str) -> tuple[str, str]:
    """Whose environment `text` is, when `caller` is to change it, and its name alone."""
    said, name = split_name(text)
    if said == SITE:
        if not allowed(caller, Action.CHANGE_ENVIRONMENT_OF_SITE):
            raise Denied(
                "Environments of the site are made and changed by administrators.",
                remedy=f"Leave {SITE_WORD}/ out to have one of your own.",
            )
        return SITE, name
    missing = NotFound(f'You have no environment "{text}".', remedy="What others share can be used, and is changed by its owner.")
    allowed(caller, Action.CHANGE_ENVIRONMENT, Resource(owner=said or caller.user.subject)).check(missing)
    return caller.user.subject, name


def _written(owner: str, name: str) -> str:
    return full_name(owner, name) if owner == SITE else name


def _source(caller: Caller, request: v1.EnvironmentRequest) -> EnvironmentRecipe | Path | str:
    given = [field for field in ("requirements", "project", "path", "source") if getattr(request, field) is not None]
    if len(given) > 1:
        raise Invalid(f"The environment is to be made from {' and '.join(given)}.", remedy="Say one of them.")
    if request.python is not None and given and given[0] in ("path", "source"):
        raise Invalid(f"python does not go with {given[0]}, which has its own.", remedy="Leave python out.")
    if request.source is not None:
        return request.source
    if request.path is not None:
        if not allowed(caller, Action.NAME_PATH):
            raise Denied(
                f"{caller.user.name} may not name an environment by its path.",
                remedy="Send its requirements instead, or ask an administrator.",
            )
        if "\0" in request.path or not request.path.startswith("/"):
            raise Invalid(f'"{request.path[:200]}" is not an absolute path.', remedy="Begin it with a slash.")
        return Path(request.path)
    recipe = EnvironmentRecipe()
    if request.requirements is not None:
        texts = TextFiles({**request.files, _REQUIREMENTS: "\n".join(request.requirements) + "\n"})
        recipe = read_requirements(texts, _REQUIREMENTS)
    elif request.files:
        raise Invalid("files go with requirements.", remedy="Send requirements, or leave files out.")
    if request.project is not None:
        recipe = _project(request.project)
    return recipe if request.python is None else replace(recipe, python=request.python)


def _project(texts: Mapping[str, str]) -> EnvironmentRecipe:
    unknown = sorted(set(texts) - set(_PROJECT))
    if unknown:
        raise Invalid(f'A project has no "{unknown[0][:80]}" here.', remedy=f"Send {' and '.join(_PROJECT)}.")
    files = TextFiles(texts)
    if "uv.lock" in texts:
        return read_uv_lock(files)
    if "pyproject.toml" not in texts:
        raise Invalid("The project has no pyproject.toml.", remedy="Send its text, and that of uv.lock.")
    recipe = read_pyproject(files)
    if recipe is None:
        raise Invalid("pyproject.toml has no [project].", remedy="Describe the project there, or send requirements.")
    return recipe


def _view(info: NamedInfo, me: str, *, history: bool = True) -> v1.NamedEnvironmentView:
    record = info.record
    return v1.NamedEnvironmentView(
        name=info.name,
        owner=record.owner or SITE_WORD,
        kind=record.kind.value,
        python=record.python,
        source=record.source,
        path=str(info.prefix),
        created_at=_moment(record.created),
        used_at=_moment(info.used),
        size=info.size,
        packages=record.locks[-1].packages if record.locks else 0,
        in_use=info.in_use,
        shared_with=list(record.shared_with) if record.owner == me else [],
        copy_of=record.origin.environment if record.origin else None,
        locks=[
            v1.EnvironmentLockView(digest=note.digest, at=_moment(note.at), how=note.how, packages=note.packages)
            for note in (record.locks if history else ())
        ],
    )


def _moment(seconds: float) -> datetime:
    found = moment(seconds)
    assert found is not None
    return found
