"""Inputs from git repositories: a commit's files are read out of its objects, and nothing of the repository is ever run.

There is no working tree, so that no hook, filter, attribute or link of the repository's has a say (gitattributes(5));
the addresses are pip's ("VCS Support": git+https://host/repository.git@REF#subdirectory=data).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from carrel.node.staging.cache import InputCache
from carrel.node.staging.download import Download, News, manifest
from carrel.node.staging.failed import InputFailed
from carrel.node.staging.git_address import Repository, is_name, read_address
from carrel.node.staging.git_program import Git

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


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
        git = Git(wanted, Path(place, "repository"), Path(place), news)
        git.say("init", "--quiet", "--bare", "--template=", str(git.repository), at=False)
        commit = _fetch(git, wanted, cache)
        news.source = wanted.pinned(commit)
        return _place(git, commit, wanted, target, news)


def _fetch(git: Git, wanted: Repository, cache: InputCache | None) -> str:
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


def _resolve(git: Git, wanted: Repository) -> str:
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


def _place(git: Git, commit: str, wanted: Repository, target: Path, news: News) -> str:
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
    return manifest(sorted(digests), news)


def _entries(git: Git, commit: str, wanted: Repository) -> Iterator[_Entry]:
    said = git.say("ls-tree", "-r", "-l", "-z", "--full-tree", commit, "--", *([wanted.inside] if wanted.inside else []))
    seen: set[str] = set()
    for line in said.split(b"\0")[:-1]:
        about, _, path = line.partition(b"\t")
        mode, _kind, name, size = about.decode().split()
        called = os.fsdecode(path)
        if not all(map(is_name, called.split("/"))) or called in seen:
            raise InputFailed(f"The repository {wanted.url} has a file named {called[:100]!r}, which is no place in a directory.")
        seen.add(called)
        yield _Entry(mode=mode, object=name, size=0 if size == "-" else int(size), path=called)
    if not seen:
        raise InputFailed(
            f'The repository {wanted.url} has nothing at "{wanted.inside}" in commit {commit}.'
            if wanted.inside
            else f"Commit {commit} of {wanted.url} holds no files."
        )


def _below(entry: _Entry, inside: str) -> _Entry:
    return _Entry(mode=entry.mode, object=entry.object, size=entry.size, path=entry.path[len(inside) + 1 :])


def _write(git: Git, files: Sequence[_Entry], places: Sequence[Path], news: News) -> list[str]:
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


def _link(git: Git, links: Sequence[_Entry], target: Path, news: News) -> list[tuple[str, str]]:
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
