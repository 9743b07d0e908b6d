"""`carrel.Executor`: `concurrent.futures` over the jobs of a lab."""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import hashlib
import operator
import os
import secrets
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from functools import partial
from inspect import signature
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pydantic import ValidationError

from carrel.client.executor import pickling
from carrel.client.executor.digest import digest as content_of
from carrel.client.executor.digest import digest_of_files
from carrel.client.executor.environment import SentModules, own_modules, python_version, read_requirements
from carrel.client.executor.forgotten import weakly, when_forgotten
from carrel.client.executor.future import Future, in_a_fork
from carrel.client.executor.patience import again
from carrel.client.executor.progress import Counted, somebody_reads, told, why_no_worker
from carrel.client.executor.receiving import Receiver
from carrel.client.executor.scattered import Scattered
from carrel.client.executor.sending import Function, Sender, Unsent, digest_of, dump_arguments
from carrel.core.domain.errors import CarrelError, Invalid
from carrel.core.domain.suggest import suggest
from carrel.core.domain.units import parse_duration
from carrel.wire import v1

if TYPE_CHECKING:
    from carrel.client import Client

P = ParamSpec("P")
T = TypeVar("T")
#: Calls that one request cancels.
_TOGETHER = 10_000
_EDITED = "{} was edited after this executor was made: its workers run what it was then. Make another executor for the new code."


class Executor(concurrent.futures.Executor):
    """Runs functions on the lab's machines: each call in a warm worker, which is a job of the lab.

    Functions and arguments are pickled by cloudpickle, so closures, lambdas and what is defined in a notebook travel. A worker
    has the caller's Python and packages (they are locked and installed where it runs, once), and the modules of the caller's
    own that are imported when the executor is made.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        min_workers: int = 0,
        idle_time: float = 60.0,
        cpus: int | None = None,
        gpus: int | None = None,
        gpu_type: str | None = None,
        reserve: bool = False,
        memory: str | None = None,
        time: str | None = None,
        requirements: str | Path | Sequence[str] | None = None,
        image: str | None = None,
        modules: Sequence[Any] | None = None,
        name: str = "executor",
        retries: int = 0,
        call_time: str | float | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        echo: bool = False,
        cache: bool = False,
        client: Client | None = None,
        **options: Any,
    ) -> None:
        """Open a pool of up to `max_workers` workers (default: 8) in the lab. No worker is started before the first call.

        `min_workers` are kept while this program is there; others end after `idle_time` seconds without a call. `cpus`, `gpus`,
        `gpu_type`, `memory` ("8G") and `time` ("2h", how long a worker may live) are each worker's. GPUs are borrowed for each
        call, where they are lent; with `reserve` a worker has its own from start to end. `requirements`: packages,
        as a file or a list, instead of those of this environment; `image`: a container image instead. `modules`: own modules
        that travel, instead of all that are imported. `retries`: how often a call begins again after its worker died.
        `call_time` ("10m", or seconds): a call that takes longer is stopped, and raises `CallTimeout`.
        `initializer` is called with `initargs` in each worker before its first call. `echo`: what calls print appears here,
        too. `cache`: as if each call were submitted by `submit_cached`. `options` are those of a task (`qos`, `partition`,
        `account`, `variables`, `secrets`, …). Raises the errors of `carrel.core.domain.errors`.
        """
        from carrel.client import Client

        if max_workers is not None and max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        resources = {"cpus": cpus, "gpus": gpus, "gpu_type": gpu_type, "memory": memory, "time": time}
        shape = {"min_workers": min_workers, "max_workers": max_workers or max(8, min_workers)}
        request = _request(resources, {"image": image, **options}, name=name, idle_time=idle_time, reserve=reserve, **shape)
        self._client = client or Client()
        self._closes = client is None
        self._retries = retries
        self._call_time = _seconds(call_time)
        self._cache = cache
        first = None if initializer is None else pickling.dump((initializer, initargs))
        digest = None if first is None else digest_of(first)
        variables = options.get("variables")
        #: Of all that a worker is, for digests of calls.
        self._code = hashlib.sha256()
        with told("packing this program's modules and the list of its packages for the workers"):
            snapshot = self._upload(requirements, image, modules, digest)
        self._code.update(content_of([python_version(), image, variables, initializer, initargs]))
        task = request.task.model_copy(update={"snapshot": snapshot})
        pool = self._client.open_pool(request.model_copy(update={"task": task}))
        self._pool, self._borrows = pool.id, pool.borrows
        # What it can have at once: with borrowed GPUs no more than can compute.
        self._max_workers = pool.max_workers
        self._why = partial(why_no_worker, self._client, self._pool)
        self._functions: set[str] = set()
        if first is not None and digest is not None:
            self._client.add_function(self._pool, digest, first)
        self._guard = threading.Lock()
        self._process = os.getpid()
        self._shut = False
        #: Why no more calls are taken.
        self._refuses = ""
        self._receiver = Receiver(self._client, self._pool, echo=echo)
        # Calls on their way hold the executor by their futures; nothing else may, for an executor that is forgotten is shut.
        self._sender = Sender(weakly(self._send), weakly(self._failed))
        # A program that ends without `shutdown` has submitted all the same, and needs no workers for calls to come.
        self._exit = weakly(self._at_exit)
        atexit.register(self._exit)
        end = self._client.close if self._closes else lambda: None
        close = partial(_close_forgotten, self._client, self._pool, self._sender, self._receiver, end)
        self._forgotten = when_forgotten(self, self._exit, close)

    @property
    def max_workers(self) -> int:
        """How many calls are carried out at once, at most."""
        return self._max_workers

    @property
    def borrows(self) -> int:
        """GPUs that each call borrows; 0 where calls need none, or workers have their own."""
        return self._borrows

    @property
    def client(self) -> Client:
        """How it speaks with the lab."""
        return self._client

    @property
    def pool_id(self) -> int:
        """Number of the pool: `carrel pool show` has its workers and calls."""
        return self._pool

    # ---- calling

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call ``fn(*args, **kwargs)`` in a worker. What keeps them from being pickled is what the future raises.

        A future among the arguments, also within lists and the like, stands for its result: the call waits for it, without a
        worker, and a call that gives no result fails this one with `DependencyFailed`.
        """
        return self._submit(Function(fn), args, kwargs, cache=self._cache)

    def submit_cached(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As `submit`, but a call equal to one that has returned is not carried out: its future has that result, and is `cached`.

        Equal are function, code (own modules, packages, Python) and arguments.
        """
        return self._submit(Function(fn), args, kwargs, cache=True)

    def submit_within(self, call_time: str | float, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As `submit`, with a `call_time` ("10m", or seconds) of this call's own."""
        return self._submit(Function(fn), args, kwargs, cache=self._cache, call_time=_seconds(call_time))

    def submit_heard(
        self, heard: Callable[[str, int, bytes], None] | None, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """As `submit`; `heard` is told what the call prints and shows while it runs (`Future.heard`)."""
        return self._submit(Function(fn), args, kwargs, cache=self._cache, heard=heard)

    def scatter(self, value: Any) -> Scattered:
        """Send a value once: what is returned stands for it among the arguments of any number of calls of this executor.

        A worker keeps it for its next calls, so its arrays cannot be written there. The lab keeps it until the pool is over.
        Raises what the value raises when it is pickled.
        """
        self._check_process()
        parts = pickling.dump(value)
        digest = digest_of(parts)
        if digest not in self._functions:
            if self._refuses:
                raise RuntimeError(self._refuses)
            again(lambda: self._client.add_function(self._pool, digest, parts))
            self._functions.add(digest)
        return Scattered(pool_id=self._pool, digest=digest)

    def submit_sharing(self, share: Callable[[Any], Scattered | None], task: Callable[[], T]) -> Future[T]:
        """As `submit` of a task that holds its own arguments; `share` is asked for each value in it whether that is scattered."""
        function = Function(operator.call)
        function.label = Function(task).label
        return self._submit(function, (task,), {}, cache=self._cache, share=share)

    def _submit(
        self,
        fn: Function,
        args: Any,
        kwargs: Any,
        *,
        cache: bool,
        call_time: float | None = None,
        heard: Callable[[str, int, bytes], None] | None = None,
        share: Callable[[Any], Scattered | None] | None = None,
    ) -> Future[Any]:
        self._check_process()
        if edited := self._sent_modules.edited():
            warnings.warn(_EDITED.format(", ".join(edited)), stacklevel=3)
        future: Future[Any] = Future(fn.label, self._cancel, self._flush)
        future.client, future.heard = self._client, heard
        future._why = self._why
        try:
            function = fn.pickled()
            body, needed = dump_arguments((args, kwargs), self._pool, share)
            _check_lab(self._client, needed)
            if cache:
                name = content_of([fn.content(), content_of((args, kwargs), _name_of)])
                future.digest = "sha256:" + hashlib.sha256(self._code.digest() + name).hexdigest()
        except Exception as error:  # noqa: BLE001 - whatever a value does when it is pickled is its future's
            future.set_exception(error)
            return future
        header = {"key": secrets.token_urlsafe(12), "label": fn.label, "function": fn.digest, "retries": self._retries}
        header |= {"dependencies": [one.call_id for one in needed]} if needed else {}
        header |= {"cache": future.digest} if cache else {}
        limit = call_time or self._call_time
        header |= {"time_limit": limit} if limit else {}
        self._put(future, header, body, function)
        return future

    def _put(self, future: Future[Any], header: dict[str, Any], body: list[Any], function: list[Any]) -> None:
        digest = header["function"]
        with self._guard:
            if self._refuses:
                raise RuntimeError(self._refuses)
            if digest not in self._functions:
                try:
                    again(lambda: self._client.add_function(self._pool, digest, function))
                except CarrelError as error:  # as when the call itself is refused
                    future.set_exception(error)
                    return
                self._functions.add(digest)
            try:
                self._receiver.expect(future)
                self._sender.put(Unsent(future=future, header=header, body=body))
            except RuntimeError as error:
                self._receiver.forget(future)
                raise BrokenProcessPool(f"This call cannot be sent: {error}.") from error

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[T]:
        """As `concurrent.futures.Executor.map`; so many of `chunksize` elements are one call, which is faster for short ones.

        A line at the terminal, or below the notebook's cell, says how many calls are done.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if chunksize == 1:
            return self._map(fn, zip(*iterables, strict=False), timeout)

        def several(chunk: list[tuple[Any, ...]]) -> list[T]:
            return [fn(*element) for element in chunk]

        chunks = self._map(several, ((chunk,) for chunk in _chunks(zip(*iterables, strict=False), chunksize)), timeout)
        return (element for chunk in chunks for element in chunk)

    def _map(self, fn: Callable[..., T], elements: Iterable[tuple[Any, ...]], timeout: float | None) -> Iterator[T]:
        deadline = None if timeout is None else monotonic() + timeout
        function = Function(fn)  # pickled once for all
        futures = [self._submit(function, element, {}, cache=self._cache) for element in elements]
        if somebody_reads():
            Counted(futures)
        futures.reverse()

        def results() -> Iterator[T]:
            try:
                while futures:
                    futures[-1].result(None if deadline is None else deadline - monotonic())
                    yield futures.pop().result()  # nothing here holds it meanwhile
            finally:
                self._cancel_all(futures)

        return results()

    def submit_array(self, fn: Callable[[Any], T], arguments: Iterable[Any]) -> list[Future[T]]:
        """Call `fn` with each of `arguments`; the futures are in their order."""
        function = Function(fn)  # pickled once for all
        return [self._submit(function, (argument,), {}, cache=self._cache) for argument in arguments]

    def joblib(self) -> AbstractContextManager[object]:
        """A context in which `joblib.Parallel`, and so `n_jobs` of scikit-learn, runs here. Workers need joblib, too."""
        from carrel.client.executor.joblib_backend import joblib_over

        found: AbstractContextManager[object] = joblib_over(self)
        return found

    # ---- ending

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. With `wait`, return when all have ended; with `cancel_futures`, those that wait do not begin.

        What was submitted is carried out in any case, also when this program ends before it. May be called again. In a callback
        of a future nothing is waited for: it would wait for itself.
        """
        if os.getpid() != self._process:
            return  # a forked process leaves what is its parent's
        with self._guard:
            first, self._shut = not self._shut, True
            self._refuses = "cannot schedule new futures after shutdown"
        if first:
            atexit.unregister(self._exit)
            self._forgotten.detach()
            self._sender.close()
        if first or (cancel_futures and not self._receiver.idle()):
            # A lab that is away, or a client that is closed: the pool stays open, and its workers leave. This never replaces
            # what the block of a `with` has raised.
            with contextlib.suppress(Exception):
                again(lambda: self._client.close_pool(self._pool, cancel=cancel_futures))
        if wait and not self._receiver.is_this_thread() and not self._sender.is_this_thread():
            self._receiver.wait()
            self._receiver.give_up(all_had=True)
            self._end()  # not only when the receiver's thread wakes
        self._receiver.close_when_done(self._end)

    def _end(self) -> None:
        if self._closes:
            self._client.close()

    def _at_exit(self) -> None:
        """The program ends without `shutdown`: what it has submitted is carried out; what it submits later would not be sent."""
        if os.getpid() != self._process:
            return
        with self._guard:
            self._refuses = "cannot schedule new futures after interpreter shutdown"
        self._sender.close()
        with contextlib.suppress(Exception):  # the lab is away, or its client was closed: the lab notices that no client listens
            self._client.close_pool(self._pool)

    # ---- finding again

    @staticmethod
    def future(call_id: int, *, client: Client | None = None) -> Future[Any]:
        """The call of that number, from this process or another one, today or tomorrow. Raises `NotFound`."""
        from carrel.client import Client

        client = client or Client()
        call = client.call(call_id)
        future: Future[Any] = Future(call.label, lambda one: _cancel_call(client, one), lambda: None)
        future.client, future.digest = client, call.cache
        receiver = Receiver(client, call.pool_id, echo=False, after=(call.number or 1) - 1, owns=False)
        receiver.expect(future)
        receiver.number(future, call.id)
        receiver.close_when_done(lambda: None)
        return future

    # ---- inside

    def _upload(
        self,
        requirements: str | Path | Sequence[str] | None,
        image: str | None,
        modules: Sequence[Any] | None,
        initializer: str | None,
    ) -> str:
        from carrel.client.executor.code import write_worker

        if image is not None and requirements is not None:
            raise Invalid("requirements and image are both given.", remedy="An image has its own packages: leave one out.")
        lines = None if image is not None else read_requirements(requirements)
        with tempfile.TemporaryDirectory(prefix="carrel-worker-") as directory:
            own = own_modules(modules, whole=requirements is None and image is None)
            self._sent_modules = SentModules(own)
            write_worker(Path(directory), requirements=lines, modules=own, initializer=initializer)
            # What carries calls out may change with Carrel's version; what they compute does not.
            self._code.update(digest_of_files(Path(directory), {"carrel_worker", "MLproject"}).encode())
            return self._client.upload(Path(directory))

    def _send(self, calls: list[Unsent]) -> None:
        wanted = [(call.header, call.body) for call in calls]
        numbers = again(lambda: self._client.submit_calls(self._pool, wanted))
        for call, number in zip(calls, numbers, strict=True):
            self._receiver.number(call.future, number)

    def _failed(self, call: Unsent, error: Exception) -> None:
        self._receiver.forget(call.future)
        call.future.set_exception(error)

    def _flush(self) -> None:
        self._check_process()
        self._sender.flush()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise in_a_fork(self._process)

    def __reduce__(self) -> Any:
        raise TypeError(
            "A carrel.Executor cannot travel to a worker, and the function or an argument holds one (a method brings its "
            "object). Pass what the call needs alone; a call that needs an executor makes its own."
        )

    def _cancel_all(self, futures: list[Future[Any]]) -> None:
        """Keep calls from beginning, as `Future.cancel` does, in one request for all. One that a worker has is not waited for."""
        if not futures:
            return
        for future in self._sender.take_back(set(futures)):
            self._receiver.forget(future)
            future.cancel_here()
        self._flush()
        by_number = {one._number: one for one in futures if one._number is not None and not one.done()}
        futures.clear()
        numbers = list(by_number)
        for start in range(0, len(numbers), _TOGETHER):
            some = numbers[start : start + _TOGETHER]
            for number in again(partial(self._client.cancel_calls, self._pool, some)):
                by_number[number].cancel_here()

    def _cancel(self, future: Future[Any]) -> bool:
        self._flush()  # what is on its way has a number then
        return future.cancelled() if future.done() else _cancel_call(self._client, future)


def _close_forgotten(client: Client, pool: int, sender: Sender, receiver: Receiver, end: Callable[[], None]) -> None:
    sender.close()
    with contextlib.suppress(Exception):  # the lab is away, or the client was closed: the lab notices that no client listens
        client.close_pool(pool)
    receiver.close_when_done(end)


def _request(resources: dict[str, Any], options: dict[str, Any], *, name: str, **shape: Any) -> v1.WorkerPoolRequest:
    """What the lab is asked for, still without code. Raises `Invalid` for options that no task has, and for their values."""
    ours = set(signature(Executor).parameters) - {"options"}
    of_tasks, of_resources = set(v1.TaskRequest.model_fields), set(v1.ResourceRequest.model_fields)
    for option in options:
        if option not in of_tasks | of_resources:
            raise Invalid(f'"{option}" is no option of carrel.Executor.', remedy=suggest(option, ours | of_tasks | of_resources))
    found = resources | {option: options.pop(option) for option in of_resources & set(options)}
    try:
        task = v1.TaskRequest(snapshot="", name=name, resources=v1.ResourceRequest(**found), **options)
        return v1.WorkerPoolRequest(name=name, task=task, **shape)
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise Invalid(f"The lab does not understand an option: {told}.", remedy="docs/functions.md lists them.") from None


def _seconds(limit: str | float | None) -> float | None:
    if isinstance(limit, str):
        return parse_duration(limit)
    if limit is not None and not limit > 0:
        raise Invalid(f"call_time is {limit}.", remedy='Say more than 0 seconds, or a duration like "10m".')
    return limit


def _cancel_call(client: Client, future: Future[Any]) -> bool:
    # The answer to a call that was kept from beginning comes the same way as others' results.
    if again(lambda: client.cancel_call(future.call_id)).state != "CANCELLED":
        return False
    return future.cancel_here() or future.cancelled()


def _check_lab(client: Client, needed: Sequence[Future[Any]]) -> None:
    for one in needed:
        if one.client is not client and one.client.url != client.url:
            raise Invalid(
                f"An argument is the future of call {one.call_id} in another lab ({one.client.url}; this one is {client.url}).",
                remedy="Pass its result: future.result().",
            )


def _name_of(value: Any) -> str | None:
    """A future stands for the result of its call, which is known by its digest, or else by its number; other values have one."""
    if isinstance(value, Scattered):
        return value.digest
    return (value.digest or f"call {value.call_id}") if isinstance(value, Future) else None


def _chunks(elements: Iterable[tuple[Any, ...]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    chunk = []
    for element in elements:
        chunk.append(element)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
