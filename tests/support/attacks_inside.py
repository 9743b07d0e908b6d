"""The attempts of `attacks` that are for walls which the kernel builds: they would harm a machine that has none."""

from __future__ import annotations

#: Among the attempts behind walls are some that would harm a machine on which they succeed.
ONLY_INSIDE = r"""
if os.readlink("/proc/self/ns/mnt") == about["outside"] or os.readlink("/proc/self/ns/user") == about["outside_user"]:
    # The next steps would be done to the machine itself.
    print(json.dumps({"the walls": "there are none"}))
    sys.exit()
"""

#: What only a network of its own can keep it from.
OWN_NETWORK = r"""
if about["closed"]:
    @attempt("network", "another network than the loopback")
    def _():
        return [name for _index, name in socket.if_nameindex() if name != "lo"]
    @attempt("network", "the network of the first process before it came in")
    def _():
        return os.readlink("/proc/self/ns/net") == about["outside_network"] and "is its own"
    @attempt("network", "change the network")
    def _():
        import fcntl, struct
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there:
            fcntl.ioctl(there, 0x8914, struct.pack("16sH22x", b"lo", 0))
            return "took the loopback down"
    @attempt("network", "packets as they are on the wire")
    def _():
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300):
            return "opened"
    attempt("network", "find names")(lambda: socket.getaddrinfo("example.org", 80))
    @attempt("network", "the address of a cloud's metadata")
    def _():
        socket.create_connection(("169.254.169.254", 80), 2).close()
        return "connected"
"""

#: What changes the machine where it succeeds, or asks for what only namespaces take away.
INSIDE = r"""
@attempt("proc environ", "the memory of the first process")
def _():
    return open("/proc/1/environ", "rb").read(8) or os.readlink("/proc/1/cwd")
attempt("mounts", "mount")(lambda: libc.mount(b"none", b"/mnt", b"tmpfs", 0, None) == 0 and "mounted")
for path in (*about["hidden"], "/tmp", "/dev", "/proc", "/run"):
    attempt("mounts", f"unmount {path}")(lambda: libc.umount2(path.encode(), 2) == 0 and "unmounted")
    attempt("mounts", f"remount {path}")(lambda: libc.mount(None, path.encode(), None, 32 | 4096, None) == 0 and "remounted")
@attempt("namespaces", "a user namespace of its own in which mounts can be taken away")
def _():
    pid = os.fork()
    if pid == 0:
        done = libc.unshare(0x10000000 | 0x00020000) == 0 and any(libc.umount2(path.encode(), 2) == 0 for path in about["hidden"])
        os._exit(int(done))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1 and "done"
def nested(flags, then=lambda: True):
    # In a process of its own: these beside a user namespace, and what `then` does there.
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(int(libc.unshare(0x10000000 | flags) == 0 and bool(then())))
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1 and "made"
for name, flags in {"user": 0, "mount": 0x20000, "cgroup": 0x2000000, "network": 0x40000000, "process": 0x20000000}.items():
    attempt("namespaces", f"a {name} namespace of its own")(lambda: nested(flags))
@attempt("cgroups", "mount them in a namespace of its own, to raise the limit of memory")
def _():
    place = os.path.join(about["writable"], "cgroups")
    os.makedirs(place, exist_ok=True)
    def raised():
        tries = ((b"cgroup", b"memory", "memory.limit_in_bytes"), (b"cgroup2", None, "memory.max"))
        for kind, data, file in tries:
            if libc.mount(b"none", place.encode(), kind, 0, data) == 0:
                os.close(os.open(os.path.join(place, file), os.O_WRONLY))
                return True
    return nested(0x20000 | 0x2000000, raised)
@attempt("namespaces", "those of the first process")
def _():
    fd = os.open("/proc/1/ns/mnt", os.O_RDONLY)
    return libc.setns(fd, 0) == 0 and "entered"
@attempt("capabilities", "any")
def _():
    kinds = ("CapEff", "CapPrm", "CapBnd", "CapAmb")
    lines = open("/proc/self/status").read().splitlines()
    return [line for line in lines if line.startswith(kinds) and int(line.split()[1], 16)]
@attempt("setuid", "a program that changes its user")
def _():
    place = os.path.join(about["writable"], "setuid")
    open(place, "w").close()
    os.chmod(place, 0o4755)
    return not os.statvfs(place).f_flag & 2 and "not refused"
@attempt("setuid", "the machine's programs that change their user")
def _():
    return libc.prctl(39, 0, 0, 0, 0) != 1 and "would"  # PR_GET_NO_NEW_PRIVS
@attempt("device not leased", "a device node")
def _():
    os.mknod(os.path.join(about["writable"], "node"), 0o600 | stat.S_IFCHR, os.makedev(1, 1))
    return "made"
@attempt("device not leased", "nodes that nobody gave it")
def _():
    known = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", *about["given"]}
    found = [name for name in os.listdir("/dev") if stat.S_IFMT(os.lstat(f"/dev/{name}").st_mode) in (stat.S_IFCHR, stat.S_IFBLK)]
    return [name for name in found if name not in known]
@attempt("kernel", "its keys")
def _():
    number = {"x86_64": 250, "aarch64": 219}.get(os.uname().machine)
    return number and libc.syscall(number, 0, -3, 0) >= 0 and "has a keyring"
@attempt("kernel", "files by their handle")
def _():
    number = {"x86_64": 304, "aarch64": 265}.get(os.uname().machine)
    ctypes.set_errno(0)
    return number and libc.syscall(number, -100, None, 0) < 0 and ctypes.get_errno() != 1 and "not refused"
@attempt("kernel", "sockets that lead past the walls")
def _():
    found = []
    for family in {*range(1, 64)} - {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
            try:
                socket.socket(family, kind).close()
                found.append(family)
            except OSError:
                pass
    return found
@attempt("kernel", "calls that pass no filter")
def _():
    return libc.syscall(425, 1, ctypes.create_string_buffer(120)) >= 0 and "has a ring"  # io_uring_setup
@attempt("kernel", "type into a terminal")
def _():
    import fcntl
    main, other = os.openpty()
    fcntl.ioctl(other, 0x5412, b"x")
    return "typed"
@attempt("processes", "shared memory of others")
def _():
    return [name for name in os.listdir("/dev/shm") if not name.startswith("sem.mp-")]
@attempt("full disk", "a place that is not its own")
def _():
    own = [os.path.realpath(path) for path in (*about["own"], "/tmp", "/dev/shm")]
    found = []
    for line in open("/proc/self/mountinfo"):
        path = line.split()[4].encode().decode("unicode_escape")
        try:
            place = os.path.join(path, "carrel-planted")
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            os.unlink(place)
        except OSError:
            continue
        if not any(f"{os.path.realpath(path)}/".startswith(f"{one}/") for one in own):
            found.append(path)
    return found
for place in ("/", "/dev", "/etc", "/run", "/usr", "/var/tmp", "/proc", "/sys", *about["hidden"]):
    @attempt("full disk", f"write into {place}")
    def _():
        fd = os.open(os.path.join(place, "carrel-planted"), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        return f"made {fd}"
if about["memory"]:
    @attempt("full disk", "more of /dev/shm than its memory")
    def _():
        with open("/dev/shm/sem.mp-full", "wb") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, about["memory"] + 4096)
                return "filled"
            finally:
                os.unlink(file.name)
if about["process_limit"]:
    @attempt("fork bomb", "more processes than it may have")
    def _():
        read, write = os.pipe()
        made = []
        try:
            while len(made) <= about["process_limit"]:
                pid = os.fork()
                if pid == 0:
                    os.close(write)
                    os.read(read, 1)
                    os._exit(0)
                made.append(pid)
            return len(made)
        finally:
            for end in (read, write):
                os.close(end)
            for pid in made:
                os.waitpid(pid, 0)
    @attempt("fork bomb", "raise the limit")
    def _():
        before = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        resource.setrlimit(resource.RLIMIT_NPROC, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        return resource.getrlimit(resource.RLIMIT_NPROC)[1] != before and "raised"
"""
