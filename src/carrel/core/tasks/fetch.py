"""Getting a project that is named by address: a directory here, or a git repository somewhere.

Addresses are MLflow's: ``<repository>#<subdirectory>`` and a version (commit, branch or tag). Git is the user's own, with
the user's own credential helper and ssh agent; passwords in addresses are refused, because they would be seen in the
process list.
"""

from __future__ import annotations

import os
import re
import subprocess
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from carrel.core.domain.errors import Invalid, Unavailable
from carrel.core.snapshots.git import git_environment, without_credentials

_REMOTE = re.compile(r"(?:git\+)?(?:https|http|ssh|git|file)://.+|[\w.-]+@[\w.-]+:.+")
#: Seconds for one git command.
_PATIENCE = 600.0
#: A repository may bring others in as submodules, but not from this machine's own files (see protocol.allow in git-config(1)).
_ALLOWED = "https:http:ssh:git"
#: Said of a web server without a program of git's: it gives out whole repositories only.
_WHOLE = "dumb http transport"
_VERSION = re.compile(r"\w[\w./+@-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedProject:
    """A project on this machine."""

    #: Where the project is described (the subdirectory, if one was named).
    directory: Path
    #: Top of the repository, or the directory itself.
    root: Path
    #: Address without subdirectory, or None for a directory that was here already.
    uri: str | None = None
    commit: str | None = None


def is_remote(uri: str) -> bool:
    """Tell whether `uri` names a repository to be fetched rather than a place on this machine."""
    return _REMOTE.fullmatch(uri) is not None


def fetch_project(uri: str, *, into: Path, version: str | None = None) -> FetchedProject:
    """Return the project at `uri`; a repository is fetched into the empty directory `into`, a directory stays where it is.

    Raises `Invalid` for an address or version that is wrong, `Unavailable` when the repository cannot be reached.
    """
    address, hash_sign, subdirectory = uri.partition("#")
    if hash_sign and (not subdirectory or subdirectory.startswith("/") or ".." in subdirectory.split("/")):
        raise Invalid(f'"#{subdirectory}" is not a subdirectory.', remedy="Write it like https://host/repository.git#path/in/it.")
    if not is_remote(address):
        return _here(address, subdirectory, version)
    address = address.removeprefix("git+")
    _check_address(address)
    if version is not None and not _VERSION.fullmatch(version):
        raise Invalid(f'"{version}" is not a version.', remedy="Name a commit, a branch or a tag.")
    _clone(address, version, into)
    commit = _git(into, "rev-parse", "HEAD").strip()
    return FetchedProject(directory=_subdirectory(into, subdirectory), root=into, uri=address, commit=commit)


def _here(address: str, subdirectory: str, version: str | None) -> FetchedProject:
    root = Path(address)
    if not root.is_dir():
        raise Invalid(
            f"{address} is neither a directory here nor the address of a repository.", remedy="See `docs/tasks.md` for addresses."
        )
    if version is not None:
        raise Invalid(
            f"A version ({version}) is asked of a directory.",
            remedy=f"Check it out there, or fetch it: file://{root.resolve()}",
        )
    return FetchedProject(directory=_subdirectory(root, subdirectory), root=root)


def _subdirectory(root: Path, subdirectory: str) -> Path:
    directory = (root / subdirectory).resolve()
    if not directory.is_dir() or not directory.is_relative_to(root.resolve()):
        raise Invalid(f'The project has no directory "{subdirectory}".', remedy="Name one relative to the top of the repository.")
    return directory


def _check_address(address: str) -> None:
    if "://" not in address:
        return  # git@host:path has no room for a password
    try:
        parts = urllib.parse.urlsplit(address)
        has_secret = parts.password is not None or (parts.scheme in ("http", "https") and parts.username is not None)
    except ValueError:
        raise Invalid(
            "The address of the repository is malformed.", remedy="Write it like https://host/owner/repository.git."
        ) from None
    if has_secret:
        raise Invalid(
            f"The address {without_credentials(address)} came with a password or token in it.",
            remedy="Leave it out; git asks its credential helper (git-credential(1)).",
        )


def _clone(address: str, version: str | None, into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    _git(into, "init", "--quiet")
    _git(into, "remote", "add", "--", "origin", address)
    own = _ALLOWED + ":file"  # the user named the address
    try:
        _git(into, "fetch", "--quiet", "--depth", "1", "--", "origin", version or "HEAD", protocols=own)
        _git(into, "checkout", "--quiet", "--detach", "FETCH_HEAD")
    except Unavailable as error:
        if version is not None:
            # Not every server gives out a single commit by name, and none an abbreviated one.
            _git(into, "fetch", "--quiet", "--tags", "--", "origin", "+refs/heads/*:refs/remotes/origin/*", protocols=own)
            _git_checkout(into, version)
        elif _WHOLE in error.message:
            _git(into, "fetch", "--quiet", "--", "origin", "HEAD", protocols=own)
            _git(into, "checkout", "--quiet", "--detach", "FETCH_HEAD")
        else:
            raise
    if (into / ".gitmodules").exists():
        update = ("submodule", "--quiet", "update", "--init", "--recursive")
        try:
            _git(into, *update, "--depth", "1")
        except Unavailable as error:
            if _WHOLE not in error.message:
                raise
            _git(into, *update)


def _git_checkout(into: Path, version: str) -> None:
    for name in (version, f"refs/remotes/origin/{version}"):
        try:
            commit = _git(into, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").strip()
        except Unavailable:
            continue
        _git(into, "checkout", "--quiet", "--detach", commit)
        return
    raise Invalid(f'The repository has no commit, branch or tag "{version}".', remedy="Look with: git ls-remote <address>")


def _git(directory: Path, *arguments: str, protocols: str = _ALLOWED) -> str:
    environment = git_environment() | {"GIT_ALLOW_PROTOCOL": protocols}
    command = ["git", "-C", os.fspath(directory), *arguments]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=_PATIENCE, check=False
        )
    except FileNotFoundError:
        raise Invalid("There is no git on this machine.", remedy="Install it, or name a directory.") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"git {arguments[0]} took more than {_PATIENCE:.0f} s.", remedy="Try again later.") from None
    if done.returncode != 0:
        why = _cause(without_credentials(done.stderr.decode(errors="replace"))) or f"exit code {done.returncode}"
        remedy = "Look at the address."
        if arguments[0] == "submodule":
            remedy = "Look at .gitmodules: submodules are fetched by https, http, ssh or git, never from this machine's files."
        raise Unavailable(f"git {arguments[0]} failed: {why}", remedy=remedy)
    return done.stdout.decode(errors="replace")


def _cause(said: str) -> str:
    """Return the first line that git calls fatal, with what ssh or the server said before; what follows are consequences."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    fatal = next((number for number, line in enumerate(lines) if line.startswith("fatal:")), len(lines) - 1)
    return " ".join(lines[max(0, fatal - 1) : fatal + 1])
