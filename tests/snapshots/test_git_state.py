"""Commit and uncommitted changes, as the real git sees them."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from carrel.core.snapshots import git_state
from carrel.core.snapshots.git import without_credentials


def git(directory: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(directory), *settings, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "task").mkdir(parents=True)
    (root / "other").mkdir()
    (root / "task" / "train.py").write_text("print(1)\n")
    (root / "task" / "gone.py").write_text("old\n")
    (root / "other" / "file.txt").write_text("x\n")
    git(root, "init", "-q", "-b", "trunk")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    return root


def test_a_clean_repository(repository: Path) -> None:
    git(repository, "remote", "add", "origin", "https://me:secret@example.org/lab/code.git")
    state = git_state(repository / "task")
    assert state.commit == git(repository, "rev-parse", "HEAD")
    assert (state.branch, state.remote, state.dirty, state.diff) == ("trunk", "https://example.org/lab/code.git", False, "")


def test_the_diff_gets_from_the_commit_to_what_ran(repository: Path, tmp_path: Path) -> None:
    task = repository / "task"
    (task / "train.py").write_text("print('grüße')\n")
    git(repository, "add", "task/train.py")
    (task / "train.py").write_text("print('grüße')\nprint(2)\n")
    (task / "gone.py").unlink()
    (task / "new file.py").write_text("new\n")
    (task / "[odd]*.py").write_text("odd\n")
    (task / "binary.bin").write_bytes(bytes(range(256)))
    (task / "mlruns").mkdir()
    (task / "mlruns" / "noise").write_text("x")
    (repository / "other" / "file.txt").write_text("not the task's\n")
    before = git(repository, "status", "--porcelain")
    state = git_state(task)
    assert state.dirty
    assert not state.diff_truncated
    assert git(repository, "status", "--porcelain") == before
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    subprocess.run(["git", "-C", clone, "apply"], input=state.diff, text=True, check=True)
    files = {path.name: path.read_bytes() for path in (clone / "task").iterdir()}
    assert files == {path.name: path.read_bytes() for path in task.iterdir() if path.is_file()}
    assert (clone / "other" / "file.txt").read_text() == "x\n"


def test_a_change_elsewhere_does_not_make_the_task_dirty(repository: Path) -> None:
    (repository / "other" / "file.txt").write_text("changed\n")
    state = git_state(repository / "task")
    assert not state.dirty


def test_a_diff_over_the_limit_is_left_out_and_said_so(repository: Path) -> None:
    (repository / "task" / "big.txt").write_text("line\n" * 5000)
    state = git_state(repository / "task", limit=1000)
    assert (state.dirty, state.diff, state.diff_truncated) == (True, "", True)
    (repository / "task" / "big.txt").write_bytes(b"caf\xe9\n")
    state = git_state(repository / "task")
    assert (state.dirty, state.diff, state.diff_truncated) == (True, "", True)


def test_a_detached_head_has_no_branch(repository: Path) -> None:
    git(repository, "checkout", "-q", "--detach")
    state = git_state(repository)
    assert state.branch is None


def test_without_repository_commit_or_git_there_is_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert git_state(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) is None
    (tmp_path / "a").write_text("")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-q", "-m", "x")
    assert git_state(tmp_path) is not None
    monkeypatch.setenv("PATH", os.fspath(tmp_path / "nothing"))
    assert shutil.which("git") is None
    assert git_state(tmp_path) is None


def test_the_repository_of_a_hook_that_runs_us_is_not_mistaken_for_ours(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    git(other, "commit", "-q", "--allow-empty", "-m", "x")
    commit = git(repository, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    state = git_state(repository)
    assert state.commit == commit


@pytest.mark.parametrize(
    ("url", "clean"),
    [
        ("https://token@host/a.git", "https://host/a.git"),
        ("ssh://git@host:22/a.git", "ssh://host:22/a.git"),
        ("git@host:a/b.git", "git@host:a/b.git"),
        ("/srv/a@b.git", "/srv/a@b.git"),
        ("https://host/a@b", "https://host/a@b"),
    ],
)
def test_remote_addresses_lose_their_credentials(url: str, clean: str) -> None:
    assert without_credentials(url) == clean
