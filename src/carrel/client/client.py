"""`carrel.Client`: everything that the command line does, for programs."""

from __future__ import annotations

import logging
import math
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast

from carrel.client.arrays import ArrayCalls
from carrel.client.challenges import ChallengeCalls
from carrel.client.crates import CrateCalls
from carrel.client.environments import EnvironmentCalls
from carrel.client.following import Backoff, Position
from carrel.client.locate import locate
from carrel.client.nodes import NodeCalls
from carrel.client.outputs import OutputCalls
from carrel.client.people import PeopleCalls
from carrel.client.pipelines import PipelineCalls
from carrel.client.pools import PoolCalls
from carrel.client.records import RecordCalls
from carrel.client.reports import ReportCalls
from carrel.client.ssh import SshCalls
from carrel.client.sweeps import SweepCalls
from carrel.client.transport import LabUnreachable, Transport, read_events
from carrel.core.domain.errors import NotFound, Unavailable
from carrel.core.domain.serial import to_plain
from carrel.wire import v1

if TYPE_CHECKING:
    from carrel.client.travelling import Travelling
    from carrel.core.crates.reading import Code as CrateCode
    from carrel.core.snapshots import Packed
    from carrel.core.submission import TaskArguments

T = TypeVar("T")
#: Seconds of patience with a lab that has not answered once: it is more likely gone than starting again.
_FIRST_PATIENCE = 1.5
#: Seconds for which a stream may say nothing, not even that it is alive.
_SILENCE = 50.0
_STREAM = {"Accept": "text/event-stream"}


class Client(
    ArrayCalls,
    ChallengeCalls,
    CrateCalls,
    EnvironmentCalls,
    NodeCalls,
    OutputCalls,
    PeopleCalls,
    PipelineCalls,
    PoolCalls,
    RecordCalls,
    ReportCalls,
    SshCalls,
    SweepCalls,
):
    """A lab, as one user sees it.

    Without arguments it finds the lab as the command line does: CARREL_URL and CARREL_TOKEN, or the home directory of a lab on
    this machine. Methods raise the errors of `carrel.core.domain.errors`: the lab's own words, with what can be done.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        home: str | Path | None = None,
        *,
        patience: float = 120.0,
        notice: Callable[[str, str], None] | None = None,
    ) -> None:
        """`patience`: seconds for which a lab that was there may be away (a restart) before a call that waits gives up.

        `notice` is called with "low" or "full" and a sentence whenever the lab says that one of its disks has no room.
        """
        self._http = Transport(lambda: locate(url, token, None if home is None else Path(home).expanduser()), notice=notice)
        self._patience = patience
        #: Code that the lab had when it was asked last.
        self._there: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    @property
    def url(self) -> str:
        """Where the lab is."""
        return self._http.url

    @property
    def authority(self) -> Path | None:
        """File (PEM) of who signs the lab's certificates, where that is the lab itself."""
        return self._http.authority

    @property
    def token(self) -> str:
        """The access token; one of `carrel login` holds for some minutes at least. Raises what keeps it from being renewed."""
        return self._http.token()

    def tell_storage(self, room: str, message: str) -> None:
        """Tell of a disk of the lab's as if an answer had told of it."""
        self._http.tell(room, message)

    # ---- the lab

    def health(self) -> v1.HealthView:
        """Whether the lab is there, and whether its disks have room."""
        return self._http.health()

    def lab(self) -> v1.LabView:
        """What this lab is, and who one is in it."""
        return self._http.get(v1.LabView, "/lab")

    def share(self) -> v1.ShareView:
        """Where one stands in fair share (administrators: everybody)."""
        return self._http.get(v1.ShareView, "/share")

    def reload_rules(self) -> bool:
        """Have the lab read its rules again (administrators); True when they have changed."""
        return self._http.post(v1.Reloaded, "/lab/reload").changed

    def change_rules(self, changes: Mapping[str, Any]) -> Mapping[str, str]:
        """Write rules into the lab's carrel.toml and put them in force (administrators); return what has changed, in words."""
        return self._http.post(v1.RulesChanged, "/lab/rules", v1.RulesRequest(changes=dict(changes))).changed

    def preview_rules(self, changes: Mapping[str, Any], *, days: int = 7) -> v1.RulesPreview:
        """Have the lab simulate its last jobs under changed rules (administrators). This takes up to a minute."""
        asked = v1.RulesPreviewRequest(changes=dict(changes), days=days)
        return self._http.post(v1.RulesPreview, "/lab/rules/preview", asked, timeout=90)

    def machines(self) -> v1.NodeList:
        """The machines of the lab with who holds what, and those of clusters as Slurm has them."""
        return self._http.get(v1.NodeList, "/nodes")

    def nodes(self) -> list[v1.NodeView]:
        """Machines and devices, and who holds what."""
        return self.machines().nodes

    # ---- sessions

    def start_session(self, request: v1.SessionRequest | None = None, *, key: str | None = None) -> v1.SessionView:
        """Start a session. A lost connection never makes a second one."""
        headers = {"Idempotency-Key": key or secrets.token_urlsafe(18)}
        body = request or v1.SessionRequest()
        return self._again(lambda: self._http.post(v1.SessionView, "/sessions", body, headers=headers))

    def sessions(self, *, everybody: bool = False, ended: bool = False) -> list[v1.SessionView]:
        """Sessions, newest first: those that have not ended, or the last 200."""
        query = {"owner": "all" if everybody else "me", "ended": "true" if ended else "false"}
        return self._http.get(v1.SessionList, "/sessions", params=query).sessions

    def session(self, job_id: int) -> v1.SessionView:
        """One session."""
        return self._http.get(v1.SessionView, f"/sessions/{job_id}")

    def open_session(self, job_id: int, path: str = "") -> str:
        """A link that lets one browser into the session, once, within a minute."""
        return self._http.post(v1.SessionLink, f"/sessions/{job_id}/open", params={"path": path}).url

    def join_hub(self, job_id: int, variables: Mapping[str, str]) -> int:
        """Tell a session that waits for a JupyterHub what its single-user server must know; returns the port it listens on."""
        content = v1.HubRequest(variables=dict(variables)).model_dump_json()
        headers = {"Content-Type": "application/json"}
        answer = self._http.call("PUT", f"/sessions/{job_id}/hub", content=content, headers=headers)
        return v1.HubView.model_validate_json(answer.content).port

    def gpus(self) -> v1.LendingView:
        """Who has which GPU now, who waits, whose state is where."""
        return self._http.get(v1.LendingView, "/gpus")

    # ---- submitting

    def submit_project(
        self,
        target: str | Path,
        *,
        entry_point: str = "main",
        parameters: Mapping[str, str] | None = None,
        script: str | None = None,
        arguments: Sequence[str] = (),
        strict: bool = False,
        version: str | None = None,
        resources: v1.ResourceRequest | None = None,
        slurm: v1.SlurmRequest | None = None,
        engines: Mapping[str, Mapping[str, Any]] | None = None,
        backend_config: Mapping[str, Any] | None = None,
        tracking: v1.TrackingRequest | None = None,
        include: Sequence[str | Path] = (),
        packed: Callable[[Travelling], None] | None = None,
        key: str | None = None,
        deliver: Callable[[v1.TaskRequest], v1.JobView] | None = None,
        step: v1.StepRequest | None = None,
        **options: Unpack[TaskArguments],
    ) -> v1.JobView:
        """Pack a directory, a bare script or a git address, and submit it. Only code that the lab lacks is sent.

        A bare script outside of projects and git repositories travels with the modules that it imports and the files that
        `arguments` and `parameters` name; `include` adds files and directories. `packed` is called with what travels before it
        is sent; without it, what stays behind although the code names it is logged as a warning.
        `options` are those of `carrel.core.submission.TaskOptions`, as people write them (``time`` and what else a job has on a
        node is in `resources`). `engines` has, by the name of an engine, options that it alone understands. Of an array the
        first job is returned; the others are found with `array`.
        `key` makes the submission idempotent, also beyond this call. `deliver` takes the request in the place of `submit`.
        """
        from carrel.client.code import code_of
        from carrel.client.travelling import Travelling
        from carrel.core.snapshots import git_state, pack

        with tempfile.TemporaryDirectory(prefix="carrel-fetch-") as scratch:
            words = [*arguments, *(parameters or {}).values()]
            code = code_of(target, script, version, Path(scratch), include=include, words=words)
            travelling = Travelling(code=code, packed=pack(code.directory, only=code.only, also=code.also))
            (packed or _log_warnings)(travelling)
            # What lies around a bare script is not its code, and so not its history.
            git = git_state(code.directory) if code.only is None else None
            known = travelling.packed.digest in self._there
            digest = self._upload(travelling.packed)
            request = v1.TaskRequest(
                snapshot=digest,
                entry_point=entry_point,
                script=code.script,
                parameters=dict(parameters or {}),
                arguments=list(arguments),
                strict=strict,
                resources=resources or v1.ResourceRequest(),
                slurm=slurm,
                engines=engines or {},
                backend_config=dict(backend_config or {}),
                **{name: value for name, value in options.items() if value is not None},
                git=v1.GitRequest(**to_plain(git)) if git is not None else None,
                tracking=tracking,
                step=step,
            )
            key = key or secrets.token_urlsafe(18)
            send = deliver or partial(self.submit, key=key)
            try:
                return send(request)
            except NotFound:
                if not known:
                    raise
            # It was there before, and has been thrown away since.
            self._there.discard(digest)
            self._upload(travelling.packed)
            return send(request)

    def submit(self, request: v1.TaskRequest, *, key: str | None = None) -> v1.JobView:
        """Submit what is uploaded already."""
        headers = {"Idempotency-Key": key or secrets.token_urlsafe(18)}
        return self._again(lambda: self._http.post(v1.JobView, "/jobs", request, headers=headers))

    def preview(self, request: v1.TaskRequest) -> v1.PreviewView:
        """Return what would become of a task that is uploaded if it were submitted now."""
        return self._again(lambda: self._http.post(v1.PreviewView, "/jobs/preview", request))

    def preview_project(self, target: str | Path, **task: Any) -> v1.PreviewView:
        """Return what would become of a task if it were submitted now; arguments as of `submit_project`. The code is sent."""
        asked = self.submit_project(target, **task, deliver=lambda request: cast("v1.JobView", self.preview(request)))
        return cast("v1.PreviewView", asked)

    def upload(self, directory: Path) -> str:
        """Pack a directory, send it if the lab lacks it, and return its digest."""
        from carrel.core.snapshots import pack

        return self._upload(pack(directory))

    def _upload(self, packed: Packed | CrateCode) -> str:
        path = f"/snapshots/{packed.digest}"
        if packed.digest not in self._there:
            if self._again(lambda: self._http.call("HEAD", path)).status_code == 404:
                self._again(lambda: self._send(packed, path))
            self._there.add(packed.digest)
        return packed.digest

    def _send(self, packed: Packed | CrateCode, path: str) -> None:
        with packed.open() as archive:
            self._http.call("PUT", path, content=iter(lambda: archive.read(1 << 20), b""))

    def rerun(self, job_id: int) -> v1.JobView:
        """The same task again, as a new job."""
        return self._http.post(v1.JobView, f"/jobs/{job_id}/rerun")

    # ---- looking

    def job(self, job_id: int) -> v1.JobDetail:
        """One job with its attempts."""
        return self._http.get(v1.JobDetail, f"/jobs/{job_id}")

    def jobs(
        self, owner: str = "me", states: Sequence[str] = (), name: str | None = None, limit: int | None = 50
    ) -> Iterator[v1.JobView]:
        """Newest first; `limit` None gives all, page by page. `owner` is "me" or (administrators) "all"."""
        before: int | None = None
        left = limit
        while left is None or left > 0:
            query = {"owner": owner, "state": list(states), "name": name, "before": before, "limit": min(left or 500, 500)}
            page = self._http.get(v1.JobPage, "/jobs", params={key: value for key, value in query.items() if value})
            yield from page.jobs
            if page.next is None:
                return
            before = page.next
            left = None if left is None else left - len(page.jobs)

    def log(self, job_id: int, *, attempt: int | None = None, offset: int = 0) -> Iterator[bytes]:
        """The log as it is now, byte for byte, from `offset` on; of the last attempt unless one is named."""
        while True:
            query = {"attempt": attempt, "offset": offset, "limit": 1 << 20}
            response = self._http.call("GET", f"/jobs/{job_id}/log", params={k: v for k, v in query.items() if v is not None})
            if not response.content:
                return
            yield response.content
            offset = int(response.headers["X-Carrel-Offset"]) + len(response.content)
            attempt = int(response.headers["X-Carrel-Attempt"])

    def cancel(self, job_id: int) -> v1.JobView:
        """Ask for the job's end; a running one ends when its processes are gone."""
        return self._again(lambda: self._http.post(v1.JobView, f"/jobs/{job_id}/cancel"))

    # ---- following

    def events(
        self, job_id: int | None = None, *, after: int = 0, timeout: float | None = None, waits: bool = False
    ) -> Iterator[v1.EventView]:
        """Events as they happen, of one job (ends with it) or of all of one's jobs (does not end by itself).

        Survives a restart of the lab: it connects again and goes on where it was; nothing comes twice. Ends without an error
        when `timeout` seconds are over. Raises `Unavailable` when the lab stays away for longer than the client's patience.
        `waits`: a job that asks does nothing else meanwhile, and what it has may be given to the job, which it submitted.
        """
        path = "/events" if job_id is None else f"/jobs/{job_id}/events"
        until = math.inf if timeout is None else time.monotonic() + timeout
        position, away = Position(after, job_id), Backoff()
        while True:
            left = until - time.monotonic()
            if left <= 0:
                return
            try:
                query = {"after": position.after, **({"waits": True} if waits else {})}
                with self._http.stream(path, headers=_STREAM, silence=min(left, _SILENCE), params=query) as response:
                    if response.status_code == 204:
                        return
                    for event_id, data in read_events(response):
                        away.over()
                        if data:
                            yield from position.take(event_id, data)
                        if position.ended or time.monotonic() >= until:
                            return
                        if not data and until - time.monotonic() < _SILENCE:
                            break  # only a sign of life: connect again, to be silent for no longer than what is left
                # A lab that stops ends its streams in good order.
                away.pause(until)
            except LabUnreachable as error:
                if time.monotonic() < until:
                    self._look_again(error, away, until)

    def stream_log(self, job_id: int, *, waits: bool = False) -> Iterator[str]:
        """The log as text, from its beginning to the job's end, while it is written; `waits` as of `events`."""
        for event in self.events(job_id, waits=waits):
            if event.type == "log" and event.data.get("text"):
                yield event.data["text"]

    def wait(self, job_id: int, timeout: float | None = None) -> v1.JobDetail:
        """Return when the job has ended. Raises `Unavailable` when that takes longer than `timeout` seconds.

        Called in a job that submitted that one, it gives it its GPUs and its place, where that one has none, until it is over.
        """
        until = None if timeout is None else time.monotonic() + timeout
        job = self._again(lambda: self.job(job_id))
        while not job.ended:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise Unavailable(f"Job {job_id} is still {job.state}.", remedy="Wait longer, or look with `carrel show`.")
            for _event in self.events(job_id, timeout=left, waits=True):
                pass
            job = self._again(lambda: self.job(job_id))
        return job

    def _again(self, call: Callable[[], T]) -> T:
        """Repeat a call that may be repeated while the lab does not answer."""
        away = Backoff()
        while True:
            try:
                return call()
            except LabUnreachable as error:
                self._look_again(error, away, math.inf)

    def _look_again(self, error: LabUnreachable, away: Backoff, until: float) -> None:
        """Pause, then look where the lab is now. Raises `error` when it has been away for too long."""
        if not away.pause(until, patience=self._patience if self._http.answered else _FIRST_PATIENCE):
            raise error
        self._http.look_again()


def _log_warnings(travelling: Travelling) -> None:
    for warning in travelling.warnings():
        logging.getLogger("carrel.client").warning(warning)
