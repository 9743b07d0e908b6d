"""Code that comes through the pages: pasted, uploaded, or in a git repository. It becomes a snapshot of the user's.

What is uploaded is written below a directory that is empty before and gone afterwards, and packed as `carrel run` packs one.
A repository is read as an input is (`carrel.node.staging.git`): nothing of it is run, and where users' code is kept apart, what
reads it runs behind the same walls.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from carrel.core.control.lab import Lab
from carrel.core.domain.errors import Conflict, Invalid, NotFound, StorageFull
from carrel.core.domain.launch import LaunchWalls
from carrel.core.domain.task import InputSpec
from carrel.core.domain.units import MIB, format_size
from carrel.core.domain.user import Caller
from carrel.core.snapshots import SnapshotStore, pack
from carrel.core.snapshots.archive import Kind
from carrel.core.snapshots.packing import LIMIT_BYTES, LIMIT_FILES
from carrel.core.snapshots.uploads import inside, once, unzip
from carrel.core.spool.disk import full_at, is_full
from carrel.core.tasks.files import ProjectFiles
from carrel.core.tasks.mlproject import read_project
from carrel.node.containment.walls import PREPARING_SHARED, Bind, Walls, bounds_of
from carrel.node.staging.apart import stage_apart, stage_here
from carrel.node.staging.download import Most
from carrel.node.staging.failed import InputFailed
from carrel.node.staging.fetching import Closed
from carrel.node.staging.git_hosts import GitHosts
from carrel.node.staging.lab import LabFiles
from carrel.notebooks.promote.environment import RUNNER
from carrel.notebooks.promote.promotion import RUNNER_FILE

#: The page that code comes through.
NEW_TASK = "/tasks/new"
#: What can be run as it is.
SCRIPTS = (".py", ".sh")
#: Bytes of a notebook.
_NOTEBOOK = 64 * MIB
#: Seconds that fetching a repository may take.
_FETCH_TIME = 600.0
#: Variables for what reads a repository: the way to the network, and whom to trust.
_WAY = (
    *("PATH", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"),
    *("http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
)
_WEB = re.compile(r"https?://[^\s#@]+")
#: What begins with such a line, or has one of Slurm's, is for a shell.
_SHELL = re.compile(r"\A#!\s*\S*\b(?:ba|da|k|z)?sh\b|^#SBATCH\s", re.MULTILINE)
_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCode:
    """Code of a user's that is here now."""

    snapshot: str
    #: What the user calls it: a file's name, or an address.
    name: str
    #: Where it came from, if that was a repository: its address and the commit.
    remote: str = ""
    commit: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Runnable:
    """What code offers to run."""

    #: Entry points of its MLproject with the parameters that they declare and their defaults, as text ("" where it has none).
    entry_points: Mapping[str, Mapping[str, str]]
    #: Scripts that can be run as they are, those at the top first.
    scripts: tuple[str, ...]
    files: int = 0
    #: Bytes of them.
    size: int = 0

    @property
    def only(self) -> str | None:
        """What is meant where the user has not chosen, or None when there is a choice."""
        if "main" in self.entry_points:
            return "main"
        every = [*self.entry_points, *self.scripts]
        top = [script for script in self.scripts if "/" not in script]
        usual = [script for script in top if script in ("main.py", "train.py", "run.py", "main.sh", "train.sh", "run.sh")]
        return next((some[0] for some in (every, top, usual) if len(some) == 1), None)


def runnable(files: ProjectFiles, paths: Sequence[str]) -> Runnable:
    """Return what code offers. `paths` are all its files. Raises `Invalid` for an MLproject that is wrong."""
    project = read_project(files)
    points = {} if project is None else project.entry_points
    scripts = sorted((path for path in paths if path.endswith(SCRIPTS)), key=lambda path: (path.count("/"), path))
    return Runnable(
        entry_points={
            name: {one.name: "" if one.default is None else str(one.default) for one in point.parameters.values()}
            for name, point in points.items()
        },
        scripts=tuple(scripts[:200]),
    )


class Incoming:
    """Makes snapshots of what comes through the pages. Thread-safe."""

    def __init__(
        self,
        lab: Lab,
        snapshots: SnapshotStore,
        walls: Callable[[str], LaunchWalls | None],
        templates: Path | None = None,
        git_hosts: GitHosts | None = None,
        fetch_time: float = _FETCH_TIME,
    ) -> None:
        """`walls` says what code of a user does not see of the machine; `templates` has a directory for each of the site's.

        `git_hosts` says from where repositories are fetched, within `fetch_time` seconds.
        """
        self._git_hosts = git_hosts or GitHosts()
        self._fetch_time = fetch_time
        self._templates = templates
        self._lab = lab
        self._snapshots = snapshots
        self._walls = walls
        self._fetching: set[str] = set()
        self._guard = threading.Lock()

    def text(self, caller: Caller, text: str, name: str, requirements: str = "") -> NewCode:
        """Take a pasted script: one of the shell if it begins so, else of Python. `requirements`: lines of a file beside it."""
        if not text.strip():
            raise Invalid("There is no script.", remedy="Paste one, or choose a file.")
        text = text.replace("\r\n", "\n")  # what every browser sends (HTML, 4.10.21.3)
        suffix = ".sh" if _SHELL.search(text) else ".py"
        stem = _NAME.sub("_", name).strip("._-").removesuffix(suffix)[:100] or "script"
        with self._directory() as place:
            (place / f"{stem}{suffix}").write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
            return self._packed(caller, place, f"{stem}{suffix}", requirements)

    def files(self, caller: Caller, given: Sequence[tuple[str, Path]], requirements: str = "") -> NewCode:
        """Take uploaded files by their names: one script, notebook or .zip, or all files of a folder. They may be moved away."""
        with self._directory() as place:
            name = _last(given[0][0])
            if len(given) == 1 and name.endswith(".zip"):
                unzip(given[0][1], place)
                _without_top(place)
            elif len(given) == 1 and name.endswith(".ipynb"):
                return self._notebook(caller, place, name, given[0][1], requirements)
            elif len(given) == 1 and "/" not in given[0][0] and not name.endswith(SCRIPTS):
                raise Invalid(f'"{name}" is not a task.', remedy="Choose a .py, .sh, .ipynb or .zip file, or a folder.")
            else:
                for path, source in given:
                    target = place / inside(path)
                    with once(path):
                        target.parent.mkdir(parents=True, exist_ok=True)
                        source.rename(target)
                if "/" in given[0][0]:
                    name = given[0][0].partition("/")[0]
                    _without_top(place)
            return self._packed(caller, place, name, requirements)

    def repository(self, caller: Caller, address: str, version: str) -> NewCode:
        """Take what a public repository has at a branch, tag or commit ("": at its HEAD)."""
        address, _, part = address.strip().partition("#")
        if not _WEB.fullmatch(address):
            raise Invalid(
                f'"{address[:200]}" is not the address of a repository.',
                remedy="Write it like https://host/owner/repository.git, with #directory for a part of it.",
            )
        pinned = self._git_hosts.pin(address)
        uri = f"git+{address}" + (f"@{version}" if version else "") + (f"#subdirectory={part}" if part else "")
        notes: list[str] = []
        sources: dict[str, str] = {}
        with self._directory() as place, self._one_at_a_time(caller):
            try:
                self._fetch(caller, uri, pinned, place, notes.append, sources.__setitem__)
            except InputFailed as error:
                raise Invalid(
                    error.message,
                    remedy="Is the address right, and the repository public? A private one: `carrel run` on a machine that may "
                    "read it, or upload it as a .zip.",
                ) from error
            if not (place / "code").is_dir():
                raise Invalid(f'"{part}" is a file.', remedy="Name the directory that it lies in.")
            code = self._packed(caller, place / "code", address.rstrip("/").rpartition("/")[2].removesuffix(".git"), "")
        commit = re.search(r"@([0-9a-f]{40,64})", sources.get("code", ""))
        return NewCode(
            snapshot=code.snapshot,
            name=code.name,
            remote=address,
            commit=commit[1] if commit else "",
            notes=(*(note for note in notes if note.startswith("submodules ")), *code.notes),
        )

    def templates(self) -> Sequence[str]:
        """Return the names of the site's templates: projects that anybody may run as they are, with other values."""
        if self._templates is None or not self._templates.is_dir():
            return ()
        return sorted(one.name for one in self._templates.iterdir() if one.is_dir() and not one.name.startswith("."))

    def template(self, caller: Caller, name: str) -> NewCode:
        """Take one of the site's templates. Raises `NotFound`."""
        if self._templates is None or name not in self.templates():
            raise NotFound(f'The lab has no template "{name[:80]}".', remedy="Choose one of the list.")
        return self._packed(caller, self._templates / name, name, "")

    def with_packages(self, caller: Caller, snapshot: str, requirements: str) -> str:
        """Return code that is here with these lines as its requirements file."""
        self.of(caller, snapshot)
        with self.directory() as scratch:
            place = scratch / "code"
            self._snapshots.extract(snapshot, place)
            if (place / RUNNER_FILE).exists():  # a notebook's: what runs it needs these
                requirements += "".join(f"{name}\n" for name in RUNNER)
            return self._packed(caller, place, "", requirements).snapshot

    def of(self, caller: Caller, snapshot: str, directory: str = ".") -> Runnable:
        """Return what code that is here offers in a directory of it. Raises `NotFound` for what is not the caller's."""
        if not self._lab.has_snapshot(caller, snapshot):
            raise NotFound("That code is not here any more.", remedy="Choose it again.")
        files = [one for one in self._snapshots.entries(snapshot) if one.kind is Kind.FILE]
        top = "" if directory == "." else directory.rstrip("/") + "/"
        paths = [one.path.removeprefix(top) for one in files if one.path.startswith(top)]
        offers = runnable(self._snapshots.files(snapshot, directory), paths)
        return replace(offers, files=len(files), size=sum(one.size for one in files))

    # ---- parts

    @contextmanager
    def directory(self) -> Iterator[Path]:
        """Make a directory for what is being uploaded; it is removed at the end."""
        self._snapshots.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="new-code-", dir=self._snapshots.root) as scratch:
            try:
                yield Path(scratch)
            except OSError as error:
                if not is_full(error):
                    raise
                said = full_at(self._snapshots.root, error)
                raise StorageFull(f"The code was not stored. {said}", remedy="Ask an administrator to free space.") from error

    @contextmanager
    def _directory(self) -> Iterator[Path]:
        with self.directory() as scratch:
            place = scratch / "code"
            place.mkdir()
            try:
                yield place
            except Invalid as error:  # where the lab keeps it for a moment is nothing to its user
                names = {f"{scratch}/beside/": "", str(place): "the code"}
                message, remedy = error.message, error.remedy
                for here, called in names.items():
                    message, remedy = message.replace(here, called), remedy.replace(here, called)
                raise Invalid(message, remedy=remedy) from error

    @contextmanager
    def _one_at_a_time(self, caller: Caller) -> Iterator[None]:
        me = caller.user.subject
        with self._guard:
            if me in self._fetching:
                raise Conflict("Another repository is being fetched for you.", remedy="Wait until that one is here.")
            self._fetching.add(me)
        try:
            yield
        finally:
            self._fetching.discard(me)

    def _fetch(
        self,
        caller: Caller,
        uri: str,
        pinned: str,
        place: Path,
        report: Callable[[str], None],
        resolved: Callable[[str, str], None],
    ) -> None:
        inputs = (InputSpec(path="code", uri=uri),)
        most = Most(size=LIMIT_BYTES, files=LIMIT_FILES, seconds=self._fetch_time, pinned=pinned)
        seen = self._walls(caller.user.subject)
        if seen is None:
            stage_here(inputs, place, report, lab=LabFiles("", "", ""), closed=Closed(), most=most, resolved=resolved)
            return
        private = place.parent / "private"
        private.mkdir()
        readable = [Bind(os.path.realpath(path), path) for path in seen.readable if os.path.exists(path)]  # noqa: PTH110
        walls = Walls(
            hidden=seen.hidden,
            frozen=seen.frozen,
            binds=(*readable, Bind(os.path.realpath(place), str(place), writable=True)),
            temporary=str(private),
            processes=seen.processes,
            shared_memory=PREPARING_SHARED,
            bounds=bounds_of(seen, [place, private]),
        )
        variables = {**{name: os.environ[name] for name in _WAY if name in os.environ}, "HOME": "/tmp", "TMPDIR": "/tmp"}
        stage_apart(
            inputs,
            place,
            report,
            lab=LabFiles("", "", ""),
            closed=Closed(),
            most=most,
            resolved=resolved,
            walls=walls,
            variables=variables,
        )

    def _notebook(self, caller: Caller, place: Path, name: str, source: Path, requirements: str) -> NewCode:
        from carrel.notebooks.promote import promote

        beside = place.parent / "beside"
        beside.mkdir()
        notebook = beside / inside(name)
        if source.stat().st_size > _NOTEBOOK:
            raise Invalid(
                f"The notebook has more than {format_size(_NOTEBOOK)}.",
                remedy="Clear its outputs (Kernel, Restart and clear) first.",
            )
        source.rename(notebook)
        if requirements:
            (beside / "requirements.txt").write_text(requirements, encoding="utf-8")
        place.rmdir()
        try:
            made = promote(notebook, place, environ={})
        except ValueError as error:  # half of a character (UTF-16), or an integer that is too long to be written
            raise Invalid(f"{name} cannot become a task: {error}.", remedy="Correct what it holds.") from error
        unknown = [] if requirements else [note.partition(":")[0] for note in made.environment.notes]
        return self._packed(caller, place, name, "", [f"{fact}: choose an environment, or name them." for fact in unknown])

    def _packed(self, caller: Caller, place: Path, name: str, requirements: str, notes: Sequence[str] = ()) -> NewCode:
        if requirements:
            with once("requirements.txt"):
                (place / "requirements.txt").write_text(requirements, encoding="utf-8")
        packed = pack(place, surrounding=False)
        with packed.open() as archive:
            self._lab.add_snapshot(caller, packed.digest, archive)
        if packed.pointers:
            notes = (*notes, f"Of {len(packed.pointers)} files of Git LFS only the pointers are here: {packed.pointers[0]} …")
        return NewCode(snapshot=packed.digest, name=name, notes=tuple(notes))


def _last(name: str) -> str:
    return name.replace("\\", "/").rpartition("/")[2]


def _without_top(place: Path) -> None:
    """Let the content of the one directory at the top take its place: archives and folders have their own name around them."""
    children = list(place.iterdir())
    if len(children) != 1 or not children[0].is_dir():
        return
    top = children[0].rename(place.parent / "top")
    place.rmdir()
    top.rename(place)
