"""The part of a group on one node: starts its processes, passes on what they write, says how they end, and leaves nothing behind.

``python -c START <plan> <port>``, started by the leader, itself or through a step of the cluster's. When the leader is gone,
however that came, everything here is killed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from carrel.core.domain.serial import from_plain, to_plain
from carrel.core.domain.task import Launcher
from carrel.core.spool.foreign import read_regular
from carrel.core.spool.trees import remove_tree
from carrel.core.transport.reactor import Reactor
from carrel.node.containment.view import found_in
from carrel.node.runner.group.labels import Labelled
from carrel.node.runner.group.link import Link
from carrel.node.runner.group.plan import (
    RANKS,
    GroupPlan,
    Rendezvous,
    mpirun_arguments,
    mpirun_command,
    rank_variables,
    torchrun_arguments,
    torchrun_command,
)
from carrel.node.runner.limits import MemoryGuard
from carrel.node.runner.process import Command, LaunchError, become_subreaper, image_shell, shell, start
from carrel.node.runner.samples import GpuWatch, Sampler, gpus_on
from carrel.node.runner.tree import continue_all, descendants, measure, stop_all

#: The program of the interpreter.
START = "import sys; from carrel.node.runner.group.agent import main; sys.exit(main(sys.argv[1:]))"
#: The argument of an agent that is behind its walls.
INSIDE = "--inside"
_CHUNK = 64 * 1024
#: Bytes of the end of what a process wrote that are looked at when it has failed.
_TAIL = 16 * 1024
#: Pieces that are still read of what a process wrote that has ended; what it left behind could write for ever.
_AT_END = 64
_TAKEN = re.compile(rb"EADDRINUSE|address already in use", re.IGNORECASE)
#: How torchrun says which process failed first.
_ROOT_CAUSE = re.compile(rb"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)
#: What the cluster says of a node, and what is not the same on each.
_HERE = ("SLURMD_NODENAME", "SLURM_CPUS_ON_NODE", "SLURM_GPUS_ON_NODE", "SLURM_SHARDS_ON_NODE")
#: What MPI and the cluster tell a process that they started.
_TOLD = re.compile(r"(PMI|PMIX|SLURM|OMPI|UCX|MPI)_?[A-Z0-9_]*")


@dataclass(slots=True)
class _Source:
    """Something that is read: the output of a process, or of one that torchrun started."""

    label: Labelled
    tail: bytes = b""
    #: The file that says which rank writes here, until it was read.
    named_in: Path | None = None
    #: Its rank; -1 for a launcher's own output.
    rank: int = -1


@dataclass(slots=True)
class _Started:
    """A process that the agent started itself."""

    rank: int
    source: _Source
    status: int | None = None


@dataclass(slots=True)
class _Try:
    """One start of the node's processes."""

    meeting: Rendezvous
    processes: dict[int, _Started] = field(default_factory=dict)
    #: By descriptor.
    sources: dict[int, _Source] = field(default_factory=dict)
    #: All of them, also those that were closed.
    seen: list[_Source] = field(default_factory=list)
    #: Where torchrun's processes write.
    ranks: Path | None = None


def main(arguments: Sequence[str]) -> int:
    """Be the agent of the plan in the file of the first argument, whose leader listens on the port in the second."""
    os.umask(0o077)
    plan = from_plain(GroupPlan, json.loads(Path(arguments[0]).read_bytes()))
    if plan.walls is not None and INSIDE not in arguments[2:]:
        from carrel.node.runner.group.inside import be_inside

        return be_inside(plan.walls, [sys.executable, "-P", "-c", START, *arguments, INSIDE])
    host = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1") if plan.step else "127.0.0.1"
    become_subreaper()
    agent = Agent(plan, os.environ)
    sock = socket.create_connection((host, int(arguments[1])), timeout=30)
    link = Link(sock, plan.secret.encode(), leader=False)
    try:
        agent.serve(link, host)
    except (EOFError, OSError):  # the leader is gone
        return 1
    finally:
        agent.end()
    return 0


class Agent:
    """Serves one leader."""

    def __init__(self, plan: GroupPlan, environ: Mapping[str, str]) -> None:
        self._plan = plan
        self._environ = environ
        self._node = int(environ.get("SLURM_NODEID", "0")) if plan.step else 0
        self._local = int(environ.get("SLURM_LOCALID", "0")) if plan.pmi else 0
        self._name = (environ.get("SLURMD_NODENAME") if plan.step else None) or socket.gethostname()
        self._temporary: Path | None = None
        self._guard = MemoryGuard(plan.memory, Sampler(GpuWatch({}), None))
        visible = environ.get("CUDA_VISIBLE_DEVICES", "") if plan.step else ""
        self._gpus = GpuWatch(gpus_on(self._name, [name for name in visible.split(",") if name and name != "NoDevFiles"]))
        self._try: _Try | None = None
        self._reactor = Reactor()
        self._reactor.heed_signals()
        signal.signal(signal.SIGCHLD, lambda *_: self._reactor.post(self._reap))
        # Signals of the cluster's for the processes, which it sends to the agent too.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda number, _frame: self._reactor.post(partial(self._signal, number)))

    def serve(self, link: Link, host: str) -> None:
        """Do what the leader says until it says that all is over. Raises `EOFError` or `OSError` when it is gone."""
        self._link = link
        link.say("hello", node=self._node, local=self._local, name=self._name, address=host)
        self._reactor.watch(link, lambda: self._obey(link.receive()))
        self._reactor.later(self._plan.sample, self._report)
        if self._plan.memory:
            self._reactor.post(self._look_at_memory)
        self._reactor.run()

    def end(self) -> None:
        """Kill until nothing is left, and remove what was made."""
        while True:
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            found = descendants(os.getpid())
            if not found:
                break
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        for path in (self._temporary, self._try.ranks if self._try is not None else None):
            if path is not None:
                remove_tree(path)

    # --- what the leader says -----------------------------------------------------------------------------------------------

    def _obey(self, said: dict[str, object] | bytes) -> None:
        assert isinstance(said, dict)
        match said["what"]:
            case "run":
                self._run(Rendezvous(address=str(said["address"]), port=int(str(said["port"])), number=int(str(said["number"]))))
            case "signal":
                self._signal(int(str(said["number"])))
            case "kill":
                self._kill()
            case "stop":
                stop_all(os.getpid())
                self._link.say("stopped")
            case "continue":
                continue_all(os.getpid())
            case _:  # "end"
                self._report_use()
                self._reactor.stop()

    def _run(self, meeting: Rendezvous) -> None:
        plan = self._plan
        if self._try is not None:
            self._forget(self._try)
        self._try = started = _Try(meeting=meeting)
        try:
            variables = self._variables()
            if plan.launcher is Launcher.TORCHRUN:
                self._start_torchrun(started, variables)
            elif plan.launcher is Launcher.MPI and not plan.pmi:
                command = mpirun_command(plan, meeting, variables)
                self._start(
                    started, self._found(mpirun_arguments(plan, self._shell(command)), variables), variables, rank=-1, label=""
                )
            else:
                for local in [self._local] if plan.pmi else range(plan.tasks_per_node):
                    place = rank_variables(plan, meeting, node=self._node, local=local)
                    rank = int(place["RANK"])
                    label = f"{rank}: " if plan.size > 1 else ""
                    self._start(started, self._shell(plan.command), {**variables, **place}, rank=rank, label=label)
        except (LaunchError, OSError) as error:
            self._link.say("failed", message=f"On {self._name}: {error}")

    def _forget(self, before: _Try) -> None:
        """An earlier try is over: end what it left behind, and listen to it no more."""
        self._kill()
        for fd in before.sources:
            self._reactor.unwatch(fd)
            os.close(fd)
        if before.ranks is not None:
            remove_tree(before.ranks)

    def _variables(self) -> dict[str, str]:
        """Those of the command, with what is different on each node."""
        plan, variables = self._plan, dict(self._plan.variables)
        if plan.step:
            devices = self._environ.get("CUDA_VISIBLE_DEVICES", "")
            variables["CUDA_VISIBLE_DEVICES"] = "" if devices == "NoDevFiles" else devices
            variables |= {name: self._environ[name] for name in _HERE if name in variables and name in self._environ}
            if self._node > 0:
                if self._temporary is None:
                    self._temporary = Path(tempfile.mkdtemp(prefix="carrel-", dir="/tmp"))
                variables["TMPDIR"] = str(self._temporary)
        if plan.pmi:
            variables |= {name: value for name, value in self._environ.items() if _TOLD.fullmatch(name)}
        return variables

    def _start_torchrun(self, started: _Try, variables: Mapping[str, str]) -> None:
        plan = self._plan
        started.ranks = ranks = Path(tempfile.mkdtemp(prefix="carrel-", dir=variables.get("TMPDIR")))
        for local in range(plan.tasks_per_node):
            path = ranks / str(local)
            os.mkfifo(path, 0o600)
            named_in = ranks / f"{local}.rank" if plan.size > 1 else None
            self._watch(
                started, os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), _Source(Labelled(""), named_in=named_in)
            )
        arguments = torchrun_arguments(plan, started.meeting, node=self._node, shell=self._shell(torchrun_command(plan.command)))
        label = f"{self._name}: " if plan.size > 1 else ""
        self._start(started, self._found(arguments, variables), {**variables, RANKS: str(ranks)}, rank=-1, label=label)

    def _found(self, arguments: list[str], variables: Mapping[str, str]) -> list[str]:
        """The program by its path in the task's environment, or else a `LaunchError` that says what to do."""
        if self._plan.image:
            program = found_in(self._plan.image, arguments[0], variables)
        else:
            program = shutil.which(arguments[0], path=variables.get("PATH"))
        if program is None:
            where = "image" if self._plan.image else "environment"
            package = "torch" if arguments[0] == "torchrun" else "an MPI"
            raise LaunchError(
                f"the launcher {arguments[0]} is not in the task's {where}. Add {package} to it, or take the launcher out."
            )
        return [program, *arguments[1:]]

    def _shell(self, command: str) -> list[str]:
        return image_shell(command, Path(self._plan.image)) if self._plan.image else shell(command)

    def _start(self, started: _Try, arguments: list[str], variables: Mapping[str, str], *, rank: int, label: str) -> None:
        read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        source = _Source(Labelled(label), rank=rank)
        self._watch(started, read, source)
        try:
            pid = start(
                Command(
                    arguments=arguments,
                    variables=variables,
                    directory=self._plan.directory,
                    output=write,
                    image=self._plan.image or None,
                )
            )
        finally:
            os.close(write)
        started.processes[pid] = _Started(rank=rank, source=source)

    def _watch(self, started: _Try, fd: int, source: _Source) -> None:
        started.sources[fd] = source
        started.seen.append(source)
        self._reactor.watch(fd, partial(self._read, started, fd))

    def _kill(self) -> None:
        for pid in descendants(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _look_at_memory(self) -> None:
        """End the processes when they use too much together; look again after a while."""
        too_much, pause = self._guard.look()
        self._reactor.later(pause, self._look_at_memory)
        if too_much is not None:
            self._link.say("memory", used=too_much)
            self._kill()

    def _signal(self, number: int) -> None:
        for pid, process in self._try.processes.items() if self._try is not None else ():
            if process.status is None:
                with suppress(ProcessLookupError):
                    os.killpg(pid, number)

    # --- what the processes do ----------------------------------------------------------------------------------------------

    def _read(self, started: _Try, fd: int) -> bool:
        """Pass output on, and forget what was closed; return whether there may be more now."""
        source = started.sources[fd]
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        if source.named_in is not None and data:
            with suppress(OSError, ValueError):
                source.rank = int(read_regular(source.named_in))
                source.label = Labelled(f"{source.rank}: ")
            source.named_in = None
        source.tail = (source.tail + data)[-_TAIL:]
        shown = source.label.feed(data) if data else source.label.rest()
        if shown:
            self._link.write(shown)
        if not data:
            self._reactor.unwatch(fd)
            os.close(fd)
            del started.sources[fd]
            if source.rank < 0 and source.named_in is not None:  # it wrote nothing
                with suppress(OSError, ValueError):
                    source.rank = int(read_regular(source.named_in))
            if source.rank >= 0:
                self._link.say("closed", rank=source.rank)
        return bool(data)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            process = self._try.processes.get(pid) if self._try is not None else None
            if process is not None:
                process.status = os.waitstatus_to_exitcode(status)
                self._tell_end(process)

    def _tell_end(self, process: _Started) -> None:
        """Say how a process ended, after everything that it wrote; what it left behind may write on."""
        assert self._try is not None
        started = self._try
        for fd in list(started.sources):
            for _ in range(_AT_END):
                if not self._read(started, fd):
                    break
        code, rank = process.status or 0, process.rank
        found = _ROOT_CAUSE.search(process.source.tail) if code and rank < 0 else None
        if found is not None:
            rank, code = int(found[1]), int(found[2])
        self._link.say("exit", rank=rank, code=code, taken=bool(code) and self._port_was_taken(started))

    def _port_was_taken(self, started: _Try) -> bool:
        port = re.compile(rb"\b%d\b" % started.meeting.port)
        return any(_TAKEN.search(source.tail) and port.search(source.tail) for source in started.seen)

    def _report(self) -> None:
        self._reactor.later(self._plan.sample, self._report)
        self._report_use()

    def _report_use(self) -> None:
        use, gpus = measure([os.getpid(), *descendants(os.getpid())]), self._gpus.read()
        self._link.say("use", use=to_plain(replace(gpus, cpu_seconds=use.cpu_seconds, memory=use.memory)))
