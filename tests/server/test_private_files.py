"""What the lab's Unix user alone may read outside the lab's home: no job of others sees it; doctor says what is left."""

from __future__ import annotations

import os
import pwd
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from carrel.cli.doctor.node import isolation
from carrel.core.domain.launch import LaunchPaths, PreparingLimits
from carrel.core.spool import AttemptDirectory
from carrel.core.submission.own_name import own_name
from carrel.lab.server.home import LabHome
from carrel.lab.server.isolation import LabIsolation, LocalWalls
from carrel.lab.server.private_files import look, named_in, own_homes, secret_files
from carrel.lab.server.settings import read_settings
from carrel.node.containment.frozen import MOST_ENTRIES
from carrel.node.containment.program import start_program
from carrel.node.containment.walls import Walls
from carrel.node.runner.walls import staging_walls
from support.attacking import attack_walls
from support.inside import run_inside
from support.namespaces import why_no_namespaces

SECRET = "correct-horse-battery-staple"


@pytest.fixture
def outside() -> Iterator[Path]:
    """A directory that everybody may read. Not in /tmp, of which jobs have their own."""
    if why_no_namespaces():
        pytest.skip(f"This machine has no namespaces for us: {why_no_namespaces()}")
    with tempfile.TemporaryDirectory(prefix=".private-", dir=Path(__file__).parent) as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture
def home(tmp_path: Path) -> LabHome:
    home = LabHome(tmp_path / "lab")
    home.create()
    return home


def secret(path: Path, mode: int = 0o600) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(SECRET)
    path.chmod(mode)
    return path


def reads(walls: LocalWalls, owner: str, files: Sequence[Path], tmp_path: Path) -> list[Path]:
    """Those that a process behind the walls of an owner's jobs can read."""
    attempt = AttemptDirectory(tmp_path / "attempt")
    attempt.work.mkdir(parents=True, exist_ok=True)
    inside = staging_walls(walls(owner), attempt, LaunchPaths(environments="", snapshots="", blobs=""))
    code, said = run_inside(inside, ["/bin/sh", "-c", f"cat {shlex.join(map(str, files))} | wc -c"])
    found = [file for file in files if run_inside(inside, ["/bin/cat", str(file)])[1].decode(errors="replace").startswith(SECRET)]
    assert (code, int(said.split()[-1])) == (0, len(SECRET) * len(found))
    return found


@pytest.mark.gate
def test_no_job_reads_what_the_settings_name(home: LabHome, outside: Path, tmp_path: Path) -> None:
    key, client, states, public = (
        secret(outside / "tls.key"),
        secret(outside / "client-secret", 0o640),
        secret(outside / "states" / "state", 0o644),
        secret(outside / "tls.crt", 0o644),
    )
    states.parent.chmod(0o700)
    home.settings.write_text(
        f'tls_key = "{key}"\ntls_certificate = "{public}"\nstate_directory = "{states.parent}"\n'
        f'[sign_in.oidc]\nissuer = "https://id.example.org"\nclient_id = "carrel"\nclient_secret_file = "{client}"\n'
    )
    client.chmod(0o600)
    settings = read_settings(home.settings, {}, {"public_url": "https://lab.example.org"})
    client.chmod(0o640)
    named = secret_files(settings.values, settings.rules)
    walls = LocalWalls(home, secrets=named)
    # In a checkout that other users cannot enter, nothing is theirs to read.
    seen = [public] if all(place.stat().st_mode & 0o001 for place in public.parents) else []
    for owner in ("mallory", own_name()):
        assert reads(walls, owner, [key, client, states, public], tmp_path) == seen
    assert not attack_walls(home, named=named).through


def test_a_persons_other_files_are_for_their_own_jobs(
    home: LabHome, outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What their variables name, and their home by the machine's list of users as well as by HOME."""
    key, listed, called = (secret(outside / name / "key") for name in ("google", "listed", "called"))
    key.parent.chmod(0o700)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    monkeypatch.setenv("HOME", str(called.parent))
    entry = pwd.struct_passwd(("lab", "x", os.getuid(), os.getgid(), "", str(listed.parent), "/bin/sh"))
    monkeypatch.setattr("pwd.getpwuid", lambda _uid: entry)
    walls = LocalWalls(home)
    assert set(own_homes()) == {str(listed.parent), str(called.parent)}
    assert reads(walls, "mallory", [key, listed, called], tmp_path) == []
    assert reads(walls, own_name(), [key, listed, called], tmp_path) == [key, listed, called]


@pytest.mark.skipif(os.geteuid() != 0, reason="Only root makes directories in the upper levels of a machine.")
def test_private_directories_of_the_machine_are_found(home: LabHome, outside: Path, tmp_path: Path) -> None:
    del outside
    with tempfile.TemporaryDirectory(prefix="carrel-private-", dir="/srv") as directory:
        private, group = secret(Path(directory) / "key"), secret(Path(directory) / "group", 0o640)
        assert reads(LocalWalls(home), "mallory", [private], tmp_path) == []
        Path(directory).chmod(0o755)
        assert reads(LocalWalls(home), "mallory", [private, group], tmp_path) == [group]
        home.settings.write_text('isolation = "kernel"\n')
        check = isolation(home.path)
        assert check.status == "warn"
        assert "read what other users of the machine cannot" in check.message
        assert str(group) in LocalWalls(home).left()


def test_a_lab_whose_python_does_not_run_behind_the_walls_says_so(
    home: LabHome, outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del outside
    settings = read_settings(home.settings, {}, {})
    own = LabIsolation(home, settings.values, PreparingLimits(), (), 1)
    assert (own.describe(1)[1], LocalWalls(home).try_python().why_not) == ("", "")
    (tmp_path / "python").symlink_to(sys.executable)  # in /tmp, of which a job has its own
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    fact, remedy = LabIsolation(home, settings.values, PreparingLimits(), (), 1).describe(1)
    assert "A second person cannot have walls on this machine: The lab's own Python cannot be run behind the walls" in fact
    assert "as in /opt" in remedy
    several = LabIsolation(home, settings.values, PreparingLimits(), (), 2)
    assert several.in_force
    assert "Sessions do not start" in several.describe(2)[0]
    assert "Sessions do not start" in several.tell([])
    home.settings.write_text('isolation = "kernel"\n')
    check = isolation(home.path)
    assert (check.status, "cannot be run behind the walls" in check.message) == ("fail", True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    assert "cannot be started" in isolation(home.path).message


def test_what_is_looked_for(tmp_path: Path) -> None:
    find = partial(look, (str(tmp_path / "passed"),), top=str(tmp_path), seconds=60.0, entries=1000)
    for name in ("open", "open/private", "open/a", "open/a/b", "passed", "group"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod({"open/private": 0o700, "group": 0o750}.get(name, 0o755))
    for name, mode in {
        "key": 0o600, "data": 0o644, "ours": 0o440, "open/private/key": 0o600, "open/a/b/key": 0o400, "passed/key": 0o600,
    }.items():  # fmt: skip
        secret(tmp_path / name, mode)
    (tmp_path / "link").symlink_to(tmp_path / "key")
    found = find(levels=4)
    assert sorted(found.private) == [str(tmp_path / name) for name in ("key", "open/a/b/key", "open/private")]
    assert sorted(found.shared) == [str(tmp_path / name) for name in ("group", "ours")]
    assert str(tmp_path / "open/a/b/key") not in find(levels=3).private
    assert find(levels=4, entries=1).left == 1, "upper levels first, and no further"


def test_paths_are_found_in_words() -> None:
    said = {
        "slurm_identity": "map:/etc/map",
        "slurm_rest": "unix:/srv/rest.sock",
        "database": "postgresql+psycopg://carrel@/carrel?host=/srv/pg&passfile=/etc/pass",
        "rucio_path": "root://x=/data",
        "tables": [{"command": "--file=/etc/a,/etc/b"}, 1, None],
        "url": "https://lab.example.org/path",
    }
    found = set(named_in(said))
    assert {"/etc/map", "/srv/rest.sock", "/srv/pg", "/etc/pass", "/etc/a", "/etc/b"} <= found
    assert "/data" not in found


def renamed(outside: Path) -> tuple[Path, Callable[[], None]]:
    """A key that is replaced as editors and passwd(1) do it."""
    key = secret(outside / "keys" / "tls.key")

    def renew() -> None:
        secret(outside / "keys" / "new", 0o600).rename(key)

    return key, renew


def relinked(outside: Path) -> tuple[Path, Callable[[], None]]:
    """A key that is replaced as certbot does it: the next one is another file, to which a link then leads."""
    secret(outside / "archive" / "key1")
    live = outside / "live" / "tls.key"
    live.parent.mkdir()
    live.symlink_to("../archive/key1")

    def renew() -> None:
        secret(outside / "archive" / "key2")
        (outside / "live" / "new").symlink_to("../archive/key2")
        (outside / "live" / "new").rename(live)

    return live, renew


def swapped(outside: Path) -> tuple[Path, Callable[[], None]]:
    """A key that is replaced as Kubernetes does it: a link leads to another directory."""
    secret(outside / "one" / "tls.key")
    (outside / "data").symlink_to("one")
    (outside / "tls.key").symlink_to("data/tls.key")

    def renew() -> None:
        secret(outside / "two" / "tls.key")
        (outside / "new").symlink_to("two")
        (outside / "new").rename(outside / "data")

    return outside / "tls.key", renew


READ_LATER = """
import os, sys
print("ready", flush=True)
input()
found = []
for directory, _names, files in os.walk(sys.argv[1]):
    for file in files:
        try:
            found.append(open(os.path.join(directory, file)).read())
        except OSError:
            pass
try:
    found.append(open(sys.argv[2]).read())
except OSError:
    pass
print(found)
"""


@contextmanager
def running(walls: Walls, *arguments: str) -> Iterator[Callable[[], str]]:
    """A process behind walls that has begun, and a function that lets it read, and returns what it read."""
    words = [os.path.realpath(sys.executable), "-I", "-c", READ_LATER, *arguments]
    program = start_program(walls, words, directory="/", variables={}, stdin=subprocess.PIPE, stderr=subprocess.STDOUT)
    process = program.process
    assert process.stdin is not None
    assert process.stdout is not None
    said = process.stdout.readline()
    assert said == b"ready\n", said + process.stdout.read()

    def read() -> str:
        return process.communicate(b"\n")[0].decode()

    yield read
    program.end()


@pytest.mark.gate
@pytest.mark.parametrize("replaced", [renamed, relinked, swapped])
@pytest.mark.parametrize("owner", ["mallory", "the lab's own"])
def test_a_key_that_is_renewed_is_not_read(
    home: LabHome, outside: Path, tmp_path: Path, replaced: Callable[[Path], tuple[Path, Callable[[], None]]], owner: str
) -> None:
    """Not by a job that runs, and not by the next one."""
    key, renew = replaced(outside)
    walls = LocalWalls(home, secrets=secret_files({"tls_key": str(key)}))
    attempt = AttemptDirectory(tmp_path / "attempt")
    attempt.work.mkdir(parents=True, exist_ok=True)
    owner = own_name() if owner == "the lab's own" else owner
    inside = staging_walls(walls(owner), attempt, LaunchPaths(environments="", snapshots="", blobs=""))
    with running(inside, str(outside), str(key)) as read:
        renew()
        assert key.read_text() == SECRET
        assert read() == "[]\n"
    assert reads(walls, owner, [key, key.resolve()], tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="Only root writes into /etc.")
def test_what_root_alone_may_read_later_is_not_read(home: LabHome, outside: Path, tmp_path: Path) -> None:
    """While passwd(1) writes the new /etc/shadow it has another name."""
    del outside
    attempt = AttemptDirectory(tmp_path / "attempt")
    attempt.work.mkdir(parents=True)
    inside = staging_walls(LocalWalls(home)("mallory"), attempt, LaunchPaths(environments="", snapshots="", blobs=""))
    with (
        tempfile.NamedTemporaryFile(prefix=".carrel-before-", dir="/etc") as before,
        running(inside, "/nowhere", before.name) as read,
    ):
        assert read() == "[]\n"
    name = Path(f"/etc/.carrel-later-{os.getpid()}")
    try:
        with running(inside, "/nowhere", str(name)) as read:
            secret(name)
            assert read() == "[]\n"
    finally:
        name.unlink()


def test_a_directory_of_many_files_is_named(home: LabHome, outside: Path, tmp_path: Path) -> None:
    """It costs too much to show it as it was: a file's cover is all that there is, and an administrator is told."""
    key = secret(outside / "tls.key")
    for number in range(MOST_ENTRIES):
        (outside / f"{number}.csv").touch()
    walls = LocalWalls(home, secrets=secret_files({"tls_key": str(key)}))
    assert reads(walls, "mallory", [key], tmp_path) == []
    assert str(key) in walls.loose()
