"""Where the code came from, asked of the git program."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from carrel.core.domain.task import GitState
from carrel.core.domain.units import MIB
from carrel.core.snapshots.ignore import NEVER

LIMIT_DIFF = MIB
#: Seconds that git may take for one answer; a repository on a dead file system must not stop a submission.
_PATIENCE = 30.0
_USER_INFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/@\s]*@")


def git_state(directory: Path, *, limit: int = LIMIT_DIFF) -> GitState | None:
    """Return commit, branch, remote and uncommitted changes of `directory`; None outside a repository or without git.

    Only what lies in `directory` counts, so a change elsewhere in a large repository does not make it dirty. `diff` holds
    new files too; it is empty with `diff_truncated` set when it has more than `limit` bytes or is not UTF-8. The
    repository is not touched: not even its index is refreshed.
    """
    git = _Git(directory)
    status = git.run("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all", "--no-renames", "--", ".")
    if status is None:
        return None
    seen = _Status.parse(status)
    if seen.commit is None:
        return None
    remote = git.run("config", "--get", "remote.origin.url")
    diff, truncated = git.difference(seen.untracked, limit) if seen.dirty else ("", False)
    return GitState(
        commit=seen.commit,
        branch=seen.branch,
        remote=without_credentials(remote.decode(errors="replace").strip()) if remote else None,
        dirty=seen.dirty,
        diff=diff,
        diff_truncated=truncated,
    )


def without_credentials(text: str) -> str:
    """Return `text` with all URLs in it without user name and password. ``git@host:path`` has no secret in it and stays."""
    return _USER_INFO.sub(r"\1", text)


def git_environment() -> dict[str, str]:
    """Return the environment for a git program: messages in English, no questions, and the repository found by directory.

    A process that git itself started (a hook) has variables that name *its* repository; they must not reach ours.
    """
    own = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE"}
    return {name: value for name, value in os.environ.items() if name not in own} | {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Status:
    commit: str | None
    branch: str | None
    dirty: bool
    untracked: tuple[bytes, ...]

    @classmethod
    def parse(cls, status: bytes) -> _Status:
        """Read ``git status --porcelain=v2 --branch -z`` (git-status(1)); renames are off, so an entry is one field."""
        commit = branch = None
        changed = False
        untracked: list[bytes] = []
        for field in status.split(b"\0"):
            if field.startswith(b"# branch.oid "):
                text = field[13:].decode()
                commit = None if text == "(initial)" else text
            elif field.startswith(b"# branch.head "):
                text = field[14:].decode(errors="replace")
                branch = None if text == "(detached)" else text
            elif field.startswith(b"? "):
                if not NEVER.intersection(field[2:].decode(errors="replace").split("/")):
                    untracked.append(field[2:])
            elif field and not field.startswith(b"#"):
                changed = True
        return cls(commit=commit, branch=branch, dirty=changed or bool(untracked), untracked=tuple(untracked))


class _Git:
    def __init__(self, directory: Path) -> None:
        self._command = ["git", "-C", os.fspath(directory), "-c", "core.quotePath=false"]
        self._environment = git_environment() | {"GIT_OPTIONAL_LOCKS": "0"}  # no writing of the index on the side

    def run(self, *arguments: str, given: bytes = b"", index: str | None = None) -> bytes | None:
        """Return the output of a git command, or None when it fails or there is no git."""
        environment = self._environment | ({"GIT_INDEX_FILE": index} if index else {})
        try:
            done = subprocess.run(
                [*self._command, *arguments], input=given, capture_output=True, env=environment, timeout=_PATIENCE, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    def difference(self, untracked: tuple[bytes, ...], limit: int) -> tuple[str, bool]:
        """Return what `git apply` needs to get from the commit to the files as they are, and whether it was too much."""
        own = self.run("rev-parse", "--absolute-git-dir")
        if own is None:
            return "", True
        with tempfile.TemporaryDirectory(prefix="carrel-git-") as scratch:
            index = f"{scratch}/index"
            original = Path(os.fsdecode(own.rstrip(b"\n"))) / "index"
            if original.exists():
                Path(index).write_bytes(original.read_bytes())
            if untracked:  # in a copy of the index, new files count as about to be added; git status names them from the top
                names = b"\0".join(b":(top,literal)" + name for name in untracked)
                if (
                    self.run("add", "--intent-to-add", "--pathspec-from-file=-", "--pathspec-file-nul", given=names, index=index)
                    is None
                ):
                    return "", True
            return self._diff(index, limit)

    def _diff(self, index: str, limit: int) -> tuple[str, bool]:
        arguments = ["diff", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "HEAD", "--", "."]
        with subprocess.Popen(
            [*self._command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self._environment | {"GIT_INDEX_FILE": index},
        ) as process:
            assert process.stdout is not None
            diff = process.stdout.read(limit + 1)
            if len(diff) > limit:
                process.kill()
        if len(diff) > limit or process.returncode != 0:
            return "", True
        try:
            return diff.decode(), False
        except UnicodeDecodeError:
            return "", True
