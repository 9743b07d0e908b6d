"""slurmrestd in the place of a process for each question, for what it does as well as Slurm's commands and faster.

That is: submitting jobs that it can express as sbatch does, and looking at and ending one job. Listings of all jobs are
squeue's (slurmrestd says 3 KB about each), and the commands do all that it has no word for, and everything while it is away.
A submission that it may have passed on is not repeated here: the submitter looks for the job's name first.
"""

from __future__ import annotations

import logging
import os
import pwd
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.ports import Clock
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.errors import SlurmDown, SlurmEmpty, SlurmFailed, SlurmSlow
from carrel.engines.slurm.listing import Garbage, SlurmJob
from carrel.engines.slurm.rest_answers import NotDone, read_ended, read_job, read_ping, read_submitted
from carrel.engines.slurm.rest_body import API, LIMITS, Caller, passed_limits, submission
from carrel.engines.slurm.rest_http import RestAddress, read_address, send

#: Seconds for which slurmrestd is left alone after it was away, or answered what nobody can read.
ASIDE = 60.0
#: Seconds after which the site is looked at again.
_FRESH = 600.0
#: Seconds that a token holds, and after which the next one is asked for.
_LIFESPAN, _RENEWED = 1800, 1200.0

#: How often each is sent when the connection breaks. Nobody knows whether a submission was read, so that one is sent once.
_TRIES = {"GET": 2, "DELETE": 2, "POST": 1}

#: Where the node's daemon keeps slurm.conf when it has it from the controller.
_FETCHED = "/run/slurm/conf/slurm.conf"

_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestSite:
    """What one look at slurmrestd and its site found."""

    #: "22.05.8".
    version: str
    #: Whose jobs they are.
    user: str
    #: Which limits sbatch passes on here.
    limits: tuple[str, ...]
    #: Why jobs are submitted by sbatch all the same; "" when they are not.
    sbatch_only: str


class SlurmRest:
    """`carrel.engines.slurm.transport.Transport` by slurmrestd and the commands, as one user. Safe to use from any thread."""

    def __init__(
        self, address: RestAddress, commands: SlurmCommands, *, timeout: float = 30.0, monotonic: Clock = time.monotonic
    ) -> None:
        """`commands` are those of the same user; `timeout` is the seconds for one request. Nothing is asked yet."""
        self.address = address
        self._commands = commands
        self._timeout = timeout
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._site: RestSite | None = None
        self._look_at = 0.0
        self._complaint = ""
        self._token = ""
        self._renew_at = 0.0

    # --- by slurmrestd, if it can be ----------------------------------------------------------------------------------------

    def submit(self, arguments: Sequence[str], script: str) -> int:
        """As `SlurmCommands.submit`. What slurmrestd does not take, or Slurm refuses, sbatch is asked: it has the last word."""
        site = self._ready()
        if site is None or site.sbatch_only:
            return self._commands.submit(arguments, script)
        body = submission(arguments, script, environ=self._commands.environ, caller=_caller(site.limits))
        if body is None:
            return self._commands.submit(arguments, script)
        try:
            return self._ask("POST", "job/submit", read_submitted, body=body)
        except NotDone as error:
            _log.debug("submitted by sbatch: %s", error)
            return self._commands.submit(arguments, script)

    def job(self, number: int, name: str) -> SlurmJob | None:
        """As `SlurmCommands.job`."""
        if self._ready() is not None:
            try:
                return self._find(number, name)
            except CarrelError as error:
                _log.debug("job %d is asked for by scontrol: %s", number, error)
        return self._commands.job(number, name)

    def cancel(self, number: int, *, name: str, task: int | None = None) -> None:
        """As `SlurmCommands.cancel`, which ends elements of arrays."""
        if task is not None or not self._end(number, name, waiting=False):
            self._commands.cancel(number, name=name, task=task)

    def cancel_waiting(self, number: int, *, name: str, task: int | None = None) -> None:
        """As `SlurmCommands.cancel_waiting`, which ends elements of arrays."""
        if task is not None or not self._end(number, name, waiting=True):
            self._commands.cancel_waiting(number, name=name, task=task)

    # --- by the commands ----------------------------------------------------------------------------------------------------

    def listing(self) -> tuple[SlurmJob, ...]:
        """As `SlurmCommands.listing`."""
        return self._commands.listing()

    def history(self, numbers: Iterable[int]) -> tuple[SlurmJob, ...]:
        """As `SlurmCommands.history`."""
        return self._commands.history(numbers)

    def signal(self, number: int, signal_name: str, *, name: str, task: int | None = None) -> None:
        """As `SlurmCommands.signal`: slurmrestd signals all of a job, and never its batch script alone."""
        self._commands.signal(number, signal_name, name=name, task=task)

    def wake(self, number: int, *, name: str) -> None:
        """As `SlurmCommands.wake`."""
        self._commands.wake(number, name=name)

    def limits(self) -> Mapping[str, Mapping[str, str]]:
        """As `SlurmCommands.limits`."""
        return self._commands.limits()

    def max_submit(self) -> Mapping[str, str]:
        """As `SlurmCommands.max_submit`."""
        return self._commands.max_submit()

    def qos_of(self, number: int) -> str:
        """As `SlurmCommands.qos_of`."""
        return self._commands.qos_of(number)

    def array_size(self) -> int:
        """As `SlurmCommands.array_size`."""
        return self._commands.array_size()

    def out_of_use(self, nodes: str, since: int | None) -> Mapping[str, str]:
        """As `SlurmCommands.out_of_use`."""
        return self._commands.out_of_use(nodes, since)

    def daemons(self) -> frozenset[str]:
        """As `SlurmCommands.daemons`."""
        return self._commands.daemons()

    # --- inside -------------------------------------------------------------------------------------------------------------

    def look(self) -> RestSite:
        """Ask slurmrestd who it is, and the site what sbatch does here. Raises a `CarrelError` that says what is wrong."""
        _umask()  # fails here, rather than when a job is to be submitted
        version = self._ask("GET", "ping", read_ping)
        configuration = self._commands.configuration()
        return RestSite(
            version=version,
            user=_user(),
            limits=passed_limits(configuration),
            sbatch_only=_plugins(configuration, self._commands.environ),
        )

    def _ready(self) -> RestSite | None:
        """Return what is known of the site; None while slurmrestd is left alone."""
        with self._lock:
            if self._monotonic() < self._look_at:
                return self._site
        try:
            site = self.look()
        except CarrelError as error:
            self._put_aside(error)
            return None
        with self._lock:
            if self._complaint:
                _log.info("slurmrestd at %s answers again", self.address)
            self._complaint = ""
            self._site = site
            self._look_at = self._monotonic() + _FRESH
        return site

    def _put_aside(self, error: CarrelError) -> None:
        with self._lock:
            if not self._complaint:
                _log.warning("Slurm's commands do the work of slurmrestd: %s", error.message)
            self._complaint = error.message
            self._site = None
            self._look_at = self._monotonic() + ASIDE

    def _find(self, number: int, name: str) -> SlurmJob | None:
        return self._ask("GET", f"job/{number}", lambda status, body: read_job(status, body, number, name))

    def _end(self, number: int, name: str, *, waiting: bool) -> bool:
        """Return True when the job got the order to end, or must not get it; doing it twice does no harm."""
        if self._ready() is None:
            return False
        try:
            job = self._find(number, name)
            if job is not None and (not waiting or job.state == "PENDING"):
                self._ask("DELETE", f"job/{number}", read_ended)
        except CarrelError as error:
            _log.debug("job %d is ended by scancel: %s", number, error)
            return False
        return True

    def _ask(self, method: str, path: str, read: Callable[[int, bytes], _Answer], *, body: bytes | None = None) -> _Answer:
        try:
            status, answer = self._send(method, path, body)
        except CarrelError as error:
            self._put_aside(error)
            raise
        try:
            return read(status, answer)
        except (SlurmDown, SlurmSlow, SlurmFailed, NotDone) as error:
            self._forget_token()  # one that the controller does not take is answered like a controller that is away
            if isinstance(error, NotDone) and error.away:
                self._put_aside(error)
            raise
        except (Garbage, SlurmEmpty) as error:
            self._put_aside(error)
            raise

    def _send(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        """Return the status and what was answered. A connection that broke is made once more, where asking twice does no harm."""
        for _ in range(_TRIES[method] - 1):
            with suppress(SlurmDown):
                return self._send_once(method, path, body)
        return self._send_once(method, path, body)

    def _send_once(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        return send(
            self.address,
            method,
            f"/slurm/{API}/{path}",
            body,
            self._headers(),
            timeout=self._timeout,
            clock=self._monotonic,
        )

    def _headers(self) -> Mapping[str, str]:
        """Return who we are; over a unix socket slurmrestd sees that by itself."""
        if not self.address.takes_tokens:
            return {}
        with self._lock:
            if self._token and self._monotonic() < self._renew_at:
                return {"X-SLURM-USER-NAME": _user(), "X-SLURM-USER-TOKEN": self._token}
        now = self._monotonic()
        try:
            token = self._commands.token(_LIFESPAN)
        except CarrelError as error:
            raise NotDone(f"There is no token for slurmrestd: {error.message}", away=True) from error
        with self._lock:
            self._token, self._renew_at = token, now + _RENEWED
        return {"X-SLURM-USER-NAME": _user(), "X-SLURM-USER-TOKEN": token}

    def _forget_token(self) -> None:
        with self._lock:
            self._token = ""


def rest_of(address: str, commands: SlurmCommands) -> SlurmRest | None:
    """Return the way over slurmrestd at an address such as slurm_rest has it, None for "". Raises `Invalid`."""
    found = read_address(address)
    return None if found is None else SlurmRest(found, commands)


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError as error:
        message = f"The user with the number {os.getuid()} has no name here."
        raise SlurmFailed(message, remedy="Slurm's commands are used instead.") from error


def _caller(limits: Sequence[str]) -> Caller:
    """Return what sbatch would pass on of this process, with which it would share all of it but the directory."""
    return Caller(
        directory="/",
        host=socket.gethostname(),
        umask=_umask(),
        priority=os.getpriority(os.PRIO_PROCESS, 0),
        limits={name: _limit(name) for name in LIMITS if name in limits},
    )


def _limit(name: str) -> int | None:
    soft, _ = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
    return None if soft == resource.RLIM_INFINITY else soft


def _umask() -> int:
    """Return the mask of this process without setting it: other threads make files meanwhile."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    raise SlurmFailed("The umask of this process is not known.", remedy="Mount /proc.")


def _plugins(configuration: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """Return which plugins of the site sbatch asks about each job, and slurmrestd does not; "" for none."""
    filters = configuration.get("CliFilterPlugins", "")
    if filters not in ("", "(null)"):
        return f"CliFilterPlugins is {filters}"
    stack = Path(configuration.get("PlugStackConfig", ""))
    if not stack.is_absolute():
        files = [environ["SLURM_CONF"]] if "SLURM_CONF" in environ else [configuration.get("SLURM_CONF", ""), _FETCHED]
        there = [Path(file) for file in files if file and Path(file).exists()]
        if not there:
            return "slurm.conf is not on this machine, so the plugins of sbatch are not known"
        stack = there[0].with_name("plugstack.conf")
    try:
        lines = stack.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        lines = []
    except OSError as error:
        return f"{stack} cannot be read: {error.strerror}"
    if any(line.strip() and not line.strip().startswith("#") for line in lines):
        return f"{stack} names plugins"
    return ""
