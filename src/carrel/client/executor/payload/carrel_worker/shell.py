"""IPython's shell of remote cells: what a cell shows and raises, and what its %magics do, is as in a notebook.

Only where the worker's environment has IPython. Where a kernel would speak with the notebook, messages go to the caller's.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import linecache
import os
import sys
import tempfile
import types
import warnings
from typing import Any

from carrel_worker import display, interrupts
from carrel_worker.failures import value_of
from IPython.core import display_functions
from IPython.core.compilerop import CachingCompiler
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets import TraitError, Type
from traitlets.config import Config

#: As in a kernel (ipykernel's shell): programs show colours, and page nothing.
_ENVIRONMENT = {
    "TERM": "xterm-color",
    "CLICOLOR": "1",
    "FORCE_COLOR": "1",
    "CLICOLOR_FORCE": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
}


class Compiler(CachingCompiler):
    """Names the cell as the notebook does."""

    filename = ""

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        """The file name of the cell, once: other code that it compiles has its own."""
        name, self.filename = self.filename, ""
        return name or super().get_code_name(raw_code, transformed_code, number)


class Publisher(DisplayPublisher):
    """`display`."""

    def publish(self, data: Any, metadata: Any = None, *, transient: Any = None, update: bool = False, **_options: Any) -> None:
        """Show it in the caller's notebook."""
        display.publish(data, metadata, transient=transient, update=update)

    def clear_output(self, wait: bool = False) -> None:
        """Clear what the cell has shown there."""
        display.put({"kind": "clear", "wait": bool(wait)})


class Hook(DisplayHook):
    """Takes the values of expressions."""

    value: Any = None
    #: An error that is shown now is one of what shows the value, and the cell has failed.
    shows = False

    def __call__(self, result: Any = None) -> None:
        """Show a value, and remember it as the last one."""
        self.value = result
        super().__call__(result)

    def start_displayhook(self) -> None:
        """Representations are asked for."""
        self.shows = True

    def write_output_prompt(self) -> None:
        """The notebook writes it."""

    def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
        """Show it in the caller's notebook, as a result."""
        display.put({"kind": "result", "data": format_dict, "metadata": md_dict or {}})

    def finish_displayhook(self) -> None:
        """All is shown."""
        self.shows = False


class ZMQInteractiveShell(InteractiveShell):
    """The shell. Libraries know a notebook by the name of this class (rich, pandas)."""

    display_pub_class = Type(Publisher)
    displayhook_class = Type(Hook)
    compiler_class = Type(Compiler)
    #: Of it widgets ask for the message whose output they take.
    kernel: Any = None
    #: What the last cell has raised, and shown.
    raised: BaseException | None = None

    def init_environment(self) -> None:
        """Set variables."""
        os.environ.update(_ENVIRONMENT)

    def enable_gui(self, gui: Any = None) -> None:
        """There are no windows."""

    def ask_exit(self) -> None:
        """`exit`, which ends a kernel."""
        print("exit does nothing in a remote cell; %remote close ends its worker.", file=sys.stderr)

    def _get_exc_info(self, exc_tuple: Any = None) -> Any:
        kind, value, trace = super()._get_exc_info(exc_tuple)
        one = trace
        while one is not None:
            if one.tb_next is not None and one.tb_next.tb_frame.f_code.co_filename == interrupts.__file__:
                one.tb_next = None  # the handler of the signal, which is C at home
            one = one.tb_next
        return kind, value, trace

    def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
        message = {"kind": "error", "name": etype.__name__, "words": value_of(evalue), "lines": stb}
        display.put({**message, "fails": self.displayhook.shows})

    def run(self, order: dict[str, Any], space: dict[str, Any]) -> Any:
        """Run a cell among these variables; return the value of its last expression. Raises what it has raised and shown."""
        self.user_module, self.user_ns = self.prepare_user_module(None, space)
        self.init_user_ns()
        self.compile.filename = order["filename"]
        self.compile.flags = order["flags"]
        for filename, (number, source) in order["sources"].items():
            self.compile._filename_map[filename] = number
            linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        self.execution_count = order["number"]
        self.ast_node_interactivity = order["interactivity"]
        with contextlib.suppress(TraitError):  # another version of IPython has other names for them
            self.colors = order["colors"]
        self.InteractiveTB.set_mode(order["mode"])
        self.kernel = types.SimpleNamespace(get_parent=lambda: {"header": {"msg_id": order["message"]}})
        self.displayhook.value, self.displayhook.shows, self.raised = None, False, None
        try:
            result = _completed(self._whole(order["source"]))
            self.raised = result.error_before_exec or result.error_in_exec
            if self.raised is not None:
                raise self.raised
            return self.displayhook.value
        finally:
            self._forget()

    async def _whole(self, source: str) -> Any:
        result = None
        try:
            self.history_manager.store_inputs(self.execution_count, source)  # whether it ends with ";" is read there
            result = await self.run_cell_async(source, transformed_cell=source)
        finally:
            self.events.trigger("post_execute")
            self.events.trigger("post_run_cell", result)
        return result

    def _forget(self) -> None:
        """What the cell has made goes with it."""
        self.user_module, self.user_ns = self.prepare_user_module(None, {})
        self.last_execution_result = self.displayhook.value = self.InteractiveTB.tb = None
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            if hasattr(sys, name):
                delattr(sys, name)


def _completed(work: Any) -> Any:
    """Run it in a loop, which a notebook's cells have. An interrupt while it awaits cancels it."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    task = loop.create_task(work)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            return loop.run_until_complete(task)
        task.cancel()
        return loop.run_until_complete(task)
    finally:
        left = asyncio.all_tasks(loop)
        for one in left:
            one.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


def _take_comms() -> None:
    """What widgets tell the page goes to the caller's kernel. Nothing comes back: the page speaks with that one."""
    try:
        import comm
        from comm.base_comm import BaseComm
    except ImportError:
        return

    class Comm(BaseComm):  # type: ignore[misc]
        def publish_msg(self, msg_type: str, data: Any = None, metadata: Any = None, buffers: Any = None, **keys: Any) -> None:
            message = {"kind": msg_type, "comm_id": self.comm_id, "data": data or {}, "metadata": metadata or {}, "keys": keys}
            message["buffers"] = [base64.b64encode(one).decode() for one in buffers or ()]
            display.put(message)

    comm.create_comm = Comm


def make() -> ZMQInteractiveShell:
    """The shell of this process."""
    if not ZMQInteractiveShell.initialized():
        own = {"cache_size": 0, "warn_venv": False}
        config = Config(HistoryManager={"enabled": False}, InteractiveShell=own, IPKernelApp={"worker": True})
        main = sys.modules["__main__"]
        ZMQInteractiveShell.instance(config=config, ipython_dir=tempfile.mkdtemp(prefix="ipython-"), user_ns={})
        sys.modules["__main__"] = main  # a cell is that only while it runs
        with contextlib.suppress(ImportError):  # by which tqdm knows a notebook
            import ipykernel.zmqshell  # noqa: F401
        # The caller's shell says it as well.
        warnings.filterwarnings("ignore", message="To exit: use 'exit'")
        _take_comms()
        # What travels as the worker's own is IPython's here.
        display.display, display.clear_output = display_functions.display, display_functions.clear_output
        display.Handle = display_functions.DisplayHandle
    return ZMQInteractiveShell.instance()
