"""A kernel in a process of its own, spoken to as Jupyter does (jupyter_client), for tests and benchmarks of the kernel hook."""

from __future__ import annotations

import os
import queue
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

from carrel.notebooks.hook.kernelspec import kernel_spec
from carrel.testing.waiting import PATIENCE


@dataclass(slots=True)
class Ran:
    """What a cell left."""

    status: str = ""
    error: str = ""
    #: Streams and results, in order.
    text: str = ""
    stderr: str = ""
    #: Texts of displays by their id, as they were last; and all texts that were ever shown, in order.
    displays: dict[str, str] = field(default_factory=dict)
    shown: list[str] = field(default_factory=list)
    #: What the page got, but for its state: (type of the message, content), in order; and what the reply wants of the page.
    messages: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    payload: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0


class TestKernel:
    """One kernel. `hooked` false: the environment's own ipykernel, with nothing of ours."""

    __test__ = False

    def __init__(
        self,
        *,
        hooked: bool = True,
        python: Path = Path(sys.executable),
        variables: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        spec = dict(kernel_spec([str(python)], "test"))
        argv = spec["argv"] if hooked else [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        # Sockets in the file system: no port is taken, and nothing of the kernel can be seen from outside.
        self._place = tempfile.TemporaryDirectory(prefix="ck-")
        self._manager = KernelManager(
            transport="ipc", ip=f"{self._place.name}/k", connection_file=f"{self._place.name}/kernel-test.json"
        )
        self._manager._kernel_spec = KernelSpec(argv=list(argv), env=dict(spec["env"]) if hooked else {}, language="python")
        environ = {name: value for name, value in os.environ.items() if not name.startswith("CARREL_")}
        environ |= {"IPYTHONDIR": f"{self._place.name}/ipython", **(variables or {})}
        Path(environ["IPYTHONDIR"]).mkdir()
        self._manager.start_kernel(env=environ, cwd=str(directory or self._place.name))
        self.client: BlockingKernelClient = self._manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Of the kernel's process."""
        return int(self._manager.provisioner.process.pid)  # type: ignore[union-attr]

    def close(self) -> None:
        """End the kernel at once."""
        self.client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._place.cleanup()

    def interrupt(self) -> None:
        """What the stop button does."""
        self._manager.interrupt_kernel()

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)

    def tell(self, kind: str, **content: Any) -> str:
        """Send any request or message on the shell channel; return its id."""
        message = self.client.session.msg(kind, content)
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def send(self, code: str, *, tags: list[str] | None = None, silent: bool = False, stdin: bool = False) -> str:
        """Ask for a cell to be run, by a page that answers questions (`stdin`) or not; return the id of the request."""
        content = {
            "code": code,
            "silent": silent,
            "store_history": not silent,
            "user_expressions": {},
            "allow_stdin": stdin,
            "stop_on_error": True,
        }
        message = self.client.session.msg("execute_request", content, metadata={"tags": tags or []})
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def run(self, code: str, *, tags: list[str] | None = None, seconds: float = PATIENCE, silent: bool = False) -> Ran:
        """Run a cell to its end."""
        return self.result(self.send(code, tags=tags, silent=silent), seconds=seconds)

    def question(self, *, seconds: float = PATIENCE) -> str:
        """The prompt of the next question that a cell asks the user."""
        return str(self.client.get_stdin_msg(timeout=seconds)["content"]["prompt"])

    def answer(self, text: str) -> None:
        """What the user types."""
        self.client.input(text)

    def result(self, message_id: str, *, seconds: float = PATIENCE, until: Callable[[Ran], bool] | None = None) -> Ran:
        """Wait for the end of a cell, or until `until` is true of what it has left so far. Raises `TimeoutError`."""
        began, found, idle = time.monotonic(), Ran(), False
        while not idle:
            left = began + seconds - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"the cell has not ended after {seconds:g} s; so far {found}")
            try:
                message = self.client.get_iopub_msg(timeout=left)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != message_id:
                continue
            idle = _add(found, message)
            if until is not None and until(found):
                found.seconds = time.monotonic() - began
                return found
        reply = self._reply(message_id, began + seconds)
        found.status = reply["status"]
        found.error = found.error or reply.get("ename", "")
        found.payload = list(reply.get("payload") or ())
        found.seconds = time.monotonic() - began
        return found

    def _reply(self, message_id: str, deadline: float) -> Mapping[str, Any]:
        while True:
            reply = self.client.get_shell_msg(timeout=max(0.1, deadline - time.monotonic()))
            if reply["parent_header"].get("msg_id") == message_id:
                content: Mapping[str, Any] = reply["content"]
                return content


def _add(found: Ran, message: Mapping[str, Any]) -> bool:
    """Add one message of the iopub channel; return whether the kernel is done."""
    kind, content = message["header"]["msg_type"], message["content"]
    if kind != "status":
        found.messages.append((kind, content))
    if kind == "stream":
        if content["name"] == "stderr":
            found.stderr += content["text"]
        found.text += content["text"]
    elif kind in ("execute_result", "display_data", "update_display_data"):
        text = str(content["data"].get("text/plain", ""))
        display = (content.get("transient") or {}).get("display_id")
        found.shown.append(text)
        if display:
            found.displays[display] = text
        else:
            found.text += text + "\n"
    elif kind == "error":
        found.error = content["ename"]
        found.text += "\n".join(content["traceback"])
    return bool(kind == "status" and content["execution_state"] == "idle")
