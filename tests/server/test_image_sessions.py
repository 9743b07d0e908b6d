"""Sessions whose kernels and terminals run in an image: JupyterLab is the lab's, all else is the image's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carrel.client import Client
from carrel.core.domain.errors import CarrelError
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import SessionRequest, SessionView
from support.image_lab import image_lab, need_image_programs
from support.image_registry import Registry
from support.images import KERNEL, programs, python, write_layer
from support.lab_process import LabProcess
from support.notebook_client import SessionBrowser
from support.small_lab import client

__all__ = ["client", "image_lab"]

#: What a cell finds around it.
LOOK = """
import json, os, pathlib, sys
from pathlib import Path
def read(path):
    try:
        return Path(path).read_text()
    except OSError as error:
        return type(error).__name__
def write(path):
    try:
        return Path(path).write_text("x")
    except OSError as error:
        return type(error).__name__
def change_root():
    try:
        os.chroot("/")
    except OSError as error:
        return type(error).__name__
status = dict(line.split(":", 1) for line in read("/proc/self/status").splitlines())
print(json.dumps({
    "motd": read("/etc/motd"), "machine": os.path.exists("/etc/debian_version"), "python": sys.executable,
    "flavour": os.environ.get("FLAVOUR"), "capabilities": status["CapEff"].strip(), "root": change_root(),
    "token": read(HOME + "/token"), "image": write("/etc/x"), "home": write(os.path.expanduser("~/kept")),
    "here": write("made.txt"),
    "server": [read(f"/proc/{pid}/root/etc/debian_version") for pid in os.listdir("/proc") if pid.isdigit() and
               "carrel.notebooks.jupyter" in read(f"/proc/{pid}/cmdline")],
}))
"""


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    """Has an image with ipykernel, one with Python alone, and one without."""
    need_image_programs()
    base = write_layer({**programs("sh", "cat", "ls"), "etc/motd": b"an image\n"})
    variables = {"PATH": "/usr/bin:/bin", "FLAVOUR": "mild"}
    with Registry() as registry:
        registry.publish("kernel", [base, write_layer(python(*KERNEL))], variables)
        registry.publish("python", [base, write_layer(python())], variables)
        registry.publish("bare", [base], variables)
        yield registry


def start(client: Client, **asked: Any) -> SessionView:
    session = client.start_session(SessionRequest(**asked))

    def look() -> SessionView | None:
        found = client.session(session.job.id)
        assert not found.job.ended, found.job.message + b"".join(client.log(session.job.id)).decode()
        return found if found.ready else None

    return wait_until(look, "the session to be ready")


def test_cells_run_in_the_image_with_leases_and_within_the_walls(lab: LabProcess, registry: Registry, client: Client) -> None:
    image = f"{registry.host}/lab/notebooks:kernel"
    session = start(client, image=image)
    assert session.image == image
    with SessionBrowser(client.open_session(session.job.id)) as browser:
        kernel = browser.start_kernel()
        done = kernel.execute(f"HOME = {str(lab.home)!r}\n{LOOK}")
        assert done.status == "ok", done
        found = json.loads(done.text)
        refused = {"PermissionError", "FileNotFoundError"}
        assert found["server"], "the lab's program is seen"
        assert set(found.pop("server")) <= refused
        assert (found.pop("token") in refused, found.pop("image")) == (True, "OSError")
        assert found == {
            "motd": "an image\n", "machine": False, "python": "/usr/bin/python3", "flavour": "mild", "capabilities": "0" * 16,
            "root": "PermissionError", "home": 1, "here": 1,
        }  # fmt: skip
        assert (Path(session.directory) / "made.txt").exists()
        assert kernel.execute("# carrel: gpus=1\nprint('on the GPU')").text.startswith("on the")
        lending = wait_until(lambda: next((g for g in [client.gpus()] if g.tenants and g.tenants[0].cells), None), "the lease")
        assert (lending.tenants[0].label.rpartition(": ")[2], lending.tenants[0].mine) == ("work.ipynb", True)
        sleeping = kernel.send("import time; time.sleep(1000)")
        wait_until(lambda: browser.request("GET", f"/api/kernels/{kernel.id}").json()["execution_state"] == "busy")
        kernel.interrupt()
        assert kernel.result(sleeping).error == "KeyboardInterrupt"
    client.cancel(session.job.id)
    assert client.wait(session.job.id).state == "CANCELLED"
    assert registry.tags["kernel"] in json.dumps(client.record(session.job.id))


def test_a_terminal_needs_no_python(registry: Registry, client: Client) -> None:
    session = start(client, kind="terminal", image=f"{registry.host}/lab/notebooks:bare")
    with SessionBrowser(client.open_session(session.job.id)) as browser:
        name = browser.request("POST", "/api/terminals").json()["name"]
        with browser.websocket(f"/terminals/websocket/{name}") as shell:
            shell.send(json.dumps(["stdin", "cat /etc/motd; echo $((6 * 7)) $FLAVOUR; ls /etc/debian_version\r"]))
            said = ""
            while "No such file" not in said:
                said += str(json.loads(shell.recv(timeout=PATIENCE))[1:])
    assert "an image" in said
    assert "42 mild" in said
    client.cancel(session.job.id)


@pytest.mark.parametrize(("tag", "words"), [("python", "No module named 'ipykernel'"), ("bare", "no python on its PATH")])
def test_an_image_without_a_kernel_ends_the_session_with_the_remedy(
    registry: Registry, client: Client, tag: str, words: str
) -> None:
    session = client.start_session(SessionRequest(image=f"{registry.host}/lab/notebooks:{tag}"))
    ended = client.wait(session.job.id, timeout=PATIENCE)
    assert ended.state == "FAILED"
    said = "".join(client.stream_log(session.job.id))
    assert words in said
    assert "pip install ipykernel" in said


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"image": "oci-archive:train.tar"}, "a file of a task's code"),
        ({"image": "dir:/etc"}, "not the name of an image"),
        ({"image": "python:3.12", "environment": "mine"}, 'environment "mine" and the image "python:3.12"'),
    ],
)
def test_what_a_session_cannot_have_is_refused_at_once(client: Client, asked: dict[str, str], words: str) -> None:
    with pytest.raises(CarrelError, match=words):
        client.start_session(SessionRequest(**asked))
