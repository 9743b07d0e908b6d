"""Runs a notebook from its first cell to its last, as papermill does. `carrel promote` put this file here.

    python notebook_runner.py NOTEBOOK [--NAME=VALUE ...]

* The values go into a cell with the tag ``injected-parameters`` behind the one with the tag ``parameters``, or to the top where
  there is none (papermill's documentation, "Parameterize").
* The executed notebook is outputs/executed.ipynb. It is written after every cell and while one runs, so that a task that is
  stopped leaves what it had done. Pictures that cells show are in outputs/figures too.
* The first error ends the run with exit code 1, ``sys.exit(N)`` and ``exit(N)`` with N. When the kernel dies, its exit code is
  the runner's; 128 and the number of the signal that ended it.
* SIGTERM and SIGINT are passed on to the kernel, so that a cell can save its checkpoint. A lab tells the kernel itself.

Needs nbclient and ipykernel; Python 3.9 and newer.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import json
import math
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionComplete, CellExecutionError, DeadKernelError
from notebook_parameters import read_values, tagged
from traitlets.config import Config

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PICTURES = {"image/png": ".png", "image/jpeg": ".jpg", "image/svg+xml": ".svg"}
#: Seconds from one save to the next while cells put something out; papermill's ``autosave_cell_every``.
_AUTOSAVE = 5.0
#: Seconds for what comes at once on a machine that is not busy. nbclient drops what a cell put out when it waits for less.
_PATIENCE = 600
#: Run in the kernel before the first cell: ``exit()`` ends the cell that says it, as in a script; a file descriptor stands behind
#: sys.stdout and sys.stderr, as in a session; ``%gpu`` is known, and a task has its GPUs for itself.
_PREPARE = """
import sys, warnings
def leave(self, code=None):
    raise SystemExit(code)
type(get_ipython().exiter).__call__ = leave
for number, stream in ((1, sys.stdout), (2, sys.stderr)):
    if hasattr(stream, "parent_header"):
        stream._original_stdstream_copy = number
get_ipython().register_magic_function(lambda line: None, "line", "gpu")
thread = get_ipython().kernel.iopub_thread
thread.schedule(lambda socket=thread.socket: setattr(socket, "sndhwm", 0))
warnings.filterwarnings("ignore", message="To exit: use 'exit'")
del sys, warnings, leave, number, stream, thread
"""


def main(words: Sequence[str]) -> int:
    """Run the notebook that the command line names; return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[attr-defined,union-attr]
    notebook = nbformat.read(words[0], as_version=4)
    inject(notebook, read_values(notebook, words[1:]))
    outputs = Path(os.environ.get("CARREL_OUTPUT_DIR") or "outputs")
    outputs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nb-") as place:
        return _Run(notebook, outputs, Path(place)).run()


def inject(document: Any, values: dict[str, Any]) -> None:
    """Put a cell with `values` where papermill puts it."""
    if not values:
        return
    cell = nbformat.v4.new_code_cell(
        "# Parameters\n" + "\n".join(f"{name} = {_written(value)}" for name, value in values.items()),
        metadata={"tags": ["injected-parameters"]},
    )
    cell["id"] = "injected-parameters"  # nbformat's own is random, and the same run gives the same file
    earlier, declared = tagged(document, "injected-parameters"), tagged(document, "parameters")
    if earlier is not None:
        document["cells"][earlier] = cell
    else:
        document["cells"].insert(0 if declared is None else declared + 1, cell)
    if (document["nbformat"], document["nbformat_minor"]) < (4, 5):
        del cell["id"]


def _written(value: Any) -> str:
    return f'float("{value}")' if isinstance(value, float) and not math.isfinite(value) else repr(value)


# --- the run


class _Run(NotebookClient):  # type: ignore[misc]
    """One run: the log gets what a reader of the notebook sees, and the notebook is saved as it goes."""

    def __init__(self, notebook: Any, outputs: Path, place: Path) -> None:
        _describe_kernel(place)
        # Sockets of our own instead of ports, which other users of the machine could reach.
        config = Config({"KernelManager": {"transport": "ipc", "ip": f"{place}/k"}})
        super().__init__(
            notebook,
            config=config,
            kernel_name="python3",
            timeout=None,
            startup_timeout=_PATIENCE,
            iopub_timeout=_PATIENCE,
            record_timing=False,  # the same run gives the same file
        )
        self.on_notebook_start = self._prepare
        self.on_cell_executed = self.on_cell_error = lambda **_: self.save()
        self._outputs = outputs
        self._kernel: Any = None
        self._pipes: dict[str, tuple[int, Any]] = {}
        #: The cells that ran, by the id of their request: what threads put out later belongs to the cell that started them.
        self._ran: dict[str, tuple[Any, int]] = {}
        #: What is still to be put behind the text of a stream. Texts that grow by each message would cost the square of them.
        self._texts: dict[int, tuple[Any, list[str]]] = {}
        self._changed = False
        self._figures = 0
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.update(outputs=[], execution_count=None)

    def run(self) -> int:
        """Run all cells; return the exit code."""
        write_ends = {}
        for name in ("stdout", "stderr"):
            read_end, write_ends[name] = os.pipe()
            os.set_blocking(read_end, False)
            self._pipes[name] = (read_end, codecs.getincrementaldecoder("utf-8")("replace"))
        self.save()
        try:
            self.execute(**write_ends)
        except CellExecutionError as error:
            return _exit_code(error.ename, error.evalue)
        except DeadKernelError:
            return self._died()
        finally:
            for name in self._pipes:
                self._hear(name)
            self.save()
        return 0

    def save(self) -> None:
        """Write the executed notebook, whole or not at all."""
        for output, texts in self._texts.values():
            output["text"] += "".join(texts)
        self._texts.clear()
        target = self._outputs / "executed.ipynb"
        beside = target.with_name(f".{target.name}.new")
        # A lone surrogate, which Python has for a byte of a file's name that is no UTF-8, is written as JSON escapes it.
        with beside.open("w", encoding="utf-8", errors="backslashreplace") as file:
            nbformat.write(self.nb, file)
        beside.replace(target)
        self._changed = False

    def create_kernel_manager(self) -> Any:
        """Make the manager of the kernel; its sockets hold any number of messages (ZeroMQ drops those beyond 1,000)."""
        self._kernel = super().create_kernel_manager()
        self._kernel.context.rcvhwm = 0
        return self._kernel

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        """Put a message of the kernel into the log and into the notebook."""
        kind, content = msg["msg_type"], msg["content"]
        if kind == "stream":
            _tell(content["name"], content["text"])
        elif kind in ("execute_result", "display_data", "update_display_data"):
            shown = [content["data"].get("text/plain", ""), *self._pictures(content["data"])]
            _tell("stdout", "".join(f"{line}\n" for line in shown if line))
        elif kind == "error" and not (content["ename"] == "SystemExit" and _exit_code("SystemExit", content["evalue"]) == 0):
            _tell("stderr", _COLOURS.sub("", "\n".join(content["traceback"])) + "\n")
        return super().process_message(msg, cell, cell_index)

    def output(self, outs: list[Any], msg: dict[str, Any], display_id: Optional[str], cell_index: int) -> Any:
        """Add an output to a cell; a stream's text to the one that it continues."""
        self._changed = True
        last, content = outs[-1] if outs else {}, msg["content"]
        continues = msg["msg_type"] == "stream" and last.get("output_type") == "stream" and last["name"] == content["name"]
        if not continues or self.clear_before_next_output or self.output_hook_stack[msg["parent_header"].get("msg_id")]:
            return super().output(outs, msg, display_id, cell_index)
        self._texts.setdefault(id(last), (last, []))[1].append(content["text"])
        return None

    async def _async_poll_output_msg(self, parent_msg_id: str, cell: Any, cell_index: int) -> None:
        """Take messages until the cell is over, also those of earlier cells' threads, which nbclient drops."""
        self._ran[parent_msg_id] = (cell, cell_index)
        while True:
            msg = await self.kc.iopub_channel.get_msg(timeout=None)
            request = msg["parent_header"].get("msg_id")
            if request in self._ran:
                try:
                    self.process_message(msg, *self._ran[request])
                except CellExecutionComplete:
                    if request == parent_msg_id:
                        for name in self._pipes:
                            self._hear(name)
                        return

    async def _prepare(self, **_: Any) -> None:
        """Prepare the kernel that has just started, and hear what is written to its descriptors.

        ipykernel reads these by a thread of the kernel itself: a library that prints while it keeps the interpreter's lock would
        wait for that thread for ever.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._pass_on, number)
        for name, (descriptor, _decoder) in self._pipes.items():
            loop.add_reader(descriptor, self._hear, name)
        self.kc.execute(_PREPARE, silent=True)
        loop.call_later(_AUTOSAVE, self._save_again)

    async def _async_cleanup_kernel(self) -> None:
        """End the kernel. What it says of its own end (ipykernel's sockets are gone before its threads) is no cell's output."""
        if self._pipes and self.km is not None and await self.km.is_alive():
            for name, (descriptor, _decoder) in self._pipes.items():
                self._hear(name)
                asyncio.get_running_loop().remove_reader(descriptor)
            self._pipes = {}
        await super()._async_cleanup_kernel()

    def _save_again(self) -> None:
        began = time.monotonic()
        if self._changed:
            self.save()
        # A notebook that takes long to write is written less often.
        asyncio.get_running_loop().call_later(max(_AUTOSAVE, 10 * (time.monotonic() - began)), self._save_again)

    def _pass_on(self, number: int) -> None:
        if number == signal.SIGTERM and "CARREL_JOB_ID" in os.environ:
            return  # every process of a job is told by the lab; twice would break off what the first one began
        self._passing = asyncio.ensure_future(self._kernel.signal_kernel(number))

    def _hear(self, name: str) -> None:
        """Take what was written to a descriptor of the kernel until now; a pipe holds less than this reads at most."""
        descriptor, decoder = self._pipes[name]
        for _ in range(64):
            try:
                data = os.read(descriptor, 1 << 16)
            except BlockingIOError:
                return
            text = decoder.decode(data)
            _tell(name, text)
            if self._ran and text:
                cell, index = next(reversed(self._ran.values()))
                message = {"msg_type": "stream", "header": {"msg_type": "stream"}, "parent_header": {}}
                self.output(cell.outputs, {**message, "content": {"name": name, "text": text}}, None, index)

    def _pictures(self, data: dict[str, Any]) -> list[str]:
        """Write the pictures that a cell shows; return how the log names them."""
        told = []
        for kind, suffix in _PICTURES.items():
            if kind not in data:
                continue
            text = data[kind] if isinstance(data[kind], str) else "".join(data[kind])
            figures = self._outputs / "figures"
            figures.mkdir(exist_ok=True)
            self._figures += 1
            path = figures / f"figure-{self._figures}{suffix}"
            path.write_bytes(text.encode() if suffix == ".svg" else base64.b64decode(text))
            told.append(f"[{path.name}]")
        return told

    def _died(self) -> int:
        process = getattr(self._kernel.provisioner, "process", None)
        code = process.poll() if process is not None else None
        if code is None:
            code = 1
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        _tell("stderr", f"The kernel ended {how}.\n")
        return 128 - code if code < 0 else code or 1


def _describe_kernel(place: Path) -> None:
    """Have Jupyter find this very Python first, whatever kernels a user has (jupyter_core's documentation, "JUPYTER_PATH")."""
    directory = place / "kernels" / "python3"
    directory.mkdir(parents=True)
    arguments = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--IPKernelApp.capture_fd_output=False"]
    specification = {"argv": arguments, "display_name": "Python 3", "language": "python"}
    (directory / "kernel.json").write_text(json.dumps(specification), encoding="utf-8")
    before = os.environ.get("JUPYTER_PATH")
    os.environ["JUPYTER_RUNTIME_DIR"] = str(place)
    os.environ["JUPYTER_PATH"] = f"{place}{os.pathsep}{before}" if before else str(place)


def _tell(name: str, text: str) -> None:
    stream = sys.stderr if name == "stderr" else sys.stdout
    stream.write(text)
    stream.flush()


def _exit_code(name: str, value: str) -> int:
    """Return what Python's own exit code is for an exception that no cell caught."""
    if name != "SystemExit":
        return 1
    if value in ("", "None", "False"):
        return 0
    try:
        return int(value) & 0xFF
    except ValueError:
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
