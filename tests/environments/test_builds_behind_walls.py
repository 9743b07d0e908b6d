"""Builds where strangers' code runs: what it cannot reach, and what of it nobody else gets (form `build` of the attacks)."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import uv
from environment_lab import Lab

from carrel.core.domain.launch import LaunchWalls, PreparingLimits
from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe
from carrel.node.containment.walls import PREPARING_SHARED
from carrel.node.environments import (
    Builds,
    Environment,
    EnvironmentFailed,
    EnvironmentSettings,
    EnvironmentStopped,
    EnvironmentStore,
)
from carrel.node.environments.confinement import VERIFIED
from carrel.node.environments.named import NamedEnvironments, Work
from support.escapes import Victims, limits_processes, read_table, victims
from support.namespaces import why_no_namespaces
from support.tricks import HOSTILE

SECRET = "correct-horse-battery-staple"
ESCAPES = read_table(Path(__file__).parents[1] / "containment" / "escapes.txt")

#: A build backend without anything else (PEP 517). What it does first is in `act`.
BACKEND = """
import base64, hashlib, os, sys, zipfile
{act}
NAME = {name!r}
def get_requires_for_build_wheel(settings=None):
    return []
def build_wheel(place, settings=None, metadata=None):
    info = f"{{NAME}}-1.0.dist-info"
    files = {{
        f"{{NAME}}.py": "answer = 42\\n",
        f"{{info}}/METADATA": f"Metadata-Version: 2.1\\nName: {{NAME}}\\nVersion: 1.0\\n",
        f"{{info}}/WHEEL": "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }}
    record = ""
    wheel = f"{{NAME}}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(place, wheel), "w") as archive:
        for path, text in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record += f"{{path}},sha256={{digest}},{{len(text.encode())}}\\n"
            archive.writestr(path, text)
        archive.writestr(f"{{info}}/RECORD", record + f"{{info}}/RECORD,,\\n")
    return wheel
build_editable = build_wheel
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = {name!r}
version = "1.0"
"""

#: Tries everything of `HOSTILE`, and leaves what it found in the owner's home.
ATTACK = """
import subprocess
about = {about!r}
done = subprocess.run([sys.executable, "-I", "-c", {attacks!r}, about], capture_output=True, text=True)
with open(os.path.join({home!r}, "found"), "w") as file:
    file.write(done.stdout + done.stderr)
"""


class Isolated:
    """A lab whose home is hidden from builds, with an index of its own in a directory, and users."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.home = lab.base / "lab"
        for place in ("spool/1", "homes", "run", "blobs"):
            (self.home / place).mkdir(parents=True)
        for name in ("token", "secret", "lab.db", "spool/1/journal.jsonl", "spool/1/launch.json", "spool/1/log"):
            (self.home / name).write_text(SECRET)
        self.root = self.home / "environments"
        self.held: list[Environment] = []
        self.limits = PreparingLimits()

    def walls(self, owner: str) -> LaunchWalls:
        prefixes = {os.path.realpath(path) for path in (sys.prefix, sys.base_prefix)}
        home = str(self.home / "homes" / (owner or "@site"))
        return LaunchWalls(
            hidden=(str(self.home), "/run", "/var/tmp"),
            frozen=("/etc", "/etc/security"),
            readable=tuple(sorted(prefixes)),
            home=home,
            processes=600,
            preparing=self.limits,
        )

    def store(self, owner: str) -> EnvironmentStore:
        return EnvironmentStore(
            self.root,
            settings=EnvironmentSettings(uv=Path(uv.find_uv_bin())),
            environ=self.lab.environ,
            builds=Builds(owner=owner, walls=self.walls(owner)),
        )

    def prepare(self, owner: str, *lines: str, **options: object) -> Environment:
        recipe = EnvironmentRecipe(kind=EnvironmentKind.REQUIREMENTS, requirements=lines, source="requirements.txt")
        arguments: dict[str, object] = {"code": self.lab.code, "code_digest": "sha256:aa", "report": lambda _line: None}
        made = self.store(owner).prepare(recipe, **{**arguments, **options})  # type: ignore[arg-type]
        self.held.append(made)
        return made

    def named(self) -> NamedEnvironments:
        return NamedEnvironments(self.root, environ=self.lab.environ, uv=Path(uv.find_uv_bin()), walls=self.walls)

    def sdist(self, name: str, act: str = "") -> Path:
        """Make a source distribution whose build does `act` first."""
        file = self.lab.wheels / f"{name}-1.0.tar.gz"
        texts = {
            "backend.py": BACKEND.format(name=name, act=act),
            "pyproject.toml": PROJECT.format(name=name),
            "PKG-INFO": f"Metadata-Version: 2.2\nName: {name}\nVersion: 1.0\n",
        }
        with tarfile.open(file, "w:gz") as archive:
            for path, text in texts.items():
                entry = tarfile.TarInfo(f"{name}-1.0/{path}")
                entry.size = len(text.encode())
                archive.addfile(entry, io.BytesIO(text.encode()))
        return file

    def cache(self, name: str) -> Path:
        return self.root / "workrooms" / name / "cache"


@pytest.fixture
def isolated(lab: Lab) -> Iterator[Isolated]:
    if why_no_namespaces():
        pytest.skip(f"This machine has no namespaces for us: {why_no_namespaces()}")
    isolated = Isolated(lab)
    yield isolated
    for environment in isolated.held:
        environment.hold.close()


@pytest.fixture
def others() -> Iterator[Victims]:
    with victims() as found:
        yield found


def imports(environment: Path, module: str) -> bool:
    done = subprocess.run([environment / "bin/python", "-I", "-c", f"import {module}"], capture_output=True, check=False)
    return done.returncode == 0


def alpha(environment: Environment) -> str:
    """What is installed of the package of that name."""
    return next(environment.path.glob("lib/python3*/site-packages/alpha.py")).read_text()


def inodes(directory: Path) -> set[int]:
    return {path.lstat().st_ino for path in directory.rglob("*") if path.is_file() and not path.is_symlink()}


@pytest.mark.gate
def test_a_build_gets_at_nothing(isolated: Isolated, others: Victims) -> None:
    """The attack suite, from a build backend: the lab's files, others' processes, the shared workroom, the machine."""
    isolated.lab.wheel("alpha")
    shared = isolated.prepare("bob", "alpha")
    home, cache = isolated.home, isolated.cache(VERIFIED)
    assert cache.is_dir()
    name = f"\0carrel-build-{os.getpid()}"
    paths = [str(home / "run" / "s"), name]
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        for listener, address in zip((first, second), paths, strict=True):
            listener.bind(address)
            listener.listen()
        about = {
            **others.about(),
            "files": {
                "token and secret": [str(home / "token"), str(home / "secret"), str(home / "lab.db")],
                "another's spool": [str(home / "spool/1/journal.jsonl"), str(home / "spool/1/launch.json")],
                "another's log": [str(home / "spool/1/log")],
                "directories": [str(shared.path / "carrel.lock"), str(cache / "CACHEDIR.TAG")],
            },
            "directories": [str(home), str(home / "spool"), str(shared.path), str(cache), str(isolated.root / "workrooms")],
            "sockets": paths,
            "broker": str(home / "run" / "s"),
            "devices": ["/dev/nvidia0", "/dev/kmsg", "/dev/mem", "/dev/vda"],
            "deputies": [["sudo", "-n", "-u", "nobody", "true"]],
            "hidden": [str(home), "/run"],
            "own": [str(home / "homes/mallory"), str(isolated.root)],
            "writable": str(home / "homes/mallory"),
            "memory": PREPARING_SHARED,
            "process_limit": 600 if limits_processes() else 0,
        }
        act = ATTACK.format(about=json.dumps(about), attacks=HOSTILE, home=str(home / "homes/mallory"))
        isolated.sdist("evil", act)
        made = isolated.prepare("mallory", "evil")
    assert imports(made.path, "evil")
    # The home is a place of which only its own parts are there.
    said = (home / "homes/mallory/found").read_text()
    assert "token" not in json.loads(said.splitlines()[-1]).get(f"directories: list {home}", "")
    ESCAPES.judge("build", said, {f"directories: list {home}"})
    for name in ("token", "secret", "lab.db", "spool/1/journal.jsonl"):
        assert (home / name).read_text() == SECRET


#: What a build takes that goes on until it is ended, and what is said of it.
TAKES = {
    "workroom": ("open(os.path.join({root!r}, 'big'), 'wb').write(bytes(96 << 20))", "(disk_limit)"),
    "home": ("open(os.path.expanduser('~/big'), 'wb').write(bytes(96 << 20))", "(disk_limit)"),
    "/tmp": ("open('/tmp/big', 'wb').write(bytes(96 << 20))", "(disk_limit)"),
    "files": ("[open(f'/tmp/{{n}}', 'x').close() for n in range(3000)]", "(disk_files)"),
    "memory": ("kept = os.urandom(1 << 20) * 600", "(prepare_memory)"),
}


@pytest.mark.gate
@pytest.mark.parametrize("what", TAKES)
def test_a_build_that_takes_too_much_is_ended(isolated: Isolated, what: str) -> None:
    act, said = TAKES[what]
    isolated.limits = PreparingLimits(memory=512 << 20, disk=64 << 20, files=2500)
    isolated.sdist("evil", f"{act.format(root=str(isolated.root))}\nimport time\ntime.sleep(600)")
    with pytest.raises(EnvironmentFailed) as failed:
        isolated.prepare("mallory", "evil")
    assert said in failed.value.message
    assert not (isolated.root / "workrooms" / "mallory" / "big").exists(), "it keeps no room of the lab's by failing"
    isolated.sdist("fine")
    assert imports(isolated.prepare("mallory", "fine").path, "fine")


def test_environments_of_wheels_are_shared_and_others_are_not(isolated: Isolated) -> None:
    isolated.lab.wheel("alpha")
    isolated.sdist("beta")
    first, second = isolated.prepare("bob", "alpha"), isolated.prepare("mallory", "alpha")
    assert (first.built, second.built) == (True, False)
    assert first.path == second.path
    own, other = isolated.prepare("bob", "alpha", "beta"), isolated.prepare("mallory", "alpha", "beta")
    assert (own.built, other.built) == (True, True)
    assert own.lock == other.lock
    assert own.path != other.path
    assert all(imports(environment.path, "beta") for environment in (own, other))
    # A file is there once for an environment and the cache that it came from, and no file is in two people's.
    assert inodes(own.path) & inodes(isolated.cache("bob"))
    assert not inodes(own.path) & inodes(other.path)
    assert not inodes(first.path) & (inodes(isolated.cache("bob")) | inodes(isolated.cache("mallory")))
    assert not isolated.prepare("mallory", "alpha", "beta").built


def test_a_poisoned_cache_is_its_owners_alone(isolated: Isolated) -> None:
    """A build that writes into the cache changes what its owner installs, and nobody else."""
    isolated.lab.wheel("alpha")
    isolated.sdist("fine")
    isolated.prepare("bob", "alpha")
    isolated.prepare("mallory", "alpha", "fine")
    poison = (
        "for root, _, names in os.walk(os.environ.get('UV_CACHE_DIR') or {cache!r}):\n"
        "    for name in names:\n"
        "        if name == 'alpha.py':\n"
        "            open(os.path.join(root, name), 'w').write('version = \"poisoned\"')\n"
    ).format(cache=str(isolated.root / "cache"))
    isolated.sdist("evil", poison)
    assert "poisoned" in alpha(isolated.prepare("mallory", "alpha", "evil"))
    for owner in ("bob", "carol"):
        for lines in (("alpha",), ("alpha", "fine")):
            assert "poisoned" not in alpha(isolated.prepare(owner, *lines))


def test_what_a_build_leaves_behind_ends_with_it(isolated: Isolated) -> None:
    fifo = isolated.home / "homes/mallory/alive"
    fifo.parent.mkdir(parents=True)
    os.mkfifo(fifo)
    alive = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    stay = (
        "import signal\n"
        f"if os.fork() == 0:\n    os.setsid()\n    fd = os.open({str(fifo)!r}, os.O_WRONLY)\n"
        "    for n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\n"
        "    os.write(fd, b'up')\n    os.closerange(0, fd)\n    signal.pause()\n    os._exit(0)\n"
        f"open({str(fifo)!r}, 'w').close()\n"
    )
    isolated.sdist("evil", stay)
    made = isolated.prepare("mallory", "evil")
    assert imports(made.path, "evil")
    # Nobody has it open for writing any more: it reads its end.
    os.set_blocking(alive, True)
    said = b""
    while piece := os.read(alive, 100):
        said += piece
    assert set(said) <= set(b"up")
    os.close(alive)


def test_links_that_a_build_plants_lead_the_lab_nowhere(isolated: Isolated) -> None:
    """The lab writes its own files into the finished environment: none of them goes where a link leads."""
    token = isolated.home / "token"
    plant = (
        f"prefix = os.path.join({str(isolated.root)!r}, 'envs')\n"
        "for place in [os.path.join(prefix, name) for name in os.listdir(prefix)]:\n"
        "    for name in ('carrel.lock', 'carrel-environment.json', 'source'):\n"
        "        if not os.path.lexists(os.path.join(place, name)):\n"
        f"            os.symlink({str(token)!r}, os.path.join(place, name))\n"
    )
    isolated.sdist("evil", plant)
    made = isolated.prepare("mallory", "evil")
    assert token.read_text() == SECRET
    assert not (made.path / "carrel.lock").is_symlink()
    # And a build that puts a link in the place of the environment itself has built nothing.
    swap = (
        f"prefix = os.path.join({str(isolated.root)!r}, 'envs')\n"
        "import shutil\n"
        "shutil.rmtree(os.path.join(prefix), ignore_errors=True)\n"
        f"os.symlink({str(isolated.home)!r}, prefix)\n"
    )
    isolated.sdist("worse", swap)
    with pytest.raises(EnvironmentFailed):
        isolated.prepare("mallory", "worse")
    assert token.read_text() == SECRET


def test_a_file_of_the_recipe_does_not_go_through_a_link_of_the_code(isolated: Isolated) -> None:
    (isolated.lab.code / "sub").symlink_to(isolated.home)
    recipe = EnvironmentRecipe(
        kind=EnvironmentKind.REQUIREMENTS, requirements=("-r sub/token",), files={"sub/token": "alpha\n"}, local=True
    )
    with pytest.raises(EnvironmentFailed, match="link"):
        isolated.store("mallory").prepare(recipe, code=isolated.lab.code, code_digest="sha256:aa", report=lambda _line: None)
    assert (isolated.home / "token").read_text() == SECRET


@pytest.mark.parametrize("line", ["./", "-e ."])
def test_code_that_is_a_package_is_built_behind_walls(isolated: Isolated, line: str) -> None:
    code = isolated.lab.code
    (code / "backend.py").write_text(BACKEND.format(name="mine", act=""))
    (code / "pyproject.toml").write_text(PROJECT.format(name="mine"))
    recipe = EnvironmentRecipe(kind=EnvironmentKind.REQUIREMENTS, requirements=(line,), local=True)
    made = isolated.store("mallory").prepare(recipe, code=code, code_digest="sha256:aa", report=lambda _line: None)
    isolated.held.append(made)
    assert imports(made.path, "mine")
    # An editable installation points to its source, which stays with it.
    assert (made.path / "source/backend.py").exists() == line.startswith("-e")


def test_a_named_environment_shares_no_file_with_anybody(isolated: Isolated) -> None:
    """Its owner writes into it: what they change must be nobody else's."""
    lab = isolated.lab
    lab.wheel("ipykernel", "7.0", requires=("traitlets",))
    lab.wheel("traitlets", "5.0")
    lab.wheel("pip", "25.0")
    lab.wheel("alpha")
    recipe = EnvironmentRecipe(kind=EnvironmentKind.REQUIREMENTS, requirements=("alpha",), source="requirements.txt")
    environments = isolated.named()
    work = Work(report=lambda _line: None)
    prefixes = []
    for owner in ("bob", "mallory"):
        environments.create(owner, "study", recipe, work)
        prefixes.append(environments.get(owner, "study").prefix)
    assert all(imports(prefix, "alpha") for prefix in prefixes)
    shared = isolated.prepare("bob", "alpha")
    owned = [inodes(prefix) for prefix in prefixes]
    assert not owned[0] & owned[1]
    assert not owned[1] & (inodes(shared.path) | inodes(isolated.cache(VERIFIED)) | inodes(isolated.cache("bob")))


def test_a_build_that_is_stopped_leaves_no_process(isolated: Isolated) -> None:
    home = isolated.home / "homes/mallory"
    home.mkdir(parents=True)
    fifo = home / "alive"
    os.mkfifo(fifo)
    alive = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    act = (
        "import signal\n"
        "for n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\n"
        f"fd = os.open({str(fifo)!r}, os.O_WRONLY)\nos.set_inheritable(fd, True)\n"
        f"open({str(home / 'there')!r}, 'w').close()\n"
        "while True: signal.pause()\n"
    )
    isolated.sdist("evil", act)
    with pytest.raises(EnvironmentStopped):
        isolated.prepare("mallory", "evil", stop=(home / "there").exists)
    assert os.read(alive, 1) == b""
    os.close(alive)
