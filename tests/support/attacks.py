"""A program of attacks: what somebody's code would try to get at the lab, at others, and at the machine.

It is text, because it runs in processes that have nothing of ours. Each attempt belongs to one of `KINDS`. Its one argument is
a JSON object that says what there is to attack; the last line of its answer says what got through, the line before it which
attempts of each kind it made.
"""

from __future__ import annotations

from support.attacks_inside import INSIDE, ONLY_INSIDE, OWN_NETWORK

#: Kinds of attempts, in the order of the table of the tests (tests/containment/escapes.txt).
KINDS = (
    "token and secret",
    "another's spool",
    "another's log",
    "directories",
    "broker",
    "sockets",
    "processes",
    "proc environ",
    "ptrace",
    "loopback",
    "network",
    "planted links",
    "scratch takeover",
    "device not leased",
    "the deputy",
    "setuid",
    "cgroups",
    "mounts",
    "namespaces",
    "capabilities",
    "kernel",
    "full disk",
    "fork bomb",
)

_BEGIN = r"""
import ctypes, json, os, resource, signal, socket, stat, subprocess, sys
about = json.loads(sys.argv[1])
through, tried = {}, {}
libc = ctypes.CDLL(None, use_errno=True)
def attempt(kind, name):
    def wrap(function):
        if about["only"] and kind not in about["only"]:
            return
        tried.setdefault(kind, []).append(name)
        try:
            said = function()
        except BaseException:
            said = None
        if said:
            through[f"{kind}: {name}"] = str(said)[:200]
    return wrap
"""

#: Where Unix users are the walls there are no namespaces: nothing but what leaves a machine as it was, and never as root.
_NEVER_AS_ROOT = r"""
if 0 in os.getresuid() + os.getresgid():
    print(json.dumps({"the walls": "there are none for root"}))
    sys.exit()
"""

#: Looks, opens and connects; what succeeds leaves at most an empty file behind.
_ANYWHERE = r"""
for kind, paths in about["files"].items():
    for path in paths:
        @attempt(kind, f"read {path}")
        def _():
            with open(path, "rb") as file:
                return file.read(16) or "empty"
        @attempt(kind, f"write {path}")
        def _():
            with open(path, "ab"):
                return "opened"
        @attempt(kind, f"link to {path}")
        def _():
            place = os.path.join(about["writable"], "planted")
            os.path.lexists(place) and os.unlink(place)
            os.link(path, place)
            return "linked"
        for way in ("/proc/self/root", "/proc/self/cwd" + "/.." * 32, "/dev/fd/../../.."):
            @attempt("planted links", f"a link by {way} to {path}")
            def _():
                place = os.path.join(about["writable"], "planted-link")
                os.path.lexists(place) and os.unlink(place)
                os.symlink(way + path, place)
                try:
                    with open(place, "rb") as file:
                        return file.read(16) or "empty"
                finally:
                    os.unlink(place)
for path in about["directories"]:
    attempt("directories", f"list {path}")(lambda: os.listdir(path))
    @attempt("directories", f"make a file in {path}")
    def _():
        open(os.path.join(path, "planted"), "x").close()
        return "made"
    @attempt("planted links", f"a link in the place of {path}")
    def _():
        os.symlink("/etc", os.path.join(path, "planted"))
        return "planted"
for path in about["scratch"]:
    # What another left where everybody may write: a directory that only they may enter.
    attempt("scratch takeover", f"look into {path}")(lambda: [*os.listdir(path), "listed"])
    @attempt("scratch takeover", f"put another in the place of {path}")
    def _():
        os.rename(path, path + ".taken")
        os.mkdir(path)
        return "replaced"
    @attempt("scratch takeover", f"a link in the place of {path}")
    def _():
        os.rmdir(path)
        os.symlink("/etc", path)
        return "replaced"
for pid in about["processes"]:
    @attempt("processes", f"signal {pid}")
    def _():
        os.kill(pid, 0)
        return "took it"
    for part in ("environ", "mem", "root/etc/hostname", "cwd", "fd"):
        @attempt("proc environ", f"/proc/{pid}/{part}")
        def _():
            path = f"/proc/{pid}/{part}"
            return os.listdir(path) if part == "fd" else os.readlink(path) if part == "cwd" else open(path, "rb").read(8)
    @attempt("ptrace", f"ptrace {pid}")
    def _():
        return libc.ptrace(0x4206, pid, 0, 0) == 0 and "attached"  # PTRACE_SEIZE stops nobody
@attempt("proc environ", "the word that only another process knows")
def _():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if about["word"].encode() in open(f"/proc/{pid}/environ", "rb").read():
                return pid
        except OSError:
            pass
@attempt("processes", "signals to everybody")
def _():
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    os.kill(-1, 0)
    return [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) in about["processes"] and not about["users"]]
for name in about["sockets"]:
    @attempt("sockets", f"connect to {name!r}")
    def _():
        with socket.socket(socket.AF_UNIX) as there:
            there.connect(name)
            return "connected"
def broker(**hello):
    there = socket.socket(socket.AF_UNIX)
    there.settimeout(20)
    there.connect(about["broker"])
    lines = there.makefile("rwb")
    def say(op, **fields):
        lines.write(json.dumps({"op": op, **fields}).encode() + b"\n")
        lines.flush()
        return json.loads(lines.readline())
    return say, say("hello", v=1, **hello)
token = os.environ.get("CARREL_TOKEN", "")
if about["broker"]:
    for role in ("observer", "kernel", "runner", "residency", "lab", ""):
        @attempt("broker", f"be a {role or 'nobody'} with a token that is none")
        def _():
            return broker(role=role, token="0" * len(token))[1]["op"] == "welcome" and "welcome"
    @attempt("broker", "see who else is on the node with a job's token")
    def _():
        say, answer = broker(role="observer", token=token)
        told = json.dumps(say("status")) if answer["op"] == "welcome" else ""
        return about["owner"] and about["owner"] in told and told
    @attempt("broker", "ask without saying who")
    def _():
        say, _ = broker()
        return say("status")["op"] == "status" and "told"
    for role in ("runner", "residency"):
        @attempt("broker", f"take the devices of the node as a {role}")
        def _():
            say, answer = broker(role=role, token=token)
            if answer["op"] == "welcome" and not about["lent"]:
                all = [device["uuid"] for device in answer["devices"]]
                return say("acquire", request="r", gpus=len(all), cell="", devices=all)["op"] == "granted"
    @attempt("broker", "release another's lease")
    def _():
        say, answer = broker(role="kernel", token=token)
        return answer["op"] == "welcome" and not about["lent"] and "welcome"
for host, port in about["addresses"]:
    @attempt("loopback", f"connect to {host} port {port}")
    def _():
        socket.create_connection((host, port), 5).close()
        return "connected"
    @attempt("loopback", f"send a datagram to {host} port {port}")
    def _():
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as there:
            there.settimeout(0.2)
            there.connect((host, port))
            there.send(b"x")
            return there.recv(16)
for path in about["devices"]:
    @attempt("device not leased", f"open {path}")
    def _():
        os.close(os.open(path, os.O_RDWR))
        return "opened"
@attempt("device not leased", "a node of a GPU's of its own")
def _():
    place = os.path.join(about["writable"], "gpu")
    os.mknod(place, 0o600 | stat.S_IFCHR, os.makedev(195, 0))
    return "made"
for words in about["deputies"]:
    @attempt("the deputy", " ".join(words))
    def _():
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
        return b'"hello"' in done.stdout and "it answered" or done.returncode == 0 and "it ran"
@attempt("setuid", "set the user")
def _():
    for number in (1, 65534, 0 if os.getuid() else 1000):
        if libc.setresuid(number, number, number) == 0:
            return number
@attempt("cgroups", "make one")
def _():
    for root, names, _files in os.walk("/sys/fs/cgroup"):
        try:
            os.mkdir(os.path.join(root, "carrel-planted"))
            return root
        except OSError:
            pass
        if root.count("/") > 6:
            names.clear()
for file in ("cgroup.procs", "memory.max", "pids.max", "cgroup.freeze", "cgroup.subtree_control"):
    @attempt("cgroups", f"write {file} somewhere")
    def _():
        for root, names, files in os.walk("/sys/fs/cgroup"):
            if file in files:
                try:
                    os.close(os.open(os.path.join(root, file), os.O_WRONLY))
                    return root
                except OSError:
                    pass
            if root.count("/") > 6:
                names.clear()
@attempt("kernel", "change the machine")
def _():
    for path in ("/proc/sys/kernel/hostname", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/kernel/mm/ksm/run"):
        try:
            open(path, "r+b").close()
            return path
        except OSError:
            pass
"""

_END = r"""
print(json.dumps(tried))
print(json.dumps(through))
"""

#: For processes behind walls of namespaces, and nowhere else: it looks first whether it is in namespaces of its own.
ATTACKS = _BEGIN + ONLY_INSIDE + _ANYWHERE + OWN_NETWORK + INSIDE + _END
#: For jobs that other Unix users keep apart: nothing of it changes a machine, and root does not run it.
ATTACKS_AS_USER = _BEGIN + _NEVER_AS_ROOT + _ANYWHERE + _END
#: The settings that the programs expect, with nothing to attack.
NOTHING = {
    **{"files": {}, "directories": [], "scratch": [], "processes": [], "sockets": [], "addresses": [], "devices": []},
    **{
        "deputies": [],
        "hidden": [],
        "own": [],
        "given": [],
        "writable": "/tmp",
        "word": "nobody knows this",
        "broker": "",
        "owner": "",
    },
    **{"closed": False, "lent": False, "users": False, "memory": 0, "process_limit": 0, "outside_network": ""},
    # Kinds, where not all are attempted.
    "only": [],
}
