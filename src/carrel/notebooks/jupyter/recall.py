"""What cells put out, kept for a page that was not there when they did.

A page that only lost its connection gets what it missed from Jupyter's own buffer, but for what was on its way when the
connection broke: that it asks for here. A page that is opened anew has another session id and gets nothing from Jupyter; it asks
for the outputs of the last run of each cell. Kept in memory, with a limit, as long as the kernel lives. The messages are those of
https://jupyter-client.readthedocs.io/en/stable/messaging.html, the outputs those of the notebook format, version 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

#: Bytes of outputs that are kept of one cell, and of all cells of one kernel.
CELL_LIMIT = 8 * 1024**2
KERNEL_LIMIT = 64 * 1024**2

Output = dict[str, Any]
#: Told of each change of a run; None when the run is not kept any more.
RunListener = Callable[["CellRun | None"], None]
#: Under this name an output remembers its display id; it is not part of the notebook format.
_DISPLAY = "_display"
_NOTE = "\n[The rest of this output was made while no page was connected and is more than the session keeps: {limit} MiB.]\n"


@dataclass(slots=True)
class StreamText:
    """What was written to one stream, without what carriage returns write over: a progress bar is one line and not thousands."""

    name: str
    size: int = 0
    _lines: list[str] = field(default_factory=list)
    #: Pieces of the line that is being written.
    _line: list[str] = field(default_factory=list)

    def add(self, text: str) -> Self:
        """Write."""
        self.size += len(text)
        if "\r" in text or (self._line and self._line[-1].endswith("\r")):
            before = "".join(self._line)
            self.size -= len(before) + len(text)
            text, self._line = _shown(before + text), []
            self.size += len(text)
        head, newline, rest = text.rpartition("\n")
        if newline:
            self._lines += [*self._line, head, newline]
            self._line = []
        if rest:
            self._line.append(rest)
        return self

    def show(self) -> Output:
        """As an output."""
        return {"output_type": "stream", "name": self.name, "text": "".join([*self._lines, *self._line])}


def _shown(text: str) -> str:
    """Of each line what comes after its last carriage return; one at its very end waits for what follows."""
    lines = text.split("\n")
    shown = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
    return "\n".join(shown) + ("\r" if lines[-1].endswith("\r") else "")


@dataclass(slots=True)
class CellRun:
    """The last run of one cell."""

    cell: str
    code: str
    #: Id of the execute_request, and of the page's connection that sent it.
    request: str
    client: str
    #: Unix seconds of the last message about it.
    changed: float
    running: bool = True
    execution_count: int | None = None
    outputs: list[Output | StreamText] = field(default_factory=list)
    size: int = 0
    full: bool = False
    #: The next output takes the place of all (clear_output with wait).
    clearing: bool = False

    def show(self) -> Mapping[str, Any]:
        """For the page."""
        return {
            "cell": self.cell,
            "code": self.code,
            "request": self.request,
            "client": self.client,
            "changed": self.changed,
            "running": self.running,
            "complete": not self.full,
            "execution_count": self.execution_count,
            "outputs": [_plain(output) for output in self.outputs],
        }


def _plain(output: Output | StreamText) -> Output:
    if isinstance(output, StreamText):
        return output.show()
    return {name: value for name, value in output.items() if name != _DISPLAY}


class Recall:
    """The outputs of one kernel's cells."""

    def __init__(self, *, cell_limit: int = CELL_LIMIT, kernel_limit: int = KERNEL_LIMIT) -> None:
        self._cell_limit = cell_limit
        self._kernel_limit = kernel_limit
        #: By cell, the one that was run longest ago first.
        self._runs: dict[str, CellRun] = {}
        self._by_request: dict[str, CellRun] = {}
        self._listeners: dict[str, set[RunListener]] = {}
        self._size = 0

    def requested(self, request: str, cell: str, code: str, now: float, client: str = "") -> None:
        """A page asks for a cell to be run. What is known of its last run is forgotten."""
        if cell in self._runs:
            self._forget(self._runs[cell])
        run = CellRun(cell=cell, code=code, request=request, client=client, changed=now)
        self._runs[cell] = self._by_request[request] = run

    def heard(self, kind: str, request: str, content: Mapping[str, Any], size: int, now: float) -> None:
        """The kernel says something on IOPub about a request; `size` is the length of the content in bytes."""
        if kind == "update_display_data":
            self._update_display(content, now)
            return
        run = self._by_request.get(request)
        if run is None:
            return
        self._say(run, kind, content, size)
        self._changed(run, now)

    def _say(self, run: CellRun, kind: str, content: Mapping[str, Any], size: int) -> None:
        if kind == "status":
            run.running = content.get("execution_state") != "idle"
        elif kind == "execute_input":
            run.execution_count = content.get("execution_count")
        elif kind == "clear_output":
            self._clear(run, wait=bool(content.get("wait")))
        elif kind == "stream":
            self._write(run, content["name"], content["text"])
        elif kind in _MAKERS:
            self._add(run, _MAKERS[kind](content), size)

    def restarted(self, now: float) -> None:
        """The kernel is a new one: what ran will not go on."""
        for run in self._runs.values():
            if run.running:
                run.running = False
                self._changed(run, now)

    def listen(self, request: str, listener: RunListener) -> Callable[[], None]:
        """Tell `listener` of the run of this request, now and after each change. Return what ends that."""
        self._listeners.setdefault(request, set()).add(listener)

        def end() -> None:
            listeners = self._listeners.get(request, set())
            listeners.discard(listener)
            if not listeners:
                self._listeners.pop(request, None)

        listener(self._by_request.get(request))
        return end

    def _changed(self, run: CellRun, now: float) -> None:
        run.changed = now
        for listener in tuple(self._listeners.get(run.request, ())):
            listener(run)

    def runs(self) -> Sequence[CellRun]:
        """What is kept, the oldest first."""
        return tuple(self._runs.values())

    def _forget(self, run: CellRun) -> None:
        del self._runs[run.cell]
        self._by_request.pop(run.request, None)
        self._size -= run.size
        for listener in tuple(self._listeners.get(run.request, ())):
            listener(None)

    def _clear(self, run: CellRun, *, wait: bool) -> None:
        if wait:
            run.clearing = True
        else:
            self._size -= run.size
            run.outputs, run.size, run.full, run.clearing = [], 0, False, False

    def _write(self, run: CellRun, name: str, text: str) -> None:
        last = run.outputs[-1] if run.outputs and not run.clearing else None
        if not isinstance(last, StreamText) or last.name != name:
            self._add(run, StreamText(name), 0)
            last = run.outputs[-1]
        if not run.full and isinstance(last, StreamText):
            before = last.size
            self._grown(run, last.add(text).size - before)

    def _add(self, run: CellRun, output: Output | StreamText, size: int) -> None:
        if run.clearing:
            self._clear(run, wait=False)
        if not run.full:
            run.outputs.append(output)
            self._grown(run, size)

    def _grown(self, run: CellRun, size: int) -> None:
        run.size += size
        self._size += size
        if run.size > self._cell_limit:
            run.full = True
            run.outputs.append(StreamText("stderr").add(_NOTE.format(limit=self._cell_limit // 1024**2)))
        if self._size > self._kernel_limit:
            for old in [old for old in self._runs.values() if old is not run and not old.running]:
                self._forget(old)
                if self._size <= self._kernel_limit:
                    return

    def _update_display(self, content: Mapping[str, Any], now: float) -> None:
        display = (content.get("transient") or {}).get("display_id")
        if not display:
            return
        for run in self._runs.values():
            found = [one for one in run.outputs if not isinstance(one, StreamText) and one.get(_DISPLAY) == display]
            for output in found:
                output["data"], output["metadata"] = content["data"], content.get("metadata") or {}
            if found:
                self._changed(run, now)


def _display(content: Mapping[str, Any]) -> Output:
    output: Output = {"output_type": "display_data", "data": content["data"], "metadata": content.get("metadata") or {}}
    display = (content.get("transient") or {}).get("display_id")
    return {**output, _DISPLAY: display} if display else output


def _result(content: Mapping[str, Any]) -> Output:
    return {**_display(content), "output_type": "execute_result", "execution_count": content.get("execution_count")}


def _error(content: Mapping[str, Any]) -> Output:
    return {
        "output_type": "error",
        "ename": content.get("ename", ""),
        "evalue": content.get("evalue", ""),
        "traceback": list(content.get("traceback") or ()),
    }


_MAKERS = {"display_data": _display, "execute_result": _result, "error": _error}
