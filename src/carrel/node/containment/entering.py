"""From an ordinary process to a contained one: three processes, of which the last becomes the command.

The *watcher* is what the runner knows: it passes signals on and ends as the command ended. It stands outside, and in front of the
*first process* of the new process namespace, which reaps what loses its parent and dies with the runner; the kernel then ends all
the others. The *command* has no capabilities, and is the leader of a session of its own.
"""

from __future__ import annotations

import os
import re
import resource
import select
import signal
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from carrel.node.containment import calls
from carrel.node.containment.filters import filter_program
from carrel.node.containment.frozen import freeze
from carrel.node.containment.network import Forwarder
from carrel.node.containment.walls import Bind, Walls

#: Passed on from the runner to the command's process group.
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
#: What every program may expect in /dev.
_NODES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
#: Parts of /proc that are the machine's and not a process'.
_MACHINES_OWN = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi")
#: Files in it that say what the kernel does for everybody. Root alone may read most of them, and jobs of a root's lab could.
_ROOTS_OWN = (
    *("kcore", "kmsg", "keys", "kpagecount", "kpageflags", "kpagecgroup", "slabinfo", "vmallocinfo", "timer_list", "sched_debug"),
    *("pagetypeinfo", "latency_stats"),
)
#: What the kernel counts for a Unix user, all its jobs together, and how much of that one job has (namespaces(7), inotify(7)):
#: no namespaces, and a quarter of the instances that Linux gives a user, and of what these may watch (in /proc/sys/fs).
_NAMESPACES = {f"max_{kind}_namespaces": 0 for kind in ("user", "mnt", "cgroup", "net", "pid", "ipc", "uts", "time")}
_SHARED = {"max_inotify_instances": 32, "max_fanotify_groups": 32}
_WATCHED = {"max_inotify_watches": "inotify/max_user_watches", "max_fanotify_marks": "fanotify/max_user_marks"}
#: Signals that wait, and bytes in message queues: one part in so many.
_PART = 4
#: Seconds until namespaces are asked for again.
_TRY_AGAIN = 1.0
#: Since when a process namespace has a pid_max of its own, and the least that it may be (RESERVED_PIDS + 1).
_NUMBERS_OF_ITS_OWN = (6, 14)
_FEWEST_NUMBERS = 301
#: What is done at a path, in this order.
_HIDE, _BIND, _FREEZE = range(3)


@dataclass(frozen=True, slots=True)
class Guests:
    """Connections that come while the command runs: each has a process of its own beside it, with the same rights."""

    #: A socket that does not block. The command does not have it.
    listener: socket.socket
    become: Callable[[], None]


#: The end of a command: its status as wait(2) has it, and whether it left processes behind.
_END = struct.Struct("ii")


def contain(
    walls: Walls,
    lifeline: int,
    become: Callable[[], None],
    close_first: tuple[int, ...] = (),
    *,
    whole: bool = False,
    waits: Callable[[str], None] | None = None,
    guests: Guests | None = None,
) -> None:
    """In a process of its own: build the walls, let `become` become the command inside, end as it ends. Never returns normally.

    `lifeline` is readable when the process that started this is gone. `close_first` are descriptors that only the command keeps.
    With `whole` nothing that the command leaves behind outlives it, and this process ends after all of it. `guests` are let in
    while it runs.
    Raises `OSError` while nothing runs yet: `BlockingIOError` where there are no more namespaces now, unless `waits`, called
    with the reason, is there to wait.
    """
    user, group = os.geteuid(), os.getegid()
    forwarder = Forwarder(walls.doors or (), lifeline)
    while True:
        try:
            calls.unshare("user", "mount", "pid", "ipc", "uts", *(() if walls.doors is None else ("net",)))
            break
        except BlockingIOError as error:
            if waits is None:
                raise
            waits(str(error.strerror))
            if select.select([lifeline], [], [], _TRY_AGAIN)[0]:
                raise
    calls.map_user(user, group)
    if walls.doors is not None:
        forwarder.open()
    build(walls)
    told, tell = os.pipe2(os.O_CLOEXEC)
    first = os.fork()
    if first == 0:
        _close_all_but(tell, lifeline, forwarder.held, *close_first, -1 if guests is None else guests.listener.fileno())
        _be_first(tell, lifeline, become, close_first, whole=whole, walls=walls, guests=guests)
    # Locks, connections and pipes of the runner must not live as long as this.
    _close_all_but(told)
    _watch(first, told, forwarder)


def _close_all_but(*kept: int) -> None:
    # Not by what /proc lists: it is being covered by another one meanwhile.
    begin = 3
    for fd in sorted(fd for fd in kept if fd >= 0):
        os.closerange(begin, fd)
        begin = fd + 1
    os.closerange(begin, os.sysconf("SC_OPEN_MAX"))


def build(walls: Walls) -> None:
    """In new namespaces: make what is seen what `walls` says. /proc is left to the first process."""
    calls.make_private()
    # Taken before anything is covered.
    places = {bind.place for bind in walls.binds}
    hidden = [path for path in walls.hidden if path not in places and Path(path).is_dir()]
    files = [path for path in walls.hidden if path not in places and path not in hidden and Path(path).exists()]
    frozen = [path for path in walls.frozen if Path(path).is_dir()]
    binds = [*walls.binds, *(Bind(os.devnull, path) for path in files if not walls.root)]
    trees = [(bind, calls.clone_tree(bind.source)) for bind in binds]
    wanted = [*(f"/dev/{name}" for name in _NODES), *walls.devices]
    nodes = [(node, calls.clone_tree(node)) for node in wanted if Path(node).exists()]
    temporary = calls.clone_tree(walls.temporary)
    view = None
    if walls.view is not None:
        from carrel.node.containment.view import take_trees

        view = take_trees(walls.view)
    covered = []
    if walls.root:
        from carrel.node.containment.image import change_root

        change_root(walls.root, places)
        hidden, frozen = [], []  # nothing of the machine is there
        covered.append("/")
    else:
        calls.set_attributes("/", on=calls.ATTR_RDONLY | calls.ATTR_NOSUID)
    calls.set_attributes(temporary, on=calls.ATTR_NOSUID | calls.ATTR_NODEV)
    calls.place_tree(temporary, "/tmp")
    # From the root down; a directory is frozen as what is bound there has it.
    steps: list[tuple[str, int, tuple[Bind, int] | None]] = [(path, _HIDE, None) for path in hidden]
    steps += [(bind.place, _BIND, (bind, tree)) for bind, tree in trees] + [(path, _FREEZE, None) for path in frozen]
    for path, step, what in sorted(steps, key=lambda step: (step[0].rstrip("/").count("/"), step[1])):
        if step == _FREEZE:
            if os.path.isdir(path) and freeze(path):  # noqa: PTH112
                covered.append(path)
            continue
        if what is None:
            _make_place(path, directory=True)  # what is above it may be covered already
            calls.mount("tmpfs", path, "tmpfs", calls.MS_NOSUID | calls.MS_NODEV, "mode=0755,size=1m")
            covered.append(path)
            continue
        bind, tree = what
        _make_place(path, directory=Path(f"/proc/self/fd/{tree}").is_dir())
        calls.set_attributes(tree, on=calls.ATTR_NOSUID | calls.ATTR_NODEV | (0 if bind.writable else calls.ATTR_RDONLY))
        calls.place_tree(tree, path)
        os.close(tree)
    _make_devices(nodes, walls.shared_memory)
    if walls.view is not None and view is not None:
        from carrel.node.containment.view import show_view

        show_view(walls.view, *view)
    for path in covered:
        calls.set_attributes(path, on=calls.ATTR_RDONLY, recursive=False)


def _make_place(path: str, *, directory: bool) -> None:
    if os.path.lexists(path):
        return
    if directory:
        Path(path).mkdir(parents=True)
    else:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).touch()


def _make_devices(nodes: list[tuple[str, int]], shared_memory: int) -> None:
    calls.mount("tmpfs", "/dev", "tmpfs", calls.MS_NOSUID, "mode=0755,size=1m")
    for path, tree in nodes:
        _make_place(path, directory=False)
        calls.place_tree(tree, path)
        os.close(tree)
    # A file takes a page or more; of empty ones the kernel's own memory would be full.
    size = f",size={shared_memory},nr_inodes={max(1024, shared_memory // 4096)}" if shared_memory else ""
    for name in ("pts", "shm"):
        Path("/dev", name).mkdir()
    calls.mount("devpts", "/dev/pts", "devpts", calls.MS_NOSUID | calls.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    calls.mount("tmpfs", "/dev/shm", "tmpfs", calls.MS_NOSUID | calls.MS_NODEV, f"mode=1777{size}")
    for name, target in _LINKS.items():
        Path("/dev", name).symlink_to(target)
    calls.set_attributes("/dev", on=calls.ATTR_RDONLY, recursive=False)


# --- the processes ------------------------------------------------------------------------------------------------------------


def _watch(first: int, told: int, forwarder: Forwarder) -> None:
    """The watcher: pass signals on, and end as the command ended."""
    for number in _PASSED_ON:
        signal.signal(number, lambda got, _frame: _send(first, got))
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    said = b""
    while len(said) < _END.size and (piece := os.read(told, _END.size - len(said))):
        said += piece
    if len(said) == _END.size:
        status, left = _END.unpack(said)
        if not left:
            os.waitpid(first, 0)
            forwarder.end()
    else:  # the first process was killed, and all the others with it
        _pid, status = os.waitpid(first, 0)
        forwarder.end()
    if os.WIFSIGNALED(status):
        deadly = os.WTERMSIG(status)
        if deadly != signal.SIGKILL:
            signal.signal(deadly, signal.SIG_DFL)
        os.kill(os.getpid(), deadly)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 125)


def _be_first(
    tell: int,
    lifeline: int,
    become: Callable[[], None],
    close_first: tuple[int, ...],
    *,
    whole: bool,
    walls: Walls,
    guests: Guests | None,
) -> None:
    """The first process of the namespace: reap, pass signals on, and end when the runner does."""
    try:
        limits = _mount_proc(walls.processes)
        if walls.view is not None:
            from carrel.node.containment.view import show_processes

            show_processes(walls.view)
        _limit_shares(limits, {**_SHARED, **_watched(), **({} if walls.nests else _NAMESPACES)})
        command = os.fork()
        if command == 0:
            os.close(tell)
            _be_command(become, enters=walls.view is not None)
            os._exit(125)
        for fd in close_first:
            os.close(fd)
        awake, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for number in _PASSED_ON:
            signal.signal(number, lambda got, _frame: _send(-command, got))
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        poll = select.poll()
        poll.register(awake, select.POLLIN)
        poll.register(lifeline, select.POLLIN)
        if guests is not None:
            poll.register(guests.listener, select.POLLIN)
        while True:
            _reap(command, tell, whole=whole)
            for fd, _event in poll.poll():
                if fd == lifeline:
                    os._exit(1)
                if guests is not None and fd == guests.listener.fileno():
                    let_in(guests, lambda become: _be_command(become, enters=False))
                with suppress(BlockingIOError):
                    os.read(awake, 4096)
    except OSError as error:
        for fd in close_first:
            with suppress(OSError):
                os.write(fd, f"The command could not be contained: {error.filename or ''}: {error.strerror}.".encode())
    os._exit(125)


def let_in(guests: Guests, prepare: Callable[[Callable[[], None]], None]) -> None:
    """Take a connection, and let a child that has it as its standard input become what `guests` says, after `prepare`."""
    try:
        connection, _address = guests.listener.accept()
    except OSError:  # it has gone
        return
    with connection, suppress(OSError):  # no more processes, or no memory for one: the connection ends, and the job goes on
        if os.fork() == 0:
            with suppress(BaseException):  # this process must not go on as a second one
                signal.set_wakeup_fd(-1)
                os.dup2(connection.fileno(), 0)
                prepare(guests.become)
            os._exit(125)


def _reap(command: int, tell: int, *, whole: bool) -> None:
    """Reap who has ended; say how the command has, and end when nobody is left, or with `whole` when the command has ended."""
    ended = None
    alone = False
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            alone = True
            break
        if pid == 0:
            break
        if pid == command:
            ended = status
    if ended is not None:
        with suppress(OSError):
            os.write(tell, _END.pack(ended, int(not (alone or whole))))
    if alone or (whole and ended is not None):
        os._exit(0)


def _mount_proc(processes: int) -> int:
    """Return a descriptor of the directory of this user namespace's limits, which can be written by it alone."""
    calls.mount("proc", "/proc", "proc", calls.MS_NOSUID | calls.MS_NODEV | calls.MS_NOEXEC)
    if processes:
        _limit_processes(processes)
    limits = os.open("/proc/sys/user", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in (*_MACHINES_OWN, *_ROOTS_OWN):
        path = f"/proc/{name}"
        if os.path.exists(path):  # noqa: PTH110
            tree = calls.clone_tree(path if name in _MACHINES_OWN else os.devnull)
            calls.set_attributes(tree, on=calls.ATTR_RDONLY | calls.ATTR_NODEV)
            calls.place_tree(tree, path)
            os.close(tree)
    return limits


def _limit_processes(most: int) -> None:
    """Let there be so many processes and threads in here at once; those outside do not count.

    The limit of setrlimit(2) counts those of this user namespace alone (since Linux 5.14), but never holds for root; how many
    numbers this process namespace has (since 6.14) holds for everybody. Before, that number was the whole machine's.
    """
    _soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if version is not None and (int(version[1]), int(version[2])) >= _NUMBERS_OF_ITS_OWN:
        Path("/proc/sys/kernel/pid_max").write_text(str(max(most, _FEWEST_NUMBERS)))


def _watched() -> dict[str, int]:
    found = {}
    for name, file in _WATCHED.items():
        with suppress(OSError):  # a kernel that does not count this
            found[name] = int(Path("/proc/sys/fs", file).read_text()) // _PART
    return found


def _limit_shares(limits: int, shares: Mapping[str, int]) -> None:
    """Let what is in here have so much of each; without namespaces, it has no capabilities in them and mounts no control groups.

    Signals that wait, and bytes in message queues, are held to by setrlimit(2): for this user namespace, and for all of a user's.
    It comes after the last mount, for which the kernel makes one itself (open_tree(2)). The command may not write the files again
    (namespaces(7)).
    """
    for name, share in shares.items():
        with suppress(FileNotFoundError):  # as above
            fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=limits)
            try:
                os.write(fd, b"%d" % share)
            finally:
                os.close(fd)
    os.close(limits)
    for kind in (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE):
        _soft, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            resource.setrlimit(kind, (hard // _PART, hard // _PART))


def _be_command(become: Callable[[], None], *, enters: bool) -> None:
    for number in _PASSED_ON:
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    calls.drop_privileges(keep=calls.CAP_SYS_CHROOT if enters else None)
    if calls.landlock_version() >= 6:
        calls.scope_with_landlock()
    program = filter_program()
    if program:
        calls.filter_calls(program)
    become()


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
