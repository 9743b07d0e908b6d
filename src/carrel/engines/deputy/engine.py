"""The lab's side of a deputy: an engine whose work is done by a process of another Unix user."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import carrel
from carrel.core.domain.errors import CarrelError, StorageFull, Unavailable
from carrel.core.domain.job import Preemption
from carrel.core.domain.launch import Launch, Observation
from carrel.core.domain.node import Node
from carrel.core.domain.placement import GpuState
from carrel.core.domain.ports import Attempt, Clock
from carrel.core.domain.serial import to_plain
from carrel.core.spool import Spool
from carrel.core.spool.disk import full_at, is_full
from carrel.core.spool.seal import opening_of, order_of
from carrel.engines.attempts import Key
from carrel.engines.deputy.collecting import Collections
from carrel.engines.deputy.conversation import Conversation
from carrel.engines.deputy.followed import (
    Followed,
    ended_before_start,
    is_refusal,
    note_user,
    refused_before_start,
    user_file,
)
from carrel.engines.deputy.frames import CHUNK, VERSION, NotAFrame, Signer, frame, observation_from_plain
from carrel.engines.deputy.mirror import Mirror
from carrel.engines.slurm.options import SlurmOptions
from carrel.engines.slurm.pilots import no_time
from carrel.engines.slurm.shared import Listing
from carrel.node.runner.outputs import StoredOutputs

#: Seconds before a deputy that could not be started, or that ended, is started again: at first, and at most.
_AGAIN, _AGAIN_AT_MOST = 2.0, 60.0
#: Refusals in a row after which who waits for a deputy has failed: an administrator who mends the rule of sudo has some seconds.
_REFUSALS = 3
#: Seconds after which a deputy that has nothing to do is sent away.
_IDLE = 300.0
#: Seconds in which a deputy has to say hello, and to answer a question.
_HELLO = 60.0
_ANSWERS = 5.0

_log = logging.getLogger(__name__)


class DeputyEngine:
    """`carrel.core.domain.ports.Engine` over a deputy of one Unix user.

    Everything returns at once: a user whose files hang keeps nobody waiting but themselves. The deputy may be killed at any
    moment; the next one takes up what it followed.
    """

    def __init__(
        self,
        *,
        user: str,
        command: Sequence[str],
        lab: str,
        spool: Spool,
        snapshots: Path,
        blobs: Path,
        log: Path,
        options: Callable[[Launch], SlurmOptions],
        immediate: Callable[[Launch], bool],
        files: Path | None = None,
        hold: Callable[[Launch], float] = no_time,
        host: str = "",
        signer: Signer | None = None,
        listing: Listing | None = None,
        environ: Mapping[str, str],
        interval: float = 5.0,
        timeout: float = 30.0,
        monotonic: Clock = time.monotonic,
        clock: Clock = time.time,
    ) -> None:
        """Nothing is started before there is something to do.

        `command` starts the deputy of `user`; what it says beside the conversation goes to the file `log`. `spool`, `snapshots`
        and `blobs` are the lab's own, and so is `files`: sessions that would work there work in the user's directory.
        `signer` shows that it is the lab who speaks. `listing` is one of Slurm's that all
        deputies share; without it each asks Slurm. `interval` and `timeout` are the seconds
        between two looks, and those that Slurm's commands have.
        """
        self._user = user
        self._command = list(command)
        self._lab = lab
        self._spool = spool
        self._snapshots = snapshots
        self._log = log
        self._options = options
        self._immediate = immediate
        self._hold = hold
        self._environ = {name: environ[name] for name in ("PATH", "LANG", "SLURM_CONF") if name in environ}
        self._settings: dict[str, Any] = {
            "interval": interval,
            "timeout": timeout,
            "files": "" if files is None else str(files),
            "host": host,
        }
        self._signer = signer
        if signer is not None:
            self._settings["key"] = signer.public
        self._listing = listing
        self._collections = Collections()
        self._answers: dict[int, Queue[bytes | None]] = {}
        self._asked = 0
        self._monotonic = monotonic
        self._clock = clock
        self._mirror = Mirror(user=user, spool=spool, blobs=blobs)
        self._receivers: list[Callable[[Sequence[Observation]], None]] = []
        self._followed: dict[Key, Followed] = {}
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._closed = False
        #: What is to be written to the deputy, and whether there is one that follows attempts.
        self._outgoing: deque[Iterator[bytes]] = deque()
        self._ready = False
        self._code: set[str] = set()
        self._conversation: Conversation | None = None

    # --- the port: called from any thread -------------------------------------------------------------------------------------

    def nodes(self) -> tuple[Node, ...]:
        """None of its own."""
        return ()

    def withheld(self) -> frozenset[str]:
        """No devices."""
        return frozenset()

    def gpu_state(self) -> GpuState:
        """None."""
        return GpuState()

    def observe(self, deliver: Callable[[Sequence[Observation]], None]) -> None:
        """Call `deliver` with news from a thread of the engine's; once."""
        with self._changed:
            self._receivers.append(deliver)
            self._go()

    def start(self, launch: Launch, *, token: str) -> None:
        """Have the deputy start the attempt; again is harmless. What keeps it from doing so is reported as news."""
        self._follow(launch, token, 0)

    def adopt(self, attempts: Iterable[tuple[Attempt, Launch, str]]) -> None:
        """After a restart of the lab: have the deputy follow these attempts again."""
        for attempt, launch, token in attempts:
            self._follow(launch, token, attempt.offset)

    def cancel(self, job_id: int, attempt: int, *, by: str) -> None:
        """Ask for the end of the job, in the name of `by`. What no deputy has ever heard of ends here."""
        with self._changed:
            followed = self._followed.get((job_id, attempt))
            if followed is None:
                return
            followed.cancelled_by = followed.cancelled_by or by
            self._send(followed.cancel_frame())
            self._changed.notify_all()

    def preempt(
        self,
        job_id: int,
        attempt: int,
        preemption: Preemption | None,
        *,
        devices: Sequence[str] = (),  # noqa: ARG002 - Slurm's are as they are
    ) -> None:
        """Preempt the job, or let it go on where `preemption` is None."""
        with self._changed:
            followed = self._followed.get((job_id, attempt))
            if followed is None:
                return
            followed.preemption, followed.preempted = preemption, True
            self._send(followed.preempt_frame())

    def forget(self, job_id: int, attempt: int, *, over: bool = True) -> None:
        """The end of the attempt is recorded."""
        with self._changed:
            if self._followed.pop((job_id, attempt), None) is not None:
                self._send({"is": "forget", "job": job_id, "attempt": attempt, "over": over})

    def read_address(self, job_id: int, attempt: int) -> bytes | None:
        """Return what a session has written about where it is; None when it has not, or that cannot be found out now."""
        answer: Queue[bytes | None] = Queue()
        with self._changed:
            if not self._ready or (job_id, attempt) not in self._followed:
                return None
            self._asked += 1
            number = self._asked
            self._answers[number] = answer
            self._send({"is": "read", "id": number, "job": job_id, "attempt": attempt})
        try:
            return answer.get(timeout=_ANSWERS)
        except Empty:
            return None
        finally:
            self._answers.pop(number, None)

    def collect(self, job_id: int, attempt: int, limit: int) -> StoredOutputs:
        """Have the deputy store what an attempt that is over has left, and take it; `limit` bytes at most.

        Raises `NotFound` when nothing is left, `Unavailable` when there is no deputy.
        """
        key = job_id, attempt
        with self._changed:
            wait = self._collections.ask(key, limit)
            self._send(self._collections.frame(key))
            self._go()
        stored = wait()
        missing = [file.path for file in stored.files if not self._mirror.has(file.digest)]
        if missing:
            raise Unavailable(f"{len(missing)} outputs did not arrive whole.", remedy="Try again.")
        return stored

    def remove_work(self, job_id: int, attempt: int) -> None:
        """Have the deputy remove the working directory of an attempt that was collected."""
        with self._changed:
            self._send({"is": "remove", "job": job_id, "attempt": attempt})

    def close(self) -> None:
        """Send the deputy away. Jobs go on."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._wake()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    # --- what is written -----------------------------------------------------------------------------------------------------

    def _follow(self, launch: Launch, token: str, offset: int) -> None:
        key = launch.job_id, launch.attempt
        with self._changed:
            if key in self._followed:
                return
            followed = self._followed[key] = Followed(launch, token, offset)
            if self._ready:
                try:
                    self._tell(followed)
                except OSError as error:  # no deputy has heard of it, and none will
                    del self._followed[key]
                    if is_full(error):
                        raise StorageFull(full_at(self._spool.root, error), remedy="Free space; nothing was started.") from error
                    raise Unavailable(f"The lab's spool cannot be written: {error.strerror}.") from error
            self._go()

    def _go(self) -> None:
        """See to it that somebody looks after what is followed."""
        self._changed.notify_all()  # should it wait for another deputy, it has one more to tell
        wanted = self._followed or self._collections
        if wanted and self._receivers and not self._closed and self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"carrel-deputy-{self._user}", daemon=True)
            self._thread.start()

    def _tell(self, followed: Followed) -> None:
        """Tell a deputy everything about an attempt; it may have heard it before."""
        launch = followed.launch
        head: dict[str, Any] = {
            "is": "follow",
            "launch": to_plain(launch),
            "token": followed.token,
            "offset": followed.offset,
            "log": self._mirror.log_size(launch.job_id, launch.attempt),
            "immediate": self._immediate(launch),
            "hold": self._hold(launch),
        }
        try:
            head["options"] = to_plain(self._options(launch))
        except CarrelError as error:
            head["trouble"] = str(error)
        if self._signer is not None:
            head["signature"] = self._signer.sign(order_of(self._user, head["launch"]))
        note_user(self._spool, launch, self._user)
        if launch.task.snapshot and launch.task.snapshot not in self._code:
            self._code.add(launch.task.snapshot)
            self._put(self._code_frames(launch.task.snapshot))
        self._send(head)
        if followed.cancelled_by is not None:
            self._send(followed.cancel_frame())
        if followed.preempted:
            self._send(followed.preempt_frame())

    def _code_frames(self, digest: str) -> Iterator[bytes]:
        # Without it the runner fails, and says so.
        with suppress(OSError), open(self._snapshots / f"{digest.removeprefix('sha256:')}.tar", "rb") as file:
            data = file.read(CHUNK)
            while data:
                following = file.read(CHUNK)
                yield frame({"is": "code", "digest": digest, "last": not following}, data)
                data = following

    def _send(self, head: Mapping[str, Any]) -> None:
        self._put(iter((frame(head),)))

    def _put(self, frames: Iterator[bytes]) -> None:
        if self._ready:
            self._outgoing.append(frames)
            self._wake()

    def _wake(self) -> None:
        if self._conversation is not None:
            self._conversation.wake()

    # --- in the thread --------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        failures = refusals = 0
        while not self._closed:
            began = self._monotonic()
            try:
                with open(self._log, "wb") as log:
                    sent_away, why = self._converse(log), "It ended."
            except CarrelError as error:
                sent_away, why = False, str(error)
            except Exception as error:  # noqa: BLE001 - the lab goes on after any error of a deputy
                _log.exception("the conversation with the deputy of %s failed", self._user)
                sent_away, why = False, str(error)
            with self._changed:
                self._ready = False
                self._mirror.close()
                words = "The lab stops." if self._closed else self._last_words() or why
                self._collections.fail(Unavailable(f"The deputy of {self._user} is gone: {words}", remedy="Try again."))
                if self._closed or not self._followed:
                    self._thread = None
                    return
            if not sent_away:
                failures = 1 if self._monotonic() - began > _AGAIN_AT_MOST else failures + 1
                refusals = refusals + 1 if is_refusal(words) else 0
                self._wait(words, min(_AGAIN_AT_MOST, _AGAIN * 2 ** (failures - 1)), refused=refusals >= _REFUSALS)
                with self._changed:
                    if not (self._followed or self._collections):  # nobody waits for a deputy any more
                        self._thread = None
                        return

    def _wait(self, why: str, seconds: float, *, refused: bool) -> None:
        """Let some time pass before there is another deputy, and tell those who wait for it.

        Where the lab is `refused` one, those of whom no deputy has ever heard have failed.
        """
        until = self._monotonic() + seconds
        while not self._closed and (left := until - self._monotonic()) > 0:
            self._deliver(self._ended_unheard(why if refused else ""))
            self._deliver(self._explained(f"{why} It is tried again in {seconds:.0f} s."))
            with self._changed:
                if not self._followed:
                    return
                if not self._closed and not self._unheard() and all(one.said for one in self._followed.values()):
                    self._changed.wait(left)

    def _last_words(self) -> str:
        with suppress(OSError):
            lines = self._log.read_bytes()[-2000:].decode(errors="replace").strip().splitlines()
            if lines:
                _log.warning("The deputy of %s: %s", self._user, lines[-1])
                return lines[-1]
        return ""

    def _explained(self, why: str) -> list[Observation]:
        """Return the news that there is no deputy, and why, for everybody who does not know it."""
        message = f"The lab cannot act as the Unix user {self._user} at the moment: {why}"
        with self._lock:
            waiting = [followed for followed in self._followed.values() if followed.said != message]
            for followed in waiting:
                followed.said = message
        return [followed.beside(message, self._clock()) for followed in waiting]

    def _unheard(self) -> list[tuple[Key, str]]:
        """Return what was cancelled before any deputy heard of it, and by whom: it has no runner and never will."""
        return [
            (key, followed.cancelled_by)
            for key, followed in self._followed.items()
            if followed.cancelled_by is not None and not user_file(self._spool, *key).exists()
        ]

    def _ended_unheard(self, refusal: str) -> list[Observation]:
        """End what was cancelled, and everything else, too, where there is a `refusal`, of what no deputy ever heard of."""
        now = self._clock()
        with self._lock:
            news = [ended_before_start(key, by, now) for key, by in self._unheard()]
            over = {(one.job_id, one.attempt) for one in news}
            if refusal:
                keys = [key for key in self._followed if key not in over and not user_file(self._spool, *key).exists()]
                news += [refused_before_start(key, self._user, refusal, now) for key in keys]
            for one in news:
                del self._followed[one.job_id, one.attempt]
        return news

    def _converse(self, log: Any) -> bool:
        """Start a deputy and speak with it until it ends; True when it was sent away."""
        idle_since = began = self._monotonic()

        def is_over(pending: bool) -> bool:
            nonlocal idle_since
            with self._changed:
                now = self._monotonic()
                if self._followed or self._collections:
                    idle_since = now
                if self._closed or (now - idle_since > _IDLE and not pending and not self._outgoing):
                    self._ready = False
                    return True
                if not self._ready and now - began > _HELLO:
                    raise Unavailable(f"It did not say that it is ready within {_HELLO:.0f} s.")
                return False

        self._conversation = Conversation(
            self._command, environ=self._environ, log=log, say=self._next, hear=self._hear, is_over=is_over
        )
        return self._conversation.run()

    def _next(self) -> bytes:
        """Return what is to be written next."""
        with self._changed:
            while self._outgoing:
                piece = next(self._outgoing[0], None)
                if piece is not None:
                    return piece
                self._outgoing.popleft()
        return b""

    def _hear(self, head: Mapping[str, Any], body: bytes) -> None:
        try:
            kind = head["is"]
            if kind == "hello":
                self._greet(head)
            elif kind == "ready":
                self._begin(head)
            elif kind in ("log", "offer", "news"):
                self._take(kind, head, body)
            elif kind == "list":
                question = int(head["id"]), float(head["since"])
                threading.Thread(target=self._list, args=question, name="carrel-slurm-listing", daemon=True).start()
            elif kind == "file":
                if (waiting := self._answers.get(int(head["id"]))) is not None:
                    waiting.put(body if head["found"] else None)
            elif kind == "collected":
                with self._changed:
                    self._collections.answered(head)
            elif kind == "blob":
                self._insist(lambda: self._mirror.take_blob(str(head["digest"]), body, last=bool(head["last"])))
            else:
                raise NotAFrame(f'"{kind}" is not understood.')
        except (KeyError, ValueError, TypeError) as error:
            raise NotAFrame(f"The deputy of {self._user} said something that makes no sense: {error}.") from error

    def _list(self, number: int, since: float) -> None:
        """In a thread of its own, as Slurm may be slow: tell the deputy which jobs of its user the lab's listing has."""
        jobs = None
        if self._listing is not None:
            with suppress(CarrelError):
                jobs = [to_plain(job) for job in self._listing(since, frozenset()) if job.user == self._user]
        self._send({"is": "listing", "id": number, "jobs": jobs})

    def _greet(self, head: Mapping[str, Any]) -> None:
        if head["version"] != VERSION:
            raise Unavailable(
                f"The deputies are of Carrel {head['carrel']}, the lab is of {carrel.__version__}.",
                remedy="Install the same for both.",
            )
        if head["user"] != self._user:
            raise Unavailable(f"The deputy runs as {head['user']}, not as {self._user}.", remedy="Mend slurm_deputy.")
        with self._changed:
            opening: dict[str, Any] = {"is": "open", "lab": self._lab, **self._settings}
            if self._signer is not None:
                opening["signature"] = self._signer.sign(opening_of(str(head["nonce"]), self._user, self._lab))
            self._outgoing = deque([iter((frame(opening),))])
            self._wake()

    def _begin(self, head: Mapping[str, Any]) -> None:
        with self._changed:
            self._ready = True
            self._code = {str(digest) for digest in head["code"]}
            for followed in self._followed.values():
                followed.said = ""
                self._tell(followed)
            for asked in self._collections.frames():
                self._send(asked)

    def _take(self, kind: str, head: Mapping[str, Any], body: bytes) -> None:
        if kind == "news":
            observation = observation_from_plain(head["observation"])
            key = observation.job_id, observation.attempt
        else:
            key = int(head["job"]), int(head["attempt"])
        with self._changed:
            followed = self._followed.get(key)
            limit = self._collections.limit_of(key) if followed is None else followed.launch.limits.outputs
        if kind == "offer":
            digests = list(head["digests"])  # of what is forgotten meanwhile, or was never this user's, nothing is wanted
            self._send({"is": "wanted", "digests": [] if limit is None else self._mirror.want(limit, digests)})
        elif followed is None:
            return
        elif kind == "log":
            self._insist(lambda: self._mirror.take_log(followed.launch, int(head["at"]), body))
        else:
            observation = self._mirror.told(observation, list(head["lost"]))
            self._deliver([observation])
            if not observation.beside:
                followed.offset = observation.offset

    def _insist(self, write: Callable[[], None]) -> None:
        """Write to the lab's disk, and wait while it is full: nothing is lost."""
        while not self._closed:
            try:
                write()
            except OSError as error:
                _log.error("What the deputy of %s says cannot be kept: %s. It is tried again.", self._user, error)
                threading.Event().wait(1.0)
            else:
                return

    def _deliver(self, observations: Sequence[Observation]) -> None:
        if not observations:
            return
        for receiver in self._receivers:
            while not self._closed:
                try:
                    receiver(observations)
                except Exception:  # noqa: BLE001 - after any error of the receiver, its news must not be lost
                    _log.exception("news were not taken and are delivered again")
                    threading.Event().wait(0.5)
                else:
                    break
