"""VS Code in the browser: `code-server`, started when somebody goes to ``/code`` and shown below ``/proxy/code/``.

Its options: https://coder.com/docs/code-server, and `code-server --help`.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import url_path_join
from tornado import web

from carrel.core.domain.errors import Unavailable, in_words
from carrel.core.domain.session import CODE_SERVER
from carrel.notebooks.hook.kernelspec import client_path
from carrel.notebooks.jupyter.config import pages_directory
from carrel.notebooks.jupyter.context import SessionContext

#: What the handler finds in the server's settings.
CODE = "carrel_code"
#: Where it keeps settings and extensions, below the directory of the session's files.
STATE = ".carrel/code"
#: Name of its socket among the session's pages.
_PLACE = "code"
#: Seconds between two looks whether it takes connections, and looks at most.
_PAUSE, _LOOKS = 0.1, 600


class CodeServer:
    """The `code-server` of a session. Belongs to one event loop."""

    def __init__(self, session: SessionContext, directory: Path) -> None:
        """`directory` is the one that it opens."""
        self._session = session
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._guard = asyncio.Lock()

    async def start(self) -> None:
        """Start it unless it runs, and return when it takes connections. Raises `Unavailable` when it never does."""
        async with self._guard:
            process = self._process
            if process is None or process.poll() is not None:
                process = self._process = self._run()
                atexit.register(_end, process)
            remedy = f"See `carrel logs {self._session.job_id}`."
            for _ in range(_LOOKS):
                if await self._takes_connections():
                    return
                if process.poll() is not None:
                    raise Unavailable(f"{CODE_SERVER} ended with exit code {process.returncode}.", remedy=remedy)
                await asyncio.sleep(_PAUSE)
            raise Unavailable(f"{CODE_SERVER} takes no connections after {_PAUSE * _LOOKS:.0f} s.", remedy=remedy)

    @property
    def _socket(self) -> Path:
        return pages_directory(self._session) / _PLACE

    def _run(self) -> subprocess.Popen[bytes]:
        program = shutil.which(CODE_SERVER)
        if program is None:
            raise Unavailable(
                f"The session finds no program {CODE_SERVER} on its PATH.",
                remedy="Ask an administrator to install it where jobs can read it, like /usr/bin; or use `carrel ssh`.",
            )
        self._socket.unlink(missing_ok=True)
        # The people who come have been let in by the lab's proxy, and nobody else reaches the socket.
        words = [program, "--socket", str(self._socket), "--auth", "none", "--disable-telemetry", "--disable-update-check"]
        # A file of the user's own could ask for TLS or for another address.
        words += ["--config", str(self._session.temporary / "code-server.yaml")]
        words += ["--user-data-dir", str(self._directory / STATE), "--ignore-last-opened", str(self._directory)]
        try:
            return subprocess.Popen(
                words, cwd=self._directory, env=self._variables(), stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise Unavailable(f"{program} cannot be started: {in_words(error)}.", remedy="Ask an administrator.") from error

    def _variables(self) -> Mapping[str, str]:
        # Else its terminals would have the PATH of a login shell (VS Code, `platform/shell/node/shellEnv.ts`), in which the
        # session's environment does not come first.
        variables = {**os.environ, "VSCODE_CLI": "1"}
        if self._session.client:
            paths = (os.environ.get("PYTHONPATH"), client_path(self._session.client))
            variables["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        return variables

    async def _takes_connections(self) -> bool:
        try:
            _, writer = await asyncio.open_unix_connection(self._socket)
        except OSError:
            return False
        writer.close()
        return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it with its helpers. They would else be left behind where JupyterLab is shut down, which is a good end of a session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)


class CodePage(JupyterHandler):
    """``GET /code``: VS Code, started if it does not run."""

    @web.authenticated
    async def get(self) -> None:
        """Go to where it is shown."""
        code: CodeServer = self.settings[CODE]
        try:
            await code.start()
        except Unavailable as error:
            self.set_status(503)
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.finish(f"{error.message} {error.remedy}")
            return
        self.redirect(url_path_join(self.base_url, "proxy", _PLACE, "/"))
