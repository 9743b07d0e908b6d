"""Following a job on a terminal: why it waits, its log, its end; and what Ctrl-C means meanwhile."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from carrel.cli import words
from carrel.cli.endings import INTERRUPTED, OK, OTHER, TIMED_OUT
from carrel.cli.screen import STATE_STYLES, StatusLine, clean, paint, print_json
from carrel.core.domain.errors import CarrelError, Unavailable
from carrel.core.domain.job import ENDED, JobState
from carrel.core.domain.units import format_count

if TYPE_CHECKING:
    from carrel.client import Client
    from carrel.wire.v1 import EventView, JobDetail, JobView


#: States that need no line of their own: the log or the end follows.
_SPEAK_FOR_THEMSELVES = frozenset(state.value for state in (*ENDED, JobState.RUNNING))
#: Seconds that a request gets to arrive when the user leaves.
_PARTING = 3.0


def task_exit_code(job: JobView) -> int:
    """The exit code with which `carrel run` ends: the task's own where it has one (docs/commands.md)."""
    if job.state == "COMPLETED":
        return job.exit_code or OK
    if job.state == "TIMEOUT":
        return TIMED_OUT
    if job.state == "CANCELLED":
        return INTERRUPTED
    if job.signal:
        return 128 + job.signal
    return job.exit_code or OTHER


def wait_shown(client: Client, job_id: int, line: StatusLine) -> JobDetail:
    """Wait for a job's end, and say on the line meanwhile what it waits for; return the job."""
    for event in client.events(job_id):
        if event.type in ("queue", "progress", "state") and not (event.type == "state" and event.data.get("state") in ENDED):
            line.show(f"Job {job_id}: {words.event(event.type, event.data, words.now())}")
    line.clear()
    return client.wait(job_id)


class Detached(Exception):
    """The user has gone; the job has not."""


class Follower:
    """Shows one job until its end."""

    def __init__(self, client: Client, job_id: int, *, as_json: bool, cancels: bool) -> None:
        """`cancels`: the first Ctrl-C asks for the job's end and the second leaves; else the first one leaves."""
        self._client = client
        self._job_id = job_id
        self._as_json = as_json
        self._cancels = cancels
        self._line = StatusLine()
        self._interrupts = 0
        self._canceller: threading.Thread | None = None
        self._asked = False
        self._log = Transcript(client, job_id)

    def follow(self) -> JobDetail | None:
        """Show everything until the job's end, and return the job; None when the user left it with Ctrl-C."""
        try:
            with self._interruptible():
                for event in self._client.events(self._job_id):
                    if self._as_json:
                        print_json(event)
                    else:
                        self._show(event)
                job = self._client.wait(self._job_id)
                self._log.finish()
                return job
        except Detached:
            self._line.note(f"\nLeft job {self._job_id}{self._request_to_end()}. See how it goes: carrel logs -f {self._job_id}")
            return None
        except BrokenPipeError:
            if self._cancels and not self._as_json:  # a user who follows an older job knows that it goes on
                self._line.note(f"Nobody reads the log any more; job {self._job_id} goes on. carrel show {self._job_id}")
            raise
        finally:
            self._line.clear()

    def say_start(self, job: JobView, *, simulated: bool) -> None:
        """One line about what was submitted."""
        self._line.note(f"Job {paint(str(job.id), 'bold', sys.stderr)}: {job.name} ({words.resources(job, simulated=simulated)})")

    def say_end(self, job: JobDetail) -> None:
        """One line about the end, and where to go from there."""
        self._line.clear()
        self._log.end_line()
        state = paint(job.state, STATE_STYLES.get(job.state, ""), sys.stderr)
        took = "" if " after " in job.message and job.state != "COMPLETED" else words.spent(job, words.now())
        detail = "" if job.state == "COMPLETED" else f": {clean(job.message)}"
        self._line.note(f"Job {job.id} {state}{f' after {took}' if took else ''}{detail}")
        self._say_outputs(job)
        if job.run_url:
            self._line.note(f"  run      {job.run_url}")

    @property
    def last_output(self) -> str:
        """The end of the log."""
        return self._log.tail.decode(errors="replace")

    @property
    def interrupted(self) -> bool:
        """True when the user has asked for the job's end."""
        return self._interrupts > 0

    def say_hint(self, hint: str | None) -> None:
        """One more line about the end, if there is one."""
        if hint is not None:
            self._line.note(f"  hint     {clean(hint)}")

    def _say_outputs(self, job: JobDetail) -> None:
        try:
            outputs = self._client.outputs(job.id)
        except CarrelError:  # the end is reported all the same
            return
        if outputs:
            self._line.note(f"  outputs  {format_count(len(outputs), 'file')}: carrel outputs {job.id} DIR")

    def _show(self, event: EventView) -> None:
        if event.type == "log":
            self._show_log(event)
        elif event.type == "storage":
            self._show_storage(event)
        elif event.type == "state" and event.data.get("state") in _SPEAK_FOR_THEMSELVES:
            self._line.clear()
        else:
            self._log.end_line()
            self._line.show(words.event(event.type, event.data, words.now()))

    def _show_storage(self, event: EventView) -> None:
        self._line.clear()
        if event.data.get("room") == "ok":
            self._line.note(str(event.data.get("message", "")))
        else:
            self._client.tell_storage(str(event.data.get("room", "")), str(event.data.get("message", "")))

    def _show_log(self, event: EventView) -> None:
        if not event.data.get("text"):
            return
        self._line.clear()
        attempt, before = int(event.data.get("attempt", 0)), self._log.attempt
        if attempt > before:
            self._log.begin(attempt)
            if before:
                self._log.end_line()
                self._line.note(f"--- attempt {attempt} ---")
        self._log.write(event.data)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        # A handler and not KeyboardInterrupt: the stream that is being read stays whole.
        before = signal.signal(signal.SIGINT, self._interrupted)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupted(self, _signal: int, _frame: FrameType | None) -> None:
        self._interrupts += 1
        if self._interrupts > 1 or not self._cancels:
            raise Detached
        self._canceller = threading.Thread(target=self._cancel, daemon=True)
        self._canceller.start()

    def _request_to_end(self) -> str:
        """What became of the first Ctrl-C; a request that is on its way gets a moment to arrive."""
        if self._canceller is None:
            return ", which goes on"
        self._canceller.join(_PARTING)
        return "; the lab was asked to end it" if self._asked else "; the lab could not be asked to end it"

    def _cancel(self) -> None:
        said = f"Cancelling job {self._job_id}; Ctrl-C again leaves it alone."
        if self._as_json:
            print(json.dumps({"type": "cancelling", "job_id": self._job_id}), flush=True)
        else:
            self._line.note(f"\n{said}")
        try:
            self._client.cancel(self._job_id)
            self._asked = True
        except CarrelError as error:
            self._line.note(f"It cannot be cancelled: {error}")


#: What stands in an event for bytes that are no text.
_REPLACED = "\ufffd"
#: Bytes of the log's end that are kept.
_TAIL = 16384


class Transcript:
    """Writes what the log events of one job bring.

    Events carry text. Where a log is not UTF-8 they cannot say which bytes there were: from there on, until the attempt's
    end, the bytes themselves are fetched, and an event only tells that there are more.
    """

    def __init__(self, client: Client, job_id: int) -> None:
        self._client = client
        self._job_id = job_id
        #: Where to go on fetching bytes; None while the events' text is exact.
        self._fetched: int | None = None
        #: The attempt whose log is being written; 0 before the first.
        self.attempt = 0
        #: True when what was written last did not end a line.
        self.midline = False
        #: The last that was written.
        self.tail = b""

    def write(self, data: Mapping[str, Any]) -> None:
        """Write what one log event brings."""
        text = str(data.get("text", ""))
        if self._fetched is None and _REPLACED in text:
            self._fetched = int(data.get("offset", 0))
        if self._fetched is None:
            self._put(text.encode())
            return
        with suppress(Unavailable):  # a lab that is away for a moment: the next event, or the end, brings it
            self._fetch()

    def begin(self, attempt: int) -> None:
        """What follows is of this attempt."""
        self.finish()
        self.attempt, self._fetched = attempt, None

    def end_line(self) -> None:
        """What others say next on the terminal begins on a line of its own."""
        if self.midline:
            print(file=sys.stderr, flush=True)
            self.midline = False

    def finish(self) -> None:
        """Write what is missing of the attempt's log, which does not grow any more."""
        if self._fetched is not None:
            self._fetch()

    def _fetch(self) -> None:
        for piece in self._client.log(self._job_id, attempt=self.attempt or None, offset=self._fetched or 0):
            self._put(piece)
            self._fetched = (self._fetched or 0) + len(piece)

    def _put(self, piece: bytes) -> None:
        if piece:
            self.midline = not piece.endswith(b"\n")
            self.tail = (self.tail + piece)[-_TAIL:]
            sys.stdout.buffer.write(piece)
            sys.stdout.flush()
