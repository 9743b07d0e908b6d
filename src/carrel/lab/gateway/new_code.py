"""Code that comes through the pages: pasted, uploaded, or in a git repository. It becomes a snapshot of the user's.

What is uploaded is written below a directory that is empty before and gone afterwards, and packed as `carrel run` packs one.
A repository is read as an input is (`carrel.node.staging.git`): nothing of it is run, and where users' code is kept apart, what
reads it runs behind the same walls.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import struct
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from carrel.core.control.lab import Lab
from carrel.core.domain.errors import Conflict, Invalid, NotFound, StorageFull
from carrel.core.domain.launch import LaunchWalls
from carrel.core.domain.task import InputSpec
from carrel.core.domain.units import MIB, format_size
from carrel.core.domain.user import Caller
from carrel.core.snapshots import SnapshotStore, pack
from carrel.core.snapshots.archive import Kind, check_path
from carrel.core.snapshots.packing import LIMIT_BYTES, LIMIT_FILES
from carrel.core.spool.disk import full_at, is_full
from carrel.core.tasks.files import ProjectFiles
from carrel.core.tasks.mlproject import read_project
from carrel.node.containment.walls import PREPARING_SHARED, Bind, Walls, bounds_of
from carrel.node.staging.apart import stage_apart, stage_here
from carrel.node.staging.download import Most
from carrel.node.staging.failed import InputFailed
from carrel.node.staging.fetching import Closed
from carrel.node.staging.lab import LabFiles
from carrel.notebooks.promote.environment import RUNNER
from carrel.notebooks.promote.promotion import RUNNER_FILE

#: The page that code comes through.
NEW_TASK = "/tasks/new"
#: What can be run as it is.
SCRIPTS = (".py", ".sh")
_CHUNK = MIB
#: Longest path of an uploaded file in bytes, and directories that it lies in: each of them is made on the disk.
_PATH, _DEPTH = 1024, 64
#: Bytes of an archive's list of files, and of a notebook.
_LIST, _NOTEBOOK = 8 * MIB, 64 * MIB
#: Variables for what reads a repository: the way to the network, and whom to trust.
_WAY = (
    *("PATH", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"),
    *("http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
)
_WEB = re.compile(r"https?://[^\s#@]+")
_BASH = re.compile(r"#!\s*\S*\b(?:ba|da|k|z)?sh\b|#SBATCH\s", re.MULTILINE)
_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
_NO_ARCHIVE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
_MANY = f"The archive has more than {LIMIT_FILES:,} files."


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
    ) -> None:
        """`walls` says what code of a user does not see of the machine; `templates` has a directory for each of the site's."""
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
        suffix = ".sh" if _BASH.match(text) or re.search(r"^#SBATCH\s", text, re.MULTILINE) else ".py"
        stem = _NAME.sub("_", name).strip("._-").removesuffix(suffix)[:100] or "script"
        with self._directory() as place:
            (place / f"{stem}{suffix}").write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
            return self._packed(caller, place, f"{stem}{suffix}", requirements)

    def files(self, caller: Caller, given: Sequence[tuple[str, Path]], requirements: str = "") -> NewCode:
        """Take uploaded files by their names: one script, notebook or .zip, or all files of a folder. They may be moved away."""
        with self._directory() as place:
            name = _last(given[0][0])
            if len(given) == 1 and name.endswith(".zip"):
                _unzip(given[0][1], place)
                _without_top(place)
            elif len(given) == 1 and name.endswith(".ipynb"):
                return self._notebook(caller, place, name, given[0][1], requirements)
            elif len(given) == 1 and "/" not in given[0][0] and not name.endswith(SCRIPTS):
                raise Invalid(f'"{name}" is not a task.', remedy="Choose a .py, .sh, .ipynb or .zip file, or a folder.")
            else:
                for path, source in given:
                    target = place / _inside(path)
                    with _once(path):
                        target.parent.mkdir(parents=True, exist_ok=True)
                        source.rename(target)
                if "/" in given[0][0]:
                    name = given[0][0].partition("/")[0]
                    _without_top(place)
            return self._packed(caller, place, name, requirements)

    def repository(self, caller: Caller, address: str, version: str) -> NewCode:
        """Take what a public repository has at a branch, tag or commit ("": at its HEAD)."""
        address, _, inside = address.strip().partition("#")
        if not _WEB.fullmatch(address):
            raise Invalid(
                f'"{address[:200]}" is not the address of a repository.',
                remedy="Write it like https://host/owner/repository.git, with #directory for a part of it.",
            )
        uri = f"git+{address}" + (f"@{version}" if version else "") + (f"#subdirectory={inside}" if inside else "")
        notes: list[str] = []
        sources: dict[str, str] = {}
        with self._directory() as place, self._one_at_a_time(caller):
            try:
                self._fetch(caller, uri, place, lambda said: notes.append(said), sources.__setitem__)
            except InputFailed as error:
                raise Invalid(
                    error.message,
                    remedy="Is the address right, and the repository public? A private one: `carrel run` on a machine that may "
                    "read it, or upload it as a .zip.",
                ) from error
            if not (place / "code").is_dir():
                raise Invalid(f'"{inside}" is a file.', remedy="Name the directory that it lies in.")
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
        inside = "" if directory == "." else directory.rstrip("/") + "/"
        paths = [one.path.removeprefix(inside) for one in files if one.path.startswith(inside)]
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
                said = (
                    text.replace(f"{scratch}/beside/", "").replace(str(place), "the code")
                    for text in (error.message, error.remedy)
                )
                message, remedy = said
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
        self, caller: Caller, uri: str, place: Path, report: Callable[[str], None], resolved: Callable[[str, str], None]
    ) -> None:
        inputs, most = (InputSpec(path="code", uri=uri),), Most(size=LIMIT_BYTES, files=LIMIT_FILES)
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
        notebook = beside / _inside(name)
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
            promote(notebook, place, environ={})
        except ValueError as error:  # half of a character (UTF-16), or an integer that is too long to be written
            raise Invalid(f"{name} cannot become a task: {error}.", remedy="Correct what it holds.") from error
        none = () if requirements else ("No packages are known of this notebook: choose an environment, or name them.",)
        return self._packed(caller, place, name, "", none)

    def _packed(self, caller: Caller, place: Path, name: str, requirements: str, notes: Sequence[str] = ()) -> NewCode:
        if requirements:
            with _once("requirements.txt"):
                (place / "requirements.txt").write_text(requirements, encoding="utf-8")
        packed = pack(place, surrounding=False)
        with packed.open() as archive:
            self._lab.add_snapshot(caller, packed.digest, archive)
        if packed.pointers:
            notes = (*notes, f"Of {len(packed.pointers)} files of Git LFS only the pointers are here: {packed.pointers[0]} …")
        return NewCode(snapshot=packed.digest, name=name, notes=tuple(notes))


def _last(name: str) -> str:
    return name.replace("\\", "/").rpartition("/")[2]


def _inside(path: str) -> Path:
    """Return where below the directory of the code an uploaded file belongs. Raises `Invalid`."""
    path = check_path(path.replace("\\", "/"))
    if len(path.encode()) > _PATH or path.count("/") > _DEPTH:
        raise Invalid(
            f'The path "{path[:80]}…" is longer than {_PATH} bytes, or lies in more than {_DEPTH} directories.',
            remedy="Give files shorter names, and let them lie less deep.",
        )
    return Path(path)


def _without_top(place: Path) -> None:
    """Let the content of the one directory at the top take its place: archives and folders have their own name around them."""
    children = list(place.iterdir())
    if len(children) != 1 or not children[0].is_dir():
        return
    top = children[0].rename(place.parent / "top")
    place.rmdir()
    top.rename(place)


def _unzip(archive: Path, place: Path) -> None:
    """Write the files of a .zip below `place`. Sizes in it are not believed: what comes out of it is counted."""
    total = 0
    try:
        with archive.open("rb") as file:
            # The list is read into memory as a whole, a hundred times as large as it is; this is where `zipfile` finds it.
            end = zipfile._EndRecData(file)  # type: ignore[attr-defined]
        if end is not None and end[5] > _LIST:
            raise Invalid(_MANY, remedy="Leave data and environments out.")
        with zipfile.ZipFile(archive) as given:
            members = [one for one in given.infolist() if not one.is_dir()]
            if len(members) > LIMIT_FILES:
                raise Invalid(_MANY, remedy="Leave data and environments out.")
            for one in members:
                if one.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others say how much memory they want
                    raise NotImplementedError("its files are neither stored nor deflated")
                mode = one.external_attr >> 16
                if stat.S_ISLNK(mode):
                    raise Invalid(
                        f'"{one.filename[:200]}" in the archive is a symbolic link.', remedy="Put the file itself in it."
                    )
                target = place / _inside(one.filename)
                with _once(one.filename):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with given.open(one) as source, target.open("xb") as file:
                        total = _copy(source, file, total)  # type: ignore[arg-type]
                        os.fchmod(file.fileno(), 0o755 if mode & 0o111 else 0o644)
    # `zipfile` raises these too: for offsets before the file or far behind it, and for names that are empty or no UTF-8.
    except (*_NO_ARCHIVE, ValueError, OverflowError, IndexError, struct.error) as error:
        raise _unreadable(error) from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # seeking before the beginning
            raise
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> Invalid:
    return Invalid(f"The archive cannot be read: {error}.", remedy="Make it anew, without a password.")


@contextmanager
def _once(path: str) -> Iterator[None]:
    """Raise `Invalid` where what is written within stands in the place of something else."""
    try:
        yield
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise Invalid(f'"{path[:200]}" is there twice, or as a file and as a directory.', remedy="Keep one of them.") from error


def _copy(source: BinaryIO, file: BinaryIO, total: int) -> int:
    while piece := source.read(_CHUNK):
        total += len(piece)
        if total > LIMIT_BYTES:
            raise Invalid(
                f"The archive holds more than {format_size(LIMIT_BYTES)}.", remedy="Leave data out, and name them as inputs."
            )
        file.write(piece)
    return total
