"""`carrel notebook`, `carrel terminal`, `carrel vscode` and `carrel sessions`: interactive work."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli import words
from carrel.cli.endings import INTERRUPTED, OK, OTHER
from carrel.cli.options import AsJson, Home, argument, flag, job_number, open_client, option
from carrel.cli.screen import STATE_STYLES, StatusLine, clean, print_json, print_table

if TYPE_CHECKING:
    from carrel.cli.screen import StatusLine
    from carrel.client import Client
    from carrel.wire.v1 import SessionRequest, SessionView

#: Seconds between two looks at a session that starts.
_LOOK = 0.1

Directory = Annotated[
    str | None,
    argument("[PATH]", "Directory or notebook to open.  [this directory in a lab of one's own, else one's files in the lab]"),
]
Gpus = Annotated[int | None, option("--gpus -g", "N", "GPUs that a cell gets when it uses CUDA.  [1]", min=0)]
Reserve = Annotated[bool, flag("--reserve", "Hold the GPUs from start to end, also while no cell runs.")]
Environment = Annotated[str, typer.Option("--env", "-e", metavar="NAME", help="Environment of the kernel: `carrel env list`.")]
Image = Annotated[str | None, option("--image --container", "IMAGE", "Image for kernels and terminals.")]
Name = Annotated[str | None, typer.Option("--name", help="What to call it.", show_default=False)]
Cpus = Annotated[int | None, option("--cpus", "N", "Processors it counts on.")]
Memory = Annotated[str | None, option("--memory", "SIZE", 'Memory, like "8G".')]
Time = Annotated[str | None, option("--time", "DURATION", 'Ends at the latest after, like "12h".')]
Class = Annotated[str | None, typer.Option("--qos", help="Class of service.", show_default=False)]
Partition = Annotated[str | None, typer.Option("--partition", help="Part of the lab.", show_default=False)]
Secrets = Annotated[
    list[str] | None, option("--secret", "NAME", "A secret of yours (`carrel secret`), for another session than one that runs.")
]
New = Annotated[bool, flag("--new", "Start another one even if one like it runs.")]
NoBrowser = Annotated[bool, flag("--no-browser", "Print the link only.")]


def _opener(kind: str, about: str) -> Callable[..., int]:
    """The command that opens a session of one kind; typer reads its options from the signature."""

    def command(
        path: Directory = None,
        gpus: Gpus = None,
        reserve: Reserve = False,
        env: Environment = "default",
        image: Image = None,
        name: Name = None,
        cpus: Cpus = None,
        memory: Memory = None,
        time_limit: Time = None,
        qos: Class = None,
        partition: Partition = None,
        secrets: Secrets = None,
        new: New = False,
        no_browser: NoBrowser = False,
        home: Home = None,
        as_json: AsJson = False,
    ) -> int:
        from carrel.wire.v1 import SessionRequest

        line = StatusLine()
        with open_client(home) as client:
            directory, file = _places(client, path)
            asked = {
                "kind": kind,
                "name": name or (Path(directory).name if directory else None),
                "directory": directory,
                "environment": os.path.abspath(env) if os.sep in env and Path(env).is_dir() else env,  # noqa: PTH100
                "image": image,
                "gpus": gpus,
                "reserve": reserve,
                "qos": qos,
                "partition": partition,
                "cpus": cpus,
                "memory": memory,
                "time": time_limit,
                "secrets": secrets or [],
            }
            request = SessionRequest.model_validate(asked)
            try:
                session = (None if new or secrets else _running(client, request)) or client.start_session(request)
                session = _until_ready(client, session, line)
            except KeyboardInterrupt:
                line.clear()
                print("Left. It goes on starting: `carrel sessions` shows it, `carrel cancel ID` ends it.", file=sys.stderr)
                return INTERRUPTED
            line.clear()
            if not session.ready:
                _say_end(session)
                return OTHER
            url = client.open_session(session.job.id, file)
        if as_json:
            return print_json({**session.model_dump(mode="json"), "url": url})
        _say_ready(session, url)
        if not no_browser:
            _show(url)
        return OK

    command.__doc__ = about
    return command


notebook_command = _opener(
    "notebook", "Open JupyterLab; its cells borrow GPUs while they run. One that runs already is opened again."
)
terminal_command = _opener("terminal", "Open a terminal in the browser.")
vscode_command = _opener("vscode", "Open VS Code in the browser, where the lab's machine has code-server.")


def sessions_command(
    everybody: Annotated[bool, flag("--all-users", "Everybody's (administrators).")] = False,
    ended: Annotated[bool, flag("--all -a", "Also those that are over.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """List sessions."""
    with open_client(home) as client:
        found = client.sessions(everybody=everybody, ended=ended)
    if as_json:
        return print_json({"sessions": [session.model_dump(mode="json") for session in found]})
    _print_sessions(found, owners=everybody)
    return OK


def open_command(
    job_id: Annotated[
        int | None, argument("[ID]", "Number of the session's job; without it, the lab's pages.", parser=job_number)
    ] = None,
    path: Annotated[str, typer.Argument(metavar="[FILE]", help="What to open, relative to the session's files.")] = "",
    no_browser: NoBrowser = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Open a running session in the browser, or the lab's pages.

    Each time with a new link, which lets one browser in, once.
    """
    line = StatusLine()
    with open_client(home) as client:
        if job_id is None:
            return _open_pages(client, no_browser=no_browser, as_json=as_json)
        session = _until_ready(client, client.session(job_id), line)
        line.clear()
        if not session.ready:
            _say_end(session)
            return OTHER
        url = client.open_session(job_id, path)
    if as_json:
        return print_json({"url": url})
    _say_ready(session, url)
    if not no_browser:
        _show(url)
    return OK


def _open_pages(client: Client, *, no_browser: bool, as_json: bool) -> int:
    url = client.sign_in_link()
    if as_json:
        return print_json({"url": url})
    print(url)
    print("(the link signs one browser in, once, within ten minutes)")
    if not no_browser:
        _show(url)
    return OK


def _places(client: Client, path: str | None) -> tuple[str | None, str]:
    """Directory of the session and file to open: in a lab of one's own on this machine paths are what they seem."""
    own = "CARREL_URL" not in os.environ and client.lab().caller.role == "admin"
    target = Path(path or ".").expanduser().absolute()
    if not own:
        # A directory that is here is meant: the lab opens it, or says that it may not. A file is one of the session's.
        return (str(target), "") if path and target.is_dir() else (None, path or "")
    if target.is_file():
        return str(target.parent), target.name
    return str(target), ""


def _running(client: Client, request: SessionRequest) -> SessionView | None:
    """A session like the one that is asked for."""
    for session in client.sessions():
        wanted = request.gpus is None or request.gpus == session.gpus
        here = request.directory is None or request.directory == session.directory
        asked = (request.kind, request.image, request.environment, request.reserve)
        same = (session.kind, session.image, session.environment, session.reserve) == asked
        mine = session.hub is None
        here = here and request.partition in (None, session.job.partition)
        if mine and wanted and here and same and session.job.state in ("PENDING", "CONFIGURING", "RUNNING"):
            return session
    return None


def _until_ready(client: Client, session: SessionView, line: StatusLine) -> SessionView:
    """Wait until it answers or is over, and say why it does not yet."""
    while not session.ready and not session.job.ended:
        job = session.job
        text = (session.trouble or "starting JupyterLab") if job.state == "RUNNING" else words.reason(job, words.now())
        line.show(f"Session {job.id}: {text}")
        time.sleep(_LOOK)
        session = client.session(job.id)
    return session


def _say_ready(session: SessionView, url: str) -> None:
    job = session.job
    if session.note:
        gpus = "a share of a GPU" if not job.resources.gpus else f"{job.resources.gpus} GPUs of its own"
    elif session.reserve:
        gpus = f"{len(job.devices) or session.gpus} {'simulated ' if job.simulated else ''}GPUs reserved"
    else:
        gpus = f"cells borrow {'a GPU' if session.gpus == 1 else f'{session.gpus} GPUs'}" if session.gpus else "no GPU"
    print(f"Session {job.id} is ready: {gpus}; files in {session.directory}")
    if session.note:
        print(f"  {session.note}")
    print(f"  {url}")
    print("  (the link lets one browser in, once, within a minute; `carrel open` makes another)")
    print(f"  end it    carrel cancel {job.id}")


def _say_end(session: SessionView) -> None:
    job = session.job
    print(f"Session {job.id} is {job.state}: {clean(job.message)}", file=sys.stderr)
    print(f"  its log   carrel logs {job.id}", file=sys.stderr)


def _show(url: str) -> None:
    import webbrowser

    # Without a display there is nothing to open, and a text browser must not take the terminal.
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or sys.platform == "darwin":
        webbrowser.open(url)


def _print_sessions(found: list[SessionView], *, owners: bool) -> None:
    if not found:
        print("No sessions. Start one: carrel notebook")
        return
    now = words.now()
    rows = [
        (
            str(session.job.id),
            session.kind,
            session.job.name,
            session.job.owner if owners else "",
            session.job.state,
            _gpus(session),
            session.image or session.environment,
            "" if session.idle_since is None else words.ago(session.idle_since, now).removesuffix(" ago"),
            session.directory if session.job.state == "RUNNING" else words.reason(session.job, now),
        )
        for session in found
    ]
    heads = ("ID", "KIND", "NAME", "OWNER", "STATE", "GPUS", "ENVIRONMENT", "IDLE", "WHERE")
    print_table(heads, rows, styles={0: "bold", 4: STATE_STYLES, 8: "dim"}, right=(0,))


def _gpus(session: SessionView) -> str:
    if not session.gpus:
        return ""
    if session.note:
        return "shared" if not session.job.resources.gpus else f"{session.gpus} own"
    return f"{session.gpus} {'reserved' if session.reserve else 'per cell'}"
