"""Who uses the process' lease: each user has a share that only it returns, and the lease goes back with the last one.

A user is anything that begins and ends by itself: a cell or another request, a widget's callback, a piece of work in a pool of
threads, an asyncio task, a callback of the event loop, a thread. Work whose beginning we see says so (`Shares.during`). The first
use of CUDA may come from anywhere else; then `Shares.present` finds out who it is and how their end shows.
"""

import asyncio
import os
import threading
import weakref
from contextlib import contextmanager, suppress
from functools import partial, wraps


class Share:
    """One user's part in the lease. `news` is set, and `changed` called (in the link's thread), when there is something new."""

    def __init__(self, cell="", thing=None, needs=None):
        """`cell`: id of the request. `thing`: the task or thread. `needs`: says whether it needs a GPU when others begin to."""
        self.cell = cell
        self.needs = needs
        self.gpus = 0
        #: The lease of which it has a part now, or None.
        self.lease = None
        #: Why there will be none, or None.
        self.refused = None
        #: Where it is in the line, for people.
        self.line = ""
        self.news = threading.Event()
        self.changed = lambda: None
        self._thing = None if thing is None else weakref.ref(thing)

    @property
    def settled(self):
        """True when there is nothing more to wait for."""
        return self.lease is not None or self.refused is not None

    def is_of(self, thing):
        """True when it is the share of this task or thread."""
        return self._thing is not None and self._thing() is thing

    def tell(self):
        """There is something new."""
        self.news.set()
        with suppress(Exception):  # the loop that listened is closed
            self.changed()


class Shares:
    """The shares of this process."""

    def __init__(self, link, on_lease, facts):
        """`on_lease(lease)`: called when one has come. `facts()`: what the broker gets with a release."""
        self._link = link
        self._on_lease = on_lease
        self._facts = facts
        self._pid = os.getpid()
        #: The process' lease, or None.
        self.lease = None
        self._users = []
        #: What was asked of the broker and is not answered, and those who wait for it.
        self._question = None
        self._waiting = []
        self._oom = False
        #: Whose the work is that a task or a thread does at this moment.
        self._of_task = weakref.WeakKeyDictionary()
        self._of_thread = threading.local()

    # -- having a share

    def ask(self, share, gpus, cell=""):
        """Take a share of the lease that is there, or wait for one (`Share.settled`): there is one question at a time."""
        with self._link.lock:
            share.gpus, share.refused = gpus, None
            if share.lease is not None or self.join(share):
                return
            self._waiting.append(share)
            if self._question is None:
                self._question = self._link.acquire(gpus, cell, self._heard)
                self._heard(self._question)
            share.line = self._question.line if self._question is not None else share.line

    def join(self, share):
        """Take a share of the lease if there is one; return whether there is."""
        with self._link.lock:
            if self.lease is not None and share.lease is None:
                share.lease = self.lease
                self._users.append(share)
            return share.lease is not None

    def leave(self, share, outcome="ok", oom=False, **facts):
        """The user is over, or does not wait any more. With the last share the lease goes back."""
        if os.getpid() != self._pid:
            return  # a forked child: the lease is the parent's
        told = {**self._facts(), **facts} if share.lease is not None else {}
        with self._link.lock:
            if share in self._waiting:
                self._waiting.remove(share)
                if not self._waiting and self._question is not None:
                    question, self._question = self._question, None
                    self._link.cancel(question)
            if share.lease is None:
                return
            share.lease = None
            self._users.remove(share)
            self._oom = self._oom or oom
            if not self._users:
                lease, self.lease = self.lease, None
                oom, self._oom = self._oom, False
                self._link.release(lease, cell=share.cell, outcome=outcome, oom=oom, **told)

    def join_all(self):
        """The process has begun to use CUDA: requests that run on and need a GPU use the lease too, until their end."""
        with self._link.lock:
            for share in [*self._of_task.values()]:
                if share.needs is not None and share.needs():
                    self.join(share)

    def has(self, thing):
        """True while this task or thread has a share."""
        with self._link.lock:
            return any(share.is_of(thing) for share in self._users)

    def fence(self, lease, fence):
        """The lease goes on after a pause, with a new fence."""
        with self._link.lock:
            if self.lease is not None and self.lease.get("lease") == lease:
                self.lease["fence"] = fence

    def _heard(self, question):
        """There is news of what was asked. Called with the lock held."""
        told = list(self._waiting)
        if question is not self._question:
            return
        if question.settled:
            self._question, self._waiting = None, []
        if question.granted is not None:
            self.lease = question.granted
            self._on_lease(self.lease)
        for share in told:
            share.line, share.refused = question.line, question.refused
            if question.granted is not None:
                self.join(share)
            share.tell()

    # -- who is it

    @contextmanager
    def during(self, share):
        """Until the end of the block, what this task (or this thread, where there is none) does is done by the share's user."""
        task, before = _current_task(), self.current()
        self._belongs(task, share)
        try:
            yield share
        finally:
            self._belongs(task, before)

    def also(self, task, share):
        """What this task does is done by the share's user too: the inner task of a cell with a top-level await."""
        if share is not None:
            self._belongs(task, share)

    def current(self):
        """The share of the user that runs here, or None when nobody has said who that is."""
        task = _current_task()
        return self._of_task.get(task) if task is not None else getattr(self._of_thread, "share", None)

    def present(self):
        """The share of the user that runs here, and what has to be called once it has the lease, so that it returns it at its
        end."""
        share = self.current()
        if share is not None:
            return share, lambda: None
        loop, task = asyncio._get_running_loop(), _current_task()
        if task is not None and not _is_endless(task):
            share = Share(thing=task)
            return share, partial(self._until_done, task, share)
        if loop is not None:  # a callback: it is over before the loop does anything else
            share = Share()
            return share, partial(loop.call_soon, self.leave, share)
        share = Share(thing=threading.current_thread())
        return share, partial(self._until_thread, share)

    def _belongs(self, task, share):
        if task is None:
            self._of_thread.share = share
            return
        with self._link.lock:
            if share is None:
                self._of_task.pop(task, None)
            else:
                self._of_task[task] = share

    def _until_done(self, task, share):
        self._belongs(task, share)
        task.add_done_callback(lambda _task: self.leave(share))
        weakref.finalize(task, self.leave, share).atexit = False  # a task that is forgotten is never done

    def _until_thread(self, share):
        self._of_thread.share = share
        # What a thread keeps for itself is dropped at its very end, also of threads that `threading` did not start.
        self._of_thread.end = _End(partial(self.leave, share))

    def watch_pools(self, needed):
        """A thread of a pool lives on after its work: the work is the user. `needed()`: whether a first use can still come."""
        from concurrent.futures import thread as pools

        original = pools._WorkItem.run

        @wraps(original)
        def run(*arguments):
            if not needed():
                return original(*arguments)
            share = Share(thing=threading.current_thread())
            with self.during(share):
                try:
                    return original(*arguments)
                finally:
                    self.leave(share)

        pools._WorkItem.run = run


class _End:
    """Says when it is dropped."""

    def __init__(self, call):
        self._call = call

    def __del__(self):
        with suppress(Exception):
            self._call()


def _current_task():
    loop = asyncio._get_running_loop()
    return None if loop is None else asyncio.current_task(loop)


def _is_endless(task):
    """True for ipykernel's own task that handles one message after another."""
    return getattr(task.get_coro(), "__qualname__", "").endswith(".dispatch_queue")
