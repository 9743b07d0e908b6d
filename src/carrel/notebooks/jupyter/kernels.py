"""Jupyter's kernel managers and websocket: kernels speak on private sockets, and what cells put out is remembered (`recall`)."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from jupyter_client.ioloop.restarter import AsyncIOLoopKernelRestarter
from jupyter_client.jsonutil import json_default
from jupyter_client.manager import KernelManager
from jupyter_client.session import DELIM, Session
from jupyter_server.services.kernels.connection.base import (
    deserialize_binary_message,
    deserialize_msg_from_ws_v1,
    serialize_msg_to_ws_v1,
)
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager, ServerKernelManager
from traitlets import default

from carrel.notebooks.jupyter.recall import Recall

#: Bytes of messages that are kept for a page that lost its connection; after that, outputs are kept by `recall` alone.
BUFFER_LIMIT = 64 * 1024**2
_OUTPUTS = frozenset({"stream", "display_data", "update_display_data", "execute_result"})
_BINARY_PROTOCOL = "v1.kernel.websocket.jupyter.org"
#: Longer ones are no requests of a person's.
_LONGEST_REQUEST = 4 * 1024**2
#: Seconds that a killed kernel waits for the runner's words: the runner looks every half second, later on a busy machine.
_WORDS = 3.0
#: Seconds after which the words are about something else: Jupyter looks after its kernels every three.
_FRESH = 30.0


class SessionRestarter(AsyncIOLoopKernelRestarter):
    """Starts a kernel that died again, once it is known why."""

    async def poll(self) -> None:  # type: ignore[override]
        """Look after the kernel."""
        kernel: Any = self.kernel_manager
        if not await kernel.is_alive() and await kernel.provisioner.poll() == -signal.SIGKILL:
            kernel.why_killed = await kernel.parent.why_killed()
        await super().poll()


class SessionKernel(ServerKernelManager):
    """One kernel. On ports, every other user of the machine could listen to what it puts out: that asks for no key."""

    restarter_class = SessionRestarter
    #: What the runner said of its end, until it is started again.
    why_killed = ""

    @default("transport")
    def _on_sockets(self) -> str:
        return "ipc"

    def _ip_default(self) -> str:
        # Beside the connection file, but not by its long name: a socket's path has 107 bytes at most (unix(7)).
        return str(Path(self.connection_file).with_name(secrets.token_hex(6)))


class SessionKernelManager(AsyncMappingKernelManager):
    """All kernels of a session."""

    @default("kernel_manager_class")
    def _private(self) -> str:
        return f"{__name__}.{SessionKernel.__name__}"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        # Of what kernels put out ZeroMQ drops nothing while this server is busy (`carrel_kernel` does the same at its end).
        self.context.rcvhwm = 0
        self._recalls: WeakKeyDictionary[KernelManager, Recall] = WeakKeyDictionary()
        self._streams: WeakKeyDictionary[KernelManager, Any] = WeakKeyDictionary()
        #: What the runner said last of a process that was ended for its memory, and when (monotonic). None: no runner speaks.
        self._said: asyncio.Queue[tuple[str, float]] | None = None
        self._last_words: WeakKeyDictionary[KernelManager, Sequence[tuple[str, Mapping[str, str]]]] = WeakKeyDictionary()

    def recall(self, kernel_id: str) -> Recall:
        """What the kernel's cells put out. Answers 404 when there is no such kernel."""
        self._check_kernel_id(kernel_id)  # type: ignore[no-untyped-call]
        return self._recalls.setdefault(self.get_kernel(kernel_id), Recall())

    def start_watching_activity(self, kernel_id: str) -> None:
        """Beside what Jupyter does, listen to what cells put out."""
        super().start_watching_activity(kernel_id)  # type: ignore[no-untyped-call]
        kernel: Any = self.get_kernel(kernel_id)
        recall = self.recall(kernel_id)
        recall.restarted(time.time())
        session = Session(config=kernel.session.config, key=kernel.session.key)

        def listen(parts: list[bytes]) -> None:
            _idents, message_parts = session.feed_identities(parts)
            try:
                message = session.deserialize(message_parts)
            except ValueError as error:
                self.log.warning("A message of kernel %s cannot be read: %s", kernel_id, error)
                return
            request = (message.get("parent_header") or {}).get("msg_id", "")
            recall.heard(message["header"]["msg_type"], request, message["content"], sum(map(len, message_parts)), time.time())

        stream = self._streams[kernel] = kernel.connect_iopub()
        stream.on_recv(listen)
        # A kernel that died and was started again keeps its ports: nothing else tells.
        self.add_restart_callback(kernel_id, lambda: self._died(kernel_id), "restart")

    def hear_runner(self) -> Callable[[str], None]:
        """Return what the runner's words are given to when a process was ended for its memory."""
        words = self._said = asyncio.Queue(maxsize=1)

        def hear(why: str) -> None:
            if words.full():
                words.get_nowait()
            words.put_nowait((why, time.monotonic()))

        return hear

    async def why_killed(self) -> str:
        """Return what the runner said of a kernel that was killed just now, or says soon; "" when it says nothing."""
        if self._said is None:
            return ""
        with suppress(TimeoutError):
            while True:
                why, at = await asyncio.wait_for(self._said.get(), _WORDS)
                if time.monotonic() - at <= _FRESH:
                    return why
        return ""

    def _died(self, kernel_id: str) -> None:
        """The kernel is gone, and is about to be started again: in the cells that it ran is said why."""
        kernel: Any = self.get_kernel(kernel_id)
        recall = self.recall(kernel_id)
        why, kernel.why_killed = kernel.why_killed, ""
        stream = {"name": "stderr", "text": f"[carrel] This kernel is gone. {why}\n"}
        words = [(run.request, stream) for run in recall.runs() if run.running and why]
        self._last_words[kernel] = words
        for request, content in words:
            recall.heard("stream", request, content, 0, time.time())
        recall.restarted(time.time())

    def last_words(self, kernel_id: str) -> Sequence[tuple[str, Mapping[str, str]]]:
        """Return what is said of a kernel that died, by the requests that it had: contents of streams."""
        return self._last_words.get(self.get_kernel(kernel_id), ())

    async def _async_restart_kernel(self, kernel_id: str, now: bool = False) -> Any:
        """Somebody wants a fresh one."""
        self.recall(kernel_id).restarted(time.time())
        return await super()._async_restart_kernel(kernel_id, now=now)  # type: ignore[no-untyped-call]

    restart_kernel = _async_restart_kernel  # type: ignore[assignment]

    def stop_watching_activity(self, kernel_id: str) -> None:
        """The kernel ends, or gets other ports."""
        super().stop_watching_activity(kernel_id)  # type: ignore[no-untyped-call]
        stream = self._streams.pop(self.get_kernel(kernel_id), None)
        if stream is not None and not stream.closed():
            stream.close()

    def start_buffering(self, kernel_id: str, session_key: str, channels: dict[str, Any]) -> None:
        """As Jupyter does it, but never more than `BUFFER_LIMIT`."""
        super().start_buffering(kernel_id, session_key, channels)  # type: ignore[no-untyped-call]
        if kernel_id in self._kernel_buffers:
            self._kernel_buffers[kernel_id]["buffer"] = BoundedBuffer()


class BoundedBuffer(list[tuple[str, Sequence[bytes]]]):
    """Jupyter's list of (channel, parts of a message): when it is full, outputs are left out, and everything else is kept."""

    def __init__(self, limit: int = BUFFER_LIMIT) -> None:
        super().__init__()
        self._left = limit

    def append(self, message: tuple[str, Sequence[bytes]]) -> None:
        """Keep a message, unless it is an output and there is no room."""
        channel, parts = message
        self._left -= sum(map(len, parts))
        if self._left < 0 and channel == "iopub" and _kind(parts) in _OUTPUTS:
            return
        super().append(message)


def _kind(parts: Sequence[bytes]) -> str:
    """The type of a message on the wire: after the delimiter come the signature and the header."""
    try:
        header = json.loads(bytes(parts[list(parts).index(DELIM) + 2]))
    except (ValueError, IndexError):
        return ""
    return str(header.get("msg_type", ""))


class SessionConnection(ZMQChannelsWebsocketConnection):
    """One page's websocket to a kernel: tells `recall` which cell a request is about, which no answer of the kernel's says."""

    def handle_incoming_message(self, incoming_msg: Any) -> None:
        """A message from the page."""
        if len(incoming_msg) <= _LONGEST_REQUEST:
            try:
                self._notice(incoming_msg)
            except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
                self.log.debug("Not a message that can be understood: %s", error)
        super().handle_incoming_message(incoming_msg)

    def on_kernel_restarted(self) -> None:
        """Before the page hears that the kernel died and forgets what it waits for, the cell says why."""
        for request, content in self.multi_kernel_manager.last_words(self.kernel_id):
            parent = {"msg_id": request, "session": "", "msg_type": "execute_request", "username": "", "version": "5.3"}
            message = self.session.msg("stream", content, parent=parent)
            if self.subprotocol == _BINARY_PROTOCOL:
                self.write_message(serialize_msg_to_ws_v1(message, "iopub", self.session.pack), binary=True)  # type: ignore[no-untyped-call]
            else:
                self.write_message(json.dumps({**message, "channel": "iopub"}, default=json_default))
        super().on_kernel_restarted()  # type: ignore[no-untyped-call]

    def _notice(self, incoming: Any) -> None:
        if self.subprotocol == _BINARY_PROTOCOL:
            channel, parts = deserialize_msg_from_ws_v1(incoming)  # type: ignore[no-untyped-call]
            if channel != "shell":
                return
            header = json.loads(bytes(parts[0]))
            if header["msg_type"] != "execute_request":
                return
            metadata, content = json.loads(bytes(parts[2])), json.loads(bytes(parts[3]))
        else:
            binary = isinstance(incoming, bytes)
            message = deserialize_binary_message(incoming) if binary else json.loads(incoming)  # type: ignore[no-untyped-call]
            header, metadata, content = message["header"], message.get("metadata") or {}, message.get("content") or {}
        cell = metadata.get("cellId")
        if header["msg_type"] == "execute_request" and isinstance(cell, str) and cell and not content.get("silent"):
            recall: Recall = self.multi_kernel_manager.recall(self.kernel_id)
            client = str(header.get("session", ""))
            recall.requested(str(header["msg_id"]), cell, str(content["code"]), time.time(), client)
