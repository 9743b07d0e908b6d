"""Inputs from git repositories: a commit's files are read out of its objects, and nothing of the repository is ever run.

There is no working tree, so that no hook, filter, attribute or link of the repository's has a say (gitattributes(5));
the addresses are pip's ("VCS Support": git+https://host/repository.git@REF#subdirectory=data).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from carrel.core.domain.errors import StorageFull
from carrel.core.spool.disk import full_at
from carrel.node.staging.cache import InputCache
from carrel.node.staging.download import Download, News, manifest
from carrel.node.staging.failed import InputFailed

SCHEMES = ("git+https", "git+http", "git+ssh", "git+file")
#: A branch, a tag, a full name (refs/…) or a commit, without what git-check-ref-format(1) forbids or git takes for an option.
_REF = re.compile(r"(?!-)(?!.*(?:\.\.|@\{|//|/-|\.lock(?:/|$)))[^\x00-\x20\x7f~^:?*\[\\]{1,250}(?<![/.])")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_HOST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._+-]*@)?(?:[A-Za-z0-9_][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_RECEIVED = re.compile(r"Receiving objects: .*?, ([0-9.]+) (bytes|KiB|MiB|GiB)")
_UNITS = {"bytes": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
#: What git says of a connection that broke, and how often it is tried then.
_CUT = re.compile(
    r"early EOF|RPC failed|hung up|unexpected disconnect|timed out|reset by peer|Could not resolve|Failed to connect"
)
_TRIES = 3
#: Variables that git may have: the way to the network, and whom to trust. Nothing that names a program or a configuration.
_PASSED = (
    *("PATH", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"),
    *("http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
    *("GIT_USERNAME", "GIT_PASSWORD", "SSH_AUTH_SOCK"),
)
#: Says what the owner's secrets say, for the host of the address alone. The values are in variables, not in its text.
_HELPER = '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" "${GIT_USERNAME:-git}" "$GIT_PASSWORD"; }; f'
_FORM = "Write it like git+https://host/owner/repository.git@v1.0#subdirectory=data."


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """What an address names."""

    scheme: str
    #: For git: without ref, fragment and "git+".
    url: str
    #: "": what the repository's HEAD is.
    ref: str
    #: A directory, or a file, in it; "": all of it.
    inside: str

    def pinned(self, commit: str) -> str:
        """The address of the same at a commit: what it is today stays what it is."""
        return f"git+{self.url}@{commit}" + (f"#subdirectory={self.inside}" if self.inside else "")


def read_address(uri: str) -> Repository:
    """Return what `uri` names. Raises `InputFailed` for what git should not be given."""
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        raise InputFailed(f'"{uri[:200]}" is no address of a git repository.', remedy=_FORM) from None
    at, separator, ref = parts.path.rpartition("@")
    path, ref = (at, unquote(ref)) if separator else (parts.path, "")
    more = dict(parse_qsl(parts.fragment, keep_blank_values=True))
    inside = more.pop("subdirectory", "").strip("/")
    more.pop("egg", None)
    local = parts.scheme == "git+file"
    wrong = (
        parts.scheme not in SCHEMES
        or (bool(parts.netloc) if local else not _HOST.fullmatch(parts.netloc))
        or (parts.scheme in ("git+https", "git+http") and "@" in parts.netloc)
        or port == 0
        or not path.strip("/")
        or any(ord(letter) <= 32 or ord(letter) == 127 for letter in unquote(path))
        or parts.query
        or bool(separator and not _REF.fullmatch(ref))
        or more
        or not all(map(_is_name, inside.split("/") if inside else ()))
    )
    if wrong:
        raise InputFailed(f'"{uri[:200]}" is no address of a git repository that is fetched here.', remedy=_FORM)
    scheme = parts.scheme.removeprefix("git+")
    return Repository(scheme=scheme, url=f"{scheme}://{parts.netloc}{path}", ref=ref, inside=inside)


def check_git(uri: str) -> None:
    """Raise `InputFailed` for an address that is none, and where there is no git."""
    read_address(uri)
    if shutil.which("git") is None:
        raise InputFailed(
            f"The input {uri[:200]} cannot be staged: there is no git on this machine.",
            remedy="Have an administrator install it (Debian: apt-get install git), or name an archive of the data by https:.",
        )


def copy_git(uri: str, target: Path, news: News, *, cache: InputCache | None = None) -> str:
    """Put what the commit at `uri` holds at `target`; return its digest, and tell `news` the commit. Raises `InputFailed`."""
    check_git(uri)
    wanted = read_address(uri)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".carrel-git-") as place:
        git = _Git(wanted, Path(place, "repository"), Path(place), news)
        git.say("init", "--quiet", "--bare", "--template=", str(git.repository), at=False)
        commit = _fetch(git, wanted, cache)
        news.source = wanted.pinned(commit)
        return _place(git, commit, wanted, target, news)


def _fetch(git: _Git, wanted: Repository, cache: InputCache | None) -> str:
    """Have the commit in the repository, from the cache or from where it is; return its name."""
    commit = wanted.ref if _COMMIT.fullmatch(wanted.ref) else _resolve(git, wanted)
    called, packs = f"git\0{wanted.url}\0{commit}", git.repository / "objects" / "pack"
    before = cache.seen(called) if cache is not None else None
    silent = News("", lambda _text: None)
    if cache is not None and before is not None and cache.take(before[1], packs / "pack-kept.pack", silent):
        with suppress(InputFailed):
            git.say("index-pack", str(packs / "pack-kept.pack"))
            git.say("cat-file", "-e", f"{commit}^{{tree}}")
            return commit
    try:
        git.fetch("--depth=1", "--", wanted.url, commit)
    except InputFailed:
        # Not every server gives out a commit by its name, or less than the whole history (gitprotocol-http(5): "dumb" ones).
        git.fetch("--", wanted.url, "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
    try:
        git.say("cat-file", "-e", f"{commit}^{{tree}}")
    except InputFailed:
        raise InputFailed(
            f"The repository {wanted.url} has no commit {commit} any more, or does not give it out.",
            remedy="Look with: git ls-remote ADDRESS",
        ) from None
    found = list(packs.glob("*.pack"))
    if cache is not None and len(found) == 1:
        with found[0].open("rb") as file:
            digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        cache.keep(digest, found[0], uri=called, mark=commit)
    return commit


def _resolve(git: _Git, wanted: Repository) -> str:
    """Ask which commit a branch or tag is at present, by the order of gitrevisions(7)."""
    ref = wanted.ref or "HEAD"
    said = git.say("ls-remote", "--quiet", "--", wanted.url, ref, f"{ref}^{{}}", at=False)
    lines = (line.partition("\t") for line in said.decode(errors="replace").splitlines())
    known = {name: commit for commit, _, name in lines}
    for name in (ref, f"refs/{ref}", f"refs/tags/{ref}", f"refs/heads/{ref}"):
        commit = known.get(f"{name}^{{}}") or known.get(name)  # what an annotated tag stands for
        if commit is not None and _COMMIT.fullmatch(commit):
            return commit
    raise InputFailed(
        f'The repository {wanted.url} has no branch or tag "{ref}".' if wanted.ref else f"The repository {wanted.url} is empty.",
        remedy="Look with: git ls-remote ADDRESS; a commit is named by all of its 40 digits.",
    )


# --- from objects to files ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One line of git-ls-tree(1)."""

    mode: str
    object: str
    size: int
    path: str


def _place(git: _Git, commit: str, wanted: Repository, target: Path, news: News) -> str:
    entries = list(_entries(git, commit, wanted))
    files = [one for one in entries if one.mode.startswith("100")]
    links = [one for one in entries if one.mode == "120000"]
    others = [one.path for one in entries if one.mode == "160000"]
    if others:
        news.also(f"submodules of {wanted.url} are not fetched: {', '.join(others[:5])}{', ...' if len(others) > 5 else ''}")
    if len(files) == 1 and not entries[1:] and files[0].path == wanted.inside:
        return _write(git, files, [target], news)[0]
    if wanted.inside:
        files, links = ([_below(one, wanted.inside) for one in some] for some in (files, links))
    target.mkdir(parents=True, exist_ok=True)
    places = [target / one.path for one in files]
    digests = list(zip((one.path for one in files), _write(git, files, places, news), strict=True))
    digests += _link(git, links, target, news)
    return manifest(sorted(digests))


def _entries(git: _Git, commit: str, wanted: Repository) -> Iterator[_Entry]:
    said = git.say("ls-tree", "-r", "-l", "-z", "--full-tree", commit, "--", *([wanted.inside] if wanted.inside else []))
    seen: set[str] = set()
    for line in said.split(b"\0")[:-1]:
        about, _, path = line.partition(b"\t")
        mode, _kind, name, size = about.decode().split()
        called = os.fsdecode(path)
        if not all(map(_is_name, called.split("/"))) or called in seen:
            raise InputFailed(f"The repository {wanted.url} has a file named {called[:100]!r}, which is no place in a directory.")
        seen.add(called)
        yield _Entry(mode=mode, object=name, size=0 if size == "-" else int(size), path=called)
    if not seen:
        raise InputFailed(
            f'The repository {wanted.url} has nothing at "{wanted.inside}" in commit {commit}.'
            if wanted.inside
            else f"Commit {commit} of {wanted.url} holds no files."
        )


def _is_name(part: str) -> bool:
    """Whether it may be a file's or directory's name here: a planted ".git" would be believed by the task's own git."""
    return part not in ("", ".", "..") and part.lower() != ".git" and "\0" not in part


def _below(entry: _Entry, inside: str) -> _Entry:
    return _Entry(mode=entry.mode, object=entry.object, size=entry.size, path=entry.path[len(inside) + 1 :])


def _write(git: _Git, files: Sequence[_Entry], places: Sequence[Path], news: News) -> list[str]:
    digests = []
    with git.objects() as (ask, answer):
        for entry, place in zip(files, places, strict=True):
            ask.write(f"{entry.object}\n".encode())
            ask.flush()
            about = answer.readline().split()
            if about[1:2] != [b"blob"]:
                raise InputFailed(f"The repository has no content of {entry.path} ({entry.object}): it is damaged.")
            with Download(place, news, int(about[2])) as arriving:
                arriving.take(cast(BinaryIO, _Part(answer, int(about[2]))))
            answer.read(1)
            if entry.mode == "100755":
                place.chmod(0o755)
            digests.append(arriving.digest)
    return digests


def _link(git: _Git, links: Sequence[_Entry], target: Path, news: News) -> list[tuple[str, str]]:
    """Make the links when all files are there, so that nothing is written through one; none may lead out."""
    texts = [(entry.path, os.fsdecode(git.say("cat-file", "blob", entry.object))) for entry in links]
    root = os.path.realpath(target)
    made: list[Path] = []
    try:
        for path, text in texts:
            place = target / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(text)
            made.append(place)
            news.whole()
        for path, text in texts:
            # Where it leads through the others.
            if os.path.isabs(text) or not f"{os.path.realpath(target / path)}/".startswith(f"{root}/"):  # noqa: PTH117
                raise _leads_out(path, text)
    except BaseException:
        for place in made:
            place.unlink()
        raise
    return [(path, f"link:{text}") for path, text in texts]


def _leads_out(path: str, text: str) -> InputFailed:
    return InputFailed(
        f"The link {path} of the repository leads to {text[:100]!r}, out of what is fetched.",
        remedy="Name a part of the repository that has no such link: #subdirectory=PATH.",
    )


class _Part:
    """So many bytes of a stream, as a file of its own."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._stream, self._left = stream, size

    def read(self, most: int) -> bytes:
        chunk = self._stream.read(min(most, self._left))
        if self._left and not chunk:
            raise InputFailed("git ended in the middle of a file.")
        self._left -= len(chunk)
        return chunk


# --- the program --------------------------------------------------------------------------------------------------------------


class _Git:
    """Runs git with nobody's configuration but the machine's, without questions, and in a process group that ends with us."""

    def __init__(self, wanted: Repository, repository: Path, home: Path, news: News) -> None:
        self.repository, self.news, self._url = repository, news, wanted.url
        self._environment = {
            **{name: os.environ[name] for name in _PASSED if name in os.environ},
            # ~/.netrc and ~/.gitconfig are those of the user who runs this, who need not be the owner of the job.
            **{"HOME": str(home), "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
            **{"GIT_ALLOW_PROTOCOL": "http:https" if wanted.scheme == "http" else wanted.scheme, "GIT_LITERAL_PATHSPECS": "1"},
            **{"GIT_SSH_COMMAND": "ssh -oBatchMode=yes", "GIT_NO_LAZY_FETCH": "1"},
        }
        self._options = ["-c", "core.hooksPath=/dev/null", "-c", "credential.helper=", "-c", "fetch.unpackLimit=1"]
        self._options += ["-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime=60", "-c", "gc.auto=0", "-c", "core.askPass="]
        if wanted.scheme in ("https", "http") and "GIT_PASSWORD" in os.environ:
            host = "/".join(wanted.url.split("/")[:3])
            self._options += ["-c", f"credential.{host}.helper={_HELPER}"]

    def fetch(self, *arguments: str) -> None:
        """Run git-fetch(1), tell how far it is, and again where the connection was cut."""
        for last in (*[False] * (_TRIES - 1), True):
            try:
                self.say("fetch", "--progress", "--no-tags", "--no-recurse-submodules", "--no-auto-maintenance", *arguments)
                self.news.at(0, None)  # what came is not the input itself
                return
            except InputFailed as error:
                if last or not _CUT.search(error.message):
                    raise

    def say(self, *arguments: str, at: bool = True) -> bytes:
        """Run one command and return what it says; raise `InputFailed` with its own words."""
        with self._start(arguments, at=at) as process:
            try:
                assert process.stdout is not None
                assert process.stderr is not None
                words = self._listen(process.stderr) if arguments[0] == "fetch" else ""
                said, more = process.communicate()
            except BaseException:
                _kill(process)
                raise
        if process.returncode:
            lines = [line for line in f"{words}\n{more.decode(errors='replace')}".splitlines() if line.strip()]
            if any("No space left on device" in line or "Disk quota exceeded" in line for line in lines):
                raise StorageFull(f"The repository {self._url} does not fit. {full_at(self.repository, OSError(28, ''))}")
            told = next(
                (line for line in reversed(lines) if line.startswith(("fatal:", "error:", "ERROR:"))), "".join(lines[-1:])
            )
            raise InputFailed(
                f"The repository {self._url} could not be read: git {arguments[0]}: {told or f'exit code {process.returncode}'}",
                remedy="Look at the address. A private one needs the secrets GIT_USERNAME and GIT_PASSWORD (a token).",
            )
        return said

    def _listen(self, stream: IO[bytes]) -> str:
        """Read what git says of its progress; a line of it ends with a carriage return."""
        words, line = "", b""
        while piece := os.read(stream.fileno(), 4096):
            *lines, line = re.split(rb"[\r\n]", line + piece)
            for one in lines:
                told = one.decode(errors="replace")
                if found := _RECEIVED.search(told):
                    self.news.at(int(float(found[1]) * _UNITS[found[2]]), None)
                elif "%" not in told:
                    words = f"{words}\n{told}"[-4000:]
        return words + "\n" + line.decode(errors="replace")

    def objects(self) -> _Objects:
        """Starts git-cat-file(1), which answers names with contents."""
        return _Objects(self._start(("cat-file", "--batch"), stdin=subprocess.PIPE))

    def _start(self, arguments: Sequence[str], *, at: bool = True, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        where = [f"--git-dir={self.repository}"] if at else []
        return subprocess.Popen(
            ["git", *where, *self._options, *arguments],
            cwd=self.repository.parent,
            env=self._environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )


class _Objects:
    """A running git-cat-file(1)."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def __enter__(self) -> tuple[BinaryIO, BinaryIO]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)

    def __exit__(self, *_error: object) -> None:
        _kill(self._process)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self._process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End it and what it has started for the network."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
