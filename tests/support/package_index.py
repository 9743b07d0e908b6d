"""A package index on the loopback that hands out its wheels when a test says so."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import threading
import zipfile
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

from carrel.testing.waiting import PATIENCE


def make_wheel(directory: Path, name: str, version: str = "1.0", *, requires: tuple[str, ...] = (), command: str = "") -> Path:
    """Make a wheel of one module, which says its version, also as a command (PyPA, "Binary distribution format")."""
    file = directory / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"version = {version!r}\ndef main(): print({name!r}, version)\n",
        f"{info}/METADATA": _metadata(name, version, requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if command:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{command} = {name}:main\n"
    record = ""
    with zipfile.ZipFile(file, "w") as archive:
        for path, text in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record += f"{path},sha256={digest},{len(text.encode())}\n"
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return file


def _metadata(name: str, version: str, requires: tuple[str, ...]) -> str:
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(f"Requires-Dist: {item}\n" for item in requires)


class PackageIndex:
    """A context manager: inside it there is an index (PEP 503, PEP 658) of the wheels that were made in it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir()
        #: How often wheels were asked for, by the name of their packages, and other files by theirs.
        self.asked: Counter[str] = Counter()
        #: While it is not set, a request for a wheel waits.
        self.open = threading.Event()
        self._metadata: dict[str, bytes] = {}
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = index._find(self.path)
                self.send_response(404 if found is None else 200)
                self.send_header("Content-Type", "text/html" if self.path.startswith("/simple/") else "application/octet-stream")
                self.send_header("Content-Length", str(len(found or b"")))
                self.end_headers()
                self.wfile.write(found or b"")

            def log_message(self, *_words: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        #: What a lab has to be started with, to take packages from here and to remember none.
        self.variables = {
            "UV_DEFAULT_INDEX": f"http://127.0.0.1:{self._server.server_port}/simple",
            "UV_CACHE_DIR": str(directory / "cache"),
            "UV_HTTP_TIMEOUT": str(int(PATIENCE) + 60),
            "UV_HTTP_RETRIES": "0",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_FIND_LINKS": "",
        }

    def add(self, name: str, version: str = "1.0") -> None:
        """Publish a package of one module."""
        file = make_wheel(self._directory, name, version)
        self._metadata[f"{file.name}.metadata"] = _metadata(name, version, ()).encode()

    def add_wheels(self, wheels: Path) -> None:
        """Publish all wheels of a directory."""
        for file in wheels.glob("*.whl"):
            shutil.copy(file, self._directory)
            with zipfile.ZipFile(file) as archive:
                inside = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
                self._metadata[f"{file.name}.metadata"] = archive.read(inside)

    def publish(self, name: str, content: bytes) -> str:
        """Hand out any other file in the same way; return its address."""
        (self._directory / name).write_bytes(content)
        return f"http://127.0.0.1:{self._server.server_port}/files/{name}"

    def _find(self, path: str) -> bytes | None:
        place, _, name = path.strip("/").partition("/")
        if place == "simple":
            links = [_link(file) for file in sorted(self._directory.glob(f"{name.replace('-', '_')}-*.whl"))]
            return "\n".join(links).encode() if links else None
        if name in self._metadata:
            return self._metadata[name]
        file = self._directory / name
        if place != "files" or not file.is_file():
            return None
        self.asked[name.partition("-")[0]] += 1
        self.open.wait(PATIENCE)
        return file.read_bytes() if file.is_file() else None

    def withdraw(self, name: str) -> None:
        """Have no wheels of a package any more; its page stays as it was."""
        for file in self._directory.glob(f"{name}-*.whl"):
            file.unlink()

    def __enter__(self) -> PackageIndex:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.open.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _link(wheel: Path) -> str:
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f'<a href="/files/{wheel.name}#sha256={digest}" data-dist-info-metadata="true">{wheel.name}</a><br>'
