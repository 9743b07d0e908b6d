"""A user whose jobs take all that they get, beside ten jobs of another: these end as they should, and the lab answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from carrel.client import Client
from carrel.core.domain.job import ACTIVE
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import ResourceRequest
from support.lab_process import LabProcess, start_lab
from support.namespaces import why_no_namespaces

pytestmark = pytest.mark.slow

#: Takes one thing until it gets no more, says so, and tries on; `memory` and `disk` are ended for it.
HOSTILE = """
import ctypes, os, resource, signal, socket, sys, time
from urllib.parse import urlsplit
libc, held = ctypes.CDLL(None, use_errno=True), []
lab = urlsplit(os.environ["CARREL_URL"])
def checked(answer):
    if answer < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return answer
def connections():
    there = socket.create_connection((lab.hostname, lab.port), 5)
    there.send(b"GET / HTTP/1.1\\r\\nHost: lab\\r\\nX-Never-Ends: ")
    held.append(there)
    if len(held) > 3000:
        held.clear()
        raise OSError("enough for one round")
def forks():
    pid = os.fork()
    if pid == 0:
        signal.pause()
def threads():
    import threading
    try:
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    except RuntimeError as error:
        raise OSError(str(error))
def memory():
    if not held:
        print("flooding", flush=True)
    held.append(bytearray(os.urandom(1 << 20)))
    fd = os.memfd_create("hidden")
    os.posix_fallocate(fd, 0, 1 << 20)
def descriptors():
    held.append(os.dup(0))
def messages():
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    held.extend((one, other))
    socket.send_fds(one, [b"x"], [0] * 200)
def inotify():
    fd = checked(libc.inotify_init())
    for name in os.listdir("/usr/bin"):
        checked(libc.inotify_add_watch(fd, f"/usr/bin/{name}".encode(), 0xFFF))
def pipes():
    import fcntl
    end = os.pipe()
    held.append(end)
    fcntl.fcntl(end[1], 1031, 1 << 20)
def namespaces():
    checked(libc.unshare(0x10000000))
def queues():
    checked(libc.mq_open(f"/evil-{len(held)}".encode(), os.O_CREAT | os.O_RDWR, 0o600, None))
    held.append(0)
def disk():
    if not held:
        print("flooding", flush=True)
    path = os.path.join(os.environ["TMPDIR"], str(len(held)))
    held.append(path)
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
def files():
    if not held:
        print("flooding", flush=True)
    held.append(open(os.path.join(os.environ["TMPDIR"], f"empty-{len(held)}"), "w").close())
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
said = False
while True:
    try:
        globals()[sys.argv[1]]()
    except OSError as error:
        if not said:
            print("flooding", error, flush=True)
        said = True
        time.sleep(0.05)
"""
KINDS = (
    *("connections", "forks", "threads", "memory", "descriptors", "messages"),
    *("inotify", "pipes", "namespaces", "queues", "disk", "files"),
)
#: How they end that are ended; others go on until they are cancelled.
ENDS = {"memory": ("OUT_OF_MEMORY", "OutOfMemory"), "disk": ("FAILED", "DiskLimit"), "files": ("FAILED", "DiskLimit")}

#: A bit of all that the others take.
ORDINARY = """
import json, multiprocessing, os, socket, subprocess, sys, tempfile, urllib.request
number = int(sys.argv[1])
with multiprocessing.Pool(3) as pool:
    assert sum(pool.map(abs, range(1000))) == 499500
said = subprocess.run(["head", "-c", "300000", "/dev/zero"], capture_output=True, check=True).stdout
assert len(said) == 300000
held = [open(os.devnull) for _ in range(300)]
with tempfile.TemporaryFile() as file, open("/dev/shm/mine", "wb") as shared:
    file.write(bytes(1 << 20))
    shared.write(bytes(1 << 20))
kept = bytearray(32 << 20)
request = urllib.request.Request(f"{os.environ['CARREL_URL']}/api/v1/jobs/{os.environ['CARREL_JOB_ID']}")
request.add_header("Authorization", "Bearer " + os.environ["CARREL_TOKEN"])
assert json.load(urllib.request.urlopen(request, timeout=60))["state"] == "RUNNING"
with open(os.path.join(os.environ["CARREL_OUTPUT_DIR"], "made"), "w") as file:
    file.write(str(number))
print("ordinary", number)
sys.exit(number % 2 * 3)
"""


@contextmanager
def ending(lab: LabProcess) -> Iterator[None]:
    """End the lab and what it runs, also where the test fails: nothing else does."""
    try:
        yield
    finally:
        lab.end_jobs()
        lab.stop()


@pytest.mark.timeout(600)
def test_ten_ordinary_jobs_end_as_they_should_beside_a_hostile_user(tmp_path: Path) -> None:
    if why_no_namespaces():
        pytest.skip(f"This machine has no namespaces for us: {why_no_namespaces()}")
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "carrel.toml").write_text(
        'isolation = "kernel"\ntracking = false\nprocess_limit = 400\ndisk_limit = "64M"\ndisk_files = 20000\n'
    )
    for name, text in (("hostile", HOSTILE), ("ordinary", ORDINARY)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "task.py").write_text(text)
    lab = start_lab(home, "--cpus", "24", simulate_gpus=0)
    health = httpx.URL(f"http://127.0.0.1:{urlsplit(lab.url).port}/health")
    slowest = 0.0

    def answers() -> bool:
        nonlocal slowest
        began = time.monotonic()
        healthy = httpx.get(health, timeout=PATIENCE).status_code == 200
        slowest = max(slowest, time.monotonic() - began)
        return healthy

    with ending(lab), Client(home=home) as own:
        clients = [Client(url=lab.url, token=own.add_user(name).token) for name in ("mallory", "alice")]
        mallory, alice = clients
        asked = ResourceRequest(cpus=1, memory="1G")
        floods = {
            kind: mallory.submit_project(tmp_path / "hostile", script="task.py", arguments=[kind], resources=asked).id
            for kind in KINDS
        }
        for kind, job in floods.items():
            wait_until(lambda job=job: b"flooding" in b"".join(mallory.log(job)), f"the flood of {kind}")  # type: ignore[misc]
            assert answers()
        jobs = [
            alice.submit_project(tmp_path / "ordinary", script="task.py", arguments=[str(number)], resources=asked).id
            for number in range(10)
        ]
        for number, job in enumerate(jobs):
            ended = alice.wait(job, timeout=PATIENCE)
            log = b"".join(alice.log(job)).decode()
            assert (ended.state, ended.exit_code) == (("FAILED", 3) if number % 2 else ("COMPLETED", 0)), (ended.reason, log)
            assert f"ordinary {number}" in log
            assert [output.path for output in alice.outputs(job)] == ["outputs/made"]
            assert answers()
        still = {kind for kind, job in floods.items() if mallory.job(job).state in ACTIVE}
        assert still >= set(KINDS) - set(ENDS), "they flooded until the last of them had ended"
        for kind, job in floods.items():
            mallory.cancel(job) if kind in still else None
            ended = mallory.wait(job, timeout=PATIENCE)
            assert (ended.state, ended.reason) == ENDS.get(kind, ("CANCELLED", "Cancelled")), (kind, ended.message)
        for client in clients:
            client.close()
    assert "Too many open files" not in (home / "logs" / "server.log").read_text()
    print(f"/health took {slowest:.3f} s at most")
