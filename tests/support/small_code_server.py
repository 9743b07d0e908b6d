"""A small program in the place of code-server: it knows the options of a session, serves a page and echoes a websocket."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import shutil
import sys
from pathlib import Path


def put(directory: Path) -> str:
    """Put it into `directory` under the name of code-server, and return a PATH that begins there."""
    directory.mkdir(exist_ok=True)
    program = directory / "code-server"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(__file__)} "$@"\n')
    program.chmod(0o755)
    return f"{directory}{os.pathsep}{os.environ['PATH']}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("socket", "auth", "config", "user-data-dir"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("disable-telemetry", "disable-update-check", "ignore-last-opened"):
        parser.add_argument(f"--{name}", action="store_true", required=True)
    parser.add_argument("directory")
    return parser.parse_args()


def main() -> None:
    """Serve until the end."""
    from tornado.httpserver import HTTPServer
    from tornado.netutil import bind_unix_socket
    from tornado.web import Application, RequestHandler
    from tornado.websocket import WebSocketHandler

    options = vars(_options())

    class Page(RequestHandler):
        def get(self) -> None:
            found = {"python": shutil.which("python"), "pythonpath": os.environ.get("PYTHONPATH")}
            self.write({**options, "pid": os.getpid(), **found})

    class Talk(WebSocketHandler):
        def on_message(self, message: str | bytes) -> None:
            self.write_message(message, binary=isinstance(message, bytes))

    class End(RequestHandler):
        def get(self) -> None:
            os._exit(3)

    async def serve() -> None:
        server = HTTPServer(Application([("/", Page), ("/talk", Talk), ("/end", End)]))
        server.add_socket(bind_unix_socket(options["socket"]))
        await asyncio.Event().wait()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
