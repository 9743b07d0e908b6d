"""Sessions, wired: who may reach which notebook server, whether it answers, and when it has been idle for too long."""

from __future__ import annotations

import hmac
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from carrel.core.control.lab import Lab
from carrel.core.control.launching import job_token
from carrel.core.control.ports import JobFilter
from carrel.core.control.sessions import SessionStatus
from carrel.core.domain.errors import CarrelError, Conflict, Invalid, Unavailable
from carrel.core.domain.job import ACTIVE, Job, JobState
from carrel.core.domain.ports import Clock
from carrel.core.domain.qos import JobKind
from carrel.core.domain.serial import from_plain
from carrel.core.domain.session import SessionKind, SessionSpec
from carrel.core.domain.units import format_duration
from carrel.core.domain.user import Caller, UserState
from carrel.lab.server.addresses import SessionAddresses
from carrel.notebooks import identity
from carrel.notebooks.address import TlsAddress
from carrel.notebooks.proxy import Session, TicketIssuer, ask, lab_path

_log = logging.getLogger(__name__)

#: Seconds that a notebook server has to say how idle it is.
_ANSWER_SECONDS = 5.0
#: Seconds that a session has to take what its JupyterHub has for it: it may be importing meanwhile.
_JOIN_SECONDS = 30.0


@dataclass(slots=True)
class _Use:
    """What is known of the use of one attempt of a session."""

    attempt: int
    #: Unix seconds of the last sign of use.
    used_at: float
    connections: int = 0
    idle: bool = False


@dataclass(frozen=True, slots=True)
class _Activity:
    """What a session's server says it does."""

    #: A kernel computes, or somebody is connected: through a JupyterHub people come and go without the proxy seeing them.
    busy: bool
    #: Unix seconds at which anything was last done.
    last: float

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> _Activity:
        """Raises `ValueError` for what no notebook server says."""
        busy, connected = (from_plain(int, said.get(name, 0)) for name in ("kernels_busy", "connections"))
        return cls(busy > 0 or connected > 0, from_plain(float, said.get("last_activity", 0.0)))


class RunningSessions:
    """What the proxy and the API ask about sessions that run, and the thread that ends those that nobody uses. Thread-safe."""

    def __init__(
        self,
        *,
        lab: Lab,
        addresses: SessionAddresses,
        secret: bytes,
        pattern: str,
        public_url: str | None,
        clock: Clock,
        lender: Callable[[], Mapping[str, Any]],
        look_time: float,
        found_idle: Callable[[frozenset[int]], None] = lambda _sessions: None,
    ) -> None:
        """`pattern` is the host name of a session, with ``{session}`` in the place of its label; `public_url` as in the settings.

        `lender` gives the broker's status: a session whose state computes on a GPU is not idle. `look_time`: seconds between two
        looks at what they do; `found_idle` is told which are idle after each.
        """
        self._look_time = look_time
        self._found_idle = found_idle
        self._lab = lab
        self._addresses = addresses
        self._secret = secret
        self._pattern = pattern
        # A name of the site leads to where the lab is for everybody; one below localhost to where the caller has found the lab.
        self._public_url = None if pattern.partition(":")[0].endswith(".localhost") else public_url
        self._door = TicketIssuer(clock)
        self._clock = clock
        self._lender = lender
        self._guard = threading.Lock()
        self._uses: dict[int, _Use] = {}
        #: Sessions that are told what their JupyterHub has for them.
        self._joining: set[int] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sessions", daemon=True)

    @property
    def door(self) -> TicketIssuer:
        """Where tickets are exchanged."""
        return self._door

    def start(self) -> None:
        """Begin to look for idle sessions."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; sessions go on."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    # ---- the way in

    def find(self, label: str) -> Session | None:
        """The session with this label, or None when there is none and never was."""
        job_id = identity.read_session_label(label)
        job = self._lab.jobs_store.get(job_id) if job_id is not None else None
        if job is None or job.kind is not JobKind.SESSION:
            return None
        if not hmac.compare_digest(label, identity.session_label(self._secret, job.id, job.attempt)):
            return None
        owner = self._lab.people.get(job.owner)
        if owner is None or owner.state is not UserState.ACTIVE:
            return None  # nobody is let in
        ready = self.is_ready(job)
        return Session(
            job_id=job.id,
            attempt=job.attempt,
            owner=job.owner,
            owner_name=owner.name,
            address=self._addresses.find(job) if job.state is JobState.RUNNING else None,
            token=self._token(job),
            ready=ready,
            over=job.state.ended,
            message=self._addresses.trouble(job) or job.reason.message,
        )

    def guest(self, token_id: int) -> Caller:
        """Whose token has this number, with which a browser was let in; raises `CarrelError` when it is void."""
        return self._lab.tokens.by_number(token_id)

    def open(self, job: Job, *, base: str, path: str, token_id: int) -> str:
        """A link that lets one browser in, once, for as long as the token with that number is good.

        `base` is the address under which its owner reaches the lab.
        """
        spec = self._session(job)
        inside = "/code" if spec is not None and spec.kind is SessionKind.VSCODE else lab_path(path)
        label = identity.session_label(self._secret, job.id, job.attempt)
        link = self._door.issue(label, token_id, inside)
        return self.address(job, base=base) + link

    def address(self, job: Job, *, base: str) -> str:
        """The session's own origin, which lets nobody in by itself."""
        label = identity.session_label(self._secret, job.id, job.attempt)
        parts = urlsplit(self._public_url or base)
        host = self._pattern.replace("{session}", label)
        port = "" if parts.port is None or ":" in self._pattern else f":{parts.port}"
        return f"{parts.scheme}://{host}{port}"

    def join_hub(self, job: Job, variables: Mapping[str, str]) -> int:
        """Hand `variables` to a session that waits for them, and return the port that it listens on.

        Raises `Conflict` when it does not wait (any more), `Unavailable` when it does not answer. Nothing is kept.
        """
        with self._guard:
            if job.id in self._joining:
                raise Conflict(f"Session {job.id} is being told already.", remedy="Wait until that is done.")
            self._joining.add(job.id)
        try:
            status, said = self._ask(job, "PUT", identity.HUB_PATH, seconds=_JOIN_SECONDS, json=dict(variables))
        except Unavailable as error:
            raise Unavailable(error.message, remedy=f"See `carrel logs {job.id}`.") from None
        finally:
            with self._guard:
                self._joining.discard(job.id)
        if status == 422:
            raise Invalid(str(said.get("message")), remedy=str(said.get("remedy")))
        port = said.get("port") if status == 200 else None
        if type(port) is not int or not 0 < port < 65_536:
            raise Conflict(f"Session {job.id} does not wait for a JupyterHub any more.", remedy="Start another.")
        return port

    # ---- what others ask

    def _session(self, job: Job) -> SessionSpec | None:
        task = self._lab.jobs_store.task(job.id)
        return task.session if task is not None else None

    def _token(self, job: Job) -> str:
        # The key to its notebook server is derived from it, and the server has it too.
        return job_token(self._secret, job.id, job.attempt)

    def is_ready(self, job: Job) -> bool:
        """True when the session's server takes connections."""
        return job.state is JobState.RUNNING and self._addresses.ready(job)

    def status(self, job: Job) -> SessionStatus:
        """How a running session is."""
        use = self._uses.get(job.id)
        ready = self.is_ready(job)
        if use is None or use.attempt != job.attempt:
            return SessionStatus(ready=ready, trouble=self._addresses.trouble(job), host=self._host(job, ready=ready))
        since = use.used_at if use.idle else None
        found = self._session(job)
        allowed = found.idle_time if found is not None else None
        end = since + allowed if since is not None and allowed is not None else None
        return SessionStatus(
            ready=ready,
            connections=use.connections,
            idle_since=since,
            idle_end=end,
            trouble=self._addresses.trouble(job),
            host=self._host(job, ready=ready),
        )

    def _host(self, job: Job, *, ready: bool) -> str:
        """The address of another machine on which the session runs."""
        address = self._addresses.find(job) if ready else None
        return address.host if isinstance(address, TlsAddress) else ""

    def connected(self, job_id: int, attempt: int, change: int) -> None:
        """A connection was opened (+1) or closed (-1): a session that has one is not idle."""
        with self._guard:
            use = self._use(job_id, attempt)
            use.connections = max(0, use.connections + change)
            use.used_at, use.idle = self._clock(), False

    def used(self, job_id: int, attempt: int) -> None:
        """Somebody asked the session for something."""
        with self._guard:
            use = self._use(job_id, attempt)
            use.used_at, use.idle = self._clock(), False

    def _use(self, job_id: int, attempt: int) -> _Use:
        use = self._uses.get(job_id)
        if use is None or use.attempt != attempt:
            use = self._uses[job_id] = _Use(attempt=attempt, used_at=self._clock())
        return use

    # ---- idleness

    def _watch(self) -> None:
        while not self._stopping.wait(self._look_time):
            try:
                self.look()
            except CarrelError as error:
                _log.warning("Sessions could not be looked at: %s", error)
            except Exception:  # noqa: BLE001 - a defect here must not keep idle sessions for ever unseen
                _log.exception("Looking at sessions failed; it is tried again.")

    def look(self) -> None:
        """See what each running session does, and end those that have been idle for too long."""
        which = JobFilter(states=ACTIVE, kind=JobKind.SESSION)
        running = [job for job in self._lab.jobs_store.list(which, before=None, limit=10_000) if job.state is JobState.RUNNING]
        computing = self._computing()
        for job in running:
            self._look_at(job, computing=job.id in computing)
        with self._guard:
            present = {job.id for job in running}
            for job_id in [job_id for job_id in self._uses if job_id not in present]:
                del self._uses[job_id]
            idle = frozenset(job_id for job_id, use in self._uses.items() if use.idle)
        self._found_idle(idle)
        self._addresses.keep(running)

    def _computing(self) -> set[int]:
        status = self._lender()
        active = [*status.get("leases", ()), *status.get("queue", ())]
        return {int(row["job"]) for row in active if row.get("job") and row.get("state", "active") != "held"}

    def _look_at(self, job: Job, *, computing: bool) -> None:
        now = self._clock()
        activity = self._activity(job)
        with self._guard:
            use = self._use(job.id, job.attempt)
            if computing or use.connections > 0 or activity is None or activity.busy:
                use.used_at, use.idle = now, False
                return
            use.idle = True
            use.used_at = max(use.used_at, min(now, activity.last))
            idle = now - use.used_at
        found = self._session(job)
        if found is not None and found.idle_time is not None and idle >= found.idle_time:
            self._end(job, idle)

    def _activity(self, job: Job) -> _Activity | None:
        """What the notebook server says it does, or None when it does not answer: unknown is not idle."""
        if not self.is_ready(job):
            return None
        try:
            status, said = self._ask(job, "GET", "/carrel/activity", seconds=_ANSWER_SECONDS)
            return _Activity.of(said) if status == 200 else None
        except (Unavailable, ValueError):
            return None

    def _ask(self, job: Job, method: str, path: str, *, seconds: float, json: Any = None) -> tuple[int, dict[str, Any]]:
        """Ask the session's own server, which knows the lab by its headers. Raises `Unavailable`."""
        address = self._addresses.find(job)
        if address is None:
            raise Unavailable(f"Where session {job.id} is, is not known.")
        headers = identity.headers(self._token(job), job_id=job.id, attempt=job.attempt, subject=job.owner, now=self._clock())
        return ask(address, method, path, headers=headers, seconds=seconds, json=json, called=f"Session {job.id}")

    def _end(self, job: Job, idle: float) -> None:
        owner = self._lab.people.get(job.owner)
        if owner is None:  # pragma: no cover - a foreign key forbids it
            return
        _log.info("Session %d is ended: it has been idle for %s.", job.id, format_duration(idle))
        self._lab.end_idle(job, by=f"its idle timer (idle for {format_duration(idle)})")
