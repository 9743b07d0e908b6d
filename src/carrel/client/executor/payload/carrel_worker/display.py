"""What a cell shows: bundles of MIME types, as Jupyter's `display_data` has them (jupyter_client, "Messaging in Jupyter")."""

from __future__ import annotations

import base64
import json
import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any

#: Methods of objects that give one representation (IPython, "Rich display"), and those that are bytes.
_METHODS = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "text/latex": "_repr_latex_",
    "application/json": "_repr_json_",
    "application/javascript": "_repr_javascript_",
}
_BINARY = ("image/png", "image/jpeg", "application/pdf")
#: Bytes of messages that are kept for the end of a call, in case they did not arrive while it ran.
_KEPT = 64 * 1024 * 1024
#: Bytes of a message that are passed on at once; pieces with more behind them begin with "+".
_LIVE = 512 * 1024


class Screen:
    """Where a call shows things. Its messages are numbered."""

    def __init__(self, send: Callable[[int, bytes], None] | None) -> None:
        self._send = send
        #: Messages for the end of the call; a last one stands for those that are not kept.
        self.messages: list[dict[str, Any]] = []
        self._number = self._size = 0
        self._guard = threading.Lock()

    def put(self, message: dict[str, Any]) -> None:
        """Show it now. Any thread may call this."""
        with self._guard:
            self._put(message)

    def _put(self, message: dict[str, Any]) -> None:
        number, self._number = self._number, self._number + 1
        data = json.dumps(message).encode()
        self._size += len(data)
        if self._size <= _KEPT:
            self.messages.append(message)
        elif self._size - len(data) <= _KEPT:
            text = "[carrel: not all that was shown came here, and more was shown than is kept of a call]"
            self.messages.append({"kind": "note", "data": {"text/plain": text}, "until": self._number})
        else:
            self.messages[-1]["until"] = self._number
        if self._send is not None:
            while len(data) > _LIVE:
                self._send(number, b"+" + data[:_LIVE])
                data = data[_LIVE:]
            self._send(number, data)


#: The screen of the call that runs; None between calls, and for calls that nobody watches.
screen: Screen | None = None
#: Passes a message on while a call runs; the worker sets it.
send: Callable[[int, bytes], None] | None = None
#: Returns when what was shown and printed has arrived; the worker sets it.
flush: Callable[[], None] | None = None


def bundle(thing: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the representations of a thing by MIME type, and their metadata."""
    data: dict[str, Any] = {"text/plain": _text(thing)}
    metadata: dict[str, Any] = {}
    if isinstance(thing, type):
        return data, metadata
    for mime, method in _METHODS.items():
        _add(data, metadata, mime, _called(thing, method))
    found = _called(thing, "_repr_mimebundle_", include=None, exclude=None)
    if found is not None:
        parts, more = found if isinstance(found, tuple) else (found, {})
        for mime, value in parts.items():
            _add(data, metadata, mime, value)
        metadata.update(more)
    if "image/png" not in data and (figure := _figure(thing)) is not None:
        data["image/png"] = figure
    return data, metadata


def _text(thing: Any) -> str:
    from pprint import pformat

    try:
        return pformat(thing, width=79, compact=True) if isinstance(thing, (dict, list, tuple, set)) else repr(thing)
    except Exception as error:
        return "<{}: its repr raises {!r}>".format(type(thing).__name__, error)


def _called(thing: Any, method: str, **arguments: Any) -> Any:
    function = getattr(thing, method, None)
    if not callable(function):
        return None
    try:
        return function(**arguments)
    except Exception:  # a representation that fails is none, as in IPython
        return None


def _add(data: dict[str, Any], metadata: dict[str, Any], mime: str, value: Any) -> None:
    if isinstance(value, tuple) and len(value) == 2 and mime in _METHODS:
        value, metadata[mime] = value
    if value is None:
        return
    if isinstance(value, bytes):
        value = base64.b64encode(value).decode() if mime in _BINARY else value.decode("utf-8", "replace")
    data[mime] = value


def _figure(thing: Any) -> str | None:
    """A figure of matplotlib as PNG, as its inline backend shows it; None for anything else."""
    module = sys.modules.get("matplotlib.figure")
    if module is None or not isinstance(thing, module.Figure):
        return None
    import io

    file = io.BytesIO()
    thing.savefig(file, format="png", bbox_inches="tight")
    return base64.b64encode(file.getvalue()).decode()


class Handle:
    """What `display(…, display_id=True)` returns."""

    def __init__(self, display_id: str) -> None:
        self.display_id = display_id

    def display(self, thing: Any, **_options: Any) -> None:
        """Show it once more, under this name."""
        display(thing, display_id=self.display_id)

    def update(self, thing: Any, **_options: Any) -> None:
        """Show another thing in its place."""
        display(thing, display_id=self.display_id, update=True)


def display(
    *things: Any, display_id: Any = None, update: bool = False, raw: bool = False, metadata: Any = None, **_options: Any
) -> Handle | None:
    """`IPython.display.display` of a remote cell."""
    name = uuid.uuid4().hex if display_id is True else display_id
    for thing in things:
        data, more = (thing, {}) if raw else bundle(thing)
        publish(data, {**more, **(metadata or {})}, display_id=name, update=update)
    return Handle(name) if name else None


def publish(data: Any, metadata: Any = None, *, display_id: Any = None, update: bool = False, **options: Any) -> None:
    """`IPython.display.publish_display_data` of a remote cell."""
    name = display_id or (options.get("transient") or {}).get("display_id")
    if screen is None:
        print(data.get("text/plain", ""))
        return
    put({"kind": "update" if update else "display", "data": data, "metadata": metadata or {}, "display_id": name})


def clear_output(wait: bool = False) -> None:
    """`IPython.display.clear_output` of a remote cell."""
    put({"kind": "clear", "wait": bool(wait)})


def put(message: dict[str, Any]) -> None:
    """Send a message to the caller's notebook, if somebody watches."""
    if screen is not None:
        screen.put(json.loads(json.dumps(message, default=_as_text)))


def _as_text(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
