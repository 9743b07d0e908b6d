"""Projects by address, with the real git."""

import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from carrel.core.domain.errors import CarrelError, Invalid, Unavailable
from carrel.core.tasks import describe, fetch_project
from carrel.core.tasks.fetch import is_remote


def git(directory: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(directory), *settings, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "tasks" / "v1.5").mkdir(parents=True)
    git(root, "init", "-q", "-b", "trunk")
    for number in range(3):
        (root / "tasks" / "v1.5" / "MLproject").write_text(
            f"name: n{number}\nentry_points: {{main: {{command: 'echo {number}'}}}}\n"
        )
        git(root, "add", ".")
        git(root, "commit", "-q", "-m", f"c{number}")
        git(root, "branch", f"branch/{number}")
        git(root, "tag", f"t{number}")
    return root


def test_versions_and_subdirectory(repository: Path, tmp_path: Path) -> None:
    first, second = git(repository, "rev-parse", "t0"), git(repository, "rev-parse", "t1")
    for count, (version, name) in enumerate(
        [(None, "n2"), ("branch/0", "n0"), ("t1", "n1"), (first, "n0"), (second[:10], "n1"), ("trunk", "n2")]
    ):
        fetched = fetch_project(f"git+file://{repository}#tasks/v1.5", version=version, into=tmp_path / str(count))
        assert describe(fetched.directory).name == name
        assert fetched.uri == f"file://{repository}"
        assert fetched.commit == git(repository, "rev-parse", version or "HEAD")
        assert fetched.directory == fetched.root / "tasks" / "v1.5"


def test_directories_stay_where_they_are(repository: Path, tmp_path: Path) -> None:
    fetched = fetch_project(f"{repository}#tasks", into=tmp_path / "unused")
    assert (fetched.directory, fetched.root, fetched.commit) == (repository / "tasks", repository, None)
    assert not (tmp_path / "unused").exists()
    with pytest.raises(Invalid, match="version"):
        fetch_project(str(repository), version="t0", into=tmp_path / "unused")


@pytest.mark.parametrize("version", ["--upload-pack=touch owned", "-x", "", "a b", "+a:b", "a:refs/heads/x", "$(touch owned)"])
def test_hostile_versions_are_refused(repository: Path, tmp_path: Path, version: str) -> None:
    with pytest.raises(Invalid, match="not a version"):
        fetch_project(f"file://{repository}", version=version, into=tmp_path / "into")


@pytest.mark.parametrize(
    "uri", ["{repository}#../x", "{repository}#", "{repository}#/etc", "file://{repository}#absent", "/nowhere", "ext::sh -c id"]
)
def test_wrong_addresses_are_refused(repository: Path, tmp_path: Path, uri: str) -> None:
    with pytest.raises(Invalid):
        fetch_project(uri.format(repository=repository), into=tmp_path / "into")


def test_absent_versions_and_repositories(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match='no commit, branch or tag "v9"'):
        fetch_project(f"file://{repository}", version="v9", into=tmp_path / "a")
    with pytest.raises(Unavailable, match="git fetch failed"):
        fetch_project(f"file://{tmp_path}/nowhere", into=tmp_path / "b")


@pytest.mark.parametrize(
    "uri", ["https://me:secret@127.0.0.1:1/a.git", "https://secret@127.0.0.1:1/a.git", "ssh://me:secret@127.0.0.1:1/a.git"]
)
def test_passwords_neither_run_nor_show(tmp_path: Path, uri: str) -> None:
    with pytest.raises(CarrelError, match="password or token") as caught:
        fetch_project(uri, into=tmp_path / "into")
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "into").exists()


def test_a_repository_cannot_bring_in_files_of_this_machine(repository: Path, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    git(private, "init", "-q")
    git(private, "commit", "-q", "--allow-empty", "-m", "x")
    git(repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", f"file://{private}", "stolen")
    git(repository, "commit", "-q", "-m", "submodule")
    # Git says that first, and then what came of it.
    with pytest.raises(Unavailable, match=r"git submodule failed: .*transport 'file' not allowed.* Look at \.gitmodules"):
        fetch_project(f"file://{repository}", into=tmp_path / "into")


@pytest.fixture
def static_server(tmp_path: Path) -> Iterator[str]:
    """A web server of files, without a program of git's; the address of `tmp_path`."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize(("version", "name"), [(None, "n2"), ("t1", "n1")])
def test_a_server_that_knows_no_shallow_copies_gives_the_whole(
    repository: Path, static_server: str, tmp_path: Path, version: str | None, name: str
) -> None:
    part = tmp_path / "part"
    part.mkdir()
    git(part, "init", "-q")
    git(part, "commit", "-q", "--allow-empty", "-m", "x")
    git(part, "update-server-info")
    git(repository, "checkout", "-q", version or "trunk")
    git(repository, "submodule", "--quiet", "add", f"{static_server}/part/.git", "part")
    git(repository, "commit", "-q", "-m", "submodule")
    git(repository, "tag", "-f", version or "latest")
    git(repository, "update-server-info")
    found = fetch_project(f"{static_server}/repository/.git#tasks/v1.5", version=version, into=tmp_path / "into")
    assert describe(found.directory).name == name
    assert (found.root / "part" / ".git").exists()


def test_what_is_an_address() -> None:
    remote = ["https://h/a.git", "git+ssh://git@h/a.git", "git@h:a/b.git", "file:///srv/a.git"]
    assert all(is_remote(uri) for uri in remote)
    assert not any(is_remote(uri) for uri in [".", "examples/digits", "/srv/a", "ext::sh", "train.py"])
