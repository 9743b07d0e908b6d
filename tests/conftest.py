"""Fixtures that several rooms share: real databases, a real lab."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

import crashed_workers
import second_look
import tiers
from carrel import Client
from support.examples import VARIABLE, examples
from support.lab_process import LabProcess, fork_labs, logs_since, start_lab
from support.notebook_scripts import PACKAGES, make_environment

# Where Python may keep no compiled code (containers say so), each of the thousands of processes here compiles what it imports:
# most of what a lab, a broker or a kernel does until it is ready.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Some tests install real packages, as people do. A connection that fails once is no failure of what they test.
for _name in ("UV_HTTP_RETRIES", "PIP_RETRIES", "npm_config_fetch_retries"):
    os.environ.setdefault(_name, "8")

# The servers of the tests are on the loopback, where no proxy is asked.
for _name in ("no_proxy", "NO_PROXY"):
    os.environ[_name] = ",".join(filter(None, (os.environ.get(_name), "localhost", "127.0.0.1", "::1")))

# What a shell starts in the background ignores SIGINT, and so would all that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


#: When the test began (Unix seconds).
_BEGAN = pytest.StashKey[float]()
#: The thread in which a quick test begins or runs just now: what others of this process serve meanwhile belongs to other tests.
_QUICK = pytest.StashKey[int | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-postgresql", action="store_true", help="leave out the tests against PostgreSQL")
    parser.addoption("--tier", choices=list(tiers.TIERS), default="all", help="which tests are run (tests/tiers.py)")
    parser.addoption("--second-look", action="store_true", help="run up to three tests that fail once more, alone")


def pytest_configure(config: pytest.Config) -> None:
    fork_labs()
    tier = config.getoption("--tier")
    os.environ.setdefault(VARIABLE, str(tiers.TIERS[tier]))
    tiers.hold_to_it(lambda: tier == "quick" or threading.get_ident() == config.stash.get(_QUICK, None))
    if config.getoption("--second-look") and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(second_look.SecondLook())
    # A slow machine is no failure; and what CI finds, it finds again.
    settings.register_profile("carrel", deadline=None, derandomize=bool(os.environ.get("CI")), max_examples=examples(100))
    # For `make mutants`: that a test fails is enough there, and to find the smallest example takes up to minutes.
    found = (Phase.explicit, Phase.generate)
    settings.register_profile("mutants", settings.get_profile("carrel"), phases=found)
    settings.load_profile("carrel")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> crashed_workers.Scheduling | None:
    return crashed_workers.Scheduling(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return None if tiers.may_hold_some(collection_path, config.getoption("--tier")) else True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    item.config.stash[_QUICK] = threading.get_ident() if tiers.is_quick(item) else None
    try:
        yield
    finally:
        item.config.stash[_QUICK] = None


pytest_runtest_call = pytest_runtest_setup


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows what the labs have said meanwhile: where it failed there may be nobody to look into their homes."""
    report = yield
    if report.failed:
        began = call.start if call.when == "setup" else item.stash.get(_BEGAN, call.start)
        report.sections += [(f"What the lab wrote: {file}", text) for file, text in logs_since(began).items()]
    if call.when == "setup":
        item.stash[_BEGAN] = call.start
    return report


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tiers.select(config, items, config.getoption("--tier"))


def _postgresql_programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


@dataclass(frozen=True)
class PostgreSQL:
    """A server of our own in a temporary directory, reached through a unix socket there; it listens on no port."""

    socket: Path
    user: str

    def url(self, database: str = "postgres") -> str:
        return f"postgresql+psycopg://{self.user}@/{database}?host={self.socket}"


@pytest.fixture(scope="session")
def postgresql(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgreSQL]:
    if request.config.getoption("--no-postgresql"):
        pytest.skip("left out with --no-postgresql")
    programs = _postgresql_programs()
    if programs is None:
        message = "PostgreSQL's server programs are not installed (Debian: apt-get install postgresql)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    try:
        own = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        pytest.skip("initdb(1) wants a user with an entry in passwd(5)")
    # The server refuses to run as root: then it runs as Debian's own user for it. The path of a socket is short.
    as_root = os.geteuid() == 0
    user = "postgres" if as_root else own
    home = Path(f"/tmp/carrel-pg-{secrets.token_hex(4)}")
    home.mkdir(mode=0o700)
    prefix: list[str] = []
    if as_root:
        shutil.chown(home, user)
        account = pwd.getpwnam(user)
        prefix = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    data = home / "data"
    common = {"check": True, "stdout": subprocess.DEVNULL, "cwd": "/"}
    encoding = ("-E", "UTF8", "--locale=C")
    subprocess.run([*prefix, programs / "initdb", "-D", data, *encoding, "-A", "trust", "-N", "-U", user], **common)
    options = f"-k {home} -c listen_addresses='' -c fsync=off -c max_connections=40"
    control = [*prefix, programs / "pg_ctl", "-D", data, "-w"]
    subprocess.run([*control, "-l", home / "log", "-o", options, "start"], **common)
    try:
        yield PostgreSQL(socket=home, user=user)
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], **common)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of each kind that a lab may use."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'lab.db'}"
        return
    import sqlalchemy as sa

    server: PostgreSQL = request.getfixturevalue("postgresql")
    name = f"lab_{secrets.token_hex(6)}"
    admin = sa.create_engine(server.url(), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    yield server.url(name)
    with admin.connect() as connection:
        connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


@pytest.fixture(scope="session")
def heavy_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with PyTorch and its friends, which takes a minute: its tests are one group ("heavy")."""
    return make_environment(tmp_path_factory.mktemp("heavy") / "venv", PACKAGES)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
    """A real lab in a process of its own, with 4 simulated GPUs and without MLflow; shared by all tests of a worker."""
    running = start_lab(tmp_path_factory.mktemp("shared") / "lab", simulate_gpus=4)
    yield running
    running.stop()


@pytest.fixture
def client(lab: LabProcess) -> Iterator[Client]:
    """The shared lab's administrator."""
    with Client(url=lab.url, token=lab.token) as client:
        yield client


@pytest.fixture
def bob(lab: LabProcess, client: Client) -> Iterator[Client]:
    """Another user of the shared lab, new for every test."""
    token = client.add_user(f"bob-{secrets.token_hex(4)}").token
    with Client(url=lab.url, token=token) as other:
        yield other
