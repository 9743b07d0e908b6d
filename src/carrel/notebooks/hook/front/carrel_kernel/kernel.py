"""The kernel: ipykernel's own, whose cells, requests and callbacks have leases."""

import asyncio
import os
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial

from ipykernel.ipkernel import IPythonKernel

from .advice import Advises
from .debugger import PrivateDebugger
from .descriptors import SettlesDescriptors
from .guard import Guard
from .interrupts import InterruptsCells
from .link import Link, Refused
from .magic import GpuMagic
from .marks import is_plain, switch, wish
from .remote import RemoteMagic
from .residency import Residency
from .shares import Share, Shares
from .state import blockers, in_reserve, let_go
from .waiting import PATIENCE, Line, interruptible, names, span

#: Seconds that a kernel which just started waits for its broker's first word before its first cell.
GREETING = 3.0
#: Seconds that work without a way to interrupt it (a subshell, a widget's callback) waits for a lease.
LONGEST_WAIT = 120.0
#: Cells whose numbers are remembered.
_REMEMBERED = 100


class CarrelKernel(InterruptsCells, PrivateDebugger, SettlesDescriptors, Advises, IPythonKernel):
    """ipykernel's own kernel, whose cells have leases."""

    def __init__(self, **options):
        super().__init__(**options)
        self._loop = None
        self._running = 0
        #: What `%gpu` chose: a number for each cell, or None for "when it is needed".
        self.gpus = None
        #: The numbers of the last cells ("In [12]"), by their requests.
        self.numbers = {}
        self._notes = deque(maxlen=20)
        self._told = set()
        self._main = threading.current_thread()
        self.residency = Residency()
        self.guard = Guard(self._first_use)
        self.link = None
        if os.environ.get("CARREL_BROKER") and os.environ.get("CARREL_TOKEN") and not os.environ.get("CARREL_SESSION_RESERVED"):
            try:
                self._begin()
            except Exception as error:  # a kernel without leases is better than no kernel
                self.link = None
                self.log.warning("Carrel: no leases for this kernel: %s", error)
        with suppress(Exception):
            self.shell.register_magic_function(GpuMagic(self).run, "line", "gpu")
            RemoteMagic(self).register()

    def _begin(self):
        # Asking whether there is a GPU must not take one; large frameworks must not take all memory at once.
        for name, value in (
            ("PYTORCH_NVML_BASED_CUDA_CHECK", "1"),
            ("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),
            ("TF_FORCE_GPU_ALLOW_GROWTH", "true"),
        ):
            os.environ.setdefault(name, value)
        kernel_id = os.path.basename(getattr(self.parent, "connection_file", "") or "").removeprefix("kernel-")[:-5]
        label = os.environ.get("JPY_SESSION_NAME") or ""
        label = os.path.relpath(label) if os.path.isabs(label) else label
        self.link = Link(os.environ["CARREL_BROKER"], os.environ["CARREL_TOKEN"], kernel_id, label, self._heard)
        self.shares = Shares(self.link, lambda lease: self._see(lease.get("devices") or ()), self._facts)
        self.guard.install()
        self.link.start()
        with suppress(Exception):
            self.shares.watch_pools(lambda: not self.guard.touched)
        with suppress(Exception):
            self._wrap_requests()

    # -- cells

    async def do_execute(
        self, code, silent, store_history=True, user_expressions=None, allow_stdin=False, *, cell_meta=None, cell_id=None
    ):
        """As ipykernel does it, between a lease's beginning and its end."""
        run = partial(
            super().do_execute, code, silent, store_history, user_expressions, allow_stdin, cell_meta=cell_meta, cell_id=cell_id
        )
        if self.link is None:
            return await run()
        if silent:
            return await self._request(Share(), run)
        self._loop = asyncio.get_running_loop()
        self._flush_notes()
        share = Share(cell=self._request_id() or cell_id or "", needs=lambda: self._needed(code, cell_meta) != 0)
        self.numbers[share.cell] = getattr(self.shell, "execution_count", 0)
        if len(self.numbers) > _REMEMBERED:
            del self.numbers[next(iter(self.numbers))]
        try:
            await self._before(code, cell_meta, share)
        except (KeyboardInterrupt, asyncio.CancelledError):
            return self._aborted("KeyboardInterrupt", "interrupted while it waited for a GPU; the cell was not run")
        except Refused as error:
            return self._aborted("NoGPU", str(error))
        before = _alive()
        self._running += 1
        self.residency.busy()
        outcome = "aborted"
        reply = None
        try:
            with self.shares.during(share):
                reply = await run()
            outcome = "ok" if reply.get("status") == "ok" else "error"
            return reply
        finally:
            self._running -= 1
            if not self._running:
                self.residency.idle()
            self._finished(outcome, reply, before, share)

    async def _before(self, code, meta, share):
        """Let the cell have its lease, if it needs one. Raises `Refused`, and KeyboardInterrupt when the user does not want to
        wait.

        From here to the user's own code an interrupt must not be raised wherever the event loop happens to be: it is noted.
        """
        if self.link.greeted.is_set() and not self._needed(code, meta):
            return
        try:
            with interruptible(self._loop) as interrupt:
                if not self.link.greeted.is_set():
                    greeting = self._loop.run_in_executor(None, self.link.greeted.wait, GREETING)
                    await asyncio.wait({greeting, interrupt.future}, return_when=asyncio.FIRST_COMPLETED)
                gpus = self._needed(code, meta)
                if gpus and not interrupt.came:
                    await self._lend(share, gpus, interrupt)
            if interrupt.came:
                raise KeyboardInterrupt
        except BaseException:
            self.shares.leave(share, "aborted")
            raise

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
            if chosen == 0 or self._borrows_none():
                return 0
            if chosen is None and not self.guard.touched:
                return 0
            return 0 if is_plain(code) else (-1 if chosen is None else chosen)
        except Exception as error:  # our defect: a kernel that has used a GPU asks for it, another one does not
            self.log.warning("Carrel: a cell could not be read: %s", error)
            return -1 if self.guard.touched else 0

    def _borrows_none(self):
        return int(self.link.welcome.get("gpus", 1) or 0) == 0

    async def _lend(self, share, gpus, interrupt):
        """Wait for a lease, and say so. Raises `Refused`, and KeyboardInterrupt when the user does not want to wait."""
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        share.changed = lambda: loop.call_soon_threadsafe(changed.set)
        self.shares.ask(share, max(0, gpus), share.cell)
        line, began = Line(self), time.monotonic()
        try:
            while not share.settled:
                await self._next(share, changed, interrupt, line, began)
        except BaseException:
            self.shares.leave(share, "aborted")
            line.end("stopped waiting for a GPU")
            raise
        finally:
            share.changed = lambda: None
        if share.refused is not None:
            raise Refused(share.refused)
        line.end("waited %s for %s" % (span(time.monotonic() - began), names(share.lease)))

    async def _next(self, share, changed, interrupt, line, began):
        """Sleep until there is news of the lease, or the user interrupts."""
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
        if not share.settled and time.monotonic() - began >= PATIENCE:
            line.show(share.line or "waiting for a GPU")

    def _see(self, devices):
        """Make the lent devices the ones that CUDA finds; it looks once, at its first use."""
        uuids = [device["uuid"] if isinstance(device, dict) else device for device in devices]
        if uuids and not self.guard.touched:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(uuids)

    def _facts(self):
        """What the broker gets of the process when the lease goes back."""
        touched = self.guard.touched
        return {"cuda": touched, "blockers": self._blockers() if touched else [], "cached": in_reserve() if touched else []}

    def _blockers(self):
        return blockers(self.link.welcome.get("stay") or {})

    def _finished(self, outcome, reply, before, share):
        """The cell is over: see what is left of it, and return its share of the lease."""
        facts = {}
        try:
            touched = self.guard.look()
            had = share.lease is not None
            left = [thing for thing in _alive() if thing not in before] if touched or had else []
            # Threads that feed the queues of worker processes do nothing on a GPU, and end by themselves.
            told = [thing for thing in left if getattr(thing, "name", "") != "QueueFeederThread"]
            if touched and not self.residency.status() and "background" not in self._told and not all(map(self.shares.has, told)):
                self._told.add("background")
                self._note(
                    "Threads or tasks of this cell go on after it (%d). What they do on a GPU they do without a lease: it stops "
                    "while another session has the GPU to itself, and goes on with your next cell." % len(told)
                )
            starved = "OutOfMemory" in str((reply or {}).get("ename", ""))
            if starved:
                self._note(
                    "The GPU's memory was not enough. State of others that is in the way is moved off it: run the cell again."
                )
            if touched and had:
                self._tell_what_stays()
            facts = {"background": len(left), "oom": touched and outcome == "error" and starved}
        except Exception as error:
            self.log.warning("Carrel: after a cell: %s", error)
        self.shares.leave(share, outcome, **facts)

    def _tell_what_stays(self):
        """Say once why the GPU does not go back with the cell."""
        gate = self.residency.status()
        found = list(gate.get("reasons", ())) if gate else self._blockers()
        if not found or self._told.issuperset(found) or self.link.welcome.get("tier") == "hold":
            return
        self._told.update(found)
        minutes = float(self.link.welcome.get("hold_time") or 0) / 60
        self._note(
            "The GPU stays with this kernel after its cells: its GPU state cannot be moved (%s). While others wait, a kernel "
            "that does nothing with it for %d min is ended, with warnings before." % (", ".join(found), round(minutes))
        )

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

    # -- where only waiting helps: the first use of CUDA, inside a cell or outside of one, and what follows a question to the user

    def _first_use(self):
        """Wait where we are, in any thread; the user here has a share until its end."""
        if self.link is None or self._borrows_none() or self.gpus == 0:
            return
        share, when_it_has_come = self.shares.present()
        if share.lease is None:
            self.link.greeted.wait(GREETING)
            self._wait_for(share)
            when_it_has_come()
        self.guard.touched = True
        self.shares.join_all()

    def _wait_for(self, share):
        """Block until the share has its lease. Raises `RuntimeError` when it gets none, and what a signal's handler raises."""
        # What nobody can interrupt must not block the kernel for ever: cells run in the main thread, and stop on SIGINT.
        bounded = threading.current_thread() is self._main and not share.cell
        line, began = Line(self), time.monotonic()
        try:
            self.shares.ask(share, share.gpus, share.cell)
            while not share.settled:
                share.news.wait(PATIENCE if not line.shown else 0.5)  # a signal handler runs between two of these
                share.news.clear()
                waited = time.monotonic() - began
                if not share.settled and waited >= PATIENCE:
                    line.show(share.line or "waiting for a GPU")
                if not share.settled and bounded and waited > LONGEST_WAIT:
                    raise RuntimeError("Carrel: no GPU became free within %d s; a callback does not wait longer." % LONGEST_WAIT)
        except BaseException:
            self.shares.leave(share, "aborted")
            line.end("stopped waiting for a GPU")
            raise
        if share.refused is not None:
            raise RuntimeError("Carrel: no GPU for this kernel. " + share.refused)
        line.end("waited %s for %s" % (span(time.monotonic() - began), names(share.lease)))

    def _input_request(self, *arguments, **named):
        """input(), getpass() and a debugger's prompt: while a person thinks, the GPU is there for others."""
        share = self.shares.current() if self.link is not None else None
        if share is None or share.lease is None:
            return super()._input_request(*arguments, **named)
        self.shares.leave(share, "input")
        self.residency.idle()
        try:
            return super()._input_request(*arguments, **named)
        finally:
            self.residency.busy()
            self._wait_for(share)  # also after an interrupt: a debugger, or the cell itself, may go on from it

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
            self.shares.fence(message.get("lease"), message.get("fence"))

    def _prepare(self, message):
        loop = self._loop
        if self._running or loop is None or loop.is_closed():
            self.link.say("prepared", id=message.get("id"), bytes=None, blockers=self._blockers())
            return

        def work():
            held, facts = None, {}
            with suppress(Exception):
                if not self._running:
                    held = let_go() if self.guard.touched else None
                    facts["cached"] = in_reserve()
            self.link.say("prepared", id=message.get("id"), bytes=held, blockers=self._blockers(), **facts)

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

    # -- requests that are no cells

    def _wrap_requests(self):
        """Each request is a user of the lease of its own; a widget's callback in a kernel that has used CUDA gets one first."""
        for handlers, kinds in (
            (self.shell_handlers, set(self.shell_handlers) - {"execute_request"}),
            (self.control_handlers, {"debug_request"}),
        ):
            for kind in kinds & set(handlers):
                handlers[kind] = partial(self._handle, handlers[kind], kind == "comm_msg")

    async def _handle(self, original, lends, *arguments):
        share = Share(needs=lambda: self.gpus != 0)
        if lends and self.guard.touched and self.gpus != 0 and not self._borrows_none():
            try:
                with interruptible(asyncio.get_running_loop()) as interrupt:
                    await asyncio.wait_for(self._lend(share, -1, interrupt), LONGEST_WAIT)
            except (Refused, asyncio.TimeoutError, KeyboardInterrupt) as error:
                self._note("A widget's callback was not run: %s" % (error or "no GPU became free"))
                self._flush_notes()
                return None
        return await self._request(share, partial(original, *arguments))

    async def _request(self, share, run):
        """Run it; what it has of the lease goes back at its end."""
        try:
            with self.shares.during(share):
                result = run()
                return await result if asyncio.iscoroutine(result) or asyncio.isfuture(result) else result
        finally:
            self.shares.leave(share)


def _alive():
    """Threads and tasks that somebody may have left behind."""
    found = {thread for thread in threading.enumerate() if thread.is_alive() and not thread.name.startswith("carrel-")}
    with suppress(RuntimeError):
        found |= {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
    return found
