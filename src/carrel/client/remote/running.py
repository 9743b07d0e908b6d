"""Runs a cell, or a function, in a pool, and gives what came of it."""

from __future__ import annotations

import codecs
import contextlib
import json
import linecache
import queue
import sys
import time
import uuid
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from carrel.client.executor import Executor, Future
from carrel.client.executor.progress import why_no_worker
from carrel.client.executor.receiving import would_end
from carrel.client.remote.failures import Names, plain, raised
from carrel.client.remote.packing import There, load_parts, named, pack
from carrel.core.domain.errors import CarrelError, Conflict

#: Seconds before a wait is explained, and between two looks at its reason.
_PATIENCE, _LOOK = 2.0, 2.0


def notebook_shell() -> Any:
    """IPython's shell of this process, or None."""
    module = sys.modules.get("IPython.core.getipython")
    return module.get_ipython() if module is not None else None


class Screen:
    """Shows messages of `carrel_worker.display`: in the notebook, or as text where there is none."""

    def __init__(self) -> None:
        self._shell = notebook_shell()
        #: An error that the cell has shown, and what it has shown since: if it ends with that one, IPython shows it.
        self._held: list[dict[str, Any]] = []
        self._comms: dict[str, Any] = {}

    @property
    def is_notebook(self) -> bool:
        """False where only text can be shown."""
        return self._shell is not None

    def put(self, message: dict[str, Any]) -> None:
        """Show one message."""
        if message["kind"] == "error":
            self.end()
            self._held.append(message)
        elif self._held:
            self._held.append(message)
        else:
            self._show(message)

    def end(self) -> None:
        """Show what was held back."""
        held, self._held = self._held, []
        for message in held:
            self._show(message)

    def failed(self) -> list[str] | None:
        """Return the lines of the error with which the cell ends; what was shown after it follows it. None: it shows no error."""
        if not self._held:
            return None
        error = self._held.pop(0)
        if self._held:
            self._shell.events.register("post_execute", self._after_error)
        lines: list[str] = error["lines"]
        return lines

    def _after_error(self) -> None:
        self._shell.events.unregister("post_execute", self._after_error)
        self.end()

    def _show(self, message: dict[str, Any]) -> None:
        kind, data = message["kind"], message.get("data", {})
        if self._shell is None:
            if "text/plain" in data:
                print(data["text/plain"], flush=True)
        elif kind == "clear":
            self._shell.display_pub.clear_output(wait=message["wait"])
        elif kind == "result":
            self._shell.displayhook(Shown(data, message["metadata"]))
        elif kind == "error":
            self._shell._showtraceback(type(message["name"], (Exception,), {}), message["words"], message["lines"])
            if message["fails"]:  # as ipykernel remembers it
                self._shell._last_traceback_during_displayhook = True
        elif kind.startswith("comm_"):
            if getattr(self._shell, "kernel", None) is not None:
                self._show_comm(kind, message)
        else:
            name = message.get("display_id")
            self._shell.display_pub.publish(
                data=data,
                metadata=message.get("metadata") or {},
                transient={"display_id": name} if name else {},
                update=kind == "update",
            )

    def _show_comm(self, kind: str, message: dict[str, Any]) -> None:
        """Speak with the page in the place of a widget."""
        import comm

        name, keys = message["comm_id"], message["keys"]
        rest = {
            "data": message["data"],
            "metadata": message["metadata"],
            "buffers": [b64decode(one) for one in message["buffers"]],
        }
        if kind == "comm_open":
            self._comms[name] = comm.create_comm(comm_id=name, **keys, **rest)
        elif name in self._comms:
            self._comms[name].publish_msg(kind, **keys, **rest)


class Shown:
    """The value of a remote cell's last expression, as it was shown there; the value itself comes back by `as=`."""

    def __init__(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        self._data, self._metadata = data, metadata

    def __repr__(self) -> str:
        return str(self._data.get("text/plain", ""))

    def _repr_mimebundle_(self, **_options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._data, self._metadata


class Line:
    """One line that says what is waited for, and changes in its place."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._name = uuid.uuid4().hex
        self._last = ""

    def show(self, text: str) -> None:
        """Say it, if it is news."""
        if text != self._last:
            kind = "update" if self._last else "display"
            self._last = text
            if self._screen.is_notebook:
                self._screen.put({"kind": kind, "data": {"text/plain": text}, "display_id": self._name})
            else:
                print(f"carrel: {text}", file=sys.stderr, flush=True)

    def end(self, text: str) -> None:
        """The wait is over; nothing is said about one that was too short to be shown."""
        if self._last and not self._last.startswith("waited"):
            self.show(text)


class Watch:
    """Waits for one call, and shows what it prints and shows while it runs. An interrupt here is an interrupt there."""

    def __init__(self, executor: Executor, screen: Screen) -> None:
        self._executor = executor
        self._screen = screen
        self._news: queue.SimpleQueue[tuple[str, int, bytes]] = queue.SimpleQueue()
        self._texts = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        self._shown: set[int] = set()
        #: Of messages that have not come as a whole.
        self._pieces: dict[int, list[bytes]] = {}
        self._line = Line(screen)
        self._interrupted = False
        #: It may wait for a GPU after a worker has taken it.
        self._borrows = executor.borrows > 0

    def call(self, function: Any, *arguments: Any) -> dict[str, Any]:
        """Call it, and return its outcome (`carrel_worker.cells`). Raises what keeps it from having one."""
        future: Future[Any] = self._executor.submit_heard(lambda *news: self._news.put(news), function, *arguments)
        future.add_done_callback(lambda _: self._news.put(("done", 0, b"")))
        began = time.monotonic()
        while True:
            try:
                self._follow(future, began)
                break
            except KeyboardInterrupt:
                self._interrupt(future)
        if future.cancelled():
            raise plain(KeyboardInterrupt("the call was cancelled before it began"))
        if isinstance(future.exception(), KeyboardInterrupt):  # one that has begun has an outcome
            raise plain(KeyboardInterrupt("the call was interrupted while it waited for a GPU; it did not begin"))
        outcome: dict[str, Any] = future.result()
        for number, message in enumerate(outcome["shown"]):
            if not self._shown.issuperset(range(number, message.get("until", number + 1))):
                self._screen.put(message)
        return outcome

    def _follow(self, future: Future[Any], began: float) -> None:
        while True:
            waits = future.job_id is None or self._borrows
            try:
                kind, number, data = self._news.get(timeout=_LOOK if waits else 60.0)
            except queue.Empty:
                if waits and time.monotonic() - began >= _PATIENCE:
                    self._explain(future, began)
                continue
            self._borrows = False  # it computes, or is over
            if future.job_id is not None:
                self._over(future, began)
            if kind == "done":
                return
            self._hear(kind, number, data)

    def _hear(self, kind: str, number: int, data: bytes) -> None:
        if kind == "display":
            self._hear_shown(number, data)
            return
        stream = sys.stdout if kind == "stdout" else sys.stderr
        stream.write(self._texts[kind].decode(data))
        stream.flush()

    def _hear_shown(self, number: int, data: bytes) -> None:
        if number in self._shown:  # who follows anew hears it again
            return
        if data[:1] == b"+":
            self._pieces.setdefault(number, []).append(data[1:])
            return
        with contextlib.suppress(ValueError):  # a piece was lost on the way; the end of the call has all of it
            self._screen.put(json.loads(b"".join([*self._pieces.pop(number, []), data])))
            self._shown.add(number)

    def _over(self, future: Future[Any], began: float) -> None:
        self._line.end(f"waited {time.monotonic() - began:.0f} s; runs in job {future.job_id}")

    def _explain(self, future: Future[Any], began: float) -> None:
        if future.job_id is None:
            self._line.show(why_no_worker(self._executor.client, self._executor.pool_id))
            return
        try:
            message = self._executor.client.call(future.call_id).message
        except CarrelError:
            return
        self._borrows = bool(message)
        if message:
            self._line.show(f"waiting: {message}")
        else:
            self._over(future, began)

    def _interrupt(self, future: Future[Any]) -> None:
        """The first time the call is interrupted; the second time it is not waited for any more."""
        if self._interrupted or future.done():
            words = f"not waited for any more; the call may go on: `carrel pool close {self._executor.pool_id}` ends its pool"
            raise plain(KeyboardInterrupt(words)) from None
        self._interrupted = True
        try:
            self._executor.client.interrupt_call(future.call_id)
        except Conflict:
            return


def run_cell(executor: Executor, order: dict[str, Any], variables: dict[str, Any], whole: Any, label: str) -> dict[str, Any]:
    """Run the source in `order` there; return its outcome, with `back` as it was made. Raises what the cell raises."""
    parts = pack(whole, variables, order["limit"])
    order["sources"] = _sources(parts)
    return _run(executor, There("cells", "cell", label), order, parts)


def _sources(parts: list[Any]) -> dict[str, tuple[int, str]]:
    """Number and text of the notebook's cells whose functions are in there: tracebacks and `inspect` show their lines."""
    names: dict[str, int] = getattr(notebook_shell().compile, "_filename_map", {})
    pickled = bytes(parts[1].raw())  # what follows are arrays
    return {name: (number, "".join(linecache.getlines(name))) for name, number in names.items() if name.encode() in pickled}


def call_function(
    executor: Executor, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], limit: int
) -> Any:
    """Call `function` there; return its result."""
    label = named(function)
    inside: dict[str, Any] = {label: function, **{f"argument {n}": one for n, one in enumerate(args, 1)}, **kwargs}
    parts = pack((function, args, kwargs), inside, limit, what=f"function {label} and its arguments")
    return _run(executor, There("cells", "call", label), {"limit": limit}, parts)["back"]


def _run(executor: Executor, there: There, order: dict[str, Any], parts: list[Any]) -> dict[str, Any]:
    screen = Screen()
    with contextlib.suppress(OSError):  # it was removed
        order["directory"] = str(Path.cwd())
    outcome = Watch(executor, screen).call(there, order, parts)
    if outcome["error"] is not None and outcome["error"]["shown"]:
        raise raised(outcome, cell_names(), screen.failed())
    screen.end()
    if outcome["error"] is not None:
        raise raised(outcome, cell_names())
    try:
        outcome["back"] = load_parts(outcome["back"])
    except SystemExit as error:
        raise would_end(error) from error
    return outcome


def cell_names() -> Names:
    """How the notebook names the files of its cells."""
    shell = notebook_shell()

    def name(filename: str) -> str | None:
        try:
            found = shell.compile.format_code_name(filename)
        except AttributeError:  # no shell, or an older one
            return None
        return " ".join(found) if found else None

    return name
