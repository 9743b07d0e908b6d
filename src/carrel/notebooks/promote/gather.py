"""Deciding what travels with the script: files and modules by copy, large data as inputs by digest."""

from __future__ import annotations

import ast
import glob
import hashlib
import os
import posixpath
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from carrel.core.domain.task import InputSpec
from carrel.core.domain.units import MIB, format_size
from carrel.core.snapshots.ignore import NEVER
from carrel.notebooks.promote.findings import Findings, Severity
from carrel.notebooks.promote.mentions import Mention, Role, find_mentions, is_uri
from carrel.notebooks.promote.packages import Import, find_imports, is_standard

#: Files up to this size are copied with the code; larger ones are inputs.
SMALL = 10 * MIB
#: Bytes that are copied in all.
BUDGET = 100 * MIB
_MANY = 2_000
#: Files that a pattern may name one by one.
_PATTERN_FILES = 100
_CHUNK = MIB
#: Where absolute paths mean the same on every machine, or nothing that lasts.
_COMMON = ("/dev", "/proc", "/sys", "/bin", "/usr", "/etc", "/tmp", "/opt", "/sbin", "/lib", "/var/tmp")


@dataclass(slots=True)
class GatheredFiles:
    """What travels."""

    #: Place in the task -> file of this machine.
    copies: dict[str, Path] = field(default_factory=dict)
    #: The names, as written, of what is copied as data (files and directories), for people.
    data: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    inputs: list[InputSpec] = field(default_factory=list)
    input_sizes: dict[str, int] = field(default_factory=dict)
    #: Patterns of what cells write outside `outputs`.
    outputs: list[str] = field(default_factory=list)
    #: Texts of strings that name files elsewhere -> their place in the task.
    replaced: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A mention with the cell that it is in; None for a local module."""

    mention: Mention
    cell: int | None
    line: int


class Loader:
    """Puts files and modules of the notebook's directory (and of others that it names) into the cargo."""

    def __init__(self, base: Path, target: Path, findings: Findings) -> None:
        self.gathered = GatheredFiles()
        self._base = Path(os.path.realpath(base))
        #: What is made must not be read as something to make it from.
        self._target = Path(os.path.realpath(target))
        self._findings = findings
        self._size = 0
        self._search: list[Path] = [self._base]

    # --- data

    def load_data(self, said: Sequence[Said], *, rewrite: bool) -> None:
        """Take what code reads, and note what it writes. `rewrite`: strings may be changed, so that files from elsewhere fit."""
        resolved = list(self._resolved(said))
        written: dict[str, bool] = {}
        reads: dict[str, Said] = {}
        for path, one in resolved:
            role = one.mention.role
            if role in (Role.WRITE, Role.MAKE):
                written.setdefault(path, role is Role.MAKE)
            elif role in (Role.READ, Role.GLOB) and not self._is_below(path, written):
                reads.setdefault(path, one)
        # What is used as a place first: it may be a directory.
        for path, one in sorted(resolved, key=lambda item: not item[1].mention.placed):
            if one.mention.role is Role.MENTION and not self._touches(path, written):
                reads.setdefault(path, one)
        self._keep(written)
        chosen = {path: one for path, one in reads.items() if self._exists(path, one)}
        literal = {path for path, one in resolved if one.mention.literal and one.mention.role is not Role.GLOB}
        places: dict[str, str] = {}
        for path, one in sorted(chosen.items(), key=lambda item: item[0].count("/")):
            above = next((other for other in places if path.startswith(f"{other}/")), None)
            if above is not None:
                places[path] = places[above] + path.removeprefix(above)
                continue
            inside = [other for other in chosen if other.startswith(f"{path}/")]
            target = self._take(path, one, inside, movable=rewrite and path in literal and one.cell is not None)
            if target is not None:
                places[path] = target
        for path, one in resolved:
            if path.startswith("..") and path in places and one.mention.literal:
                self.gathered.replaced[one.mention.path] = places[path]
                self._note(Severity.CHANGED, f"{one.mention.path} is {places[path]} in the task", one)

    def _resolved(self, said: Iterable[Said]) -> Iterator[tuple[str, Said]]:
        """Yield places relative to the notebook's directory, in order; the others are noted, or of no interest."""
        here = ""
        for one in said:
            mention = one.mention
            text = mention.path
            if mention.role is Role.WRITE and not text:
                self._note(
                    Severity.CHECK, "what is written here is known only while it runs: it is kept when it is in outputs", one
                )
            elif is_uri(text):
                if mention.role is Role.READ:
                    self._note(
                        Severity.CHECK, f"{_shown(text)} is fetched while the task runs: an input with a digest is recorded", one
                    )
            elif text.startswith(("/", "~")):
                self._absolute(text, one)
            else:
                path = posixpath.normpath(posixpath.join(here, text)) if text else ""
                if mention.role is Role.ENTER:
                    here = path
                    if path.startswith(".."):
                        self._note(
                            Severity.CHECK, f"{text} is outside the notebook's directory: there is nothing there in the task", one
                        )
                elif mention.role is Role.GLOB:
                    yield from ((match, one) for match in self._matches(path, one))
                elif mention.role is not Role.SEARCH and path == "." and (mention.placed or mention.role is Role.READ):
                    self._note(
                        Severity.CHECK, "the notebook's own directory is named: of what is in it, only what is named travels", one
                    )
                elif mention.role is not Role.SEARCH and path not in ("", "."):
                    yield path, one

    def _matches(self, pattern: str, one: Said) -> list[str]:
        """Files that a pattern stands for; the directory above them where they are very many."""
        found = sorted(
            match
            for match in glob.glob(pattern, root_dir=self._base, recursive=True)  # noqa: PTH207 - it may climb with ..
            if not set(Path(match).parts) & NEVER and not self._target.is_relative_to(os.path.realpath(self._base / match))
        )
        if not found and one.cell is not None:
            self._note(Severity.CHECK, f"{one.mention.path} names no file here", one)
        top = pattern[: min(pattern.index(mark) for mark in "*?[" if mark in pattern)].rpartition("/")[0]
        return [top] if len(found) > _PATTERN_FILES and top else found

    def _absolute(self, text: str, one: Said) -> None:
        place = Path(text).expanduser() if not text.startswith("~") or "/" in text else Path(text)
        common = any(text == start or text.startswith(f"{start}/") for start in _COMMON)
        role = one.mention.role
        if role in (Role.SEARCH, Role.ENTER):
            self._note(Severity.CHECK, f"{text} is a directory of this machine: where the task runs, it may be another", one)
        elif role in (Role.WRITE, Role.MAKE):
            if not text.startswith(("/dev/", "/tmp/")):
                self._note(Severity.CHECK, f"{text} is written outside the task: it is not among its outputs", one)
        elif role is Role.READ or (not common and _is_file(place)):
            self._note(Severity.CHECK, f"{text} is an absolute path: it is read where the task runs, and not recorded", one)

    def _keep(self, written: dict[str, bool]) -> None:
        """Have the task return what is written."""
        for path, made in written.items():
            if path == "outputs" or path.startswith("outputs/"):
                continue
            if path.startswith(".."):
                self._findings.note(Severity.CHECK, f"{path} is written outside the task: it is not among its outputs")
                continue
            patterns = [f"{path}/**"] if made else [path] if posixpath.splitext(path)[1] else [path, f"{path}/**"]
            self.gathered.outputs += [pattern for pattern in patterns if pattern not in self.gathered.outputs]

    @staticmethod
    def _is_below(path: str, written: dict[str, bool]) -> bool:
        return any(path == other or path.startswith(f"{other}/") for other in written)

    @classmethod
    def _touches(cls, path: str, written: dict[str, bool]) -> bool:
        """Tell whether a place that is only mentioned is one that is written, or that holds one."""
        return cls._is_below(path, written) or any(other.startswith(f"{path}/") for other in written)

    def _exists(self, path: str, one: Said) -> bool:
        place = self._base / path
        role = one.mention.role
        if not _is_there(place):
            looks = "/" in one.mention.path or posixpath.splitext(path)[1]
            if role is Role.READ and looks and one.cell is not None and not any(mark in path for mark in "*?["):
                self._note(Severity.CHECK, f"{one.mention.path} is not there: the task will not find it either", one)
            return False
        if place.is_dir():
            real = Path(os.path.realpath(place))
            if self._base.is_relative_to(real) or self._target.is_relative_to(real) or place.name in NEVER:
                if role is not Role.MENTION or one.mention.placed:
                    self._note(Severity.CHECK, f"{one.mention.path} holds more than data: only what is named in it travels", one)
                return False
            return role is not Role.MENTION or (one.mention.placed and self._is_data(place))
        return place.is_file()

    @staticmethod
    def _is_data(place: Path) -> bool:
        """A directory of modules is no data: they are found by their imports."""
        return not (place / "__init__.py").exists() and not (place / "pyvenv.cfg").exists()

    def _take(self, path: str, one: Said, inside: list[str], *, movable: bool) -> str | None:
        """Copy what is there, or make it an input; return its place in the task when all of it comes along."""
        place, target = self._base / path, path
        if path.startswith(".."):
            if not movable:
                self._note(Severity.CHECK, f"{one.mention.path} is outside the notebook's directory and does not travel", one)
                return None
            target = self._free(f"inputs/{place.name}")
        files = list(walk(place))
        size = sum(file.stat().st_size for file in files)
        if size <= SMALL and len(files) <= _MANY and self._size + size <= BUDGET:
            self._size += size
            for file in files:
                self.gathered.copies[posixpath.join(target, file.relative_to(place).as_posix()) if file != place else target] = (
                    file
                )
            self.gathered.data.append(target)
        elif place.is_dir() and inside:
            self._note(Severity.CHECK, f"{path} has {format_size(size)}: only what is named in it is taken", one)
            return None
        else:
            real = place.resolve()
            self.gathered.inputs.append(InputSpec(path=target, uri=real.as_uri(), digest=digest_of(place)))
            self.gathered.input_sizes[target] = size
            self._note(Severity.CHECK, f"{target} ({format_size(size)}) is an input: the lab must be able to read {real}", one)
        return target

    def _free(self, path: str) -> str:
        stem, suffix = posixpath.splitext(path)
        taken = {*self.gathered.copies, *self.gathered.data, *(item.path for item in self.gathered.inputs)}
        number = 1
        while path in taken:
            number += 1
            path = f"{stem}-{number}{suffix}"
        return path

    # --- modules

    def load_search(self, said: Iterable[Said]) -> None:
        """Take note of the directories that code adds to those in which modules are looked for."""
        self._search += [Path(os.path.normpath(self._base / one.mention.path)) for one in said if one.mention.role is Role.SEARCH]

    def load_modules(self, imports: Iterable[Import], scripts: Iterable[str]) -> tuple[list[Import], list[Mention]]:
        """Take local modules and scripts, and what they import in turn.

        Returns the imports that are no local modules, and the files that local modules mention.
        """
        queue: list[tuple[Import, tuple[Path, ...]]] = [(item, ()) for item in imports]
        sources: list[tuple[Path, tuple[Path, ...]]] = []
        others: list[Import] = []
        mentions: list[Mention] = []
        seen: set[str] = set()
        for script in scripts:
            place = self._base / script
            if script not in self.gathered.copies and _is_file(place) and not script.startswith(".."):
                self.gathered.copies[script] = place
                self.gathered.modules.append(script)
            if _is_file(place):
                sources.append((place, (place.parent,)))
        while queue or sources:
            for source, near in sources:
                found, said = self._read(source)
                queue += [(item, near) for item in found]
                mentions += said
            sources = []
            if not queue:
                break
            item, near = queue.pop(0)
            files = None if item.top in seen else self._module(item.top, near)
            if files:
                seen.add(item.top)
                sources = [(file, near) for file in files if file.suffix == ".py"]
            elif item.top not in seen:
                others.append(item)
        return others, mentions

    def _module(self, name: str, near: tuple[Path, ...]) -> list[Path]:
        """Put a local module into the cargo and return its files; none when there is no such module here."""
        for place in dict.fromkeys((*near, *self._search)):
            alone, package = place / f"{name}.py", place / name
            is_target = self._target.is_relative_to(os.path.realpath(package))
            if not is_target and (
                (package / "__init__.py").is_file() or (not _is_file(alone) and not is_standard(name) and _has_modules(package))
            ):
                files = [file for file in walk(package) if file.suffix != ".ipynb"]
            elif _is_file(alone):
                files = [alone]
            else:
                continue
            real = Path(os.path.realpath(place))
            inside = real.is_relative_to(self._base)
            root = self._base if inside else place
            if not inside:
                self._findings.note(Severity.CHANGED, f"the module {name} is copied from {place}")
            for file in files:
                self._add_module(file, file.relative_to(root).as_posix())
            self.gathered.modules.append((alone if files == [alone] else package).relative_to(root).as_posix())
            return files
        return []

    def _add_module(self, file: Path, target: str) -> None:
        size = file.stat().st_size
        if file.suffix != ".py" and (size > SMALL or self._size + size > BUDGET):
            self._findings.note(Severity.CHECK, f"{target} ({format_size(size)}) is too large to travel with the code")
            return
        self._size += size
        self.gathered.copies[target] = file

    def _read(self, source: Path) -> tuple[list[Import], list[Mention]]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(source.read_bytes())
        except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
            self._findings.note(Severity.CHECK, f"{source.name} cannot be read as Python: what it imports is not known")
            return [], []
        return [replace(item, origin=source.name) for item in find_imports(tree)], find_mentions(tree, {})

    def _note(self, weight: Severity, text: str, one: Said) -> None:
        self._findings.note(weight, text, one.cell, one.line if one.cell is not None else None)


def walk(place: Path) -> Iterator[Path]:
    """Yield a file, or the files below a directory, sorted; what never travels is left out."""
    if not place.is_dir():
        yield place
        return
    for where, directories, names in os.walk(place):
        directories[:] = sorted(name for name in directories if name not in NEVER)
        for name in sorted(names):
            file = Path(where) / name
            if name not in NEVER and not name.endswith(".pyc") and file.is_file():
                yield file


def digest_of(place: Path) -> str:
    """Return the digest that a runner will find for an input: of a directory, that of its list of paths and digests."""
    if not place.is_dir():
        return f"sha256:{_sha256(place)}"
    manifest = hashlib.sha256()
    for file in sorted(Path(where) / name for where, _, names in os.walk(place) for name in names):
        line = f"{file.relative_to(place)}\0sha256:{_sha256(file)}\n"
        manifest.update(line.encode(errors="surrogateescape"))
    return f"sha256:{manifest.hexdigest()}"


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _has_modules(package: Path) -> bool:
    return package.is_dir() and any(child.suffix == ".py" for child in package.iterdir())


def _is_file(place: Path) -> bool:
    try:
        return place.is_file()
    except OSError:
        return False


def _is_there(place: Path) -> bool:
    try:
        return place.exists()
    except OSError:
        return False


def _shown(uri: str) -> str:
    """An address without what may be secret in it."""
    start, _, rest = uri.partition("://")
    host, slash, path = rest.partition("/")
    return f"{start}://{host.rpartition('@')[2]}{slash}{path.partition('?')[0]}"
