"""The server extension: what the lab and its JupyterLab extension ask of a session, below ``/carrel/``."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from jupyter_server.auth.decorator import ws_authenticated
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from jupyter_server.utils import url_path_join
from tornado import web
from tornado.ioloop import IOLoop
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from carrel.core.domain.errors import CarrelError, Invalid
from carrel.core.domain.session import SessionKind
from carrel.notebooks.jupyter.activity import activity
from carrel.notebooks.jupyter.code import CODE, CodePage, CodeServer
from carrel.notebooks.jupyter.config import pages_directory
from carrel.notebooks.jupyter.context import SessionContext
from carrel.notebooks.jupyter.facts import SessionFacts
from carrel.notebooks.jupyter.kernels import SessionKernelManager
from carrel.notebooks.jupyter.lending import Lending
from carrel.notebooks.jupyter.listeners import SessionListeners
from carrel.notebooks.jupyter.programs import LISTENERS, ROUTE, ProgramHandler
from carrel.notebooks.jupyter.recall import CellRun, Recall

_KERNEL = r"(?P<kernel_id>\w+-\w+-\w+-\w+-\w+)"
_REQUEST = r"(?P<request>[\w-]+)"
#: Seconds between what a page is told of one run.
_RUN_PAUSE = 0.3
_LENDING, _FACTS = "carrel_lending", "carrel_facts"


class _Handler(APIHandler):
    #: Looking is no use of a session.
    _track_activity = False

    def answer(self, value: Any) -> None:
        """Finish with JSON."""
        self.set_header("Cache-Control", "no-store")
        self.finish(json.dumps(value))


class ActivityHandler(_Handler):
    """``GET /carrel/activity``: is anybody using this session?"""

    @web.authenticated
    async def get(self) -> None:
        """As `activity` says."""
        self.answer(activity(self.settings))


class StatusHandler(_Handler):
    """``GET /carrel/status``: who has which GPU now, who waits (as `Lending.state` says)."""

    @web.authenticated
    async def get(self) -> None:
        """The broker's answer, or that there is none."""
        self.answer(await self.settings[_LENDING].look())


class SessionHandler(_Handler):
    """``GET /carrel/session``: this session's name, times and addresses."""

    @web.authenticated
    async def get(self) -> None:
        """As `SessionFacts` says."""
        self.answer(await self.settings[_FACTS].get())


class OutputsHandler(_Handler):
    """``GET /carrel/outputs/<kernel>``: what the kernel's cells put out, for a page that was not there."""

    @web.authenticated
    async def get(self, kernel_id: str) -> None:
        """The last run of each cell; with ``?request=`` that one run alone."""
        manager: SessionKernelManager = self.settings["kernel_manager"]
        recall = manager.recall(kernel_id)
        request = self.get_query_argument("request", None)
        self.answer({"cells": [run.show() for run in recall.runs() if request in (None, run.request)]})


class PromoteHandler(_Handler):
    """``POST /carrel/promote``: make a task of a notebook."""

    @web.authenticated
    async def post(self) -> None:
        """Body: ``path`` of the notebook. Answer: ``directory`` of the task, and ``notes`` of what may be missing in it."""
        from carrel.notebooks.promote import promote

        try:
            path = _asked(self.get_json_body(), Path(self.settings["server_root_dir"]))
            made = await asyncio.get_running_loop().run_in_executor(None, partial(promote, path, environ=os.environ))
        except CarrelError as error:
            self.set_status(422 if isinstance(error, Invalid) else 409)
            self.answer({"message": error.message, "remedy": error.remedy})
            return
        self.answer({"directory": os.path.relpath(made.directory, self.settings["server_root_dir"]), "notes": list(made.notes)})


class TerminalPage(JupyterHandler):
    """``GET /terminals/<name>``: JupyterLab, whose extension of ours opens the terminal."""

    @web.authenticated
    async def get(self) -> None:
        """Where terminals are shown."""
        self.redirect(url_path_join(self.base_url, "lab"))


class EventsSocket(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """``GET /carrel/events``: a websocket with every state of lending, at once and after each change.

    No server-sent events: over HTTP/1.1 a browser has six connections to an origin, and each tab would keep one of them.
    """

    auth_resource = "events"
    _end: Callable[[], None] | None = None

    def set_default_headers(self) -> None:
        """None of those of a page."""

    @ws_authenticated
    async def get(self, *args: Any, **options: Any) -> None:
        """Shake hands."""
        await super().get(*args, **options)

    def open(self, *args: str, **options: str) -> None:
        """Begin."""
        super().open(*args, **options)
        lending: Lending = self.settings[_LENDING]
        self._end = lending.listen(self._tell)
        self._tell(lending.state())

    def on_message(self, message: str | bytes) -> None:
        """A page has nothing to say here."""

    def on_close(self) -> None:
        """Nobody looks any more."""
        super().on_close()
        if self._end is not None:
            self._end()
            self._end = None

    def _tell(self, news: Mapping[str, Any]) -> None:
        try:
            self.write_message(json.dumps(news))
        except WebSocketClosedError:
            self.on_close()


class RunSocket(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """``GET /carrel/outputs/<kernel>/<request>``: a websocket with one run of a cell, at once and as it changes, until it is over
    (``null``: it is not kept any more).

    It hears what the session heard of the kernel since the run began: a page that has just been opened may hear the kernel itself
    a moment too late, and a kernel that computes does not answer when it is asked.
    """

    auth_resource = "outputs"
    _end: Callable[[], None] | None = None
    _later: object | None = None
    _run: CellRun | None = None

    def set_default_headers(self) -> None:
        """None of those of a page."""

    @ws_authenticated
    async def get(self, *args: Any, **options: Any) -> None:
        """Shake hands. Answers 404 when there is no such kernel."""
        self._recall(options["kernel_id"])
        await super().get(*args, **options)

    def open(self, *args: str, **options: str) -> None:
        """Begin."""
        super().open(*args, **options)
        self._end = self._recall(options["kernel_id"]).listen(options["request"], self._heard)
        self._tell()

    def on_message(self, message: str | bytes) -> None:
        """A page has nothing to say here."""

    def on_close(self) -> None:
        """Nobody looks any more."""
        super().on_close()
        if self._end is not None:
            self._end()
            self._end = None

    def _recall(self, kernel_id: str) -> Recall:
        manager: SessionKernelManager = self.settings["kernel_manager"]
        return manager.recall(kernel_id)

    def _heard(self, run: CellRun | None) -> None:
        self._run = run
        if self._end is not None and self._later is None:
            self._later = IOLoop.current().call_later(_RUN_PAUSE, self._tell)

    def _tell(self) -> None:
        self._later = None
        try:
            self.write_message(json.dumps(None if self._run is None else self._run.show()))
            if self._run is None or not self._run.running:
                self.close()
        except WebSocketClosedError:
            self.on_close()


def _asked(body: Any, root: Path) -> Path:
    """Return the notebook that a body names; raise `Invalid`."""
    path = body.get("path") if isinstance(body, dict) else None
    if not isinstance(path, str) or not path or "\0" in path:
        raise Invalid("The request names no notebook.", remedy='Send {"path": "work.ipynb"}.')
    notebook = Path(os.path.normpath(root / path))
    if not notebook.is_relative_to(root) or notebook.suffix != ".ipynb" or not notebook.is_file():
        raise Invalid(f'"{path[:200]}" is not a notebook of this session.', remedy="Save it first.")
    return notebook


def listen_to_runner(notes: int, kernels: SessionKernelManager, lending: Lending) -> None:
    """From now on, tell people what the runner says of the session (`carrel.node.runner.session`)."""
    os.set_inheritable(notes, False)
    loop = IOLoop.current()
    ended_for_memory = kernels.hear_runner()

    def hear(notes: int, _events: int) -> None:
        # Its lines are shorter than what a pipe takes at once (pipe(7), PIPE_BUF).
        data = os.read(notes, 1 << 16)
        if not data:
            loop.remove_handler(notes)
        for line in data.splitlines():
            said = str(json.loads(line)["memory"])
            ended_for_memory(said)
            lending.notice("error", said)

    loop.add_handler(notes, hear, IOLoop.READ)


def add_handlers(app: Any) -> None:
    """Add the handlers to a notebook server."""
    session = SessionContext.read(os.environ)
    settings = app.web_app.settings
    # On a node of a cluster without a broker.
    keeps: dict[str, Any] = (
        {"why": "This node lends no GPUs: the session keeps what Slurm gave it until its end."} if session.address else {}
    )
    if session.address:
        keeps["attempt"] = session.address.parent
    settings[_LENDING] = Lending(session.broker, session.token, **keeps)
    settings[_FACTS] = SessionFacts(session, time.monotonic)
    if session.notes is not None:
        listen_to_runner(session.notes, settings["kernel_manager"], settings[_LENDING])
    places = {
        "activity": ActivityHandler,
        "status": StatusHandler,
        "session": SessionHandler,
        "events": EventsSocket,
        "promote": PromoteHandler,
        f"outputs/{_KERNEL}": OutputsHandler,
        f"outputs/{_KERNEL}/{_REQUEST}": RunSocket,
    }
    base = url_path_join(settings["base_url"], "carrel")
    added: list[tuple[str, type[JupyterHandler]]] = [(url_path_join(base, place), handler) for place, handler in places.items()]
    terminals = url_path_join(settings["base_url"], "terminals", r"\w+")
    settings[LISTENERS] = SessionListeners(pages_directory(session))
    programs = url_path_join(settings["base_url"], ROUTE)
    if session.kind is SessionKind.VSCODE:
        settings[CODE] = CodeServer(session, Path(settings["server_root_dir"]))
        added.append((url_path_join(settings["base_url"], "code"), CodePage))
    app.web_app.add_handlers(".*$", [*added, (terminals, TerminalPage), (programs, ProgramHandler)])
