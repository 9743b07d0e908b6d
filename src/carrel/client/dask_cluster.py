"""A cluster of Dask whose workers are jobs of the lab: each is a call of a pool, so queue, limits and accounting hold for them.

The scheduler runs in the caller's process. Scheduler and workers speak TLS with a key that is made for this cluster; workers get
it with the arguments of their call, which are the owner's alone, and in no command line and no snapshot of code.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import cloudpickle
import dask
from distributed import Scheduler, Security
from distributed.core import Status
from distributed.deploy.spec import ProcessInterface, SpecCluster
from distributed.utils import get_ip
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_unix_socket

from carrel.client import dask_words, dask_worker
from carrel.client.executor import Executor, WorkersDoNotStart
from carrel.core.domain.errors import CarrelError, Invalid

if TYPE_CHECKING:
    from carrel.client import Client
    from carrel.client.executor import Future

_log = logging.getLogger(__name__)
cloudpickle.register_pickle_by_value(dask_worker)
#: Workers that a cluster may have.
_MOST = 1000
#: Seconds in which a worker that was asked to leave does so by itself; then its job is cancelled.
_LEAVES = 10.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class CarrelWorker(ProcessInterface):  # type: ignore[misc] # distributed has no types
    """One Dask worker of the cluster: a call that waits for its job, runs, and ends."""

    status: Any

    def __init__(self, scheduler: str, name: Any, begin: Callable[[str, Any], Future[str]], cancel: Callable[[int], Any]) -> None:
        super().__init__(scheduler=scheduler, name=name)
        self.name = name
        #: The call, once the lab was asked for it.
        self.future: Future[str] | None = None
        self._scheduler = scheduler
        self._begin = begin
        self._cancel = cancel
        self._cluster: Callable[[], CarrelCluster | None] = lambda: None

    async def start(self) -> None:
        """Ask the lab for it."""
        loop = asyncio.get_running_loop()
        self.future = await asyncio.to_thread(self._begin, self._scheduler, self.name)
        await super().start()

        def ended(future: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._ended, future)

        self.future.add_done_callback(ended)

    def _ended(self, future: Future[str]) -> None:
        if self.status == Status.running:  # nobody here has asked for it
            self.status = Status.closed
            self._event_finished.set()
            cluster = self._cluster()
            if cluster is not None:
                cluster.lost(self, None if future.cancelled() else future.exception())

    async def close(self) -> None:
        """Let it leave; end its job if it does not."""
        if self.status in (Status.closing, Status.closed):
            return
        future, self.status = self.future, Status.closing
        if future is not None and not await asyncio.to_thread(future.cancel):
            cluster = self._cluster()
            if cluster is not None:
                await cluster.dismiss(self.name)
            done, _ = await asyncio.wait([asyncio.ensure_future(_end_of(future))], timeout=_LEAVES)
            if not done and future.job_id is not None:
                with contextlib.suppress(CarrelError):
                    await asyncio.to_thread(self._cancel, future.job_id)
        await super().close()


class _PageScheduler(Scheduler):  # type: ignore[misc]
    """A scheduler whose pages are on a socket that only this user opens, and on no port."""

    def __init__(self, *options: Any, page: Path, **more: Any) -> None:
        self._page = page
        self._page_server: HTTPServer | None = None
        super().__init__(*options, **more)

    def start_http_server(self, *options: Any, **more: Any) -> None:
        """Dask opens a port; it is closed before anything was answered there."""
        super().start_http_server(*options, **more)
        self.http_server.stop()
        self._page_server = HTTPServer(self.http_application)
        self._page_server.add_socket(bind_unix_socket(str(self._page), 0o600))

    async def close(self, *options: Any, **more: Any) -> None:
        """Close, and remove the socket."""
        if self._page_server is not None:
            self._page_server.stop()
            self._page.unlink(missing_ok=True)
            self._page_server = None
        await super().close(*options, **more)


class CarrelCluster(SpecCluster):  # type: ignore[misc]
    """Workers of Dask in jobs of the lab; use it with ``distributed.Client(cluster)``."""

    def __init__(
        self,
        n_workers: int = 0,
        *,
        cpus: int | None = None,
        gpus: int | None = None,
        gpu_type: str | None = None,
        memory: str | None = None,
        time: str | None = None,
        requirements: str | Path | Sequence[str] | None = None,
        image: str | None = None,
        modules: Sequence[Any] | None = None,
        name: str | None = None,
        host: str | None = None,
        dashboard_address: str | None = None,
        security: Security | bool | None = None,
        worker_options: dict[str, Any] | None = None,
        scheduler_options: dict[str, Any] | None = None,
        client: Client | None = None,
        asynchronous: bool = False,
        silence_logs: Any = logging.WARNING,
        loop: Any = None,
        echo: bool = False,
        **options: Any,
    ) -> None:
        """Start a scheduler here, and ask the lab for `n_workers` workers; `scale` and `adapt` change their number.

        `cpus`, `gpus`, `gpu_type`, `memory` ("8G") and `time` ("2h") are each worker's, and `requirements`, `image`, `modules`,
        `echo` and `options` are as those of `carrel.Executor`. A worker has a thread for each cpu, and offers `gpus` as its Dask
        resource ``GPU``. `host`: address of this machine that workers reach; without it, the one by which it reaches the address
        at which they reach the lab. `dashboard_address` ("127.0.0.1:8787"): where to show Dask's pages, which have no password;
        without it they are shown in a session alone, at its own address (`dashboard_link`). `security`: certificates, instead of
        those that are made for this cluster. `worker_options` are those of ``distributed.Worker``, `scheduler_options` those of
        ``distributed.Scheduler``. Words of dask-jobqueue (`cores`, `processes`, `walltime`, `queue`, …) are understood, too, or
        refused with the reason: `carrel.client.dask_words`. Raises the errors of `carrel.core.domain.errors`.
        """
        words = {name: options.pop(name) for name in dask_words.WORDS & options.keys()}
        ours = {"cpus": cpus, "gpus": gpus, "gpu_type": gpu_type, "memory": memory, "time": time, "name": name, **options}
        said = dask_words.said_by(words, ours)
        for line in said.warnings:
            warnings.warn(line, UserWarning, stacklevel=2)
        chosen = dict(scheduler_options or {})
        dashboard_address, host = chosen.pop("dashboard_address", dashboard_address), chosen.pop("host", host)
        if host is None and said.interface is not None:
            chosen.setdefault("interface", said.interface)
        name = said.options.pop("name", "dask")
        self._processes = said.processes
        self._security = security if isinstance(security, Security) else _temporary()
        self._routes = dashboard_address is not None
        self._worker_options: dict[str, Any] = {
            "memory_limit": 0,
            "resources": {"GPU": said.options["gpus"]} if said.options.get("gpus") else {},
            "death_timeout": 60,
            **said.worker,
            **(worker_options or {}),
        }
        if client is None:
            from carrel.client import Client

            client = Client()
        self._lab = client
        self._executor = Executor(
            _MOST,
            idle_time=0,
            reserve=True,  # one call is all of a worker's life
            requirements=requirements,
            image=image,
            modules=modules,
            name=name,
            client=client,
            echo=echo,
            **said.options,
        )
        #: Socket and address of Dask's pages in a session, where no other place is asked for.
        self._page = _session_page(client, f"dask-{self._executor.pool_id}") if dashboard_address is None else None
        scheduler: dict[str, Any] = {
            "protocol": "tls://" if self._security.require_encryption else "tcp://",
            "host": None
            if "interface" in chosen
            else host or _reached_from(_seen_by_workers(client, said.options.get("partition"))),
            "security": self._security,
            "dashboard": self._routes or self._page is not None,
            "dashboard_address": dashboard_address or "127.0.0.1:0",
            **chosen,
        }
        if self._page is not None:
            scheduler["page"] = self._page[0]
        worker = {"cls": CarrelWorker, "options": {"begin": self._begin, "cancel": client.cancel}}
        try:
            super().__init__(
                workers=dict.fromkeys(range(n_workers), worker),
                scheduler={"cls": Scheduler if self._page is None else _PageScheduler, "options": scheduler},
                worker=worker,
                security=self._security,
                asynchronous=asynchronous,
                silence_logs=silence_logs,
                loop=loop,
                name=name,
            )
        except BaseException:
            self._executor.shutdown(wait=False, cancel_futures=True)
            raise

    @property
    def pool_id(self) -> int:
        """Number of the pool: `carrel pool show` says why workers wait."""
        return self._executor.pool_id

    @property
    def dashboard_link(self) -> str:
        """The address of Dask's pages for the browser, "" when they are not shown."""
        return self._page[1] if self._page is not None else cast(str, super().dashboard_link)

    @property
    def jobs(self) -> dict[Any, int]:
        """Jobs of workers that have begun, by the workers' names."""
        futures = {name: worker.future for name, worker in self.workers.items()}
        return {name: one.job_id for name, one in futures.items() if one is not None and one.job_id is not None}

    def scale(self, n: int | None = None, jobs: int = 0, memory: str | None = None, cores: int | None = None) -> Any:
        """Have `n` workers, or as many as have `memory` or `cores`. One of `jobs` is as many workers as `processes` says."""
        return super().scale(max(n or 0, jobs * self._processes), memory=memory, cores=cores)

    def adapt(self, *args: Any, minimum_jobs: int | None = None, maximum_jobs: int | None = None, **kwargs: Any) -> Any:
        """Change the number of workers with the work, as ``distributed.SpecCluster.adapt``. `…_jobs`: as in `scale`."""
        limits = {"minimum": minimum_jobs, "maximum": maximum_jobs}
        kwargs |= {name: jobs * self._processes for name, jobs in limits.items() if jobs is not None}
        return super().adapt(*args, **kwargs)

    def _memory_per_worker(self) -> int:
        if not self._worker_options["memory_limit"]:
            raise Invalid("How much memory a worker has is not said.", remedy='Say CarrelCluster(memory="8G").')
        return cast(int, self._worker_options["memory_limit"])

    def _threads_per_worker(self) -> int:
        return cast(int, self._worker_options["nthreads"])

    def lost(self, worker: CarrelWorker, error: BaseException | None) -> None:
        """A worker's job has ended by itself. `adapt`, or the next `scale`, asks for another one."""
        if self.workers.get(worker.name) is worker:
            del self.workers[worker.name]
        if error is not None:
            _log.warning("Worker %s of %s is gone: %s", worker.name, self.name, error)
        if isinstance(error, WorkersDoNotStart) and (adaptive := getattr(self, "_adaptive", None)) is not None:
            adaptive.stop()  # it would ask for others for ever
            _log.error("%s adapts no more: its workers do not start.", self.name)

    async def dismiss(self, name: Any) -> None:
        """Ask a worker to end; others take over what it has, unless all end."""
        address = self.scheduler.aliases.get(name)
        if address is None or self.scheduler.status != Status.running:
            return
        if self.status == Status.closing:
            self.scheduler.close_worker(address)
        else:
            await self.scheduler.retire_workers(workers=[address], close_workers=True, stimulus_id=f"carrel-{name}")

    def _begin(self, scheduler: str, name: Any) -> Future[str]:
        tls = None
        if self._security.require_encryption:
            found = self._security
            tls = {
                "tls_ca_file": _text(found.tls_ca_file),
                "tls_worker_cert": _text(found.tls_worker_cert),
                "tls_worker_key": _text(found.tls_worker_key),
            }
        return self._executor.submit(dask_worker.serve_dask, scheduler, tls, {**self._worker_options, "name": name}, self._routes)

    async def _start(self) -> None:
        # Dask's pages have no password, and other users of this machine reach its ports.
        shown: dict[str, Any] = {} if self._routes or self._page is not None else {"distributed.scheduler.http.routes": []}
        if self._page is not None:
            shown = {"distributed.dashboard.link": self._page[1]}  # for Dask's own log
        with dask.config.set(shown):
            await super()._start()

    async def _close(self) -> None:
        await super()._close()
        await asyncio.to_thread(self._executor.shutdown, wait=False, cancel_futures=True)


async def _end_of(future: Future[str]) -> None:
    with contextlib.suppress(Exception):
        await future


def _session_page(client: Client, name: str) -> tuple[Path, str] | None:
    """Socket for pages of this session, and their address; None outside of a session."""
    directory, job = os.environ.get("CARREL_SESSION_PAGES", ""), os.environ.get("CARREL_JOB_ID", "")
    if not directory or not job.isdigit() or not Path(directory).is_dir():
        return None
    hub = os.environ.get("CARREL_SESSION_HUB", "")
    prefix = os.environ.get("JUPYTERHUB_SERVICE_PREFIX", "/").rstrip("/")
    if not hub:
        with contextlib.suppress(CarrelError):  # then it leads from the session's own pages alone
            hub = client.session(int(job)).address
    else:
        parts = urlsplit(hub)
        hub = f"{parts.scheme}://{parts.netloc}" if parts.netloc else ""
    return Path(directory, name), f"{hub}{prefix}/proxy/{name}/status"


def _temporary() -> Security:
    try:
        return Security.temporary()
    except ImportError:
        raise Invalid(
            "A cluster needs certificates, and the package cryptography, which makes them, is not installed here.",
            remedy="pip install cryptography, or give certificates of your own: CarrelCluster(security=…).",
        ) from None


def _seen_by_workers(client: Client, partition: str | None) -> str:
    """The address at which workers reach the lab: they reach this program by the same way."""
    lab = client.lab()
    here = {one.name for one in lab.partitions if one.engine == "local"}
    return client.url if lab.cluster_url is None or partition in here else lab.cluster_url


def _reached_from(url: str) -> str:
    lab = urlsplit(url).hostname or "127.0.0.1"
    return "127.0.0.1" if lab in _LOOPBACK else cast(str, get_ip(lab))


def _text(certificate: str) -> str:
    """A certificate or key as text: Dask takes the name of a file for it, too."""
    return certificate if "\n" in certificate else Path(certificate).read_text()
