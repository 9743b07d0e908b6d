"""The environments of one owner by their names: made, opened, remembered, shared, taken back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from carrel.core.domain.errors import Conflict, NotFound
from carrel.core.domain.launch import LaunchWalls
from carrel.core.domain.session import OF_SITE
from carrel.core.domain.task import EnvironmentRecipe
from carrel.node.environments.equipment import find_uv
from carrel.node.environments.errors import EnvironmentFailed
from carrel.node.environments.named import making
from carrel.node.environments.named.builder import Builder
from carrel.node.environments.named.changes import note_changes
from carrel.node.environments.named.disk_quota import RESERVE, Counter, DiskQuota, read_quota, remember_quota
from carrel.node.environments.named.holding import Ground, Opened, alone, changing, in_use, still, storage, use
from carrel.node.environments.named.making import Tools, Work, installed
from carrel.node.environments.named.names import as_written, find, find_own, may_use, name_of_copy
from carrel.node.environments.named.records import (
    DEFAULT,
    EVERYBODY,
    SITE,
    Kind,
    Layout,
    LockNote,
    NamedRecord,
    Origin,
    Place,
    full_name,
)
from carrel.node.environments.records import short, text_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedInfo:
    """One environment, for lists."""

    #: As the one who asked writes it: "torch", "ada/torch", "site/torch".
    name: str
    record: NamedRecord
    prefix: Path
    #: Unix seconds of its last use, or of its making.
    used: float
    #: Bytes on disk; what it shares with one that comes before it in the list is not counted again.
    size: int
    #: True while a session has it.
    in_use: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LockText:
    """A lock."""

    digest: str
    text: str
    #: Implementation and exact version of the Python that it is for.
    python: str
    #: Unix seconds.
    at: float


class NamedEnvironments:
    """Mutable virtual environments under `root`/named, by owner and name. Safe for any number of processes at a time.

    Names are written as their owner does ("torch"), or with whose it is ("ada/torch", "site/torch"). Methods raise
    `NotFound`, `Conflict`, `Invalid`, `StorageFull` and, where something is built, `EnvironmentFailed`,
    `EnvironmentTimeout` and `EnvironmentStopped`; what was there before such an error is there after it.
    """

    def __init__(
        self,
        root: Path,
        *,
        environ: Mapping[str, str] | None = None,
        uv: Path | None = None,
        reserve: int = RESERVE,
        clock: Callable[[], float] = time.time,
        walls: Callable[[str], LaunchWalls | None] = lambda _owner: None,
    ) -> None:
        """`root` is the directory of all environments; `environ` (that of the process) has pip's and uv's configuration.

        So many bytes as `reserve` stay free on the disk. `walls` says what builds of an owner do not see of the machine.
        """
        root = root.absolute()
        self.layout = Layout(root / "named")
        tools = Tools(root=root, environ=os.environ if environ is None else environ, uv=uv, walls=walls)
        self._ground = Ground(layout=self.layout, tools=tools, clock=clock)
        self._reserve = reserve

    # --- room

    @property
    def quota(self) -> int | None:
        """Bytes that the environments of each owner may use, None for no limit."""
        return read_quota(self.layout)

    def set_quota(self, quota: int | None) -> None:
        """Set `quota`, also for the runners on this machine."""
        with storage(self.layout):
            remember_quota(self.layout, quota)

    def check_room(self, owner: str, what: str) -> None:
        """Raise `StorageFull` when `owner` has no room for `what`, with what uses how much."""
        DiskQuota(layout=self.layout, quota=self.quota, reserve=self._reserve).check(owner, what)

    # --- making

    def check_new(self, owner: str, name: str) -> None:
        """Raise what `create` would raise at once: a bad name, one that is taken, no room."""
        if self.layout.place(owner, name).read() is not None:
            raise Conflict(f'There is an environment "{name}" already.', remedy="Choose another name, or remove that one.")
        self.check_room(owner, f'the environment "{name}"')

    def create(self, owner: str, name: str, source: EnvironmentRecipe | Path, work: Work) -> NamedRecord:
        """Make an environment from a recipe (its text alone), or refer to a prefix by its absolute path.

        `owner` is a subject, or `SITE`. It is there when this returns and was not there before; a call that fails or is
        killed leaves nothing under the name.
        """
        with self._new(owner, name, work, source if isinstance(source, EnvironmentRecipe) else None) as builder:
            if isinstance(source, Path):
                return builder.refer(owner, name, source)
            return builder.create(owner, name, source)

    def copy(self, owner: str, name: str, original: str, work: Work, *, caller: str | None = None) -> NamedRecord:
        """Make an environment from what is installed now in another one that `caller` (by default the owner) may use."""
        lock = self.lock(caller or owner, original)
        _, record = find(self.layout, caller or owner, original)
        with self._new(owner, name, work) as builder:
            return builder.copy(owner, name, record, lock.text)

    @contextmanager
    def _new(self, owner: str, name: str, work: Work, recipe: EnvironmentRecipe | None = None) -> Iterator[Builder]:
        with storage(self.layout):
            place = self.layout.place(owner, name)
            self.check_new(owner, name)
            with changing(place, work) as hold:
                self.check_new(owner, name)  # somebody may have been faster
                with self._ground.builder(owner, place, hold, work, recipe) as builder:
                    yield builder

    # --- using

    def ensure(self, owner: str, work: Work, name: str = DEFAULT, default: str = "") -> Opened:
        """Open an environment of the owner's own; the default one is made when it is not there, with what `default` says."""
        with storage(self.layout):
            place = self.layout.place(owner, name)
            while name == DEFAULT and place.read() is None:
                self.check_room(owner, "your environment")
                work.report("making your environment")
                with changing(place, work) as hold:
                    if place.read() is None:
                        with self._ground.builder(owner, place, hold, work) as builder:
                            builder.create_default(owner, name, default, work.report)
            return use(place, name, work)

    def open(self, caller: str, name: str, work: Work, default: str = "") -> Opened:
        """Open an environment for a session of the caller's; `default` is what "default" is for who has none.

        Their own one as it is. Of a shared or site one they get a copy of their own, made on first use and found again later,
        so that what they install stays theirs; a copy into which nothing was installed follows the shared one.
        """
        if self._of_site(caller, name, default):
            name = default
        if name == DEFAULT:
            return self.ensure(caller, work, default=default)
        with storage(self.layout):
            place, record = find(self.layout, caller, name)
            note_changes(place.prefix(record), clock=self._ground.clock)
            if record.owner == caller:
                return use(place, name, work)
            self.check_room(caller, f"your copy of {as_written(caller, record)}")
            return personal_copy(self._ground, caller, place, place.read() or record, work)

    def check(self, caller: str, name: str, default: str = "") -> None:
        """Raise `NotFound` when the caller may use no environment of this name. A path is looked at when it is opened."""
        with storage(self.layout):
            if name != DEFAULT and not Path(name).is_absolute():
                find(self.layout, caller, name)
            elif self._of_site(caller, name, default) and self.layout.place(SITE, default.removeprefix(OF_SITE)).read() is None:
                raise NotFound(
                    f'The lab\'s default environment is "{default}", and that is not there.',
                    remedy=f"Ask an administrator to make it (`carrel env create {default}`), or make one of your own: "
                    f"`carrel env create {DEFAULT}`.",
                )

    def _of_site(self, owner: str, name: str, default: str) -> bool:
        """True where "default" means an environment of the site, because the owner has none of that name."""
        return name == DEFAULT and default.startswith(OF_SITE) and self.layout.place(owner, name).read() is None

    def make_usable(self, opened: Opened, work: Work) -> Path:
        """See that a kernel can run in what was opened, although users may have changed it; return its prefix."""
        with storage(self.layout):
            prefix, record = opened.prefix, opened.record
            if record.kind is Kind.REFERENCE:
                return self.look_at(record.owner, prefix, work).prefix
            if record.kind is Kind.OVERLAY:
                self.look_at(record.owner, Path(record.base), work)
            if not os.access(prefix / "bin/python", os.X_OK):
                raise EnvironmentFailed(
                    f"The Python of {record.name} is gone ({os.path.realpath(prefix / 'bin/python')}).",
                    remedy=f"Build it again: `carrel env restore {record.name} {short(record.locks[-1].digest)[:12]}`.",
                )
            if record.kind is Kind.OWN and not making.is_complete(prefix):
                with changing(opened.place, work) as hold, self._ground.tools.build_context(record.owner, work) as build_context:
                    making.add_kernel(prefix, build_context, hold.fd)
            making.link_uv(prefix, find_uv(self._ground.tools.uv, self._ground.tools.environ))
            return prefix

    def look_at(self, owner: str, prefix: Path, work: Work) -> making.Found:
        """Look, for `owner`, at a prefix that others made; raise `EnvironmentFailed` when no kernel can run there."""
        with storage(self.layout), self._ground.tools.build_context(owner, work) as build_context:
            return making.look_at(prefix, build_context)

    # --- looking

    def list(self, caller: str) -> Sequence[NamedInfo]:
        """Return one's own environments, then the site's, then those that others share with the caller."""
        rows = [row for row in self.layout.everything() if may_use(caller, row[1])]
        rows.sort(key=lambda row: (row[1].owner != caller, row[1].owner != SITE, row[1].owner, row[1].name))
        counter = Counter()
        return [self._info(place, record, caller, counter) for place, record in rows]

    def get(self, caller: str, name: str) -> NamedInfo:
        """Return one environment that the caller may use, with what is installed in it now noted."""
        with storage(self.layout):
            place, record = find(self.layout, caller, name)
            note_changes(place.prefix(record), clock=self._ground.clock)
            return self._info(place, place.read() or record, caller, Counter())

    def lock(self, caller: str, name: str, which: str | None = None) -> LockText:
        """Return the lock of what is installed now, or an earlier one by the beginning of its digest."""
        with storage(self.layout):
            place, record = find(self.layout, caller, name)
            if record.kind is Kind.REFERENCE:
                text = making.installed(Path(record.prefix))
                return LockText(digest=text_digest(text), text=text, python=record.python, at=self._ground.clock())
            note_changes(place.prefix(record), clock=self._ground.clock)
            record = place.read() or record
            note = record.locks[-1] if which is None else pick(record, which)
            return LockText(digest=note.digest, text=place.read_lock(note.digest), python=record.python, at=note.at)

    def _info(self, place: Place, record: NamedRecord, caller: str, counter: Counter) -> NamedInfo:
        try:
            used = place.using.stat().st_mtime
        except FileNotFoundError:
            used = record.created
        return NamedInfo(
            name=as_written(caller, record),
            record=record,
            prefix=place.prefix(record),
            used=used,
            size=counter.add(place.directory),
            in_use=in_use(place),
        )

    # --- changing

    def check_restore(self, owner: str, name: str, which: str | None) -> None:
        """Raise what `restore` would raise at once."""
        place, record = find_own(self.layout, owner, name)
        if record.kind is not Kind.OWN:
            raise Conflict(f"{record.name} stands on a prefix elsewhere.", remedy="Change it with the tool that made that.")
        note_changes(place.prefix(record), clock=self._ground.clock)
        pick(place.read() or record, which)
        self.check_room(owner, f"restoring {record.name}")

    def restore(self, owner: str, name: str, which: str | None, work: Work) -> NamedRecord:
        """Go back to an earlier lock, None meaning the last one that differs from what is installed now.

        It is built beside the present one, which goes only when the new one is whole; no session may be using it. The history
        keeps what was installed.
        """
        with storage(self.layout):
            self.check_restore(owner, name, which)
            place, _ = find_own(self.layout, owner, name)
            with changing(place, work) as hold, alone(place, name):
                record = still(place, name)
                place.sweep(record)
                lock = place.read_lock(pick(record, which).digest)
                with self._ground.builder(owner, place, hold, work) as builder:
                    return builder.replace(record, lock, "restored")

    def share(self, owner: str, name: str, subjects: Sequence[str]) -> NamedRecord:
        """Let others use it: `EVERYBODY`, or these subjects and no other; with none it is private again."""
        with storage(self.layout):
            place, record = find_own(self.layout, owner, name)
            if record.origin is not None and record.kind is Kind.OVERLAY:
                raise Conflict(f"{record.name} is a copy of {record.origin.environment}.", remedy="Its owner can share that.")
            with changing(place, _QUIET):
                chosen = {EVERYBODY} if EVERYBODY in subjects else set(subjects) - {owner}
                record = replace(still(place, name), shared_with=tuple(sorted(chosen)))
                place.write(record)
                return record

    def remove(self, owner: str, name: str) -> None:
        """Remove it with its history; raises `Conflict` while a session uses it. A referenced prefix itself stays."""
        with storage(self.layout):
            place, _ = find_own(self.layout, owner, name)
            with changing(place, _QUIET), alone(place, name):
                still(place, name)
                place.discard(place.directory)
                place.using.unlink(missing_ok=True)
                place.changing.unlink(missing_ok=True)


_QUIET = Work(report=lambda _line: None)


def pick(record: NamedRecord, which: str | None) -> LockNote:
    """Return the lock that `which` begins the digest of; None: the last that differs from the newest."""
    if which is None:
        others = [note for note in record.locks if note.digest != record.locks[-1].digest]
        if not others:
            raise Conflict(f"{record.name} has only ever had one set of packages.", remedy="There is nothing to go back to.")
        return others[-1]
    wanted = which.removeprefix("sha256:").lower()
    found = {note.digest: note for note in record.locks if wanted and note.digest.removeprefix("sha256:").startswith(wanted)}
    if len(found) != 1:
        fact = "Several locks begin" if found else f"{record.name} has no lock whose digest begins"
        raise NotFound(f'{fact} with "{which[:80]}".', remedy="`carrel env lock NAME --history` lists them.")
    return next(iter(found.values()))


def personal_copy(ground: Ground, caller: str, theirs: Place, original: NamedRecord, work: Work) -> Opened:
    """Return the caller's copy of `original`, made now when there is none yet, and brought up to date where that loses nothing.

    A copy is installed from the lock of the original; of a referenced prefix it is a layer on top.
    """

    if original.kind is Kind.OWN:
        lock, digest = theirs.read_lock(original.locks[-1].digest), original.locks[-1].digest
    else:
        lock = installed(theirs.prefix(original))
        digest = text_digest(lock)
    wanted = full_name(original.owner, original.name)
    place = _existing(ground, caller, wanted)
    if place is None:
        place = _take(ground, caller, original, lock, digest, work)
    else:
        _follow(ground, place, lock, digest, work)
    return use(place, place.directory.name, work)


def _existing(ground: Ground, caller: str, wanted: str) -> Place | None:
    rows = ground.layout.of(caller)
    return next((place for place, record in rows if record.origin and record.origin.environment == wanted), None)


def _take(ground: Ground, caller: str, original: NamedRecord, lock: str, digest: str, work: Work) -> Place:

    wanted = full_name(original.owner, original.name)
    for number in count(1):
        name = name_of_copy(original, number)
        place = ground.layout.place(caller, name)
        with changing(place, work) as hold:
            present = place.read()
            if present is None:
                with ground.builder(caller, place, hold, work) as builder:
                    builder.take(caller, name, original, lock, digest)
                return place
        if present.origin is not None and present.origin.environment == wanted:  # another session was faster
            return place
    raise AssertionError("there are more numbers than names")


def _follow(ground: Ground, place: Place, lock: str, digest: str, work: Work) -> None:
    """Bring a copy up to date with its original, unless its owner has installed something, or is using it now."""

    record = place.read()
    if record is None or record.origin is None or record.kind is not Kind.OWN or record.origin.lock == digest:
        return
    note_changes(place.prefix(record), clock=ground.clock)
    source = record.origin.environment
    try:
        with changing(place, work) as hold, alone(place, record.name):
            record = place.read() or record
            if record.changed_since_origin:
                work.report(f"{source} has changed; your copy keeps what you installed (remove {record.name} to copy it again)")
                return
            work.report(f"{source} has changed; bringing your copy up to date")
            record = replace(record, origin=Origin(environment=source, lock=digest))
            with ground.builder(record.owner, place, hold, work) as builder:
                builder.replace(record, lock, "taken")
    except Conflict:
        work.report(f"{source} has changed; your copy is in use and stays as it is")
