"""The deputy: a process of one Unix user that runs the engine for Slurm for the lab, with that user's rights and no others.

The lab starts it through sudo and speaks to it over its standard input and output (`carrel.engines.deputy.frames`). It ends
when the lab closes the line. Nothing that matters is in its memory: the user's spool has it.
"""

from __future__ import annotations

import os
import pwd
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import carrel
from carrel.core.domain.errors import CarrelError, Invalid, Unavailable
from carrel.core.domain.job import Preemption
from carrel.core.domain.launch import Ended, EnvironmentReady, Launch, LaunchPaths, Observation
from carrel.core.domain.ports import Attempt
from carrel.core.domain.serial import from_plain
from carrel.core.domain.task import TaskSpec
from carrel.core.spool import Spool
from carrel.core.spool.foreign import open_regular
from carrel.core.spool.seal import SignedOrder, is_signed, opening_of, signed_by
from carrel.core.spool.strict import trusted_directory
from carrel.engines.attempts import Key
from carrel.engines.deputy.collecting import CollectingDeputy
from carrel.engines.deputy.configuration import DeputyConfiguration, Forbidden, read_configuration
from carrel.engines.deputy.directory import only_one, sweep
from carrel.engines.deputy.frames import CHUNK, VERSION, FrameReader, NotAFrame, frame, observation_to_plain
from carrel.engines.deputy.mirror import BEYOND
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.engine import SlurmEngine
from carrel.engines.slurm.listing import SlurmJob
from carrel.engines.slurm.options import SlurmOptions
from carrel.engines.slurm.shared import LabsListing
from carrel.engines.task_client import pack_client
from carrel.node.runner.collecting import remove_work

#: Seconds in which the lab has to answer a question for a listing.
_LISTED = 60.0

_LAB = re.compile(r"[A-Za-z0-9_-]+")

Send = Callable[[Mapping[str, Any], bytes], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """``carrel-deputy [--config FILE]``: serve the lab at the other end of the line; return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    os.umask(0o077)
    line = os.dup(1)
    os.dup2(2, 1)  # text that is printed by accident is no frame
    lock = threading.Lock()

    def send(head: Mapping[str, Any], data: bytes = b"") -> None:
        with lock, open(line, "wb", buffering=0, closefd=False) as file:
            view = memoryview(frame(head, data))
            while view:
                view = view[file.write(view) :]

    try:
        if words and (len(words) != 2 or words[0] != "--config"):
            raise Invalid("carrel-deputy takes --config FILE, and nothing else.", remedy="It is the lab that starts it.")
        account = pwd.getpwuid(os.geteuid())
        given = {name: os.environ[name] for name in ("PATH", "SLURM_CONF") if name in os.environ}
        configuration = read_configuration(Path(words[1])) if words else DeputyConfiguration(environment=given)
        configuration.check_user(account)
        os.chdir("/")
        os.environ.clear()
        os.environ.update(configuration.environ_of(account))
        nonce = os.urandom(16).hex()
        send({"is": "hello", "version": VERSION, "carrel": carrel.__version__, "user": account.pw_name, "nonce": nonce})
        Service(configuration, account, send, nonce).run(0)
    except BrokenPipeError:
        return 0  # the lab has gone
    except (CarrelError, OSError, KeyError, ValueError, TypeError) as error:
        print(f"carrel-deputy: {error}", file=sys.stderr)
        return 1
    return 0


class Service:
    """The deputy's side of the conversation."""

    def __init__(self, configuration: DeputyConfiguration, account: pwd.struct_passwd, send: Send, nonce: str) -> None:
        """`nonce` is what the lab was asked to sign."""
        self._nonce = nonce
        #: By whose key what is run has to be signed; "": nobody asks for that.
        self._key = ""
        self._orders: dict[tuple[int, int], SignedOrder] = {}
        self._configuration = configuration
        self._account = account
        self._send = send
        self._engine: SlurmEngine | None = None
        self._root = Path()
        #: Where the lab keeps the files of its users.
        self._files = ""
        self._asked: dict[tuple[int, int], Mapping[str, Any]] = {}
        #: Bytes of each attempt's log that the lab has.
        self._sent: dict[tuple[int, int], int] = {}
        #: Bytes of each that the lab keeps at most.
        self._longest_logs: dict[Key, int] = {}
        self._code: dict[str, int] = {}
        self._client = ""
        #: What was stored for each attempt, by digest.
        self._handed: dict[tuple[int, int], set[str]] = {}
        #: What the lab wants of the last offer.
        self._wanted: list[str] | None = None
        #: What the lab has answered to questions for a listing, by their number, and the last of these numbers.
        self._listed: dict[int, Any] = {}
        self._asked_for = 0
        self._answered = threading.Condition()
        #: Held from an offer until what is wanted of it is given.
        self._giving = threading.Lock()
        self._collecting = CollectingDeputy(lambda head: send(head, b""), self._give)
        self._over = False

    def run(self, fd: int) -> None:
        """Do what the lab says until it closes the line."""
        reader = FrameReader()
        try:
            while data := os.read(fd, 1024**2):
                for head, body in reader.feed(data):
                    self._hear(head, body)
        finally:
            with self._answered:
                self._over = True
                self._answered.notify_all()
            if self._engine is not None:
                self._engine.close()

    def _hear(self, head: Mapping[str, Any], body: bytes) -> None:
        kind = head["is"]
        if kind == "open":
            self._open(head)
        elif self._engine is None:
            raise NotAFrame(f'"{kind}" came before "open".')
        elif kind == "code":
            self._take_code(str(head["digest"]), body, last=bool(head["last"]))
        elif kind == "listing":
            with self._answered:
                self._listed[int(head["id"])] = head["jobs"]
                self._answered.notify_all()
        elif kind == "wanted":
            with self._answered:
                self._wanted = [str(digest) for digest in head["digests"]]
                self._answered.notify_all()
        else:
            if kind == "follow":
                self._place.check()  # what lies there is run as this user
            try:
                self._do(self._engine, kind, head)
            except NotAFrame:
                raise
            except (CarrelError, OSError) as error:  # one attempt's trouble must not end the others
                print(f"carrel-deputy: {kind}: {error}", file=sys.stderr, flush=True)

    def _do(self, engine: SlurmEngine, kind: str, head: Mapping[str, Any]) -> None:
        if kind == "follow":
            self._follow(engine, head)
        elif kind == "cancel":
            engine.cancel(int(head["job"]), int(head["attempt"]), by=str(head["by"]))
        elif kind == "preempt":
            preemption = None if head.get("preemption") is None else from_plain(Preemption, head["preemption"])
            engine.preempt(int(head["job"]), int(head["attempt"]), preemption)
        elif kind == "forget":
            self._forget(engine, head)
        elif kind == "read":
            self._read(head)
        elif kind == "collect":
            key = int(head["job"]), int(head["attempt"])
            self._collecting.collect(key, Spool(self._root / "spool").attempt(*key), int(head["limit"]), self._root / "blobs")
        elif kind == "remove":
            key = int(head["job"]), int(head["attempt"])
            remove_work(Spool(self._root / "spool").attempt(*key))
            self._discard(key)
        else:
            raise NotAFrame(f'"{kind}" is not understood.')

    # --- what the lab asks for ----------------------------------------------------------------------------------------------

    def _open(self, head: Mapping[str, Any]) -> None:
        lab = str(head["lab"])
        if not _LAB.fullmatch(lab):
            raise NotAFrame(f"{lab!r} is not the name of a lab.")
        self._know(head, lab)
        self._files = str(head["files"])
        root = self._root = self._configuration.directory_of(self._account) / lab
        self._place = trusted_directory(root, make=True, private=True)
        for name in ("snapshots", "blobs", "environments", "spool", "run"):
            trusted_directory(root / name, make=True)
        self._lock = only_one(root / "lock")
        sweep(root)
        commands = SlurmCommands(environ=os.environ, timeout=float(head["timeout"]))
        self._engine = SlurmEngine(
            spool=Spool(root / "spool"),
            run_dir=root / "run",
            lab=lab,
            environ=os.environ,
            commands=commands,
            listing=LabsListing(self._ask_lab, commands.listing),
            options=self._options,
            immediate=lambda launch: bool(self._asked[launch.job_id, launch.attempt]["immediate"]),
            hold=lambda launch: float(self._asked[launch.job_id, launch.attempt]["hold"]),
            user=self._account.pw_name,
            host=str(head["host"]),
            strict=True,
            order=lambda launch: self._orders.get((launch.job_id, launch.attempt)),
            key=self._key,
            ordered_of=self._account.pw_name,
            interval=float(head["interval"]),
        )
        code = [f"sha256:{archive.stem}" for archive in (root / "snapshots").iterdir()]
        self._send({"is": "ready", "directory": str(root), "code": code}, b"")
        self._engine.observe(self._deliver)  # from now on it asks the lab for listings, which answers who is ready

    def _know(self, head: Mapping[str, Any], lab: str) -> None:
        """Find out whether this is the lab whose deputy it is. Raises `Forbidden`."""
        wanted = self._configuration.lab_keys
        self._key = str(head.get("key", ""))
        said = opening_of(self._nonce, self._account.pw_name, lab)
        if wanted and self._key not in wanted:
            raise Forbidden(
                f"This is not the lab that deputies serve here: its key is {self._key or 'none'}.",
                remedy="If it is, an administrator writes what `carrel signing-key show` says into the deputies' file (lab_key).",
            )
        if self._key and not is_signed(said, str(head.get("signature", "")), self._key):
            raise Forbidden(
                f"This is not the lab that deputies serve here: it cannot sign with the key {self._key}.",
                remedy="Find out who starts deputies in its place.",
            )

    def _take_code(self, digest: str, body: bytes, *, last: bool) -> None:
        name = digest.removeprefix("sha256:")
        if not (name.isalnum() and name.isascii()):
            raise NotAFrame(f"{digest!r} is no digest.")
        draft = self._root / "snapshots" / f"{name}.new"
        if name not in self._code:
            self._code[name] = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        view = memoryview(body)
        while view:
            view = view[os.write(self._code[name], view) :]
        if last:
            os.close(self._code.pop(name))
            draft.rename(draft.with_suffix(".tar"))

    def _follow(self, engine: SlurmEngine, head: Mapping[str, Any]) -> None:
        if self._key:
            order = SignedOrder(user=self._account.pw_name, launch=head["launch"], signature=str(head.get("signature", "")))
            order.check(self._key, by=signed_by)
            self._orders[int(head["launch"]["job_id"]), int(head["launch"]["attempt"])] = order
        launch = from_plain(Launch, head["launch"])
        paths = LaunchPaths(
            environments=str(self._root / "environments"),
            snapshots=str(self._root / "snapshots"),
            blobs=str(self._root / "blobs"),
            broker=launch.paths.broker,
            inputs=str(self._root / "inputs") if launch.paths.inputs else "",
            client=self._packed_client() if launch.paths.client else "",
        )
        launch = replace(launch, paths=paths, task=self._at_home(launch.task))
        key = launch.job_id, launch.attempt
        self._asked[key] = head
        self._sent.setdefault(key, int(head["log"]))
        self._longest_logs[key] = launch.limits.log + BEYOND
        with suppress(OSError):  # it is used again
            os.utime(self._root / "snapshots" / f"{launch.task.snapshot.removeprefix('sha256:')}.tar")
        attempt = Attempt(job_id=launch.job_id, number=launch.attempt, offset=int(head["offset"]))
        engine.adopt([(attempt, launch, str(head["token"]))])

    def _packed_client(self) -> str:
        """The client for tasks, in the user's own directory: the lab's home is closed to them. "": it cannot be written."""
        if not self._client or not os.path.exists(self._client):  # noqa: PTH110
            try:
                self._client = str(pack_client(self._root / "client"))
            except OSError as error:
                print(f"carrel-deputy: jobs have no client: {error}", file=sys.stderr, flush=True)
                return ""
        return self._client

    def _at_home(self, task: TaskSpec) -> TaskSpec:
        """A session that would work on files in the lab's own hands works on the user's."""
        if task.session is None or not self._files or not Path(task.session.directory).is_relative_to(self._files):
            return task
        return replace(task, session=replace(task.session, directory=str(self._root / "files")))

    def _options(self, launch: Launch) -> SlurmOptions:
        head = self._asked[launch.job_id, launch.attempt]
        if head.get("options") is None:
            raise Unavailable(str(head.get("trouble") or "The lab does not say what to ask of Slurm."))
        return from_plain(SlurmOptions, head["options"])

    def _forget(self, engine: SlurmEngine, head: Mapping[str, Any]) -> None:
        key = int(head["job"]), int(head["attempt"])
        engine.forget(*key, over=bool(head["over"]))
        self._asked.pop(key, None)
        self._orders.pop(key, None)
        self._sent.pop(key, None)
        self._longest_logs.pop(key, None)
        self._discard(key)

    def _discard(self, key: Key) -> None:
        """The lab has what was stored for an attempt, and has written it down."""
        for digest in self._handed.pop(key, set()) - set().union(*self._handed.values()):
            name = digest.removeprefix("sha256:")
            (self._root / "blobs" / name[:2] / name).unlink(missing_ok=True)

    def _read(self, head: Mapping[str, Any]) -> None:
        """Tell where a session is, in its own words."""
        path = Spool(self._root / "spool").attempt(int(head["job"]), int(head["attempt"])).session_address
        try:
            with open_regular(path) as file:
                self._send({"is": "file", "id": head["id"], "found": True}, file.read(CHUNK))
        except OSError:
            self._send({"is": "file", "id": head["id"], "found": False}, b"")

    # --- what the engine has to say: called by its thread --------------------------------------------------------------------

    def _deliver(self, observations: Sequence[Observation]) -> None:
        assert self._engine is not None
        for observation in observations:
            self._send_log(observation)
            lost = self._hand_over(observation)
            self._send({"is": "news", "observation": observation_to_plain(observation), "lost": lost}, b"")

    def _send_log(self, observation: Observation) -> None:
        """The lab keeps a copy of each log: it serves it after the job, and while the user's files cannot be read."""
        key = observation.job_id, observation.attempt
        if observation.log_size is None or key not in self._sent:
            return
        size = min(observation.log_size, self._longest_logs[key])
        with suppress(OSError), open_regular(self._root / "spool" / str(key[0]) / str(key[1]) / "log") as file:
            file.seek(self._sent[key])
            while (left := size - self._sent[key]) > 0 and (data := file.read(min(CHUNK, left))):
                self._send({"is": "log", "job": key[0], "attempt": key[1], "at": self._sent[key]}, data)
                self._sent[key] += len(data)

    def _hand_over(self, observation: Observation) -> list[str]:
        """Give what was stored to the lab; return the digests of what could not be read."""
        digests: list[str] = []
        for entry in observation.entries:
            if isinstance(entry.record, EnvironmentReady) and entry.record.lock:
                digests.append(entry.record.lock)
            elif isinstance(entry.record, Ended):
                digests += [file.digest for file in entry.record.outputs]
        return self._give((observation.job_id, observation.attempt), digests)

    def _give(self, key: Key, digests: Sequence[str]) -> list[str]:
        if not digests:
            return []
        with self._giving:
            return self._give_wanted(key, list(dict.fromkeys(digests)))

    def _give_wanted(self, key: Key, digests: Sequence[str]) -> list[str]:
        lost = []
        for digest in self._offer(key, digests):
            name = digest.removeprefix("sha256:")
            path = self._root / "blobs" / name[:2] / name
            try:
                with open_regular(path) as file:
                    data = file.read(CHUNK)
                    while data:
                        following = file.read(CHUNK)
                        self._send({"is": "blob", "digest": digest, "last": not following}, data)
                        data = following
                    if file.tell() == 0:
                        self._send({"is": "blob", "digest": digest, "last": True}, b"")
            except OSError:
                lost.append(digest)
        # The lab may be killed before it has them on its disk: they go when it has written down the end.
        self._handed.setdefault(key, set()).update(digests)
        return lost

    def _ask_lab(self, since: float) -> Sequence[SlurmJob] | None:
        """Return this user's jobs in a listing of the lab's that was begun at `since` or later; None when it has none."""
        with self._answered:
            self._asked_for += 1
            number = self._asked_for
            self._listed.clear()
            self._send({"is": "list", "id": number, "since": since}, b"")
            self._answered.wait_for(lambda: self._over or number in self._listed, _LISTED)
            jobs = self._listed.pop(number, None)
        return None if jobs is None else [from_plain(SlurmJob, job) for job in jobs]

    def _offer(self, key: Key, digests: Sequence[str]) -> list[str]:
        with self._answered:
            self._wanted = None
            self._send({"is": "offer", "job": key[0], "attempt": key[1], "digests": digests}, b"")
            self._answered.wait_for(lambda: self._over or self._wanted is not None)
            if self._wanted is None:
                raise Unavailable("The lab has gone.")
            return [digest for digest in self._wanted if digest in digests]


if __name__ == "__main__":
    sys.exit(main())
