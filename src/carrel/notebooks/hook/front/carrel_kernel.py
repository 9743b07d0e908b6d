"""The kernel hook: a cell that needs a GPU has one, on loan, while it runs.

This one file is put in front of the user's own environment, of which nothing is expected but ipykernel (6.29 to 7.x) on Python
3.9 or newer; it imports the standard library and what every kernel has. It speaks the protocol of ``carrel.leases.protocol``
with the broker of its node, through a connection that lives in a thread of its own.

When a cell needs a lease:

* never, while the process has not used CUDA; the first use inside a cell waits for a lease there (`Guard`), until the cell's end;
* from then on each cell, unless it plainly computes nothing (`is_plain`) or is marked: a comment ``# carrel: gpus=0`` or
  ``gpus=2`` at its top, a cell tag ``gpus=2`` or ``cpu``, or ``%gpu …`` for all that follow.

What goes wrong here must not change what a cell means. Where no broker is named, or it refuses this kernel, cells run as in a
plain kernel. Where a lease cannot be had, the cell does not run, and says so: running it would put two users on one GPU.
"""

import ast
import asyncio
import gc
import importlib.abc
import importlib.util
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import uuid
from collections import deque
from contextlib import contextmanager, suppress
from functools import partial

from ipykernel.ipkernel import IPythonKernel

VERSION = 1
#: Seconds without news of a lease before the cell says that it waits.
PATIENCE = 0.3
#: Seconds that a kernel which just started waits for its broker's first word before its first cell.
GREETING = 3.0
#: Seconds that work without a way to interrupt it (a subshell, a widget's callback) waits for a lease.
LONGEST_WAIT = 120.0
#: Seconds between two tries to reach the broker.
RETRY = (0.05, 1.0)
#: Modules that take the GPU as soon as they are imported or in places that cannot be caught: their import is the first use.
AT_IMPORT = frozenset(
    {
        "cupy",
        "cudf",
        "cuml",
        "rmm",
        "pycuda.driver",
        "numba.cuda",
        "cuda.bindings.driver",
        "jax_cuda12_plugin",
        "jax_cuda13_plugin",
    }
)
_ORDINALS = {1: "1st", 2: "2nd", 3: "3rd"}


# ---- what a cell says about itself ---------------------------------------------------------------------------------------------

_COMMENT = re.compile(r"\s*#\s*carrel\s*:\s*(.*)")
_WISH = re.compile(r"(?:gpus\s*=\s*(\d+)|(cpu))", re.IGNORECASE)
_MAGIC = re.compile(r"\s*%gpu\s+(\d+|off|on|auto)\s*(?:#.*)?$", re.IGNORECASE)
#: Cell magics whose body runs in another program, or nowhere.
_ELSEWHERE = frozenset({"bash", "sh", "script", "html", "markdown", "latex", "javascript", "js", "svg", "writefile", "file"})
_STANDARD = getattr(
    sys, "stdlib_module_names", frozenset({"os", "sys", "re", "math", "json", "time", "pathlib", "random", "datetime"})
)


def wish(code, meta):
    """How many GPUs a cell asks for by a mark, or None when it says nothing. Tags count before comments."""
    tags = meta.get("tags") if isinstance(meta, dict) else None
    for tag in tags if isinstance(tags, (list, tuple)) else ():
        found = _WISH.fullmatch(tag.strip()) if isinstance(tag, str) else None
        if found:
            return int(found.group(1) or 0)
    for line in code.splitlines():
        if not line.strip():
            continue
        comment = _COMMENT.match(line)
        if comment:
            found = _WISH.search(comment.group(1))
            if found:
                return int(found.group(1) or 0)
        elif not line.lstrip().startswith(("#", "%gpu")):
            return None
    return None


def switch(code):
    """What a ``%gpu`` line at the top of a cell switches to ("2", "off", …), which holds for that cell already; else None."""
    for line in code.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            found = _MAGIC.match(line)
            return found.group(1).lower() if found else None
    return None


def is_plain(code):
    """True when a cell plainly computes nothing on a GPU: it only imports from the standard library, binds and prints constants,
    defines functions and classes, or runs other programs. Everything else may, and takes a lease."""
    lines = code.splitlines()
    first = next((line.strip() for line in lines if line.strip()), "")
    if first.startswith("%%"):
        return first[2:].split(None, 1)[0] in _ELSEWHERE if first[2:].strip() else False
    python = []
    for line in lines:
        word = line.strip()
        if word.startswith("!") or re.match(r"%(pip|conda|uv|cd|pwd|ls|env|gpu|matplotlib|config)\b", word):
            python.append(re.match(r"\s*", line).group(0) + "pass")
        elif word.startswith("%") or word.endswith("?"):
            return False
        else:
            python.append(line)
    try:
        tree = ast.parse("\n".join(python))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(_is_plain_statement(node) for node in tree.body)


def _is_plain_statement(node):
    if isinstance(node, ast.Import):
        return all(name.name.partition(".")[0] in _STANDARD for name in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.level == 0 and (node.module or "").partition(".")[0] in _STANDARD
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Name) for target in node.targets) and _is_constant(node.value)
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Name) and (node.value is None or _is_constant(node.value))
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        defaults = [*node.args.defaults, *(value for value in node.args.kw_defaults if value is not None)]
        return not node.decorator_list and all(_is_constant(value) for value in defaults)
    if isinstance(node, ast.ClassDef):
        return not node.decorator_list and not node.bases and not node.keywords and all(map(_is_plain_statement, node.body))
    if isinstance(node, ast.Expr):
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print":
            return not call.keywords and all(_is_constant(value) for value in call.args)
        return _is_constant(call)
    return isinstance(node, ast.Pass)


def _is_constant(node):
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return all(map(_is_constant, node.elts))
    if isinstance(node, ast.Dict):
        return all(key is not None and _is_constant(key) for key in node.keys) and all(map(_is_constant, node.values))
    if isinstance(node, ast.UnaryOp):
        return _is_constant(node.operand)
    return isinstance(node, ast.BinOp) and _is_constant(node.left) and _is_constant(node.right)


# ---- the connection to the broker ----------------------------------------------------------------------------------------------


class Refused(Exception):
    """The broker will not do this; the text says why and what can be done."""


class Waiter:
    """One request for a lease. `granted` or `refused` is set in the end; `changed` is called (from the link's thread) at news."""

    def __init__(self, request, gpus, cell):
        self.request = request
        self.gpus = gpus
        self.cell = cell
        self.line = ""
        self.granted = None
        self.refused = None
        self.changed = lambda: None
        self.news = threading.Event()

    @property
    def settled(self):
        return self.granted is not None or self.refused is not None

    def tell(self):
        self.news.set()
        with suppress(Exception):  # the loop that listened is closed
            self.changed()


class Link:
    """The connection to the broker, in a thread of its own; it connects again for as long as the process lives."""

    def __init__(self, path, token, kernel_id, label, on_message):
        self._path = path
        self._hello = {"v": VERSION, "role": "kernel", "token": token, "kernel": kernel_id, "label": label}
        if address := os.environ.get("CARREL_SESSION_ADDRESS"):
            self._hello["attempt"] = os.path.dirname(address)
        self._on_message = on_message
        self._guard = threading.RLock()
        self._socket = None
        self._waiters = {}
        self._answers = {}
        self.pid = os.getpid()
        self.welcome = {}
        self.greeted = threading.Event()
        #: Why there will never be a connection, or None.
        self.refused = None
        self.thread = threading.Thread(target=self._run, name="carrel-leases", daemon=True)

    def start(self):
        """Begin to connect."""
        self.thread.start()
        os.register_at_fork(after_in_child=self._leave)

    def acquire(self, gpus, cell):
        """Ask for a lease. The answer comes to the waiter that is returned."""
        waiter = Waiter(uuid.uuid4().hex, gpus, cell)
        with self._guard:
            if self.refused is not None:
                waiter.refused = self.refused
                return waiter
            self._waiters[waiter.request] = waiter
            if not self._send("acquire", request=waiter.request, gpus=gpus, cell=cell):
                waiter.line = _AWAY
        return waiter

    def cancel(self, waiter):
        """The cell does not want it any more; what was granted meanwhile is given back."""
        with self._guard:
            self._waiters.pop(waiter.request, None)
            if waiter.granted is not None:
                self.release(waiter.granted, outcome="aborted")
            else:
                self._send("cancel", request=waiter.request)

    def release(self, lease, **facts):
        """Give a lease back. While there is no connection it is remembered, and given back with the next one."""
        with self._guard:
            self._waiters.pop(lease.get("request"), None)
            fields = {"lease": lease["lease"], "fence": lease.get("fence", 0), **facts}
            if not self._send("release", **fields):
                self._answers.setdefault("later", deque(maxlen=100)).append(fields)

    def say(self, op, **fields):
        """Say something that needs no answer. True when it went out."""
        with self._guard:
            return self._send(op, **fields)

    def ask(self, op, answers, seconds=3.0, **fields):
        """Say something and wait for one of `answers`. Raises `Refused`; returns None when nobody answers."""
        box = {"event": threading.Event(), "message": None, "ops": (*answers, "refused")}
        with self._guard:
            self._answers[op] = box
            sent = self._send(op, **fields)
        if sent:
            box["event"].wait(seconds)
        with self._guard:
            self._answers.pop(op, None)
        message = box["message"]
        if message is not None and message["op"] == "refused":
            raise Refused(_words(message))
        return message

    # -- the thread

    def _run(self):
        pause = RETRY[0]
        while self.refused is None and os.getpid() == self.pid:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                    connection.connect(self._path)
                    pause = RETRY[0]
                    self._talk(connection)
            except (OSError, ValueError):
                pass
            finally:
                self._lost()
            if self.refused is None:
                time.sleep(pause)
                pause = min(RETRY[1], pause * 2)

    def _talk(self, connection):
        connection.sendall(_line("hello", **self._hello))
        with connection.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                if isinstance(message, dict):
                    self._take(message, connection)

    def _take(self, message, connection):
        op = message.get("op")
        with self._guard:
            if op == "welcome":
                self._welcomed(message, connection)
                return
            if op == "refused" and not self.greeted.is_set() and "request" not in message:
                self.refused = _words(message)
                for waiter in self._waiters.values():
                    waiter.refused = self.refused
                    waiter.tell()
                self._waiters.clear()
                self.greeted.set()
                return
            waiter = self._waiters.get(message.get("request"))
            if waiter is not None:
                self._settle(waiter, message)
                return
            if op == "granted":  # for a cell that has stopped waiting
                self._send("release", lease=message["lease"], fence=message.get("fence", 0), outcome="aborted")
                return
            for asked, box in list(self._answers.items()):
                if asked != "later" and op in box["ops"]:
                    box["message"] = message
                    box["event"].set()
                    return
        self._on_message(message)

    def _welcomed(self, message, connection):
        self.welcome = message
        self._socket = connection
        for fields in self._answers.pop("later", ()):
            self._send("release", **fields)
        known = {lease.get("request"): lease for lease in message.get("leases") or ()}
        for waiter in self._waiters.values():
            if waiter.granted is None and waiter.request in known:
                self._settle(waiter, known[waiter.request])
            elif waiter.granted is None:
                self._send("acquire", request=waiter.request, gpus=waiter.gpus, cell=waiter.cell)
        for request, lease in known.items():
            if request not in self._waiters:  # granted while we were away, for a cell that is over
                self._send("release", lease=lease["lease"], fence=lease.get("fence", 0), outcome="aborted")
        self.greeted.set()
        self._on_message(message)

    def _settle(self, waiter, message):
        op = message.get("op")
        if op == "queued":
            waiter.line = _waiting_line(message)
        elif op == "refused":
            self._waiters.pop(waiter.request, None)
            waiter.refused = _words(message)
        elif op == "cancelled":
            self._waiters.pop(waiter.request, None)
            return
        elif "lease" in message:
            waiter.granted = message
        waiter.tell()

    def _send(self, op, **fields):
        if self._socket is None:
            return False
        try:
            self._socket.sendall(_line(op, **fields))
        except OSError:
            return False
        return True

    def _lost(self):
        with self._guard:
            self._socket = None
            for waiter in self._waiters.values():
                if not waiter.settled:
                    waiter.line = _AWAY
                    waiter.tell()

    def _leave(self):
        """In a forked child: the connection is the parent's. Its descriptor is closed, so that the end of the parent shows."""
        self._guard = threading.RLock()
        connection, self._socket = self._socket, None
        self.refused = "This is a child process of the kernel."
        if connection is not None:
            with suppress(OSError):
                os.close(connection.detach())


_AWAY = "waiting for a GPU: the node's broker does not answer; it is being started again"


def _line(op, **fields):
    return json.dumps({"op": op, **fields}, separators=(",", ":")).encode() + b"\n"


def _words(message):
    return " ".join(part for part in (message.get("message"), message.get("remedy")) if part) or "refused"


def _waiting_line(message):
    if message.get("message"):
        return str(message["message"])
    position = message.get("position") or 1
    estimate = message.get("estimate")
    about = "" if estimate is None else ", about %d s" % round(estimate)
    return "waiting for a GPU: %s in line%s" % (_ORDINALS.get(position, "%dth" % position), about)


# ---- the first use of CUDA -----------------------------------------------------------------------------------------------------


class Guard(importlib.abc.MetaPathFinder):
    """Sees the first use of CUDA coming, and calls `first_use` before it. After that it costs nothing."""

    def __init__(self, first_use):
        self._first_use = first_use
        self._pid = os.getpid()
        self._busy = threading.local()
        #: True once the process has a CUDA state, or may have.
        self.touched = False

    def install(self):
        """Watch imports and the loading of the driver's library."""
        sys.meta_path.insert(0, self)
        sys.addaudithook(self._audit)
        for name in ("torch", *AT_IMPORT):
            if name in sys.modules:
                self._imported(name, sys.modules[name])

    def use(self):
        """The calling thread is about to use CUDA for the first time: returns when it may. Raises what the wait ended with."""
        if self.touched or os.getpid() != self._pid or getattr(self._busy, "inside", False):
            return
        self._busy.inside = True
        try:
            self._first_use()
            self.touched = True
        finally:
            self._busy.inside = False

    def look(self):
        """Notice a use that nothing else has seen: the driver's memory device is open (only CUDA opens it)."""
        if not self.touched:
            with suppress(OSError):
                for number in os.listdir("/proc/self/fd"):
                    with suppress(OSError):
                        if os.readlink("/proc/self/fd/" + number) == "/dev/nvidia-uvm":
                            self.touched = True
                            break
        return self.touched

    def _audit(self, event, arguments):
        if event == "ctypes.dlopen" and not self.touched:
            name = arguments[0] if arguments else None
            if isinstance(name, (str, bytes)) and "libcuda.so" in (name if isinstance(name, str) else os.fsdecode(name)):
                self.use()

    def find_spec(self, name, path=None, target=None):  # noqa: ARG002 - as importlib calls it
        """PEP 451: hands the import on, and adds a word to what executes the module."""
        if self.touched or (name != "torch" and name not in AT_IMPORT) or getattr(self._busy, "finding", None) == name:
            return None
        self._busy.finding = name
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            return None
        finally:
            self._busy.finding = None
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return None
        spec.loader = _Listening(spec.loader, self._imported, self._importing)
        return spec

    def _importing(self, name):
        if name in AT_IMPORT:
            self.use()

    def _imported(self, name, module):
        if name != "torch":
            return
        inner = getattr(module, "_C", None)
        original = getattr(inner, "_cuda_init", None)
        if original is None:  # a build without CUDA
            return

        def _cuda_init(*arguments, **named):
            self.use()
            return original(*arguments, **named)

        with suppress(Exception):
            inner._cuda_init = _cuda_init


class _Listening(importlib.abc.Loader):
    """A loader that says when it begins and when it is done."""

    def __init__(self, loader, done, begins):
        self._loader = loader
        self._done = done
        self._begins = begins

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._begins(module.__name__)
        self._loader.exec_module(module)
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with suppress(Exception):
            self._done(module.__name__, module)

    def __getattr__(self, name):
        return getattr(self._loader, name)


# ---- before the state is moved -------------------------------------------------------------------------------------------------


def let_go():
    """Give back device memory that nobody needs, with modules that are there already; return the bytes that stay, or None."""
    gc.collect()
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    cuda.synchronize()
    cuda.empty_cache()
    return int(sum(cuda.memory_reserved(number) for number in range(cuda.device_count())))


def blockers():
    """Why the driver could not move this process' state, as far as can be seen from inside."""
    found = []
    with suppress(Exception):
        distributed = getattr(sys.modules.get("torch"), "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            found.append("distributed")
    with suppress(Exception):
        reductions = sys.modules.get("torch.multiprocessing.reductions")
        if reductions is not None and len(reductions.shared_cache):
            found.append("CUDA IPC")
    with suppress(Exception):
        rmm = sys.modules.get("rmm")
        if rmm is not None and "Managed" in type(rmm.mr.get_current_device_resource()).__name__:
            found.append("managed memory")
    with suppress(Exception):
        paged = sys.modules.get("bitsandbytes.optim.optimizer")
        if paged is not None and any(
            isinstance(thing, paged.Optimizer8bit) and getattr(thing, "is_paged", False) for thing in gc.get_objects()
        ):
            found.append("managed memory")
    return sorted(set(found))


# ---- the kernel ----------------------------------------------------------------------------------------------------------------


class CarrelKernel(IPythonKernel):
    """ipykernel's own kernel, whose cells have leases."""

    def __init__(self, **options):
        super().__init__(**options)
        self._loop = None
        self._lease = None
        self._users = 0
        self._running = 0
        self._cell = ""
        #: What `%gpu` chose: a number for each cell, or None for "when it is needed".
        self.gpus = None
        self._notes = deque(maxlen=20)
        self._told = set()
        self._main = threading.current_thread()
        self.guard = Guard(self._first_use)
        self.link = None
        if os.environ.get("CARREL_BROKER") and os.environ.get("CARREL_TOKEN") and not os.environ.get("CARREL_SESSION_RESERVED"):
            try:
                self._begin()
            except Exception as error:  # a kernel without leases is better than no kernel
                self.link = None
                self.log.warning("Carrel: no leases for this kernel: %s", error)
        with suppress(Exception):
            self._wrap_comms()
        with suppress(Exception):
            self.shell.register_magic_function(self._magic, "line", "gpu")

    def _begin(self):
        # Asking whether there is a GPU must not take one; large frameworks must not take all memory at once.
        for name, value in (
            ("PYTORCH_NVML_BASED_CUDA_CHECK", "1"),
            ("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),
            ("TF_FORCE_GPU_ALLOW_GROWTH", "true"),
        ):
            os.environ.setdefault(name, value)
        kernel_id = (
            os.path.basename(getattr(self.parent, "connection_file", "") or "").removeprefix("kernel-")[:-5]
            if sys.version_info >= (3, 9)
            else ""
        )
        label = os.environ.get("JPY_SESSION_NAME") or ""
        label = os.path.relpath(label) if os.path.isabs(label) else label
        self.link = Link(os.environ["CARREL_BROKER"], os.environ["CARREL_TOKEN"], kernel_id, label, self._heard)
        self.guard.install()
        self.link.start()

    # -- cells

    async def do_execute(
        self, code, silent, store_history=True, user_expressions=None, allow_stdin=False, *, cell_meta=None, cell_id=None
    ):
        """As ipykernel does it, between a lease's beginning and its end."""
        run = partial(
            super().do_execute, code, silent, store_history, user_expressions, allow_stdin, cell_meta=cell_meta, cell_id=cell_id
        )
        if silent or self.link is None:
            return await run()
        self._loop = asyncio.get_running_loop()
        self._flush_notes()
        cell = self._request_id() or cell_id or ""
        try:
            lease = await self._before(code, cell_meta, cell)
        except (KeyboardInterrupt, asyncio.CancelledError):
            return self._aborted("KeyboardInterrupt", "interrupted while it waited for a GPU; the cell was not run")
        except Refused as error:
            return self._aborted("NoGPU", str(error))
        before = _alive()
        self._cell, self._running = cell, self._running + 1
        outcome = "aborted"
        reply = None
        try:
            reply = await run()
            outcome = "ok" if reply.get("status") == "ok" else "error"
            return reply
        finally:
            self._running -= 1
            self._finished(outcome, reply, before, lease)

    async def _before(self, code, meta, cell):
        """The lease of the cell, or None. Raises `Refused`, and KeyboardInterrupt when the user does not want to wait.

        From here to the user's own code an interrupt must not be raised wherever the event loop happens to be: it is noted.
        """
        if self.link.greeted.is_set() and not self._needed(code, meta):
            return None
        lease = None
        try:
            with self._interruptible(self._loop) as interrupt:
                if not self.link.greeted.is_set():
                    greeting = self._loop.run_in_executor(None, self.link.greeted.wait, GREETING)
                    await asyncio.wait({greeting, interrupt.future}, return_when=asyncio.FIRST_COMPLETED)
                gpus = self._needed(code, meta)
                lease = await self._lend(gpus, cell, interrupt) if gpus and not interrupt.came else None
            if interrupt.came:
                raise KeyboardInterrupt
        except BaseException:
            if lease is not None:
                self._give_back("aborted")
            raise
        return lease

    def _needed(self, code, meta):
        """How many GPUs the cell needs a lease for; 0 for none, -1 for what the session asked for."""
        try:
            asked = wish(code, meta)
            if asked is not None:
                return asked
            chosen = switch(code)
            if chosen is not None:
                chosen = {"off": 0, "on": -1, "auto": None}.get(chosen, chosen)
                chosen = int(chosen) if chosen is not None else None
            else:
                chosen = self.gpus
            if chosen == 0 or int(self.link.welcome.get("gpus", 1) or 0) == 0:
                return 0
            if chosen is None and not self.guard.touched:
                return 0
            return 0 if is_plain(code) else (-1 if chosen is None else chosen)
        except Exception as error:  # our defect: a kernel that has used a GPU asks for it, another one does not
            self.log.warning("Carrel: a cell could not be read: %s", error)
            return -1 if self.guard.touched else 0

    async def _lend(self, gpus, cell, interrupt):
        """Wait for a lease, and say so. Raises `Refused`, and KeyboardInterrupt when the user does not want to wait."""
        if self._lease is not None:
            self._users += 1
            return self._lease
        waiter = self.link.acquire(0 if gpus < 0 else gpus, cell)
        if not waiter.settled:
            changed = asyncio.Event()
            loop = asyncio.get_running_loop()
            waiter.changed = lambda: loop.call_soon_threadsafe(changed.set)
            line = _Line(self)
            began = time.monotonic()
            try:
                while not waiter.settled:
                    await self._next(waiter, changed, interrupt, line, began)
            except BaseException:
                self.link.cancel(waiter)
                line.end("stopped waiting for a GPU")
                raise
            waiter.changed = lambda: None
            if waiter.granted is not None:
                line.end("waited %s for %s" % (_seconds(time.monotonic() - began), _names(waiter.granted)))
        return self._got(waiter)

    async def _next(self, waiter, changed, interrupt, line, began):
        """Sleep until there is news of the lease, or the user interrupts."""
        if waiter.settled:
            return
        left = None if line.shown else max(0.0, PATIENCE - (time.monotonic() - began))
        if threading.current_thread() is not self._main:  # nothing can interrupt a subshell
            left = LONGEST_WAIT - (time.monotonic() - began) if left is None else left
            if time.monotonic() - began > LONGEST_WAIT:
                raise Refused("No GPU became free within %d s; a subshell does not wait longer." % LONGEST_WAIT)
        news = asyncio.ensure_future(changed.wait())
        try:
            await asyncio.wait({news, interrupt.future}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
        if interrupt.came:
            raise KeyboardInterrupt
        changed.clear()
        if not waiter.settled and time.monotonic() - began >= PATIENCE:
            line.show(waiter.line or "waiting for a GPU")

    def _got(self, waiter):
        if waiter.refused is not None:
            raise Refused(waiter.refused)
        self._lease, self._users = waiter.granted, 1
        self._see(waiter.granted.get("devices") or ())
        return self._lease

    def _see(self, devices):
        """Make the lent devices the ones that CUDA finds; it looks once, at its first use."""
        uuids = [device["uuid"] if isinstance(device, dict) else device for device in devices]
        if uuids and not self.guard.touched:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(uuids)

    def _finished(self, outcome, reply, before, lease):
        """The cell is over: see what is left of it, and give the lease back."""
        try:
            touched = self.guard.look()
            left = [thing for thing in _alive() if thing not in before] if touched or lease is not None else []
            if left and touched and "background" not in self._told:
                self._told.add("background")
                self._note(
                    "Threads or tasks of this cell go on after it (%d). What they do on a GPU they do without a lease: it stops "
                    "while another session has the GPU to itself, and goes on with your next cell." % len(left)
                )
            if reply is not None and "OutOfMemory" in str(reply.get("ename", "")):
                self._note(
                    "The GPU's memory was not enough. State of others that is in the way is moved off it: run the cell again."
                )
            facts = {"background": len(left), "cuda": touched}
            if touched and outcome == "error":
                facts["oom"] = "OutOfMemory" in str((reply or {}).get("ename", ""))
        except Exception as error:
            self.log.warning("Carrel: after a cell: %s", error)
            facts = {}
        self._give_back(outcome, **facts)

    def _give_back(self, outcome, **facts):
        if self._lease is None:
            return
        self._users -= 1
        if self._users > 0:
            return
        lease, self._lease = self._lease, None
        self.link.release(lease, cell=self._cell, outcome=outcome, blockers=blockers() if facts.get("cuda") else [], **facts)

    def _aborted(self, name, words):
        """The reply for a cell that was not run; those after it are not run either, as after any error."""
        content = {"ename": name, "evalue": words, "traceback": ["%s: %s" % (name, words)]}
        self.send_response(self.iopub_socket, "error", content)
        count = getattr(self.shell, "execution_count", 0)
        return {"status": "error", "execution_count": count, "user_expressions": {}, "payload": [], **content}

    def _request_id(self):
        with suppress(Exception):
            return str(self.get_parent("shell")["header"]["msg_id"])
        return ""

    # -- the first use of CUDA, inside a cell or outside of one

    def _first_use(self):
        """Wait where we are, in whatever thread it is."""
        if self.link is None or self._lease is not None or int(self.link.welcome.get("gpus", 1) or 0) == 0 or self.gpus == 0:
            return
        in_cell = self._running > 0 and threading.current_thread() is self._main
        self.link.greeted.wait(GREETING)
        waiter = self.link.acquire(0, self._cell if in_cell else "")
        line, began = _Line(self), time.monotonic()
        try:
            while not waiter.settled:
                waiter.news.wait(PATIENCE if not line.shown else 0.5)  # a signal handler runs between two of these
                waiter.news.clear()
                if not waiter.settled and time.monotonic() - began >= PATIENCE:
                    line.show(waiter.line or "waiting for a GPU")
        except BaseException:
            self.link.cancel(waiter)
            line.end("stopped waiting for a GPU")
            raise
        if waiter.refused is not None:
            raise RuntimeError("Carrel: no GPU for this kernel. " + waiter.refused)
        line.end("waited %s for %s" % (_seconds(time.monotonic() - began), _names(waiter.granted)))
        self._got(waiter)
        if not in_cell:  # a thread outside of any cell: the lease ends when the thread does
            threading.Thread(target=self._until, args=(threading.current_thread(),), name="carrel-lease", daemon=True).start()

    def _until(self, thread):
        thread.join()
        self._give_back("ok", cuda=True, background=1)

    # -- what the broker says by itself

    def _heard(self, message):
        """In the link's thread."""
        op = message.get("op")
        if op == "welcome":
            self._see(message.get("home") or ())
            if message.get("lost"):  # it happened while nobody was connected
                self._note(str(message["lost"]))
        elif op == "prepare":
            self._prepare(message)
        elif op in ("notice", "lost", "paused"):
            self._note(str(message.get("message") or op))
        elif op == "resumed":
            lease = self._lease
            if lease is not None and lease.get("lease") == message.get("lease"):
                lease["fence"] = message.get("fence", lease.get("fence"))

    def _prepare(self, message):
        loop = self._loop
        if self._running or loop is None or loop.is_closed():
            self.link.say("prepared", id=message.get("id"), bytes=None, blockers=blockers())
            return

        def work():
            held = None
            with suppress(Exception):
                held = let_go() if self.guard.touched and not self._running else None
            self.link.say("prepared", id=message.get("id"), bytes=held, blockers=blockers())

        loop.call_soon_threadsafe(work)

    def _note(self, words):
        """One line for the user: in the cell that runs, else before the next one."""
        self._notes.append(words)
        loop = self._loop
        if self._running and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._flush_notes)

    def _flush_notes(self):
        while self._notes:
            words = self._notes.popleft()
            with suppress(Exception):
                self.send_response(self.iopub_socket, "stream", {"name": "stderr", "text": "[carrel] %s\n" % words})

    # -- widgets

    def _wrap_comms(self):
        """A widget's callback in a kernel that has used CUDA may use it again: it has a lease too."""
        original = self.shell_handlers.get("comm_msg")
        if original is None:
            return

        async def comm_msg(*arguments):
            lease = None
            if self.link is not None and self.guard.touched and self.gpus != 0:
                try:
                    with self._interruptible(asyncio.get_running_loop()) as interrupt:
                        lease = await asyncio.wait_for(self._lend(-1, "", interrupt), LONGEST_WAIT)
                except (Refused, asyncio.TimeoutError, KeyboardInterrupt) as error:
                    self._note("A widget's callback was not run: %s" % (error or "no GPU became free"))
                    self._flush_notes()
                    return
            try:
                result = original(*arguments)
                if asyncio.iscoroutine(result) or asyncio.isfuture(result):
                    await result
            finally:
                if lease is not None:
                    self._give_back("ok", cuda=True)

        self.shell_handlers["comm_msg"] = comm_msg

    # -- interrupts

    @contextmanager
    def _interruptible(self, loop):
        """Notes an interrupt instead of raising it: a KeyboardInterrupt in the event loop would end the kernel."""
        interrupt = _Interrupt(loop)
        # Only the main thread is interrupted (signal(7)); a subshell has another one.
        main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGINT, interrupt.note) if main else None
        try:
            yield interrupt
        finally:
            if main:
                signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)
            interrupt.future.cancel()

    @contextmanager
    def _cancel_on_sigint(self, future):
        """ipykernel's own, but it wakes the loop at once (ipykernel issue 881: without, an interrupt waits for other news)."""
        loop = asyncio.get_running_loop()

        def stop():
            if not future.done():
                future.cancel()

        before = signal.signal(signal.SIGINT, lambda *_: loop.call_soon_threadsafe(stop))
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    # -- %gpu

    def _magic(self, line):
        """`%gpu` for the present state; `%gpu 2`, `%gpu on`, `%gpu off`, `%gpu auto`; `%gpu hold 10m`; `%gpu simulate 8G`."""
        words = line.split("#")[0].split()
        if self.link is None:
            print(_WITHOUT)
        elif self.link.refused is not None:
            print("This kernel has no GPU from Carrel: " + self.link.refused)
        elif not words or words[0] == "status":
            print(self._status())
        elif words[0] in ("on", "off", "auto") or words[0].isdigit():
            self._choose(words[0])
        elif words[0] == "hold":
            self._hold(words[1:])
        elif words[0] == "simulate" and len(words) == 2:
            self.link.say("simulate", bytes=_bytes(words[1]))
            print("This kernel's state takes %s on simulated GPUs." % words[1])
        else:
            raise ValueError(
                "%%gpu %s is unknown. There are: %%gpu, %%gpu 2, on, off, auto, hold 10m, simulate 8G." % " ".join(words)
            )

    def _choose(self, word):
        if word == "off":
            self.gpus = 0
            print("Cells take no GPU from now on.")
        elif word == "auto":
            self.gpus = None
            print("Cells take a GPU when they need one.")
        else:
            count = 1 if word == "on" else int(word)
            if count and word != "on":
                answer = self._asked("home", ("home",), gpus=count)
                if answer is None:
                    return
            self.gpus = (-1 if word == "on" else count) if count else 0
            print("Each cell takes %s from now on." % ("its GPUs" if word == "on" else "%d GPU%s" % (count, "s"[: count != 1])))

    def _hold(self, words):
        seconds = 0 if words == ["off"] else _span(words[0]) if len(words) == 1 else None
        if seconds is None:
            raise ValueError("Say how long: %gpu hold 10m, or %gpu hold off.")
        answer = self._asked("hold", ("held",), seconds=seconds)
        if answer is not None:
            print(
                "The GPU stays with this kernel for %s after a cell." % words[0]
                if seconds
                else "The GPU goes back with the cell."
            )

    def _asked(self, op, answers, **fields):
        try:
            answer = self.link.ask(op, answers, **fields)
        except Refused as error:
            print(str(error))
            return None
        if answer is None:
            print("The node's broker does not answer now; try again.")
        return answer

    def _status(self):
        answer = self._asked("status", ("status",))
        if answer is None:
            return ""
        tenants = {row["id"]: row for row in answer.get("tenants", ())}
        leases = {row["id"]: row for row in answer.get("leases", ())}
        lines = []
        for device in answer.get("devices", ()):
            lease = leases.get(device.get("lease"))
            who = "free" if lease is None else "yours" if lease.get("mine") else "somebody else's"
            inside = [tenants[name] for name in device.get("residents", ()) if name in tenants]
            mine = sum(1 for row in inside if row.get("mine"))
            lines.append(
                "GPU %s  %-28s %5.1f of %.1f GiB  %-15s resident: %d of yours, %d of others"
                % (
                    device.get("index"),
                    device.get("name", "") if not device.get("simulated") else "simulated GPU",
                    device.get("used", 0) / 2**30,
                    device.get("memory", 0) / 2**30,
                    who,
                    mine,
                    len(inside) - mine,
                )
            )
        for row in answer.get("queue", ()):
            lines.append("%s in line: %s" % (row.get("position"), "you" if row.get("mine") else "somebody else"))
        chosen = {None: "when a cell needs one", 0: "never", -1: "for each cell"}.get(self.gpus, "%s for each cell" % self.gpus)
        lines.append("This kernel takes a GPU %s." % chosen)
        return "\n".join(lines)


_WITHOUT = "This kernel has its GPUs for itself (a reservation), or Carrel lends none here: cells run as in any notebook."


class _Interrupt:
    """Whether the user has interrupted: at once in `came`, and as a future for those who sleep."""

    def __init__(self, loop):
        self._loop = loop
        self.future = loop.create_future()
        self.came = False

    def note(self, *_):
        self.came = True
        self._loop.call_soon_threadsafe(self._wake)

    def _wake(self):
        if not self.future.done():
            self.future.set_result(True)


class _Line:
    """One line in the cell's output that changes while the cell waits."""

    def __init__(self, kernel):
        self._kernel = kernel
        self._id = uuid.uuid4().hex
        self.shown = ""

    def show(self, text):
        if text == self.shown:
            return
        kind = "update_display_data" if self.shown else "display_data"
        self.shown = text
        content = {"data": {"text/plain": text}, "metadata": {}, "transient": {"display_id": self._id}}
        with suppress(Exception):
            self._kernel.send_response(self._kernel.iopub_socket, kind, content)

    def end(self, text):
        """The last word, where there was a first one."""
        if self.shown:
            self.show(text)


def _alive():
    """Threads and tasks that somebody may have left behind."""
    found = {thread for thread in threading.enumerate() if thread.is_alive() and not thread.name.startswith("carrel-")}
    with suppress(RuntimeError):
        found |= {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
    return found


def _names(granted):
    names = [
        "GPU %s%s" % (device.get("index"), " (simulated)" if device.get("simulated") else "")
        for device in granted.get("devices") or ()
    ]
    return ", ".join(names) or "a GPU"


def _seconds(seconds):
    return "%d s" % round(seconds) if seconds >= 1 else "%.1f s" % seconds


def _span(text):
    found = re.fullmatch(r"(\d+)([smh]?)", text)
    return int(found.group(1)) * {"s": 1, "": 60, "m": 60, "h": 3600}[found.group(2)] if found else None


def _bytes(text):
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    if not found:
        raise ValueError('"%s" is no size; say 8G.' % text)
    return int(float(found.group(1)) * 1024 ** " KMGT".index(found.group(2).upper() or " "))


def main():
    """Start a kernel as ipykernel's own launcher does, with leases."""
    here = os.path.dirname(os.path.abspath(__file__))
    # The first entry is the working directory (python -m): a file of the user's must not take the place of a module.
    if sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]
    # Programs that cells start have nothing to do with this file.
    rest = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and os.path.abspath(part) != here]
    if rest:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)
    import carrel_kernel
    from ipykernel.kernelapp import IPKernelApp

    IPKernelApp.launch_instance(kernel_class=carrel_kernel.CarrelKernel)


if __name__ == "__main__":
    main()
