"""Starts JupyterLab for one session: on its socket, with its kernel, and with nothing that takes time and is not needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from carrel.core.domain.errors import Unavailable, in_words
from carrel.core.domain.session import SessionKind
from carrel.notebooks.hook.kernelspec import install
from carrel.notebooks.jupyter.config import STATE, bash_start, page_config, pages_directory, server_config, variables
from carrel.notebooks.jupyter.context import SessionContext
from carrel.notebooks.jupyter.inside import words

#: Seconds before a relay that died is started again.
_PAUSE = 1.0
#: Modules that take longer to import than the rest of the server, and that those who import them do without when they are
#: missing: checks of internationalised addresses (jsonschema), the command line of httpx.
_NOT_NEEDED = ("rfc3987_syntax", "httpx._main")


def launch(session: SessionContext) -> None:
    """Run JupyterLab until it is shut down. Must be called in the session's directory, in a process of its own.

    Raises `Unavailable` when the session's files cannot be written to: Jupyter would start and then fail in odd ways.
    """
    directory = Path.cwd()
    private = session.temporary / "jupyter"
    try:
        (directory / STATE).mkdir(mode=0o700, parents=True, exist_ok=True)
        for place in ("", "config", "config/labconfig", "data", "runtime"):
            (private / place).mkdir(mode=0o700, exist_ok=True)
        pages_directory(session).mkdir(mode=0o700, exist_ok=True)
        os.environ.update(variables(session, private, directory))
        install(private / "data", python=_python(session), display_name=_kernel_name(session))
        shell = _shell(session, private)
        (private / "config/jupyter_server_config.json").write_text(json.dumps(server_config(session, directory, shell)))
        (private / "config/labconfig/page_config.json").write_text(json.dumps(page_config(session)))
    except OSError as error:
        raise Unavailable(
            f"The session's files cannot be written to: {in_words(error)}.",
            remedy="Make room, or start the session in another directory.",
        ) from error
    # A socket of an earlier attempt would be in the way.
    session.socket.unlink(missing_ok=True)
    if session.address is not None:
        keep_relay(session, session.address)
    if session.hub:
        from carrel_jupyterhub.singleuser import serve

        serve(session, load=_lab_app)
        return
    _lab_app().launch_instance(argv=[])


def keep_relay(session: SessionContext, address: Path) -> None:
    """Have a process that carries the lab's connections to the session's socket, as long as this one lives."""
    from carrel.notebooks.relay import NO_WAY

    words = [sys.executable, "-P", "-m", "carrel.notebooks.relay", str(session.socket), str(address), session.ports, session.url]

    def keep() -> None:
        while True:
            process = subprocess.Popen(words, stdin=subprocess.PIPE)
            if process.wait() == NO_WAY:
                os._exit(NO_WAY)  # nobody could ever reach the session; the relay has said why
            time.sleep(_PAUSE)

    threading.Thread(target=keep, name="relay", daemon=True).start()


def _python(session: SessionContext) -> list[str]:
    """The Python of kernels. Raises `Unavailable` where an image has none that could be one."""
    if session.image is None:
        return [str(session.environment / "bin/python")]
    python = words(session.image, "python")
    if session.kind is SessionKind.TERMINAL:
        return python
    tried = subprocess.run([*python, "-c", "import ipykernel"], capture_output=True, text=True, check=False)
    if tried.returncode:
        print(tried.stderr, end="", file=sys.stderr)
        said = [line for line in tried.stderr.splitlines() if line.strip()]
        last = next((line for line in reversed(said) if "rror" in line), said[-1] if said else f"exit code {tried.returncode}")
        raise Unavailable(
            f"The image {session.image_name} cannot run a kernel: {last.strip()[:300].rstrip('.')}.",
            remedy="Put Python 3 and ipykernel into it (RUN pip install ipykernel). `carrel terminal --image` needs neither.",
        )
    return python


def _shell(session: SessionContext, private: Path) -> list[str]:
    if session.image is not None:
        name = next((shell for shell in ("/bin/bash", "/usr/bin/bash") if os.path.lexists(f"{session.image}{shell}")), "/bin/sh")
        return words(session.image, name)
    shell = os.environ["SHELL"]
    if not shell.endswith("/bash"):
        return [shell]
    start = private / "config/bashrc"
    start.write_text(bash_start(session))
    return [shell, "--rcfile", str(start)]


def _lab_app() -> Any:
    """`jupyterlab.labapp.LabApp`, imported in half the time."""
    for name in _NOT_NEEDED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    from jupyterlab import commands

    if hasattr(commands, "_yarn_config"):
        # Asks node, where there is one, for the registry of packages that are built into JupyterLab: here none ever are.
        commands._yarn_config = lambda _logger: {"yarn config": {}, "npm config": {}}
    from jupyterlab.labapp import LabApp

    return LabApp


def _kernel_name(session: SessionContext) -> str:
    name = Path(session.image_name or session.environment_name).name or "default"
    return f"Python 3 ({name})"
