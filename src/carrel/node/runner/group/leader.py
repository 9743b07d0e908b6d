"""What a runner starts in the place of a command with several processes: brings the agents together, and ends them together.

``python -c START <plan>``. Its output is that of all processes; it ends as the first process that failed did, by signal or exit
code, and writes down which one that was. SIGTERM and the like go to all processes. Killed, it takes them along: the agents see
their connections break.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

from carrel.core.domain.launch import Usage
from carrel.core.domain.serial import from_plain
from carrel.core.domain.task import Launcher
from carrel.node.runner.group import agent as group_agent
from carrel.node.runner.group.link import Link, listen
from carrel.node.runner.group.plan import GroupPlan, Rendezvous
from carrel.node.runner.group.report import FirstFailure, GroupEnd, together, write_end, write_use

#: The program of the interpreter.
START = "import sys; from carrel.node.runner.group.leader import main; sys.exit(main(sys.argv[1:]))"
#: Seconds that the agents may take to come together.
_GATHER = 300.0
#: Seconds between SIGTERM and SIGKILL for the others when one process has failed.
GRACE = 5.0
#: Seconds in which launchers on other nodes may say which of their processes failed first.
_HEAR = 3.0
#: Seconds that agents may take to leave.
_LEAVE = 20.0
#: Connections at once that have not proved that they are agents'.
_STRANGERS = 256
#: Ports that are tried: beyond those of well-known services, below those that machines give to outgoing connections.
_PORTS = range(12000, 32000)
_TRIES = 3
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_TAKEN = (*_FORWARDED, signal.SIGTSTP, signal.SIGCONT)


class GroupFailed(Exception):
    """The processes could not be started; the text says why."""


@dataclass(slots=True)
class _Member:
    """An agent, as the leader knows it."""

    link: Link
    node: int = 0
    local: int = 0
    name: str = ""
    address: str = ""
    #: Its processes that have not ended.
    running: int = 0
    here: bool = True
    use: Usage = field(default_factory=Usage)


@dataclass(slots=True)
class _Ends:
    """How the processes of one try have ended so far."""

    failures: list[FirstFailure] = field(default_factory=list)
    #: Ranks in the order in which their output ended.
    closed: list[int] = field(default_factory=list)
    taken: bool = False
    #: What the others were ended for; what fails afterwards may have failed for that.
    culprit: FirstFailure | None = None

    def first(self) -> FirstFailure:
        """The failure so far that others followed from: too much memory, a lost node, or the process that was silent first."""

        def order(failure: FirstFailure) -> tuple[bool, bool, int]:
            known = failure.rank in self.closed
            return not failure.memory, not failure.lost, self.closed.index(failure.rank) if known else len(self.closed)

        return min(self.failures, key=order)


def main(arguments: Sequence[str]) -> int:
    """Lead the group of the plan in the file of the first argument; return the exit code, or end by the signal of a process."""
    path = Path(arguments[0])
    plan = from_plain(GroupPlan, json.loads(path.read_bytes()))
    try:
        leader = Leader(plan, path)
    except OSError as error:
        write_end(path, GroupEnd(error=f"The processes could not be started: {error.filename or 'port'}: {error.strerror}."))
        return 1
    try:
        end = leader.lead()
    except GroupFailed as error:
        end = GroupEnd(error=str(error))
    write_end(path, end)
    leader.dismiss()
    code = 1 if end.error else 0 if end.culprit is None else end.culprit.code
    if code < 0:
        _end_by(-code)
    return code


class Leader:
    """Leads one group."""

    def __init__(self, plan: GroupPlan, path: Path) -> None:
        self._plan, self._path = plan, path
        self._events: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._members: list[_Member] = []
        #: Connections that have not proved that they are agents, the oldest first.
        self._strangers: deque[socket.socket] = deque()
        self._output = threading.Lock()
        self._asked = False
        #: True when what started the agents has ended.
        self._over = False
        self._listener = listen(everywhere=bool(plan.step))
        self._agents = self._start_agents(self._listener.getsockname()[1])
        # From here on one thread takes the signals: a handler would have to wait until the main thread wakes up.
        signal.pthread_sigmask(signal.SIG_BLOCK, _TAKEN)
        for work in (self._take_signals, self._accept, self._wait_for_agents):
            threading.Thread(target=work, daemon=True).start()

    def lead(self) -> GroupEnd:
        """Return how the group ended. Raises `GroupFailed` when it did not begin."""
        self._gather()
        for number in range(_TRIES):
            meeting = Rendezvous(address=self._address(), port=free_port(self._plan.name, number), number=number)
            for member in self._members:
                member.running = self._plan.processes
                self._tell(member, "run", address=meeting.address, port=meeting.port, number=number)
            ends = self._follow()
            if not ends.taken or self._asked or number + 1 == _TRIES:
                break
            self._show(f"[carrel] Port {meeting.port} was taken meanwhile; all processes are started again with another one.\n")
        return GroupEnd(culprit=ends.culprit or (ends.first() if ends.failures else None))

    def dismiss(self) -> None:
        """Send the agents away, and wait until they have gone."""
        self._tell_all("end")
        deadline = time.monotonic() + _LEAVE
        while any(member.here for member in self._members):
            kind, what = self._next(deadline)
            self._over = self._over or kind == "over"
            if kind == "lost":
                what.here = False
            elif kind == "use":
                self._note_use(*what)
            elif not kind:
                break
        for member in self._members:
            member.link.close()
        while not self._over and self._next(deadline)[0] != "over" and time.monotonic() < deadline:
            pass

    def _start_agents(self, port: int) -> int:
        """Start the agent beside this process, or what starts those on all nodes; return its process.

        In a session of its own: signals reach the processes of the group through the agents, once.
        """
        arguments = [str(self._path), str(port)]
        if not self._plan.step:
            pid = os.fork()  # no other thread runs yet, and everything is imported
            if pid == 0:
                _be_agent(self._listener, arguments)
            return pid
        command = [*self._plan.step, sys.executable, "-P", "-c", group_agent.START, *arguments]
        null = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        return os.posix_spawnp(command[0], command, os.environ, file_actions=[null], setsid=True)

    # --- the agents ---------------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED):
                    return
                time.sleep(0.1)
                continue
            self._strangers.append(sock)
            if len(self._strangers) > _STRANGERS:  # the oldest has had more time than an agent needs
                with suppress(OSError, IndexError):
                    self._strangers.popleft().shutdown(socket.SHUT_RDWR)
            threading.Thread(target=self._hear, args=(sock,), daemon=True).start()

    def _hear(self, sock: socket.socket) -> None:
        """Receive what one agent says; what its processes write is written at once."""
        try:
            member = _Member(Link(sock, self._plan.secret.encode(), leader=True))
        except Exception:  # noqa: BLE001 - a stranger may send anything
            sock.close()
            return
        finally:
            with suppress(ValueError):  # it was put out meanwhile
                self._strangers.remove(sock)
        try:
            while True:
                message = member.link.receive()
                if isinstance(message, bytes):
                    self._write(message)
                else:
                    self._events.put((message["what"], (member, message)))
        except (EOFError, OSError):
            self._events.put(("lost", member))

    def _take_signals(self) -> None:
        kinds: dict[int, str] = {signal.SIGTSTP: "stop", signal.SIGCONT: "continue"}
        while True:
            number = signal.sigwait(_TAKEN)
            self._events.put((kinds.get(number, "signal"), number))

    def _wait_for_agents(self) -> None:
        _, status = os.waitpid(self._agents, 0)
        self._events.put(("over", os.waitstatus_to_exitcode(status)))

    def _tell(self, member: _Member, what: str, **fields: Any) -> None:
        with suppress(OSError):  # that it is lost is said by the thread that hears it
            member.link.say(what, **fields)

    def _tell_all(self, what: str, **fields: Any) -> None:
        for member in self._members:
            if member.here:
                self._tell(member, what, **fields)

    def _gather(self) -> None:
        deadline = time.monotonic() + _GATHER
        while len(self._members) < self._plan.agents:
            kind, what = self._next(deadline)
            if kind == "hello":
                member, said = what
                member.node, member.local, member.name = said["node"], said["local"], said["name"]
                member.address = said["address"]
                self._members.append(member)
            elif kind == "lost" and what in self._members:
                raise GroupFailed(f"The connection to {what.name} was lost before the processes were started.")
            elif kind == "over":
                raise GroupFailed(
                    f"The processes could not be started on {self._plan.nodes} nodes (exit code {what}); see the log."
                )
            elif kind == "signal":
                with suppress(ProcessLookupError):
                    os.kill(self._agents, signal.SIGKILL)
                _end_by(what)
            elif kind == "":
                here = ", ".join(sorted(member.name for member in self._members)) or "none"
                raise GroupFailed(
                    f"Of {self._plan.agents} agents {len(self._members)} came within {_GATHER:.0f} s (on {here}): "
                    "nodes must reach each other by TCP."
                )
        self._members.sort(key=lambda member: (member.node, member.local))

    def _address(self) -> str:
        """The first node's, as the others know it."""
        return self._members[-1].address

    # --- the processes ------------------------------------------------------------------------------------------------------

    def _follow(self) -> _Ends:
        """Wait until all processes have ended; see to it that they do when one has failed."""
        ends = _Ends()
        act_at = kill_at = None
        while any(member.running for member in self._members):
            kind, what = self._next(min(act_at or kill_at or float("inf"), kill_at or float("inf")))
            now = time.monotonic()
            if kind == "exit" and what[1]["code"]:
                ends.taken = ends.taken or what[1]["taken"]
            self._note(ends, kind, what)
            if ends.failures and act_at is None:
                # torchrun takes a moment to see that one of its processes has ended.
                act_at = now + (_HEAR if self._plan.launcher is Launcher.TORCHRUN and self._plan.nodes > 1 else 0.0)
                kill_at = act_at + GRACE
            if act_at is not None and now >= act_at and not self._asked:
                ends.culprit = ends.first()
                self._tell_all("signal", number=int(signal.SIGTERM))
                act_at = float("inf")
            if kill_at is not None and now >= kill_at and (not self._asked or any(one.lost for one in ends.failures)):
                self._tell_all("kill")
                kill_at = float("inf")
        return ends

    def _note(self, ends: _Ends, kind: str, what: Any) -> None:
        match kind:
            case "exit":
                member, said = what
                member.running -= 1
                if said["code"]:
                    ends.failures.append(FirstFailure(node=member.name, rank=said["rank"], code=said["code"]))
            case "closed":
                ends.closed.append(what[1]["rank"])
            case "lost" if what in self._members:
                what.here = False
                if what.running:
                    what.running = 0
                    ends.failures.append(FirstFailure(node=what.name, rank=-1, code=1, lost=True))
            case "memory":
                ends.failures.append(FirstFailure(node=what[0].name, rank=-1, code=-int(signal.SIGKILL), memory=what[1]["used"]))
            case "failed":
                self._tell_all("kill")
                raise GroupFailed(what[1]["message"])
            case "over":
                self._over = True
            case "signal":
                self._asked = True
                self._tell_all("signal", number=int(what))
            case "use":
                self._note_use(*what)
            case "stop":
                self._stop()
            case "continue":
                self._tell_all("continue")

    def _stop(self) -> None:
        """Have all processes stopped, on all nodes, and stop; the runner sees that by the state of this process."""
        self._tell_all("stop")
        waits = sum(member.here for member in self._members)
        deadline = time.monotonic() + GRACE
        while waits:
            kind, _what = self._next(deadline)
            if not kind:
                break
            waits -= kind in ("stopped", "lost")
        os.kill(os.getpid(), signal.SIGSTOP)

    def _next(self, deadline: float) -> tuple[str, Any]:
        """The next event, or ("", None) at the deadline."""
        try:
            return self._events.get(timeout=min(3600.0, max(0.0, deadline - time.monotonic())))
        except Empty:
            return "", None

    # --- what is written ----------------------------------------------------------------------------------------------------

    def _show(self, text: str) -> None:
        self._write(text.encode())

    def _write(self, data: bytes) -> None:
        with self._output, suppress(OSError):
            while data:
                data = data[os.write(1, data) :]

    def _note_use(self, member: _Member, said: Mapping[str, Any]) -> None:
        member.use = from_plain(Usage, said["use"])
        if self._plan.step:
            write_use(self._path, together(one.use for one in self._members))


def free_port(name: str, number: int) -> int:
    """Return a port of this machine on which nobody listens; another one for each group and each try."""
    from zlib import crc32

    first = crc32(f"{name}.{number}".encode())
    for step in range(len(_PORTS)):
        port = _PORTS[(first + step) % len(_PORTS)]
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise GroupFailed(f"No port from {_PORTS[0]} to {_PORTS[-1]} is free on this node.")


def command(path: Path) -> list[str]:
    """Return the arguments that start the leader of the plan in the file `path`."""
    return [sys.executable, "-P", "-c", START, str(path)]


def variables(base: Mapping[str, str], allocation: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a leader: none of the task's, which are not for the lab's own Python."""
    return {**base, **allocation}


def _be_agent(listener: socket.socket, arguments: Sequence[str]) -> NoReturn:
    """In a child: be the agent on this node."""
    code = 1
    try:
        listener.close()
        os.setsid()
        code = group_agent.main(arguments)
    except Exception:  # noqa: BLE001 - nobody is there to catch it
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _end_by(number: int) -> None:
    """End by a signal, as a process of the group did."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))
    os.kill(os.getpid(), number)
    os._exit(128 + number)
