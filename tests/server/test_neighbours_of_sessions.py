"""Sessions of a lab of several people whose jobs share the machine's network: what one user's task gets of another's notebook.

And what walls must not take from a notebook: the GPUs that a broker lends which was started again meanwhile.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from carrel.client import Client
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import SessionRequest
from support.lab_process import LabProcess, start_lab
from support.namespaces import why_no_namespaces
from support.notebook_client import SessionBrowser

#: What Mallory's task does with each port: subscribe as a page of Jupyter does (ZMTP 3.0, 3.1), and debug as an editor does.
LISTEN = r"""
import json, socket, sys, threading
def subscribe(port):
    with socket.create_connection(("127.0.0.1", port), 5) as there:
        there.settimeout(5)
        there.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16 + 32))
        lines = there.makefile("rb")
        lines.read(64)
        ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"
        there.sendall(bytes([4, len(ready)]) + ready + b"\x00\x01\x01")
        head = lines.read(2)
        return b"PUB" in lines.read(head[1])
def debug(port):
    with socket.create_connection(("127.0.0.1", port), 5) as there:
        there.settimeout(5)
        body = json.dumps({"seq": 1, "type": "request", "command": "initialize", "arguments": {"adapterID": "x"}}).encode()
        there.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        return b"Content-Length" in there.recv(16)
found = {}
def attempt(way, port):
    try:
        found[f"{way.__name__} {port}"] = way(port)
    except Exception as error:
        found[f"{way.__name__} {port}"] = False
threads = [threading.Thread(target=attempt, args=(way, port)) for port in map(int, sys.argv[1:]) for way in (subscribe, debug)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(json.dumps(found))
"""

LOOK = "__import__('IPython').get_ipython().user_ns['secret']"


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[LabProcess]]:
    """The lab's processes; the last one runs."""
    if why_no_namespaces():
        pytest.skip(f"This machine has no namespaces for us: {why_no_namespaces()}")
    # A long path: sockets have short ones (unix(7)), which lie elsewhere then.
    home = tmp_path_factory.mktemp("lab") / ("h" * 60) / "home"
    home.mkdir(mode=0o700, parents=True)
    (home / "carrel.toml").write_text('isolation = "kernel"\ntracking = false\n')
    labs = [start_lab(home, "--cpus", "4", simulate_gpus=1)]
    yield labs
    labs[-1].end_jobs()
    labs[-1].stop()


@pytest.fixture(scope="module")
def own(labs: list[LabProcess]) -> Iterator[Client]:
    with Client(home=labs[0].home) as own:
        yield own


@pytest.fixture
def session(own: Client) -> Iterator[int]:
    """A notebook's session that is ready."""
    job = own.start_session(SessionRequest(gpus=1)).job.id
    wait_until(lambda: own.session(job).ready, "the session")
    yield job
    own.cancel(job)
    own.wait(job, timeout=PATIENCE)


def ports_of(job: int) -> list[int]:
    """Ports of the loopback on which processes of the job listen, as the machine sees it."""
    inodes = set()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and f"CARREL_JOB_ID={job}\0".encode() in (entry / "environ").read_bytes():
                inodes |= {str(file.readlink()) for file in (entry / "fd").iterdir()}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(line[1].split(":")[1], 16) for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in inodes]


def debugs(channel: Any, command: str, **arguments: Any) -> dict[str, Any]:
    """Ask the kernel's debugger, as the page does."""
    word = uuid.uuid4().hex
    header = {"msg_id": word, "msg_type": "debug_request", "username": "", "session": word, "version": "5.3", "date": ""}
    content = {"type": "request", "seq": 1, "command": command, "arguments": arguments}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "control"}
    channel.send(json.dumps(message))
    while True:
        answer = json.loads(channel.recv(timeout=PATIENCE))
        if answer["msg_type"] == "debug_reply" and answer["parent_header"]["msg_id"] == word:
            content = answer["content"]
            return dict(content)


@pytest.mark.gate
def test_a_task_neither_sees_nor_debugs_the_cells_of_another_user(own: Client, session: int, tmp_path: Path) -> None:
    """On the loopback all users of a machine are neighbours, and neither what a kernel puts out nor debugpy asks for a key."""
    with SessionBrowser(own.open_session(session)) as browser, closing(browser.start_kernel()) as kernel:
        assert kernel.execute("secret = 'sk-4711'; print(secret)").text == "sk-4711\n"
        with browser.websocket(f"/api/kernels/{kernel.id}/channels?session_id={uuid.uuid4().hex}") as channel:
            assert debugs(channel, "initialize", adapterID="x", pathFormat="path")["success"]
            ports = ports_of(session)
            assert len(ports) >= 3, "what forked children print, and the debugger's two"
            (tmp_path / "listen.py").write_text(LISTEN)
            with Client(url=own.url, token=own.add_user("mallory").token) as mallory:
                job = mallory.submit_project(tmp_path, script="listen.py", arguments=[str(port) for port in ports])
                ended = mallory.wait(job.id, timeout=PATIENCE)
                log = b"".join(mallory.log(job.id)).decode()
            assert ended.state == "COMPLETED", log
            found = json.loads(log.splitlines()[-1])
            assert len(found) == 2 * len(ports)
            assert not any(found.values()), found
            # The page's own debugger works as ever.
            assert debugs(channel, "attach")["success"]
            assert debugs(channel, "evaluate", expression=LOOK, context="repl")["body"]["result"].strip("'") == "sk-4711"
            assert debugs(channel, "disconnect", restart=False, terminateDebuggee=False)["success"]


def broker_of(home: Path) -> int:
    """The process id of the lab's broker, by its lock file; 0 while it is being started."""
    with suppress(OSError, ValueError, KeyError):
        pid = int(json.loads((home / "broker" / "broker.lock").read_text())["pid"])
        os.kill(pid, 0)
        return pid
    return 0


def kill_brokers(home: Path, own: Client, session: int, times: int) -> None:
    """Run cells with a GPU while the broker is killed at random moments; each has its GPU in the end."""
    moments = random.Random(times)
    with SessionBrowser(own.open_session(session)) as browser, closing(browser.start_kernel()) as kernel:
        for number in range(times):
            pid = wait_until(lambda: broker_of(home), "a broker")
            request = kernel.send(f"# carrel: gpus=1\nimport time\ntime.sleep({moments.random() / 20})\nprint({number})")
            # Before the cell asks, while it has the GPU, or when it is over: all three are among the moments.
            time.sleep(moments.choice([0.0, moments.random() / 10]))
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            found = kernel.result(request)
            assert (found.status, found.text) == ("ok", f"{number}\n"), found


def test_a_cell_has_its_gpu_again_when_the_broker_and_the_lab_were_started_again(
    labs: list[LabProcess], own: Client, session: int
) -> None:
    """Another broker makes another socket, and a notebook behind walls sees it."""
    home = labs[0].home
    kill_brokers(home, own, session, 4)
    pid = broker_of(home)
    labs[-1].stop()
    with suppress(ProcessLookupError):  # it ends with the lab where it has nobody to lend to
        os.kill(pid, signal.SIGKILL)
    labs.append(start_lab(home, "--cpus", "4", simulate_gpus=1))
    wait_until(lambda: own.session(session).ready, "the session")
    kill_brokers(home, own, session, 1)


@pytest.mark.soak
def test_a_hundred_brokers_are_killed(labs: list[LabProcess], own: Client, session: int) -> None:
    kill_brokers(labs[0].home, own, session, 100)
