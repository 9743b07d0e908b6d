"""Whether this machine can keep users' code apart: tried, not guessed; and attacked, so that what gets through is known.

The attacks are a program that runs inside, on what a real job sees, and says of each whether it succeeded. `carrel doctor` and
the tests use the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from carrel.containment import calls
from carrel.containment.entering import contain
from carrel.containment.program import start_program
from carrel.containment.walls import Bind, Walls

#: Bytes of the program's answer.
_LONGEST = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What became of it."""

    #: Why it does not work here, "" when it does; and what can be done about it.
    why_not: str = ""
    remedy: str = ""
    #: What this kernel leaves open.
    gaps: tuple[str, ...] = ()


def try_walls(*, network: bool = True) -> Trial:
    """Build walls around a process of our own, and look; with `network` it gets one of its own, too."""
    if sys.platform != "linux":
        return Trial(why_not="It needs Linux.")
    with tempfile.TemporaryDirectory(prefix="carrel-walls-") as scratch:
        temporary, secret = Path(scratch, "tmp"), Path(scratch, "hidden")
        temporary.mkdir()
        secret.mkdir()
        Path(secret, "file").write_text("x")
        walls = Walls(hidden=(str(secret),), binds=(Bind(scratch),), temporary=str(temporary), doors=() if network else None)
        look = f"test ! -e {secret}/file && test -r /proc/self/status && echo inside"
        # Not by a fork of this process, which may have threads.
        program = start_program(
            walls, ["/bin/sh", "-c", look], directory="/", variables={"PATH": os.defpath}, stderr=subprocess.STDOUT
        )
        with program.process as process:
            said = process.stdout.read(_LONGEST).removeprefix(b"error: ") if process.stdout else b""
            code = process.wait()
        program.end()
    if code == 0 and said.strip() == b"inside":
        return Trial(gaps=_gaps())
    return Trial(why_not=said.decode(errors="replace").strip() or f"A process inside ended with {code}.", remedy=_remedy())


def run_inside(walls: Walls, arguments: Sequence[str]) -> tuple[int, bytes]:
    """Run a program inside `walls`; return its exit code and what it said (or why it could not be started)."""
    read, write = os.pipe2(os.O_CLOEXEC)
    lifeline, _ours = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _become_contained(walls, arguments, write, lifeline)
    os.close(write)
    said = b""
    while len(said) < _LONGEST and (piece := os.read(read, 65536)):
        said += piece
    _pid, status = os.waitpid(pid, 0)
    for fd in (read, lifeline, _ours):
        os.close(fd)
    return os.waitstatus_to_exitcode(status), said


def _become_contained(walls: Walls, arguments: Sequence[str], output: int, lifeline: int) -> None:
    try:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)

        def become() -> None:
            os.chdir("/tmp")
            os.execve(arguments[0], list(arguments), {"PATH": os.defpath, "LANG": "C.UTF-8"})

        contain(walls, lifeline, become, (output,))
    except BaseException as error:  # noqa: BLE001 - whatever it is, this process must not go on as a second caller
        about = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        with suppress(OSError):
            os.write(output, f"{about}{getattr(error, 'strerror', None) or error}".encode())
    finally:
        os._exit(125)


def _gaps() -> tuple[str, ...]:
    found = []
    if calls.landlock_version() < 6:
        found.append("abstract sockets of other programs can be reached (this kernel's Landlock is older than 6.12's)")
    return tuple(found)


def _remedy() -> str:
    for file, bad, said in (
        ("/proc/sys/user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=15000"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "a profile of AppArmor's that lets the lab's Python make user namespaces, or "
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ):
        try:
            if Path(file).read_text().strip() == bad:
                return f"An administrator of the machine can allow it: {said}."
        except OSError:
            continue
    return "It needs Linux 5.12 with user namespaces; in a container they are often forbidden."


# --- attacks ------------------------------------------------------------------------------------------------------------------

#: Runs inside, and nowhere else: among the attempts are some that would harm a machine on which they succeed, so it looks first
#: whether it is in namespaces of its own. Its argument is what to try, its answer how many attempts it made and, in the last
#: line, which of them got through.
ATTACKS = r"""
import ctypes, json, os, signal, socket, sys
about = json.loads(sys.argv[1])
through, tried = {}, []
libc = ctypes.CDLL(None, use_errno=True)
if os.readlink("/proc/self/ns/mnt") == about["outside"] or os.readlink("/proc/self/ns/user") == about["outside_user"]:
    # Whatever follows would be done to the machine itself.
    print(json.dumps({"the walls": "there are none"}))
    sys.exit()
def attempt(name):
    def wrap(function):
        tried.append(name)
        try:
            said = function()
        except BaseException as error:
            said = None
        if said:
            through[name] = str(said)[:200]
    return wrap
for path in about["secrets"]:
    @attempt(f"read {path}")
    def _():
        with open(path, "rb") as file:
            return file.read(16) or "empty"
    @attempt(f"write {path}")
    def _():
        with open(path, "ab"):
            return "opened"
    @attempt(f"link to {path}")
    def _():
        place = os.path.join(about["writable"], "planted")
        os.path.lexists(place) and os.unlink(place)
        os.link(path, place)
        return "linked"
for path in about["directories"]:
    @attempt(f"list {path}")
    def _():
        return os.listdir(path)
    @attempt(f"make a file in {path}")
    def _():
        open(os.path.join(path, "planted"), "w").close()
        return "made"
for pid in about["processes"]:
    @attempt(f"signal {pid}")
    def _():
        os.kill(pid, 0)
        return "took it"
    for part in ("environ", "mem", "root/etc/hostname", "cwd", "fd"):
        @attempt(f"/proc/{pid}/{part}")
        def _():
            path = f"/proc/{pid}/{part}"
            return os.listdir(path) if part == "fd" else os.readlink(path) if part == "cwd" else open(path, "rb").read(8)
    @attempt(f"ptrace {pid}")
    def _():
        return libc.ptrace(16, pid, 0, 0) == 0 and "attached"
@attempt("read the memory of the first process")
def _():
    return open("/proc/1/environ", "rb").read(8) or os.readlink("/proc/1/cwd")
@attempt("signals to everybody")
def _():
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    os.kill(-1, 0)
    return [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) in about["processes"]]
for name in about["sockets"]:
    @attempt(f"connect to {name!r}")
    def _():
        with socket.socket(socket.AF_UNIX) as there:
            there.connect(name)
            return "connected"
for host, port in about.get("addresses", ()):
    @attempt(f"connect to {host} port {port}")
    def _():
        socket.create_connection((host, port), 5).close()
        return "connected"
    @attempt(f"send a datagram to {host} port {port}")
    def _():
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as there:
            there.settimeout(0.2)
            there.connect((host, port))
            there.send(b"x")
            return there.recv(16)
if about.get("closed"):
    @attempt("another network than the loopback")
    def _():
        return [name for _index, name in socket.if_nameindex() if name != "lo"]
    @attempt("the network of the first process before it came in")
    def _():
        return os.readlink("/proc/self/ns/net") == about["outside_network"] and "is its own"
    @attempt("change the network")
    def _():
        import fcntl, struct
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there:
            fcntl.ioctl(there, 0x8914, struct.pack("16sH22x", b"lo", 0))
            return "took the loopback down"
    @attempt("packets as they are on the wire")
    def _():
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300):
            return "opened"
    @attempt("find names")
    def _():
        return socket.getaddrinfo("example.org", 80)
    @attempt("the address of a cloud's metadata")
    def _():
        socket.create_connection(("169.254.169.254", 80), 2).close()
        return "connected"
for path in about["devices"]:
    @attempt(f"open {path}")
    def _():
        os.close(os.open(path, os.O_RDWR))
        return "opened"
@attempt("mount")
def _():
    return libc.mount(b"none", b"/mnt", b"tmpfs", 0, None) == 0 and "mounted"
for path in (*about["hidden"], "/tmp", "/dev", "/proc", "/run"):
    @attempt(f"unmount {path}")
    def _():
        return libc.umount2(path.encode(), 2) == 0 and "unmounted"
    @attempt(f"remount {path}")
    def _():
        return libc.mount(None, path.encode(), None, 32 | 4096, None) == 0 and "remounted"
@attempt("a user namespace of its own in which mounts can be taken away")
def _():
    pid = os.fork()
    if pid == 0:
        done = libc.unshare(0x10000000 | 0x00020000) == 0 and any(libc.umount2(path.encode(), 2) == 0 for path in about["hidden"])
        os._exit(int(done))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1 and "done"
@attempt("namespaces of the first process")
def _():
    fd = os.open("/proc/1/ns/mnt", os.O_RDONLY)
    return libc.setns(fd, 0) == 0 and "entered"
@attempt("set the user")
def _():
    for number in (1, 65534, 0 if os.getuid() else 1000):
        if libc.setresuid(number, number, number) == 0:
            return number
@attempt("capabilities")
def _():
    kinds = ("CapEff", "CapPrm", "CapBnd", "CapAmb")
    lines = open("/proc/self/status").read().splitlines()
    return [line for line in lines if line.startswith(kinds) and int(line.split()[1], 16)]
@attempt("a program that changes its user")
def _():
    place = os.path.join(about["writable"], "setuid")
    open(place, "w").close()
    os.chmod(place, 0o4755)
    return not os.statvfs(place).f_flag & 2 and "not refused"
@attempt("a device node")
def _():
    os.mknod(os.path.join(about["writable"], "node"), 0o600 | 0o020000, os.makedev(1, 1))
    return "made"
@attempt("change the machine")
def _():
    for path in ("/proc/sys/kernel/hostname", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/kernel/mm/ksm/run"):
        try:
            open(path, "r+b").close()
            return path
        except OSError:
            pass
@attempt("cgroups")
def _():
    for root, names, _files in os.walk("/sys/fs/cgroup"):
        try:
            os.mkdir(os.path.join(root, "carrel-planted"))
            return root
        except OSError:
            pass
        if root.count("/") > 6:
            names.clear()
@attempt("the kernel's keys")
def _():
    number = {"x86_64": 250, "aarch64": 219}.get(os.uname().machine)
    return number and libc.syscall(number, 0, -3, 0) >= 0 and "has a keyring"
@attempt("files by their handle")
def _():
    number = {"x86_64": 304, "aarch64": 265}.get(os.uname().machine)
    ctypes.set_errno(0)
    return number and libc.syscall(number, -100, None, 0) < 0 and ctypes.get_errno() != 1 and "not refused"
@attempt("type into a terminal")
def _():
    import fcntl
    main, other = os.openpty()
    fcntl.ioctl(other, 0x5412, b"x")
    return "typed"
@attempt("shared memory of others")
def _():
    return [name for name in os.listdir("/dev/shm") if not name.startswith("sem.mp-")]
print(len(tried))
print(json.dumps(through))
"""


def attack(
    walls: Walls,
    *,
    secrets: Sequence[str],
    directories: Sequence[str] = (),
    processes: Sequence[int] = (),
    sockets: Sequence[str] = (),
    addresses: Sequence[tuple[str, int]] = (),
    devices: Sequence[str] = (),
    writable: str = "/tmp",
    python: str = "",
) -> dict[str, str]:
    """Try to get out of `walls`; return what got through, by what was tried. Raises `OSError` when it could not be tried."""
    about = {
        "secrets": list(secrets),
        "directories": list(directories),
        "processes": list(processes),
        "sockets": list(sockets),
        "addresses": [list(address) for address in addresses],
        "closed": walls.doors is not None,
        "devices": list(devices),
        "hidden": list(walls.hidden),
        "writable": writable,
        "outside": str(Path("/proc/self/ns/mnt").readlink()),
        "outside_network": str(Path("/proc/self/ns/net").readlink()),
        "outside_user": str(Path("/proc/self/ns/user").readlink()),
    }
    code, said = run_inside(walls, [python or os.path.realpath(sys.executable), "-I", "-c", ATTACKS, json.dumps(about)])
    try:
        found = json.loads(said.decode().strip().splitlines()[-1])
    except (ValueError, IndexError) as error:
        raise OSError(0, f"the attacks ended with {code}: {said.decode(errors='replace')[-500:]}") from error
    return dict(found)
