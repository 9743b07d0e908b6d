"""What a hostile job tries beside `support.attacks`: kinds that need not be asked of each installation.

As there, each attempt is an entry with its kind and its name, and returns what it got. All of it is made in every place of the
table (tests/containment/escapes.txt) whose walls are namespaces; where Unix users are the walls, the kinds of `AS_USER`.
"""

from __future__ import annotations

from support.attacks import ATTACKS, ATTACKS_AS_USER
from support.attacks import KINDS as OF_ATTACKS

#: In the order of the table.
TRICKS = (
    "System V memory",
    "message queues",
    "memory of others",
    "descriptors of others",
    "inherited descriptors",
    "descriptors in messages",
    "the first process",
    "foreign numbers",
    "signals by other ways",
    "priorities of others",
    "scheduling classes",
    "limits of its own",
    "out of memory",
    "leases of files",
    "watches of files",
    "netlink",
    "socket options",
    "perf events",
    "page faults",
    "programs in the kernel",
    "modules and kexec",
    "the kernel's log",
    "the machine's memory",
    "handles of files",
    "new mount calls",
    "clone3",
    "relatives of namespaces",
    "identity maps",
    "programs with rights",
    "file attributes",
    "owners of files",
    "clocks",
    "names of the machine",
    "chroot",
    "filters and bits",
    "other architectures",
    "terminals",
    "core dumps",
    "formats of programs",
    "sysctls",
    "sysfs",
    "files of root in proc",
    "other devices",
    "hard links",
    "climbing",
    "names that are looked up later",
    "sockets of the machine",
    "abstract sockets",
    "buses of users",
    "cron and at",
    "code of the lab",
    "its own log",
    "an impostor's broker",
    "the network's tables",
    "keys of others",
    "rings",
)
KINDS = (*OF_ATTACKS, *TRICKS)
#: What the rights of another Unix user keep a job from, on any machine, and what harms none where it succeeds.
AS_USER = (
    *("System V memory", "message queues", "memory of others", "descriptors of others", "inherited descriptors"),
    *("the first process", "signals by other ways", "priorities of others", "scheduling classes", "limits of its own"),
    *("out of memory", "leases of files", "watches of files", "socket options", "modules and kexec", "handles of files"),
    *("new mount calls", "relatives of namespaces", "identity maps", "file attributes", "owners of files", "clocks"),
    *("names of the machine", "chroot", "filters and bits", "formats of programs", "sysctls", "sysfs"),
    *("files of root in proc", "climbing", "names that are looked up later", "cron and at", "code of the lab"),
)

_BEGIN = r"""
import errno, fcntl, mmap, platform, select, struct, threading, time
libc.syscall.restype = ctypes.c_long
x86 = platform.machine() == "x86_64"
outside = [pid for pid in about["processes"]]
theirs = about["victim"]
def call(number, *arguments):
    # The answer, or minus the error; `number` is that of asm-generic since Linux 5.1, or a pair of x86_64's and aarch64's.
    if isinstance(number, tuple):
        number = number[0 if x86 else 1]
    ctypes.set_errno(0)
    plain = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    answer = libc.syscall(ctypes.c_long(number), *plain)
    return answer if answer >= 0 else -ctypes.get_errno()
def opens(path, flags=os.O_RDONLY):
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
        return True
    except OSError:
        return False
def child(function):
    # In a process of its own, which may end as it likes; True where it says 7.
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(7 if function() else 0)
        except BaseException:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
def walk(top, levels, most=20000):
    todo, seen = [(top, 0)], 0
    while todo and seen < most:
        directory, level = todo.pop()
        try:
            entries = list(os.scandir(directory))
        except OSError:
            continue
        for entry in entries:
            seen += 1
            yield entry
            if entry.is_dir(follow_symlinks=False) and level < levels:
                todo.append((entry.path, level + 1))
def is_own(path):
    own = [os.path.realpath(one) for one in (*about["own"], about["writable"], "/tmp", "/dev/shm")]
    return any(f"{os.path.realpath(path)}/".startswith(f"{one}/") for one in own)
"""

_OF_OTHERS = r"""
attempt("System V memory", "attach to another's segment")(lambda: theirs and call((30, 196), theirs["segment"], 0, 0o10000) >= 0 and "attached")
attempt("System V memory", "remove another's segment")(lambda: theirs and call((31, 195), theirs["segment"], 0, 0) == 0 and "removed")
attempt("System V memory", "list what there is")(lambda: [line for kind in ("shm", "sem", "msg") for line in open(f"/proc/sysvipc/{kind}").read().splitlines()[1:]])
attempt("message queues", "open another's")(lambda: theirs and call((240, 180), theirs["queue"].encode(), os.O_RDONLY, 0, None) >= 0 and "opened")
attempt("message queues", "remove another's")(lambda: theirs and call((241, 181), theirs["queue"].encode()) == 0 and "removed")
class Span(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
for pid in (1, *outside):
    @attempt("memory of others", f"read that of {pid}")
    def _():
        buffer = ctypes.create_string_buffer(16)
        here, there = Span(ctypes.addressof(buffer), 16), Span(theirs.get("address") or 0x400000, 16)
        return call((310, 270), pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) > 0 and buffer.raw
    @attempt("memory of others", f"write that of {pid}")
    def _():
        buffer = ctypes.create_string_buffer(b"x" * 16)
        here, there = Span(ctypes.addressof(buffer), 16), Span(theirs.get("address") or 0x400000, 16)
        return call((311, 271), pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) > 0 and "written"
    @attempt("memory of others", f"advise on that of {pid}")
    def _():
        there, fd = Span(theirs.get("address", 0x400000) & ~4095, 4096), call(434, pid, 0)
        return fd >= 0 and call(440, fd, ctypes.byref(there), 1, 21, 0) > 0 and "paged out"
    @attempt("descriptors of others", f"take one of {pid}")
    def _():
        fd = call(434, pid, 0)
        got = [call(438, fd, number, 0) for number in range(32)] if fd >= 0 else []
        return [number for number in got if number >= 0]
    attempt("descriptors of others", f"compare with {pid}")(lambda: call((312, 272), os.getpid(), pid, 0, 0, 0) >= 0 and "compared")
    attempt("descriptors of others", f"open one of {pid}")(lambda: [name for name in os.listdir(f"/proc/{pid}/fd") if opens(f"/proc/{pid}/fd/{name}")])
@attempt("inherited descriptors", "what leads elsewhere than to pipes, terminals and files of its own")
def _():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            leads, mode = os.readlink(f"/proc/self/fd/{name}"), os.stat(f"/proc/self/fd/{name}").st_mode
        except OSError:
            continue
        if stat.S_ISDIR(mode) and not leads.startswith("/proc/") and not is_own(leads):
            found.append(leads)
        if stat.S_ISREG(mode) and not is_own(leads) and opens(f"/proc/self/fd/{name}", os.O_WRONLY):
            found.append(leads)
    return found
@attempt("inherited descriptors", "climb from each of them")
def _():
    for name in os.listdir("/proc/self/fd"):
        for path in (path for paths in about["files"].values() for path in paths):
            try:
                os.close(os.open("../" * 40 + path, os.O_RDONLY, dir_fd=int(name)))
                return path
            except (OSError, ValueError):
                pass
@attempt("inherited descriptors", "sockets, and who is at their other end")
def _():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as there:
                if there.family == socket.AF_UNIX and struct.unpack("3i", there.getsockopt(1, 17, 12))[0] == 0:
                    found.append(there.getpeername() or "outside")  # SO_PEERCRED of a process that has no number in here
        except OSError:
            pass
    return found
@attempt("descriptors in messages", "what the broker sends unasked")
def _():
    with socket.socket(socket.AF_UNIX) as there:
        there.settimeout(0.3)
        there.connect(about["broker"])
        there.send(b"{}\n")
        return [kind for _level, kind, _data in there.recvmsg(4096, socket.CMSG_SPACE(64))[1]]
@attempt("descriptors in messages", "a directory of its own to the broker")
def _():
    with socket.socket(socket.AF_UNIX) as there:
        there.connect(about["broker"])
        place = os.open("/", os.O_PATH)
        there.settimeout(5)
        there.sendmsg([b'{"op": "hello", "v": 1}\n'], [(1, 1, struct.pack("i", place))])
        return b"welcome" in there.recv(4096) and "welcome"
for part in ("maps", "mem", "auxv", "io", "syscall", "stack", "personality", "pagemap", "smaps", "wchan", "clear_refs"):
    @attempt("the first process", part)
    def _():
        with open(f"/proc/1/{part}", "r+b" if part == "clear_refs" else "rb") as file:
            said = file.read(64).strip()
            return said not in (b"", b"0") and said
for part in ("root", "cwd", "exe", "ns/user", "ns/pid"):
    attempt("the first process", part)(lambda: os.readlink(f"/proc/1/{part}"))
@attempt("the first process", "where its locks are")
def _():
    head = struct.pack("PP", 0, 0)
    return call((274, 100), 1, ctypes.create_string_buffer(head), ctypes.create_string_buffer(8)) == 0 and "told"
attempt("the first process", "files that it has mapped")(lambda: os.listdir("/proc/1/map_files"))
for pid in outside:
    attempt("foreign numbers", f"a descriptor of {pid}")(lambda: call(434, pid, 0) >= 0 and "opened")
    attempt("foreign numbers", f"its group and session, {pid}")(lambda: (os.getpgid(pid), os.getsid(pid)))
    attempt("foreign numbers", f"wait for {pid}")(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) or "none yet")
    @attempt("foreign numbers", f"say in a socket to be {pid}")
    def _():
        one, other = socket.socketpair(socket.AF_UNIX)
        with one, other:
            return one.sendmsg([b"x"], [(1, 2, struct.pack("3i", pid, os.getuid(), os.getgid()))]) and "said"
    attempt("signals by other ways", f"by a thread's number, {pid}")(lambda: call((234, 131), pid, pid, 0) == 0 and "sent")
    attempt("signals by other ways", f"with a value, {pid}")(lambda: call((129, 138), pid, 10, ctypes.create_string_buffer(struct.pack("iii116x", 10, 0, -1))) == 0 and "sent")
    @attempt("signals by other ways", f"to its group, {pid}")
    def _():
        os.killpg(pid, 0)
        return "sent"
    @attempt("signals by other ways", f"by what happens at a socket, {pid}")
    def _():
        one, other = socket.socketpair(socket.AF_UNIX)
        with one, other:
            fcntl.fcntl(one, fcntl.F_SETOWN, pid)
            return "owned"
    @attempt("priorities of others", f"nice of {pid}")
    def _():
        os.setpriority(os.PRIO_PROCESS, pid, 19)
        return "set"
    @attempt("priorities of others", f"processors of {pid}")
    def _():
        os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))})
        return "set"
    attempt("priorities of others", f"disk of {pid}")(lambda: call((251, 30), 1, pid, 3 << 13) == 0 and "set")
    attempt("priorities of others", f"limits of {pid}")(lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE))
    attempt("priorities of others", f"pages of {pid}")(lambda: call((256, 238), pid, 1, ctypes.byref(ctypes.c_ulong(1)), ctypes.byref(ctypes.c_ulong(1))) >= 0 and "moved")
    @attempt("out of memory", f"make {pid} the first to end")
    def _():
        with open(f"/proc/{pid}/oom_score_adj", "r+") as file:
            return file.read()
@attempt("priorities of others", "nice of all of this user")
def _():
    os.setpriority(os.PRIO_USER, os.getuid(), os.getpriority(os.PRIO_PROCESS, 0))  # the test looks whether the neighbour's is as it was
@attempt("priorities of others", "disk of all of this user")
def _():
    call((251, 30), 3, os.getuid(), 2 << 13 | 5)
"""  # noqa: E501

_OF_ITSELF = r"""
for name, policy, level in (("first in first out", 1, 1), ("round robin", 2, 1)):
    @attempt("scheduling classes", name)
    def _():
        os.sched_setscheduler(0, policy, os.sched_param(level))
        return "set"
@attempt("scheduling classes", "deadlines")
def _():
    about_it = struct.pack("IIQiIQQQII", 56, 6, 0, 0, 0, 10**7, 10**8, 10**8, 0, 0)
    return call((314, 274), 0, ctypes.create_string_buffer(about_it), 0) == 0 and "set"
@attempt("scheduling classes", "before everybody else")
def _():
    os.setpriority(os.PRIO_PROCESS, 0, -10)
    return "set"
attempt("scheduling classes", "disk before everybody else")(lambda: call((251, 30), 1, 0, 1 << 13) == 0 and "set")
for name in ("CORE", "NOFILE", "NPROC", "MSGQUEUE", "SIGPENDING", "MEMLOCK", "RTPRIO", "NICE"):
    @attempt("limits of its own", f"raise {name}")
    def _():
        kind = getattr(resource, f"RLIMIT_{name}")
        before = resource.getrlimit(kind)
        if before[1] != resource.RLIM_INFINITY:
            resource.setrlimit(kind, (before[0], before[1] + 1))
            return before
@attempt("out of memory", "be the last to end")
def _():
    for place in ("/proc/self/oom_score_adj", "/proc/1/oom_score_adj"):
        with open(place, "r+") as file:
            file.write("-1000")
        return place
@attempt("out of memory", "memory that no number shows")
def _():
    return call(447, 0) >= 0 and "made"  # memfd_secret
@attempt("out of memory", "the older file")
def _():
    with open("/proc/self/oom_adj", "w") as file:
        file.write("-17")
    return "written"
def shared_files():
    names = (sys.executable, os.__file__, json.__file__, *(about["shared"] or ()))
    return [path for path in dict.fromkeys(map(os.path.realpath, names)) if not is_own(path)]
for kind, name in ((0, "read"), (1, "write")):
    @attempt("leases of files", f"a {name} lease on what others open")
    def _():
        for path in shared_files():
            fd = os.open(path, os.O_RDONLY)
            try:
                fcntl.fcntl(fd, fcntl.F_SETLEASE, kind)
                fcntl.fcntl(fd, fcntl.F_SETLEASE, 2)
                return path
            except OSError:
                pass
            finally:
                os.close(fd)
@attempt("leases of files", "a delegation")
def _():
    for path in shared_files():
        fd = os.open(path, os.O_RDONLY)
        try:
            fcntl.fcntl(fd, 1040, struct.pack("IHH", 0, 0, 0))  # F_SETDELEG
            return path
        except OSError:
            pass
        finally:
            os.close(fd)
@attempt("leases of files", "lock what others lock")
def _():
    found = []
    for directory in {os.path.dirname(path) for path in shared_files()} | {sys.prefix, sys.base_prefix, os.path.dirname(sys.base_prefix)}:
        for entry in os.scandir(directory):
            if entry.name.endswith(".lock") and entry.is_file() and not is_own(entry.path):
                with open(entry.path, "rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    found.append(entry.path)
    return found
for path in (*about["hidden"][:1], *about["directories"][:2], *about["scratch"]):
    @attempt("watches of files", f"inotify in {path}")
    def _():
        names = [name for paths in about["files"].values() for name in paths]
        fd = call((294, 26), 0)
        try:
            return [name for name in (*names, f"{path}/kept") if call((254, 27), fd, name.encode(), 0xFFF) >= 0]
        finally:
            os.close(fd)
for name, flags in (("a mount", 0x10), ("a file system", 0x100)):
    @attempt("watches of files", f"fanotify of {name}")
    def _():
        for kind in (0, 4, 0x200, 0x204):
            fd = call((300, 262), kind, os.O_RDONLY)
            if fd >= 0 and call((301, 263), fd, 1 | flags, 0x20, -100, b"/") == 0:
                return f"class {kind}"
attempt("watches of files", "permission events")(lambda: any(call((300, 262), kind, 0) >= 0 for kind in (4, 8)) and "asked for")
def says(family, text, timeout=0.5):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family) as there:
        there.settimeout(timeout)
        there.bind((0, 0))
        there.send(text)
        return there.recv(65536)
def message(kind, flags, body):
    return struct.pack("IHHII", 16 + len(body), kind, flags, 1, 0) + body
def error_of(answer):
    kind = struct.unpack_from("H", answer, 4)[0]
    return struct.unpack_from("i", answer, 16)[0] if kind == 2 else "answered"
@attempt("netlink", "a network device of its own")
def _():
    body = struct.pack("BxHiII", 0, 0, 0, 0, 0) + struct.pack("HH", 8, 3) + b"evl\0" + struct.pack("HHHH", 16, 18, 10, 1) + b"dummy\0\0\0"
    return error_of(says(0, message(16, 0x605, body))) == 0 and "made"
@attempt("netlink", "a route")
def _():
    body = struct.pack("BBBBBBBBI", 2, 0, 0, 0, 254, 3, 253, 1, 0) + struct.pack("HHI", 8, 4, 1)
    return error_of(says(0, message(24, 0x605, body))) == 0 and "made"
attempt("netlink", "rules of the firewall")(lambda: error_of(says(12, message(0x0A00, 5, b"\2\0\0\0" + struct.pack("HH", 8, 1) + b"evl\0"))) in (0,) and "made")
attempt("netlink", "keys of IPsec")(lambda: error_of(says(6, message(0x12, 0x305, bytes(24)))) in (0, "answered") and "listed")
attempt("netlink", "what the machine audits")(lambda: error_of(says(9, message(1000, 5, b""))) in (0, "answered") and "told")
attempt("netlink", "write into the machine's audit log")(lambda: error_of(says(9, message(1107, 5, b"op=evil\0"))) == 0 and "written")
@attempt("netlink", "hear of every process")
def _():
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 11) as there:
        there.settimeout(0.5)
        there.bind((os.getpid(), 1))
        there.send(message(3, 0, struct.pack("IIIIHHI", 1, 1, 0, 0, 4, 0, 1)))
        child(lambda: True)
        return there.recv(4096)
attempt("netlink", "what every process has used")(lambda: error_of(says(16, message(0x10, 5, struct.pack("BBxxHH", 3, 1, 14, 2) + b"TASKSTATS\0\0\0"))) == 0 and "told")
for name, level, option, value in (
    ("mark packets", 1, 36, 7), ("force a buffer", 1, 33, 1 << 28), ("as if from elsewhere", 0, 19, 1), ("repair", 6, 19, 1),
    ("a priority", 1, 12, 7),
):
    @attempt("socket options", name)
    def _():
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as there:
            there.setsockopt(level, option, value)
            return "set"
for name, kind in (("raw", socket.SOCK_RAW), ("packets", socket.SOCK_RDM)):
    @attempt("socket options", f"a socket that is {name}")
    def _():
        socket.socket(socket.AF_INET, kind, 1 if name == "raw" else 0).close()
        return "made"
def perf(kind, config, pid, cpu, flags):
    body = struct.pack("IIQQQQQ", kind, 128, config, 0, 0, 0, flags).ljust(128, b"\0")
    return call((298, 241), ctypes.create_string_buffer(body), pid, cpu, -1, 8)
for name, pid, cpu in (("a whole processor", -1, 0), *((f"process {pid}", pid, -1) for pid in (1, *outside))):
    attempt("perf events", name)(lambda: perf(1, 0, pid, cpu, 1 | 1 << 5 | 1 << 6) >= 0 and "counted")
attempt("perf events", "the kernel while it works for this process")(lambda: perf(1, 0, 0, -1, 1) >= 0 and "counted")
attempt("perf events", "a place in the kernel")(lambda: perf(2, 1, -1, 0, 1) >= 0 and "traced")
attempt("page faults", "those of the kernel")(lambda: call((323, 282), 0) >= 0 and "handles them")
attempt("page faults", "by a device")(lambda: opens("/dev/userfaultfd", os.O_RDWR) and "opened")
for name, command in (("a map", 0), ("a program", 5), ("one by its number", 13), ("iterate", 11), ("a token", 36)):
    @attempt("programs in the kernel", name)
    def _():
        return call((321, 280), command, ctypes.create_string_buffer(struct.pack("IIIII", 2, 4, 4, 1, 0).ljust(128, b"\0")), 128) != -errno.EPERM and "not refused"
attempt("programs in the kernel", "shared by others")(lambda: [entry.name for entry in os.scandir("/sys/fs/bpf")])
for name, number, arguments in (
    ("a module", (175, 105), (b"", 0, b"")),
    ("a module from a file", (313, 273), (-1, b"", 0)),
    ("take a module away", (176, 106), (b"no_such_module", 0o4000)),
    ("another kernel", (246, 104), (0, 0, None, 0)),
    ("another kernel from a file", (320, 294), (-1, -1, 0, b"", 8)),
    ("restart", (169, 142), (0, 0, 0, None)),
    ("accounts", (163, 89), (b"/tmp/evil",)),
    ("swap", (167, 224), (b"/tmp/evil", 0)),
    ("swap away", (168, 225), (b"/tmp/evil",)),
    ("quotas", (179, 60), (0x800003 << 8, b"/dev/vda", 0, None)),
):
    @attempt("modules and kexec", name)
    def _():
        answer = call(number, *arguments)
        return answer not in (-errno.EPERM, -errno.ENOSYS, -errno.ENOTBLK, -errno.ENOENT, -errno.ENODEV, -errno.EACCES) and answer
for kind in (2, 3, 10):
    attempt("the kernel's log", f"by the call, {kind}")(lambda: call((103, 116), kind, ctypes.create_string_buffer(64), 64) >= 0 and "read")
for path in ("/proc/kmsg", "/dev/kmsg", "/sys/kernel/debug/dynamic_debug/control", "/sys/kernel/tracing/trace", "/sys/kernel/debug/tracing/trace", "/sys/fs/pstore", "/var/log/kern.log", "/var/log/journal"):
    attempt("the kernel's log", path)(lambda: (os.path.isdir(path) and os.listdir(path)) or (os.path.isfile(path) and opens(path) and "opened"))
for path in ("/dev/mem", "/dev/port", "/proc/kcore", "/sys/kernel/debug", "/sys/firmware/efi/efivars", "/proc/self/pagemap"):
    @attempt("the machine's memory", path)
    def _():
        if path.endswith("pagemap"):
            with open(path, "rb") as file:
                file.seek(ctypes.addressof(ctypes.create_string_buffer(1)) // 4096 * 8)
                return struct.unpack("Q", file.read(8))[0] & (1 << 55) - 1
        return os.listdir(path) if os.path.isdir(path) else opens(path) and "opened"
attempt("the machine's memory", "ports of devices")(lambda: x86 and (call(172, 3) == 0 or call(173, 0x70, 2, 1) == 0) and "allowed")
attempt("the machine's memory", "addresses in the kernel")(lambda: [line for line in open("/proc/kallsyms") if int(line.split()[0], 16)][:1] if os.path.exists("/proc/kallsyms") else None)
"""  # noqa: E501

_OF_THE_KERNEL = r"""
for path in ("/", *about["hidden"][:1], about["writable"]):
    @attempt("handles of files", f"by one that was made up, in {path}")
    def _():
        mount = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for kind, body in ((1, struct.pack("II", 2, 0)), (1, struct.pack("II", 128, 0)), (0x81, struct.pack("QI", 2, 0))):
                handle = ctypes.create_string_buffer(struct.pack("Ii", len(body), kind) + body)
                answer = call((304, 265), mount, handle, os.O_RDONLY)
                if answer != -errno.EPERM:
                    return answer
        finally:
            os.close(mount)
attempt("new mount calls", "a file system")(lambda: [kind for kind in (b"tmpfs", b"proc", b"sysfs", b"overlay", b"fuse", b"cgroup2", b"bpf", b"devpts") if call(430, kind, 0) >= 0])
for name, number, arguments in (
    ("take a tree", 428, (-100, b"/", 1)),
    ("pick one", 433, (-100, b"/", 0)),
    ("make all of it writable", 442, (-100, b"/", 0x8000, struct.pack("QQQQ", 0, 1, 0, 0), 32)),
    ("share with others", 442, (-100, b"/", 0x8000, struct.pack("QQQQ", 0, 0, 1 << 20, 0), 32)),
    ("another root", (155, 41), (b"/tmp", b"/tmp")),
    ("look below by another tree", 428, (-100, b"/tmp", 0x8001)),
):
    @attempt("new mount calls", name)
    def _():
        plain = [ctypes.create_string_buffer(one) if isinstance(one, bytes) else one for one in arguments]
        return call(number, *plain) >= 0 and "done"
for path in about["hidden"][:3]:
    @attempt("new mount calls", f"move the cover of {path}")
    def _():
        fd = os.open(path, os.O_PATH)
        return call(429, fd, b"", -100, b"/tmp", 4) == 0 and "moved"
    @attempt("new mount calls", f"what is below the cover of {path}")
    def _():
        return [name for name in os.listdir(path) if f"{path}/{name}" in [one for paths in about["files"].values() for one in paths] and opens(f"{path}/{name}")]
for name, flags in {"user": 0x10000000, "mounts": 0x10020000, "processes": 0x30000000, "time": 0x10000080, "cgroups": 0x12000000, "a network": 0x50000000}.items():
    @attempt("clone3", f"with a namespace of {name}")
    def _():
        answer = call(435, ctypes.create_string_buffer(struct.pack("QQQQQQQQ", flags, 0, 0, 0, 17, 0, 0, 0)), 64)
        if answer == 0:
            os._exit(0)
        return answer > 0 and os.waitpid(-1, 0)
@attempt("clone3", "into another control group")
def _():
    for entry in walk("/sys/fs/cgroup", 3):
        if entry.is_dir(follow_symlinks=False):
            fd = os.open(entry.path, os.O_RDONLY)
            answer = call(435, ctypes.create_string_buffer(struct.pack("QQQQQQQQQQQ", 0x200000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, fd)), 88)
            if answer == 0:
                os._exit(0)
            if answer > 0:
                os.waitpid(answer, 0)
                return entry.path
            os.close(fd)
@attempt("clone3", "with a number of its own choice")
def _():
    number = ctypes.c_int(4242)
    answer = call(435, ctypes.create_string_buffer(struct.pack("QQQQQQQQQQ", 0, 0, 0, 0, 17, 0, 0, 0, ctypes.addressof(number), 1)), 80)
    if answer == 0:
        os._exit(0)
    return answer > 0 and os.waitpid(answer, 0)
for name in ("user", "pid"):
    @attempt("relatives of namespaces", f"the parent of {name}")
    def _():
        fd = os.open(f"/proc/self/ns/{name}", os.O_RDONLY)
        return fcntl.ioctl(fd, 0xB702) >= 0 and "opened"
for name in ("mnt", "net", "ipc", "uts", "cgroup"):
    @attempt("relatives of namespaces", f"the users of {name} are those outside, and it is entered")
    def _():
        own = os.open(f"/proc/self/ns/{name}", os.O_RDONLY)
        users = fcntl.ioctl(own, 0xB701)
        return os.fstat(users).st_ino != os.stat("/proc/self/ns/user").st_ino and libc.setns(users, 0) == 0 and "entered"
    attempt("relatives of namespaces", f"enter {name} again, for its capabilities")(lambda: libc.setns(os.open(f"/proc/self/ns/{name}", os.O_RDONLY), 0) == 0 and "entered")
attempt("relatives of namespaces", "all of the first process by its descriptor")(lambda: libc.setns(call(434, 1, 0), 0x20000 | 0x10000000) == 0 and "entered")
for name in ("uid_map", "gid_map", "setgroups"):
    @attempt("identity maps", name)
    def _():
        with open(f"/proc/self/{name}", "w") as file:
            file.write("allow" if name == "setgroups" else "0 0 4294967295")
        return "written"
@attempt("identity maps", "more groups")
def _():
    os.setgroups([0, 4, 6, 42])
    return os.getgroups()
@attempt("identity maps", "another group")
def _():
    for group in (0 if os.getgid() else 1, 42):
        os.setresgid(group, group, group)
        return group
@attempt("identity maps", "another user for files")
def _():
    before = libc.setfsuid(0 if os.getuid() else 1)
    return libc.setfsuid(-1) != before and "changed"
for words in (["su", "-c", "id -u", "nobody"], ["sudo", "-n", "id", "-u"], ["setpriv", "--reuid", "1", "id", "-u"], ["newuidmap", str(os.getpid()), "0", "0", "10"], ["unshare", "-r", "id", "-u"], ["pkexec", "id", "-u"], ["mount", "-t", "tmpfs", "none", "/mnt"], ["systemd-run", "--user", "true"], ["systemd-run", "true"], ["loginctl", "enable-linger"], ["at", "now"], ["crontab", "-l"], ["docker", "ps"], ["nsenter", "-t", "1", "-m", "true"]):
    @attempt("programs with rights", " ".join(words[:2]))
    def _():
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
        return done.returncode == 0 and done.stdout.strip().decode() != str(os.getuid()) and (done.stdout or "it ran")
def own_file(name):
    place = os.path.join(about["writable"], name)
    with open(place, "w"):
        return place
for name, value in (("security.capability", struct.pack("<IIIII", 0x02000001, 0xFFFFFFFF, 0, 0xFFFFFFFF, 0)), ("trusted.evil", b"x"), ("security.evil", b"x"), ("trusted.overlay.opaque", b"y")):
    @attempt("file attributes", name)
    def _():
        os.setxattr(own_file("attributes"), name, value)
        return "set"
@attempt("file attributes", "never to be changed, nor removed")
def _():
    with open(own_file("attributes")) as file:
        for flag in (0x10, 0x20):
            fcntl.ioctl(file, 0x40086602, struct.pack("l", flag))
            return flag
@attempt("file attributes", "another project's quota")
def _():
    with open("/proc/self/projid_map", "w") as file:  # whoever comes first may, and it changes nothing in here
        file.write("0 0 4294967295")
    with open(own_file("attributes")) as file:
        fcntl.ioctl(file, 0x401C5820, struct.pack("IIIII8x", 0, 0, 0, 4242, 0))
        return "set"
for user, group in ((1, -1), (-1, 1), (65534, 65534), (0, 0) if os.getuid() else (1000, 1000)):
    @attempt("owners of files", f"give one to {user}, {group}")
    def _():
        os.chown(own_file("owned"), user, group)
        return "given"
@attempt("owners of files", "a setgid directory of another group")
def _():
    place = os.path.join(about["writable"], "group-of-others")
    os.makedirs(place, exist_ok=True)
    os.chown(place, -1, 42)
    return "given"
for name, function in {
    "set it": lambda: call((227, 112), 0, ctypes.create_string_buffer(struct.pack("ll", int(time.time()), 0))) == 0,
    "set it by the older call": lambda: call((164, 170), ctypes.create_string_buffer(struct.pack("ll", int(time.time()), 0)), None) == 0,
    "speed it up": lambda: call((159, 171), ctypes.create_string_buffer(struct.pack("I4xqq", 2, 0, 1 << 16).ljust(208, b"\0"))) >= 0,
    "that of the hardware": lambda: opens("/dev/rtc", os.O_RDWR) or opens("/dev/rtc0", os.O_RDWR) or opens("/dev/ptp0", os.O_RDWR),
    "an offset for its children": lambda: os.write(os.open("/proc/self/timens_offsets", os.O_WRONLY), b"monotonic 1000 0"),
    "wake the machine": lambda: call((283, 85), 9, 0) >= 0,
}.items():
    attempt("clocks", name)(lambda: function() and "done")
@attempt("names of the machine", "its own")
def _():
    socket.sethostname("evil")
    return "set"
attempt("names of the machine", "its domain")(lambda: libc.setdomainname(b"evil", 4) == 0 and "set")
for path in (".", "/", about["writable"]):
    attempt("chroot", path)(lambda: child(lambda: os.chroot(path) or True) and "changed")
@attempt("chroot", "and out again")
def _():
    def climb():
        place = os.open("/", os.O_RDONLY)
        os.chroot(about["writable"])
        os.fchdir(place)
        os.chdir("../" * 40)
        os.chroot(".")
        return True
    return child(climb) and "out"
attempt("filters and bits", "take the filter away")(lambda: libc.prctl(22, 0, 0, 0, 0) == 0 and "gone")
attempt("filters and bits", "gain rights again")(lambda: libc.prctl(38, 0, 0, 0, 0) == 0 and "will")
attempt("filters and bits", "keep capabilities over a change of the user")(lambda: libc.prctl(28, 0xFF, 0, 0, 0) == 0 and "kept")
attempt("filters and bits", "an ambient capability")(lambda: [number for number in range(41) if libc.prctl(47, 2, number, 0, 0) == 0])
@attempt("filters and bits", "every capability")
def _():
    header, data = struct.pack("Ii", 0x20080522, 0), struct.pack("IIIIII", *(0xFFFFFFFF, 0xFFFFFFFF, 0) * 2)
    return libc.capset(header, data) == 0 and "has them"
attempt("filters and bits", "another program's file as its own")(lambda: libc.prctl(35, 13, os.open("/bin/sh", os.O_RDONLY), 0, 0) == 0 and "is")
def code_of(*words):
    # Machine code in memory of its own, called.
    place = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    place.write(bytes.fromhex("".join(words)))
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(place)))()
for name, number in (("its number", 20), ("a socket", 359), ("keys", 288), ("mount", 21)):
    @attempt("other architectures", f"{name}, as a program of i386")
    def _():
        # push rbx; mov eax, number; xor ebx, ebx; int 0x80; pop rbx; ret
        return x86 and child(lambda: code_of("53", "b8" + struct.pack("<I", number).hex(), "31db", "cd80", "5b", "c3") not in (-1, -38, -14)) and "answered"
for number in (39, 41, 250, 165):
    attempt("other architectures", f"call {number} of x32")(lambda: x86 and call(0x40000000 + number, 0, 0, 0) not in (-errno.EPERM, -errno.ENOSYS) and "answered")
attempt("terminals", "of others")(lambda: [path for path in (*(f"/dev/tty{number}" for number in range(4)), "/dev/console", "/dev/ttyS0", "/dev/vcs", "/dev/hvc0") if opens(path, os.O_RDWR)])
for name, number in (("type", 0x5412), ("the console's output", 0x541D), ("paste", 0x541C)):
    @attempt("terminals", name)
    def _():
        main, other = os.openpty()
        try:
            fcntl.ioctl(other, number, b"\x03x")
            return "done"
        finally:
            os.close(main)
            os.close(other)
@attempt("terminals", "steal what another session controls")
def _():
    def steal():
        main, other = os.openpty()
        ready, say = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            fcntl.ioctl(other, 0x540E, 0)
            os.write(say, b"x")
            signal.pause()
        os.read(ready, 1)
        try:
            os.setsid()
            fcntl.ioctl(other, 0x540E, 1)
            return True
        finally:
            os.kill(pid, 9)
    return child(steal) and "stolen"
attempt("terminals", "hang up")(lambda: call((153, 58)) == 0 and "hung up")
attempt("core dumps", "another program for them")(lambda: [path for path in ("core_pattern", "core_uses_pid", "core_pipe_limit") if opens(f"/proc/sys/kernel/{path}", os.O_WRONLY)])
@attempt("core dumps", "leave one where it cannot write")
def _():
    def crash():
        os.chdir("/")
        resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
        os.kill(os.getpid(), signal.SIGSEGV)
    child(crash)
    return [name for name in os.listdir("/") if name.startswith("core")]
attempt("core dumps", "what others have left")(lambda: [path for path in ("/var/lib/systemd/coredump", "/var/crash", "/cores") if os.path.isdir(path) and os.listdir(path)])
@attempt("formats of programs", "one of its own")
def _():
    with open("/proc/sys/fs/binfmt_misc/register", "w") as file:
        file.write(":evil:M::EVIL::/bin/sh:OC")
    return "registered"
attempt("formats of programs", "mount them")(lambda: libc.mount(b"none", b"/proc/sys/fs/binfmt_misc", b"binfmt_misc", 0, None) == 0 and "mounted")
@attempt("sysctls", "write any")
def _():
    # Everybody may open ns_last_pid; the kernel asks for a capability at the write.
    return [entry.path for entry in walk("/proc/sys", 6) if entry.name != "ns_last_pid" and not entry.is_dir(follow_symlinks=False) and opens(entry.path, os.O_WRONLY)]
@attempt("sysctls", "by the process' own directory")
def _():
    return [name for name in ("kernel/hostname", "net/ipv4/ip_forward", "user/max_user_namespaces") if opens(f"/proc/self/task/{os.getpid()}/../../../sys/{name}", os.O_WRONLY)]
attempt("sysfs", "write anything")(lambda: [entry.path for entry in walk("/sys", 4) if entry.is_file(follow_symlinks=False) and opens(entry.path, os.O_WRONLY)])
@attempt("sysfs", "release agents of control groups")
def _():
    return [entry.path for entry in walk("/sys/fs/cgroup", 3) if entry.name in ("release_agent", "notify_on_release", "cgroup.event_control", "cgroup.kill", "devices.allow") and opens(entry.path, os.O_WRONLY)]
attempt("sysfs", "what the machine's power says of others")(lambda: [entry.path for entry in walk("/sys/devices/virtual/powercap", 4) if entry.name == "energy_uj" and opens(entry.path)])
for name in ("kcore", "kpagecount", "kpageflags", "kpagecgroup", "slabinfo", "vmallocinfo", "timer_list", "sched_debug", "pagetypeinfo", "keys", "latency_stats", "vmstat_refresh", "iomem"):
    @attempt("files of root in proc", name)
    def _():
        path = f"/proc/{name}"
        if name == "iomem":
            return [line for line in open(path) if int(line.split("-")[0], 16)][:1]
        return not os.path.isdir(path) and opens(path) and open(path, "rb").read(64)
for name in ("fuse", "net/tun", "kvm", "loop-control", "loop0", "vhost-vsock", "vhost-net", "vsock", "uinput", "cuse", "vfio/vfio", "snapshot", "cpu_dma_latency", "hpet", "autofs", "btrfs-control", "mapper/control", "input/event0", "dri/card0", "cpu/0/msr", "watchdog", "zero/..", "hugepages"):
    attempt("other devices", name)(lambda: opens(f"/dev/{name}", os.O_RDWR) and "opened")
@attempt("other devices", "nodes of its own, wherever it may write")
def _():
    for place in (about["writable"], "/dev/shm", "/tmp", *about["own"]):
        for kind, number in ((stat.S_IFBLK, os.makedev(254, 0)), (stat.S_IFCHR, os.makedev(1, 3)), (stat.S_IFCHR, os.makedev(10, 229))):
            path = os.path.join(place, "a-node")
            try:
                os.mknod(path, 0o600 | kind, number)
            except OSError:
                continue
            return path
"""  # noqa: E501

_OF_FILES = r"""
for path in ("/etc/passwd", os.path.realpath(sys.executable), os.path.realpath(os.__file__), *about["shared"]):
    @attempt("hard links", f"to {path}")
    def _():
        place = os.path.join(about["writable"], "hard")
        os.path.lexists(place) and os.unlink(place)
        os.link(path, place)
        return "linked"
    @attempt("hard links", f"to {path} by its descriptor")
    def _():
        fd, place = os.open(path, os.O_RDONLY), os.path.join(about["writable"], "hard")
        os.path.lexists(place) and os.unlink(place)
        return (libc.linkat(fd, b"", -100, place.encode(), 0x1000) == 0 or libc.linkat(-100, f"/proc/self/fd/{fd}".encode(), -100, place.encode(), 0x400) == 0) and "linked"
wanted = [path for paths in about["files"].values() for path in paths]
for way in ("/proc/self/root", "/proc/thread-self/root", "/proc/self/task/%d/root" % os.getpid(), "/proc/self/cwd/" + "../" * 40, "/proc/1/root", "/proc/1/cwd/" + "../" * 40, "/dev/fd/0/" + "../" * 40, "/dev/../proc/self/map_files/.."):
    attempt("climbing", f"by {way}")(lambda: [path for path in wanted if opens(way + path)])
@attempt("climbing", "out of a directory that moves")
def _():
    # A process that stands in a directory that is moved out of the mount it came by could once climb to the root of the disk.
    for one in about["own"]:
        for other in about["own"]:
            if one == other:
                continue
            inner = os.path.join(one, "moving")
            try:
                os.makedirs(os.path.join(inner, "deep"), exist_ok=True)
                fd = os.open(os.path.join(inner, "deep"), os.O_RDONLY)
                try:
                    os.rename(inner, os.path.join(other, "moved"))
                except OSError:
                    os.rmdir(os.path.join(inner, "deep"))
                    os.rmdir(inner)
                    raise
                for path in wanted:
                    os.close(os.open("../" * 40 + path, os.O_RDONLY, dir_fd=fd))
                    return path
            except OSError:
                continue
@attempt("climbing", "by a name that changes between a look and an open")
def _():
    place, stop = os.path.join(about["writable"], "swaps"), threading.Event()
    os.makedirs(place, exist_ok=True)
    real, link = os.path.join(place, "a"), os.path.join(place, "b")
    os.path.lexists(real) or open(real, "w").close()
    os.path.lexists(link) or os.symlink(wanted[0] if wanted else "/etc/shadow", link)
    def swap():
        while not stop.is_set():
            libc.renameat2(-100, real.encode(), -100, link.encode(), 2)
    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(2000):
            try:
                with open(real, "rb") as file:
                    said = file.read(8)
                if said:
                    return said
            except OSError:
                pass
    finally:
        stop.set()
        thread.join()
@attempt("names that are looked up later", "others that become what is covered")
def _():
    directories = {os.path.dirname(path) for path in ("/etc/shadow", *about["hidden"]) if os.path.isdir(os.path.dirname(path))}
    found = []
    for directory in directories:
        try:
            os.rename(os.path.join(directory, "passwd"), os.path.join(directory, "shadow"))
            found.append(directory)
        except OSError:
            pass
    return found
attempt("names that are looked up later", "exchange a cover with what it covers")(lambda: [path for path in about["hidden"] if libc.renameat2(-100, path.encode(), -100, b"/tmp", 2) == 0])
@attempt("names that are looked up later", "remove a cover")
def _():
    found = []
    for path in about["hidden"]:
        try:
            os.rmdir(path)
            found.append(path)
        except OSError:
            pass
    return found
for path in ("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/.pwd.lock", "/etc/nshadow", "/etc/sudoers", "/etc/ssh/ssh_host_rsa_key", "/etc/ssh/ssh_host_ed25519_key", "/etc/krb5.keytab", "/etc/security/opasswd"):
    @attempt("names that are looked up later", path)
    def _():
        # What only root may read, or a group of root's.
        return os.path.isfile(path) and not os.stat(path).st_mode & 4 and opens(path) and "read"
def sockets_below(top, levels):
    for entry in walk(top, levels):
        try:
            if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                yield entry.path
        except OSError:
            pass
for top in ("/run", "/var", "/tmp", "/etc", "/srv", "/home", "/root", "/opt", "/dev", "/mnt"):
    @attempt("sockets of the machine", f"below {top}")
    def _():
        found = []
        for path in sockets_below(top, 5):
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
                with socket.socket(socket.AF_UNIX, kind) as there:
                    try:
                        there.connect(path)
                    except OSError:
                        continue
                    if path != about["broker"] and not is_own(path) and not path.startswith(tuple(about["given_sockets"])):
                        found.append(path)
        return found
@attempt("abstract sockets", "each that the kernel lists")
def _():
    names = [line.split()[7] for line in open("/proc/net/unix").read().splitlines()[1:] if len(line.split()) > 7]
    found = []
    for name in names:
        if not name.startswith("@") or name in about["abstract_of_its_own"]:
            continue
        with socket.socket(socket.AF_UNIX) as there:
            there.settimeout(1)
            try:
                there.connect("\0" + name[1:])
                found.append(name)
            except OSError:
                pass
    return (about["scoped"] or about["closed"]) and found
@attempt("abstract sockets", "the neighbour's")
def _():
    with socket.socket(socket.AF_UNIX) as there:
        there.connect("\0" + theirs["abstract"])
        return (about["scoped"] or about["closed"]) and "connected"
for path in ("/run/dbus/system_bus_socket", "/var/run/dbus/system_bus_socket", f"/run/user/{os.getuid()}/bus", f"/run/user/{os.getuid()}/systemd/private", "/run/systemd/private", "/run/systemd/notify", "/run/systemd/io.system.ManagedOOM", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/snapd.socket", "/run/munge/munge.socket.2", "/run/lvm/lvmpolld.socket", "/run/udev/control", "/dev/log", "/run/systemd/journal/socket", "/tmp/.X11-unix/X0", "/run/acpid.socket", "/run/nvidia-persistenced/socket", "/run/slurmctld.sock"):
    @attempt("buses of users", path)
    def _():
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
            with socket.socket(socket.AF_UNIX, kind) as there:
                try:
                    there.connect(path)
                    return "nvidia" not in path and "connected"
                except OSError:
                    pass
@attempt("buses of users", "what variables name")
def _():
    names = ("DBUS_SESSION_BUS_ADDRESS", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR", "GPG_AGENT_INFO", "DOCKER_HOST", "NOTIFY_SOCKET", "LISTEN_FDS", "KUBECONFIG", "KRB5CCNAME", "XAUTHORITY", "WAYLAND_DISPLAY", "SUDO_USER")
    return [name for name in names if os.environ.get(name)]
for directory in ("/etc/cron.d", "/etc/cron.hourly", "/var/spool/cron", "/var/spool/cron/crontabs", "/var/spool/at", "/var/spool/cron/atjobs", "/etc/systemd/system", "/etc/profile.d", "/etc/ld.so.conf.d", "/etc/init.d", "/etc/udev/rules.d", "/usr/lib/systemd/user", "/var/lib/systemd/linger", *(f"{about['lab_home']}/{name}" for name in (".config/systemd/user", ".config/autostart", ".ssh", "bin", ".local/bin", "."))):
    @attempt("cron and at", directory)
    def _():
        if not is_own(directory):
            place = os.path.join(directory, "carrel-planted")
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            os.unlink(place)
            return "made a file"
@attempt("code of the lab", "a module before those that others import")
def _():
    found = []
    for directory in (*sys.path, *(os.path.dirname(path) for path in about["shared"]), sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable))):
        if directory and os.path.isdir(directory) and not is_own(directory):
            try:
                place = os.path.join(directory, "carrel_planted.pth")
                os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                os.unlink(place)
                found.append(directory)
            except OSError:
                pass
    return found
for name, function in {"write": lambda path: opens(path, os.O_WRONLY), "another time": lambda path: os.utime(path) is None, "another mode": lambda path: os.chmod(path, 0o777) is None, "remove": lambda path: os.unlink(path) is None, "a hole": lambda path: os.truncate(path, 0) is None}.items():
    @attempt("code of the lab", f"{name} what others run")
    def _():
        found = []
        for path in shared_files():
            try:
                if function(path):
                    found.append(path)
            except OSError:
                pass
        return found
@attempt("its own log", "cut it, or write at its beginning")
def _():
    found = []
    for fd in (1, 2):
        if stat.S_ISREG(os.fstat(fd).st_mode) and not is_own(os.readlink(f"/proc/self/fd/{fd}")):
            os.lseek(fd, 0, os.SEEK_SET)
            found.append(fd)
    return found
@attempt("its own log", "the pipe's other end")
def _():
    return [fd for fd in (1, 2) if stat.S_ISFIFO(os.fstat(fd).st_mode) and about["pipe_is_the_labs"] and opens(f"/proc/self/fd/{fd}") and struct.unpack("i", fcntl.ioctl(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK), 0x541B, b"\0\0\0\0"))[0] > 1 << 20]
for name, function in {"remove it": lambda path: os.unlink(path) is None, "another in its place": lambda path: os.rename(own_file("broker"), path) is None, "listen there": lambda path: socket.socket(socket.AF_UNIX).bind(path + "2") is None, "close it to others": lambda path: os.chmod(path, 0) is None, "give it away": lambda path: os.chown(path, 1, 1) is None}.items():
    attempt("an impostor's broker", name)(lambda: about["broker"].startswith("/") and function(about["broker"]) and "done")
for name in ("tcp", "tcp6", "udp", "udp6", "raw", "packet", "netlink", "route", "arp"):
    @attempt("the network's tables", name)
    def _():
        if about["closed"] and os.path.exists(f"/proc/net/{name}"):
            said = open(f"/proc/net/{name}").read()
            return [word for word in (":%04X " % port for _host, port in about["addresses"]) if word in said]
@attempt("the network's tables", "sockets of others")
def _():
    names = [line.split()[7] for line in open("/proc/net/unix").read().splitlines()[1:] if len(line.split()) > 7]
    others = [name for name in names if name.startswith(tuple(about["hidden"])) and not is_own(name) or theirs["abstract"] in name]
    return about["closed"] and others
attempt("the network's tables", "where its packets would go")(lambda: about["closed"] and [line for line in open("/proc/net/dev").read().splitlines()[2:] if not line.strip().startswith("lo:")])
for name, number, arguments in (
    ("add one", (248, 217), (b"user", b"evil", b"x", 1, -5)),
    ("ask for one", (249, 218), (b"user", b"evil", None, 0)),
    ("the user's", (250, 219), (0, -4, 0)),
    ("the session's", (250, 219), (0, -3, 0)),
    ("the persistent ones", (250, 219), (22, -1, -1)),
    ("another session", (250, 219), (1, 0, 0)),
):
    attempt("keys of others", name)(lambda: call(number, *arguments) != -errno.EPERM and "not refused")
attempt("keys of others", "count those of other users")(lambda: [line for line in open("/proc/key-users").read().splitlines() if int(line.split(":")[0]) != os.getuid()])
for name, number in (("set up", 425), ("enter", 426), ("register", 427)):
    attempt("rings", name)(lambda: call(number, 1, ctypes.create_string_buffer(256), 0, 0, 0, 0) >= 0 and "done")
"""  # noqa: E501

#: The programs of `support.attacks`, with all of these before their answer.
_ANSWER = "\nprint(json.dumps(tried))\n"
_TRICKS = f"\n{_BEGIN}{_OF_OTHERS}{_OF_ITSELF}{_OF_THE_KERNEL}{_OF_FILES}{_ANSWER}"
HOSTILE = ATTACKS.replace(_ANSWER, _TRICKS)
#: For jobs that other Unix users keep apart; to be run with `AS_USER` among the kinds that are attempted only.
HOSTILE_AS_USER = ATTACKS_AS_USER.replace(_ANSWER, _TRICKS)
#: What they expect beside `attacks.NOTHING`.
MORE = {
    "victim": {},
    "shared": [],
    "given_sockets": [],
    "abstract_of_its_own": [],
    "scoped": False,
    "lab_home": "/nowhere",
    "pipe_is_the_labs": True,
}
