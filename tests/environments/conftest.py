"""A lab of its own for each test, recipes, and a package index with a password."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from environment_lab import Lab
from installed_wheels import pip_wheel, wheels_of
from named_lab import NamedLab

from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe
from support.package_index import PackageIndex, make_wheel


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A lab whose packages come from its own wheels; nothing of this machine's configuration reaches it."""
    lab = Lab(tmp_path)
    lab.offline()
    yield lab
    lab.release()


@pytest.fixture(scope="session")
def real_packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackageIndex]:
    """An index of real packages: those that are installed here."""
    wheels = tmp_path_factory.mktemp("wheels")
    wheels_of(wheels, ["hatchling", "idna", "ipykernel", "six"])
    pip_wheel(wheels)
    make_wheel(wheels, "editables", "0.5")  # hatchling wants it for an editable install, and uses none of it here
    with PackageIndex(tmp_path_factory.mktemp("index") / "files") as index:
        index.add_wheels(wheels)
        index.open.set()
        yield index


@pytest.fixture
def named(lab: Lab) -> Iterator[NamedLab]:
    """Named environments in that lab."""
    named = NamedLab(lab)
    yield named
    named.release()


@pytest.fixture
def needs() -> Callable[..., EnvironmentRecipe]:
    """Make a recipe from requirement lines."""

    def make(*lines: str, **options: object) -> EnvironmentRecipe:
        fields: dict[str, object] = {"source": "requirements.txt", **options}
        return EnvironmentRecipe(kind=EnvironmentKind.REQUIREMENTS, requirements=lines, **fields)  # type: ignore[arg-type]

    return make


@pytest.fixture
def private_index(lab: Lab) -> Iterator[str]:
    """A package index on the loopback that wants user "carla" and password "s3cret%2Fpw" (as written in an address)."""
    simple = lab.base / "index" / "guarded"
    simple.mkdir(parents=True)
    wheel = lab.wheel("guarded", where=simple)
    (simple / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    wanted = "Basic " + base64.b64encode(b"carla:s3cret/pw").decode()

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(lab.base / "index"))  # type: ignore[arg-type]

        def do_GET(self) -> None:
            if self.headers.get("Authorization") == wanted:
                super().do_GET()
                return
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()
