"""The lab's side of a deputy: an engine whose work is done by a process of another Unix user."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from carrel.core.domain.errors import CarrelError, StorageFull, Unavailable
from carrel.core.domain.job import Preemption
from carrel.core.domain.launch import Launch, Observation
from carrel.core.domain.node import Node
from carrel.core.domain.placement import GpuState
from carrel.core.domain.ports import Attempt, Clock
from carrel.core.domain.serial import to_plain
from carrel.core.spool import Spool
from carrel.core.spool.disk import full_at, is_full
from carrel.engines.delivery import Receiver, deliver_now
from carrel.engines.deputy.collecting import Collections
from carrel.engines.deputy.conversation import Conversation, greet, last_words
from carrel.engines.deputy.followed import Followed, FollowedAttempts, is_refusal
from carrel.engines.deputy.frames import NotAFrame, Signer, observation_from_plain
from carrel.engines.deputy.mirror import Mirror
from carrel.engines.deputy.outgoing import Outgoing
from carrel.engines.deputy.reading import Addresses
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
#: Seconds in which a deputy has to say hello.
_HELLO = 60.0
#: Questions for a listing that may wait for their answer, and seconds between two answers: an honest deputy has one, and seldom.
_MOST_QUESTIONS, _BETWEEN_LISTINGS = 8, 0.1
#: Bytes of answers that a deputy may leave unread: an honest one asks again when it has read the last answer.
_MOST_UNREAD = 16 * 1024**2

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
        `signer` shows that it is the lab who speaks. `listing` is one of Slurm's that all deputies share; without it each asks
        Slurm. `interval` and `timeout` are the seconds between two looks, and those that Slurm's commands have.
        """
        self._user = user
        self._command = list(command)
        self._spool = spool
        self._log = log
        self._environ = {name: environ[name] for name in ("PATH", "LANG", "SLURM_CONF") if name in environ}
        settings = {"interval": interval, "timeout": timeout, "files": "" if files is None else str(files), "host": host}
        self._greet = partial(greet, user=user, lab=lab, signer=signer, settings=settings)
        self._listing = listing
        self._collections = Collections()
        self._addresses = Addresses()
        self._monotonic = monotonic
        self._clock = clock
        self._mirror = Mirror(user=user, spool=spool, blobs=blobs)
        self._outgoing = Outgoing(
            user=user,
            spool=spool,
            snapshots=snapshots,
            log_size=self._mirror.log_size,
            options=options,
            immediate=immediate,
            hold=hold,
            signer=signer,
        )
        self._receivers: list[Receiver] = []
        self._followed = FollowedAttempts(user, spool)
        self._changed = threading.Condition()  # its lock may be taken again by who has it
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        #: Questions for a listing that wait, whose turn it is, and when the last one was answered (`time.monotonic`).
        self._questions = 0
        self._listing_turn = threading.Lock()
        self._listed_at = float("-inf")

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
            self._outgoing.send(followed.cancel_frame())
            self._changed.notify_all()

    def preempt(self, job_id: int, attempt: int, preemption: Preemption | None) -> None:
        """Preempt the job, or let it go on where `preemption` is None."""
        with self._changed:
            followed = self._followed.get((job_id, attempt))
            if followed is None:
                return
            followed.preemption, followed.preempted = preemption, True
            self._outgoing.send(followed.preempt_frame())

    def forget(self, job_id: int, attempt: int, *, over: bool = True) -> None:
        """The end of the attempt is recorded."""
        with self._changed:
            if self._followed.pop((job_id, attempt), None) is not None:
                self._outgoing.send({"is": "forget", "job": job_id, "attempt": attempt, "over": over})

    def read_address(self, job_id: int, attempt: int) -> bytes | None:
        """Return what a session has written about where it is; None when it has not, or that cannot be found out now."""
        with self._changed:
            if not self._outgoing.ready or (job_id, attempt) not in self._followed:
                return None
            asked = self._addresses.ask((job_id, attempt))
            if asked is None:
                return None
            question, wait = asked
            self._outgoing.send(question)
        return wait()

    def collect(self, job_id: int, attempt: int, limit: int) -> StoredOutputs:
        """Have the deputy store what an attempt that is over has left, and take it; `limit` bytes at most.

        Raises `NotFound` when nothing is left, `Unavailable` when there is no deputy.
        """
        key = job_id, attempt
        with self._changed:
            wait = self._collections.ask(key, limit)
            self._outgoing.send(self._collections.frame(key))
            self._go()
        stored = wait()
        missing = [file.path for file in stored.files if not self._mirror.has(file.digest)]
        if missing:
            raise Unavailable(f"{len(missing)} outputs did not arrive whole.", remedy="Try again.")
        return stored

    def remove_work(self, job_id: int, attempt: int) -> None:
        """Have the deputy remove the working directory of an attempt that was collected."""
        with self._changed:
            self._outgoing.send({"is": "remove", "job": job_id, "attempt": attempt})

    def close(self) -> None:
        """Send the deputy away. Jobs go on."""
        with self._changed:
            if self._closed.is_set():
                return
            self._closed.set()
            self._outgoing.wake()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _follow(self, launch: Launch, token: str, offset: int) -> None:
        key = launch.job_id, launch.attempt
        with self._changed:
            if key in self._followed:
                return
            followed = self._followed[key] = Followed(launch, token, offset)
            if self._outgoing.ready:
                try:
                    self._outgoing.follow(followed)
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
        if wanted and self._receivers and not self._closed.is_set() and self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"carrel-deputy-{self._user}", daemon=True)
            self._thread.start()

    # --- in the thread --------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        failures = refusals = 0
        while not self._closed.is_set():
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
                self._outgoing.ready = False
                self._mirror.close()
                words = "The lab stops." if self._closed.is_set() else last_words(self._log, self._user) or why
                self._collections.fail(Unavailable(f"The deputy of {self._user} is gone: {words}", remedy="Try again."))
                if self._closed.is_set() or not self._followed:
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
        """Let time pass before another deputy, and tell who waits. Where it is `refused`, what none has heard of fails."""
        until = self._monotonic() + seconds
        while not self._closed.is_set() and (left := until - self._monotonic()) > 0:
            with self._changed:
                ended = self._followed.end_unheard(why if refused else "", self._clock())
            self._deliver(ended)
            with self._changed:
                explained = self._followed.explain(f"{why} It is tried again in {seconds:.0f} s.", self._clock())
            self._deliver(explained)
            with self._changed:
                if not self._followed:
                    return
                if (
                    not self._closed.is_set()
                    and not self._followed.unheard()
                    and all(one.said for one in self._followed.values())
                ):
                    self._changed.wait(left)

    def _converse(self, log: Any) -> bool:
        """Start a deputy and speak with it until it ends; True when it was sent away."""
        idle_since = began = self._monotonic()

        def is_over(pending: bool) -> bool:
            nonlocal idle_since
            with self._changed:
                now = self._monotonic()
                if self._followed or self._collections:
                    idle_since = now
                if self._closed.is_set() or (now - idle_since > _IDLE and not pending and not self._outgoing):
                    self._outgoing.ready = False
                    return True
                if not self._outgoing.ready and now - began > _HELLO:
                    raise Unavailable(f"It did not say that it is ready within {_HELLO:.0f} s.")
                return False

        conversation = self._outgoing.conversation = Conversation(
            self._command, environ=self._environ, log=log, say=self._next, hear=self._hear, is_over=is_over
        )
        return conversation.run()

    def _next(self) -> bytes:
        with self._changed:
            return self._outgoing.next()

    def _hear(self, head: Mapping[str, Any], body: bytes) -> None:
        try:
            kind = head["is"]
            if kind in ("hello", "ready") and self._outgoing.ready:
                raise NotAFrame(f'"{kind}" came twice.')
            if kind in ("offer", "list") and self._outgoing.unread > _MOST_UNREAD:
                raise NotAFrame("It asks, and does not read what it is answered.")
            if kind == "hello":
                opening = self._greet(head)
                with self._changed:
                    self._outgoing.open(opening)
            elif kind == "ready":
                self._begin(head)
            elif kind in ("log", "offer", "news"):
                self._take(kind, head, body)
            elif kind == "list":
                question = int(head["id"]), float(head["since"])
                with self._changed:
                    if self._questions >= _MOST_QUESTIONS:
                        raise NotAFrame(f"More than {_MOST_QUESTIONS} questions for a listing came at once.")
                    self._questions += 1
                threading.Thread(target=self._list, args=question, name="carrel-slurm-listing", daemon=True).start()
            elif kind == "file":
                self._addresses.answered(head, body)
            elif kind == "collected":
                with self._changed:
                    self._collections.answered(head)
            elif kind == "blob":
                self._insist(lambda: self._mirror.take_blob(str(head["digest"]), body, last=bool(head["last"])))
            else:
                raise NotAFrame(f'"{kind}" is not understood.')
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise NotAFrame(f"The deputy of {self._user} said something that makes no sense: {error}.") from error

    def _list(self, number: int, since: float) -> None:
        """In a thread of its own, as Slurm may be slow: tell the deputy which jobs of its user the lab's listing has."""
        jobs = None
        try:
            with self._listing_turn:
                self._closed.wait(max(0.0, self._listed_at + _BETWEEN_LISTINGS - time.monotonic()))
                self._listed_at = time.monotonic()
                if self._listing is not None:
                    with suppress(CarrelError):
                        jobs = [to_plain(job) for job in self._listing(since, frozenset()) if job.user == self._user]
        finally:
            with self._changed:
                self._questions -= 1
                self._outgoing.answer({"is": "listing", "id": number, "jobs": jobs})

    def _begin(self, head: Mapping[str, Any]) -> None:
        with self._changed:
            self._outgoing.begin({str(digest) for digest in head["code"]}, self._followed.values())
            for asked in self._collections.frames():
                self._outgoing.send(asked)

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
            wanted = [] if limit is None else self._mirror.want(key, limit, digests)
            with self._changed:
                self._outgoing.answer({"is": "wanted", "digests": wanted})
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
        while not self._closed.is_set():
            try:
                write()
            except OSError as error:
                _log.error("What the deputy of %s says cannot be kept: %s. It is tried again.", self._user, error)
                self._closed.wait(1.0)
            else:
                return

    def _deliver(self, observations: Sequence[Observation]) -> None:
        deliver_now(self._receivers, observations, closed=self._closed)
