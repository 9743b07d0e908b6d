"""Where builds are kept apart from the lab and from each other: what their tools see, where they work, what is taken from there.

What is built from source runs code of strangers. Each owner's builds work in a *workroom* of their own, which their tools see in
the place of the store: there is the cache, and there the environment comes to be, under the path that it will have. Cache and
environment have to be in one mount, or no file of them could be one by a hard link (link(2), EXDEV). Only when no process of the
build is left does the lab take the environment out. See docs/decisions/0043-walls-that-the-kernel-builds.md.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from carrel.core.domain.launch import LaunchWalls
from carrel.core.domain.user import directory_name
from carrel.core.spool.trees import remove_tree
from carrel.node.containment.walls import PREPARING_SHARED, Bind, Walls, bounds_of
from carrel.node.environments.errors import EnvironmentFailed

#: The workroom in which no code of anybody's ever runs. No user's directory is called so.
VERIFIED = "@verified"
#: What a build may see of the lab's own variables: the way to packages (with credentials of indexes, if any), and to compilers.
_PASSED = frozenset(
    (
        *("PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "NO_COLOR", "PYENV_ROOT", "PYENV_VERSION"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "SSL_CLIENT_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy"),
        *("CC", "CXX", "FC", "CFLAGS", "CXXFLAGS", "LDFLAGS", "CPATH", "LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH"),
    )
)
_PASSED_PREFIXES = ("LC_", "UV_", "CONDA_", "MAMBA_", "PIXI_")
#: Never from the lab's: they name places of its own.
_OURS = frozenset({"UV_CACHE_DIR", "CONDA_PREFIX", "CONDA_PKGS_DIRS", "MAMBA_ROOT_PREFIX"})
#: Variables that may name files and directories of the lab's which the tools read.
_NAMING = (
    *("UV_FIND_LINKS", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_CONFIG_FILE"),
    *("UV_CONSTRAINT", "UV_OVERRIDE", "UV_BUILD_CONSTRAINT", "SSL_CERT_FILE", "SSL_CERT_DIR", "SSL_CLIENT_CERT"),
)
#: A package may bring others in from repositories, but not run programs of its choice to reach them (git(1), GIT_ALLOW_PROTOCOL).
_GIT = {"GIT_ALLOW_PROTOCOL": "https:http:ssh:git", "GIT_TERMINAL_PROMPT": "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Builds:
    """Whose builds are to be kept apart, and from what."""

    owner: str
    walls: LaunchWalls

    @property
    def name(self) -> str:
        """Of the owner's workroom."""
        return directory_name(self.owner) if self.owner else "@site"


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """The workroom of one preparation's tools."""

    #: The store's directory, and the workroom that the tools see in its place.
    root: Path
    name: str
    seen: LaunchWalls
    #: The home directory of what runs there; "" for an empty one.
    home: str
    #: This preparation's own directory, outside of the workroom: only the lab writes there, but for what a tool is given of it.
    scratch: Path
    #: What else the tools read.
    readable: tuple[str, ...] = field(default=())

    @property
    def room(self) -> Path:
        """The workroom's directory."""
        return self.root / "workrooms" / self.name

    def walls(self, *, writable: Mapping[Path, Path]) -> Walls:
        """What one call of a tool sees; `writable` says what else it may change, and where it sees that."""
        self.room.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.home:
            Path(self.home).mkdir(mode=0o700, parents=True, exist_ok=True)
        # What the lab's configuration of packages names is there, although it may be hidden.
        binds = [Bind(os.path.realpath(path), path) for path in (*self.seen.readable, *self.readable) if os.path.exists(path)]  # noqa: PTH110
        binds.append(Bind(os.path.realpath(self.scratch), str(self.scratch)))
        pythons = self.root / "pythons"
        if pythons.is_dir():
            binds.append(Bind(os.path.realpath(pythons), str(pythons)))
        if self.home:
            binds.append(Bind(os.path.realpath(self.home), self.home, writable=True))
        binds.append(Bind(str(self.room), str(self.root), writable=True))
        binds += [Bind(os.path.realpath(source), str(place), writable=True) for source, place in writable.items()]
        temporary = tempfile.mkdtemp(prefix="tmp-", dir=self.scratch)
        once = tuple({bind.place: bind for bind in binds}.values())
        return Walls(
            hidden=self.seen.hidden,
            frozen=self.seen.frozen,
            binds=once,
            temporary=temporary,
            processes=self.seen.processes,
            shared_memory=PREPARING_SHARED,
            bounds=bounds_of(self.seen, [self.room, self.scratch, *writable], self.home),
        )

    def variables(self, of_lab: Mapping[str, str]) -> dict[str, str]:
        """Return what the tools see of the lab's variables, and where their own things are."""
        passed = {
            name: value
            for name, value in of_lab.items()
            if (name in _PASSED or name.startswith(_PASSED_PREFIXES)) and name not in _OURS
        }
        home = Path(of_lab.get("HOME") or Path.home())
        configuration = Path(of_lab.get("XDG_CONFIG_HOME") or home / ".config")
        if (configuration / "uv/uv.toml").is_file():
            passed["XDG_CONFIG_HOME"] = str(configuration)
        passed.setdefault("PYENV_ROOT", str(home / ".pyenv"))
        own = {"HOME": self.home or "/tmp", "TMPDIR": "/tmp", "UV_CACHE_DIR": str(self.root / "cache"), "SHELL": "/bin/sh"}
        return {**passed, **own, **_GIT, "MAMBA_ROOT_PREFIX": str(self.root / "conda")}

    def take(self, target: Path) -> None:
        """Move what was built as `target` out of the workroom, to where it stays. No process of the build may be left.

        Nothing on the way may be a link, and nothing of it is opened: the workroom is its owner's to fill as they like.
        """
        try:
            with self._inside(target) as place:
                os.rename(target.name, target, src_dir_fd=place)
        except OSError as error:
            raise EnvironmentFailed(f"The build left no environment at {target.name}: {error.strerror}.") from error
        if not stat.S_ISDIR(target.lstat().st_mode):
            target.unlink()
            raise EnvironmentFailed(f"The build left something else than a directory at {target.name}.")

    def discard(self, target: Path) -> None:
        """Remove what a build that failed has left as `target` in the workroom."""
        with suppress(OSError), self._inside(target) as place:
            remove_tree(target.name, within=place)

    @contextmanager
    def _inside(self, target: Path) -> Iterator[int]:
        """A descriptor of the directory in the workroom in which `target` is built, reached without following a link."""
        place = os.open(self.room, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in target.relative_to(self.root).parts[:-1]:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
                os.close(place)
                place = inner
            yield place
        finally:
            os.close(place)

    def empty(self) -> None:
        """Remove all that the owner's builds have left, after one that has taken too much room."""
        if self.name != VERIFIED:
            remove_tree(self.room)

    def tidy(self) -> None:
        """Remove the empty directories in the workroom at which this preparation's own things were seen."""
        inside = self.room / self.scratch.relative_to(self.root)
        with suppress(OSError):
            inside.rmdir()


def confine(builds: Builds, root: Path, scratch: Path, of_lab: Mapping[str, str], programs: tuple[str, ...]) -> Confinement:
    """Return the workroom of an owner; `of_lab` are the lab's variables, `programs` the tools themselves."""
    named = [*_named(of_lab), *programs]
    readable = tuple(dict.fromkeys([*named, *map(os.path.realpath, named)]))
    return Confinement(root=root, name=builds.name, seen=builds.walls, home=builds.walls.home, scratch=scratch, readable=readable)


def verified(confinement: Confinement) -> Confinement:
    """Return the workroom that all share, for what runs nobody's code: without a home that somebody could have prepared."""
    return replace(confinement, name=VERIFIED, home="")


def _named(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield local files and directories that the lab's configuration names, and the configuration itself."""
    home = Path(variables.get("HOME") or Path.home())
    yield str(Path(variables.get("XDG_CONFIG_HOME") or home / ".config") / "uv/uv.toml")
    yield str(Path(variables.get("PYENV_ROOT") or home / ".pyenv") / "versions")
    for name in _NAMING:
        for word in variables.get(name, "").replace(",", " ").split():
            address = word.partition("=")[2] if "=" in word.partition("://")[0] else word
            parts = urlsplit(address)
            if parts.scheme in ("", "file") and parts.path.startswith("/"):
                yield unquote(parts.path)
