"""The warm parent of runners: everything is imported once, and a job costs a fork instead of an interpreter.

Started by the engine with one end of a socket pair (SOCK_SEQPACKET) as its standard input. One datagram asks for one
runner: the attempt's directory, with the descriptors of its device locks. One datagram answers: "<directory>\\0<pid>" with a
pidfd (pidfd_open(2)), or "<directory>\\0\\0<why not>". When the engine is gone the nursery ends; its runners, each in a session
of its own, go on. Single-threaded, because only one thread survives fork(2).
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

from carrel.core.domain.launch import Launch, LaunchPaths
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.domain.serial import from_plain, to_plain
from carrel.core.domain.task import TaskSpec
from carrel.node.runner.cgroups import find_parent, machine_oom_kills
from carrel.node.runner.hardware import machine_facts
from carrel.node.runner.main import RunnerContext, run_attempt, warm_up
from carrel.node.runner.output_files import pattern_expression

#: Longest message, in bytes (PATH_MAX and a little).
MESSAGE = 8192
#: Most descriptors with one message.
DESCRIPTORS = 64


def main(arguments: Sequence[str]) -> None:
    """Serve until the engine is gone. `arguments`: "--no-cgroups" makes runners watch memory by themselves."""
    link = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    os.close(null)
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, _reap)
    facts = machine_facts()
    surroundings = RunnerContext(
        environ=dict(os.environ),
        facts=lambda: facts,
        cgroups=None if "--no-cgroups" in arguments else find_parent(),
    )
    _warm_up()
    gc.collect()
    gc.freeze()
    gc.disable()  # a collection in a runner would touch, and so copy, every page
    serve(link, surroundings)


def serve(link: socket.socket, surroundings: RunnerContext) -> None:
    """Fork a runner for each request on `link`, until its other end is closed."""
    while True:
        try:
            message, descriptors, _flags, _address = socket.recv_fds(link, MESSAGE, DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return
        if not message:
            return
        _fork(link, message, descriptors, surroundings)
        for fd in descriptors:
            os.close(fd)


def _fork(link: socket.socket, message: bytes, descriptors: list[int], surroundings: RunnerContext) -> None:
    # SIGTERM stays blocked until the runner has its handler: the signal of a cancellation must be neither lost nor deadly.
    # SIGCHLD stays blocked until the pidfd is open: a child that was reaped has none.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
    try:
        try:
            pid = os.fork()
        except OSError as error:
            _send(link, message + b"\0\0" + str(error.strerror).encode())
            return
        if pid == 0:
            _be_runner(link, os.fsdecode(message), descriptors, surroundings)
        pidfd = os.pidfd_open(pid)
        _send(link, message + b"\0%d" % pid, pidfd)
        os.close(pidfd)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGCHLD})


def _send(link: socket.socket, message: bytes, *descriptors: int) -> None:
    with suppress(OSError):  # the engine is gone: the next recv says so
        socket.send_fds(link, [message], descriptors)


def _be_runner(link: socket.socket, directory: str, descriptors: list[int], surroundings: RunnerContext) -> None:
    """In the child: live one attempt, and end without going back."""
    status = 1
    try:
        os.setsid()
        link.close()
        os.dup2(0, 2)
        run_attempt(Path(directory), replace(surroundings, device_locks=tuple(descriptors)))
        status = 0
    finally:
        os._exit(status)


def _reap(_number: int, _frame: FrameType | None) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _warm_up() -> None:
    """Do once what every runner would do for the first time: import, look up type hints, compile expressions."""
    import carrel.core.snapshots.extraction

    warm_up()
    with suppress(ImportError):
        import carrel.node.environments  # noqa: F401
    launch = Launch(
        job_id=0,
        attempt=0,
        kind=JobKind.TASK,
        owner="",
        name="",
        account="",
        qos="",
        node="",
        task=TaskSpec(entry_point="", command="", snapshot=""),
        resources=Resources(),
        devices=(),
        paths=LaunchPaths(environments="", snapshots="", blobs=""),
    )
    from_plain(Launch, to_plain(launch))
    pattern_expression(launch.task.outputs[0].split("/"))
    machine_oom_kills()


if __name__ == "__main__":
    main(sys.argv[1:])
