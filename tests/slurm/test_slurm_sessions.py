"""Sessions in jobs of a real cluster: real JupyterLab, reached through the lab's proxy and the relay on the node."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from carrel import Client, Executor
from carrel.core.control.hub import REQUIRED
from carrel.core.domain.errors import Impossible, Invalid
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import ResourceRequest, SessionRequest, SessionView
from support.lab_process import LabProcess, start_lab
from support.notebook_client import SessionBrowser
from support.slurm_site import SlurmSite

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-lab")]

RULES = """
default_qos = "normal"
session_look_time = "1s"
slurm_broker = "{broker}"
slurm_lend = 50
task_turn = "1s"

[qos.normal]
[qos.brief]
kinds = ["session"]
idle_time = "1s"
[qos.batch]
kinds = ["task"]

[partitions.here]
qos = ["normal", "batch"]

[partitions.cluster]
engine = "slurm"
slurm_partition = "main"
slurm_immediate = true

[partitions.tasks]
engine = "slurm"
slurm_partition = "main"
qos = ["batch"]
"""
#: A task: each step waits for a file, so that nothing here depends on time.
STEPS = 'while [ ! -e "$WITNESS.end" ]; do echo step >> "$WITNESS"; sleep 0.05; done; echo over >> "$WITNESS"'
#: What somebody else on the cluster can do: read the file with the key, or connect without it.
STRANGER = """
import json, socket, ssl, sys
path, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
try:
    print(open(path).read())
except PermissionError:
    print("not readable")
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
try:
    stream = context.wrap_socket(socket.create_connection((host, port), timeout=180))
    stream.sendall(b"GET /api/status HTTP/1.1\\r\\nHost: session\\r\\n\\r\\n")
    print("read", stream.recv(100))
except (ssl.SSLError, ConnectionError) as error:
    print("refused", error)
"""


@pytest.fixture(scope="module")
def site(slurm_programs: None) -> Iterator[SlurmSite]:
    with SlurmSite(nodes=1, accounting=False, shards=16) as site:
        yield site


def relay_of(address: Path) -> int:
    """The process that writes this address."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"carrel.notebooks.relay" in words and str(address).encode() in words:
                    return int(entry.name)
    raise AssertionError(f"nobody writes {address}")


class Status:
    """What JupyterLab shows about lending."""

    def __init__(self, browser: SessionBrowser) -> None:
        self.browser = browser

    def look(self) -> Any:
        return wait_until(lambda: (state := self._state())["broker"] == "connected" and state, self._state)["status"]

    def _state(self) -> Any:
        return self.browser.request("GET", "/carrel/status").json()


class Lab:
    def __init__(self, home: Path, site: SlurmSite) -> None:
        home.mkdir()
        self.home, self.site = home, site
        self.socket = site.root / "b"
        (home / "carrel.toml").write_text(RULES.replace("{broker}", str(self.socket)))
        self.start()

    def start(self) -> None:
        variables = {"SLURM_CONF": str(self.site.layout.conf)}
        self.process: LabProcess = start_lab(self.home, "--cpus", "8", simulate_gpus=2, variables=variables)
        self.client = Client(url=self.process.url, token=self.process.token)

    @contextmanager
    def broker(self) -> Iterator[subprocess.Popen[str]]:
        """What an administrator starts on the node."""
        words = [sys.executable, "-m", "carrel.cli.main", "broker", "--home", str(self.home), "--simulate-gpus", "4"]
        words += ["--node", self.site.layout.nodes[0]]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert "lends 4 GPUs (simulated)" in process.stdout.readline()
                wait_until(self.socket.exists)
                yield process
            finally:
                process.terminate()

    def kill(self) -> None:
        self.client.close()
        self.process.kill()

    def ask(self, **asked: object) -> SessionView:
        return self.client.start_session(SessionRequest(**{"partition": "cluster", "memory": "512M", **asked}))  # type: ignore[arg-type]

    def until(self, session: SessionView, happened: Callable[[SessionView], object]) -> SessionView:
        number = session.job.id
        return wait_until(
            lambda: found if happened(found := self.client.session(number)) else None, lambda: self.client.session(number)
        )  # type: ignore[return-value]

    def ready(self, session: SessionView) -> SessionView:
        found = self.until(session, lambda found: found.ready or found.job.ended)
        assert found.ready, (found, b"".join(self.client.log(session.job.id)))
        return found

    def shown(self, session: SessionView) -> str:
        """What Slurm says about the job."""
        return self.of_slurm(session.job.id)

    def of_slurm(self, number: int) -> str:
        """What Slurm says about the job of that number."""
        found = re.search(r"\d+", (self.home / "spool" / str(number) / "1" / "slurm").read_text())
        assert found is not None
        return self.site.run("scontrol", "-o", "show", "job", found[0]).out

    def task(self, directory: Path, **more: object) -> int:
        """A task of one GPU that writes a line for each of its steps, until a file says that it may end."""
        directory.mkdir()
        (directory / "work.sh").write_text(STEPS)
        resources = ResourceRequest(gpus=1, memory="64M", time="1h")
        variables = {"WITNESS": str(directory / "steps")}
        submitted = self.client.submit_project(
            directory / "work.sh", resources=resources, variables=variables, partition="tasks", qos="batch", **more
        )  # type: ignore[arg-type]
        wait_until((directory / "steps").exists, lambda: self.client.job(submitted.id))
        return submitted.id

    def charged(self) -> float:
        """What cells have borrowed, in GPU-seconds, as fair share knows it."""
        return sum(row.hours for row in self.client.share().standings) * 3600

    def directory(self, session: SessionView) -> Path:
        return self.home / "spool" / str(session.job.id) / "1"


@pytest.fixture
def lab(site: SlurmSite, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "lab", site)
    yield lab
    lab.process.end_jobs()
    lab.client.close()
    lab.process.stop()
    site.clear()


@pytest.mark.gate
def test_a_session_on_a_node_of_the_cluster_from_start_to_end(lab: Lab, site: SlurmSite) -> None:
    session = lab.ready(lab.ask())
    assert (session.job.partition, session.job.node, session.job.state) == ("cluster", "slurm:cluster", "RUNNING")
    # Nobody asked for anything, and the nodes have shards.
    assert (session.gpus, session.reserve, session.job.resources.gpus) == (1, False, 0)
    assert "a share of a GPU" in session.note
    shown = lab.shown(session)
    assert "TresPerNode=gres:shard:1 " in shown
    assert "BatchFlag=0" in shown
    with SessionBrowser(lab.client.open_session(session.job.id)) as browser:
        # No broker answers on the node, so the share is the session's until its end.
        said = browser.request("GET", "/carrel/status").json()
        assert (said["broker"], "keeps what Slurm gave it" in said["why"]) == ("absent", True)
        kernel = browser.start_kernel()
        cell = kernel.execute(
            "import os; kept = 42; open('made.txt', 'w').write('here'); print(os.environ['CUDA_VISIBLE_DEVICES'])"
        )
        assert cell.text == "0\n"
        assert (Path(session.directory) / "made.txt").read_text() == "here"

        # Nobody else on the cluster's network gets in.
        file = lab.directory(session) / "session.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        address = json.loads(file.read_text())
        if os.getuid() == 0:
            words = ("/usr/bin/python3", "-c", STRANGER, str(file), address["host"], str(address["port"]))
            said = site.run(*words, user="bob").out
            assert said.startswith("not readable"), said
            assert "HTTP" not in said

        # A relay that is killed is replaced, with another key.
        os.kill(relay_of(file), signal.SIGKILL)
        wait_until(lambda: file.exists() and json.loads(file.read_text()) != address)
        wait_until(lambda: browser.request("GET", "/api/status").status_code == 200)

        # The lab is killed; the browser that was let in goes on.
        lab.kill()
        lab.start()
        wait_until(lambda: browser.request("GET", "/api/status").status_code == 200)
        assert browser.kernel(kernel.id).execute("print(kept)").text == "42\n"
    assert [found.job.id for found in lab.client.sessions()] == [session.job.id]
    lab.client.cancel(session.job.id)
    assert lab.client.wait(session.job.id, timeout=PATIENCE).state == "CANCELLED"
    wait_until(lambda: not file.exists())


def test_workers_of_pools_on_one_node_borrow_its_gpu_for_each_call(lab: Lab) -> None:
    options: dict[str, Any] = {
        "gpus": 1,
        "memory": "256M",
        "time": "1h",
        "partition": "cluster",
        "requirements": [],
        "modules": [],
    }
    with Executor(client=lab.client, **options) as whole:
        assert whole.borrows == 0, "no broker answers"
    with lab.broker():
        wait_until(lambda: any(node.current for node in lab.client.gpus().nodes), "the broker's first report")
        with Executor(client=lab.client, **options) as one, Executor(client=lab.client, **options) as other:
            assert (one.borrows, one.max_workers) == (1, 4)
            found = [pool.submit(os.getenv, "CUDA_VISIBLE_DEVICES").result(PATIENCE) for pool in (one, other, one, other)]
            assert len(set(found)) == 1, "Slurm fills a GPU before it begins another"
            assert found[0]
            for pool in (one, other):
                (worker,) = lab.client.pool(pool.pool_id).workers
                assert "TresPerNode=gres:shard:1 " in lab.of_slurm(worker.job_id)
                assert lab.client.job(worker.job_id).devices == []
        wait_until(lab.charged, "the charge")


def test_sessions_of_one_node_take_turns_on_a_gpu(lab: Lab) -> None:
    with lab.broker() as broker:
        # Both on one GPU: a shard each, and Slurm fills a GPU before it begins another.
        sessions = [lab.ask(name=name) for name in ("one", "two")]
        browsers = [SessionBrowser(lab.client.open_session(lab.ready(session).job.id)) for session in sessions]
        launches = [json.loads((lab.directory(session) / "launch.json").read_text()) for session in sessions]
        assert [(launch["shares"], launch["devices"]) for launch in launches] == [([0], [])] * 2
        assert {launch["paths"]["residency"] for launch in launches} == {library()}, "what their kernels load"
        one, two = (browser.start_kernel(f"{number}.ipynb") for number, browser in enumerate(browsers))
        go = lab.home.parent / "go"
        first = one.send(
            f"# carrel: gpus=1\nimport os, time\nprint(os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n"
            f"while not os.path.exists({str(go)!r}): time.sleep(0.05)"
        )
        state = Status(browsers[0])
        wait_until(lambda: state.look()["leases"])
        second = two.send("# carrel: gpus=1\nimport os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
        wait_until(lambda: state.look()["queue"])
        # The lab hears of it, too.
        wait_until(lambda: any(node.leases and node.queue for node in lab.client.gpus().nodes))
        node = printed_node(lab)
        assert (node["current"], node["simulated"], len(node["devices"])) == (True, True, 4)
        assert {tenant["label"].rpartition(": ")[2] for tenant in node["tenants"]} == {"0.ipynb", "1.ipynb"}
        assert [row["job"] for row in node["queue"]] == [sessions[1].job.id]
        wait_until(lambda: lab.charged() > 0, lambda: (lab.client.share(), lab.client.gpus()))
        go.touch()
        seen = [one.result(first), two.result(second)]
        assert [cell.status for cell in seen] == ["ok", "ok"]
        assert seen[0].text == seen[1].text
        assert seen[0].text.startswith("SIM-")
        # A share of one GPU is a share of one.
        assert two.execute("# carrel: gpus=2\nprint('no')").status == "error"
        # A broker that is ended and started again finds its tenants, as those find it.
        broker.terminate()
        assert broker.wait(PATIENCE) == 0
        wait_until(lambda: printed_node(lab)["ended"])
        with lab.broker() as broker:
            assert one.execute("# carrel: gpus=1\nprint('again')").text == "again\n"
            # Lab and broker are killed while somebody computes; those who come after them charge it.
            go.unlink()
            over = go.with_name("over")
            one.send(
                f"# carrel: gpus=1\nimport os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)\n"
                f"open({str(over)!r}, 'w').close()"
            )
            wait_until(lambda: state.look()["leases"])
            lab.kill()
            go.touch()
            wait_until(over.exists)
            broker.kill()
        lab.start()
        with lab.broker():
            wait_until(lambda: not state.look()["leases"])
            assert browsers[0].kernel(one.id).execute("# carrel: gpus=1\nprint('back')").text == "back\n"
            wait_until(lambda: not state.look()["leases"])  # the last cell's, too, is counted when it is over
            used = sum(tenant["gpu_seconds"] for tenant in state.look()["tenants"])
            wait_until(lambda: lab.charged() == pytest.approx(used, abs=0.05), lambda: (lab.charged(), state.look()))
        for browser in browsers:
            browser.close()
        lab.process.end_jobs()
        records = [lab.client.record(session.job.id)["attempts"][0]["lease_seconds"] for session in sessions]
        assert sum(records) == pytest.approx(used, abs=0.05)
        assert lab.charged() == pytest.approx(used, abs=0.05)


def test_a_task_of_the_cluster_gives_its_gpu_to_cells_for_a_part_of_its_time(lab: Lab, tmp_path: Path) -> None:
    """Half of its time here (`slurm_lend`)."""
    alone = lab.task(tmp_path / "alone")
    assert "TresPerNode=gres:gpu:1 " in lab.of_slurm(alone), "no broker is there yet"
    (tmp_path / "alone" / "steps.end").touch()
    assert lab.client.wait(alone, timeout=PATIENCE).state == "COMPLETED"
    with lab.broker():
        wait_until(lambda: any(node.current for node in lab.client.gpus().nodes))
        session = lab.ready(lab.ask())
        witness = tmp_path / "task" / "steps"
        task = lab.task(tmp_path / "task")
        # All shares of a GPU but one, so that no second such task fits beside it, and a session does.
        assert "TresPerNode=gres:shard:3 " in lab.of_slurm(task)
        launch = json.loads((lab.home / "spool" / str(task) / "1" / "launch.json").read_text())
        assert launch["shares"] == [0], "the GPU of the session"
        assert launch["paths"]["residency"] == library(), "what its processes load"
        whole = lab.task(tmp_path / "whole", preemptible=False)
        assert "TresPerNode=gres:gpu:1 " in lab.of_slurm(whole)
        (tmp_path / "whole" / "steps.end").touch()
        with SessionBrowser(lab.client.open_session(session.job.id)) as browser:
            kernel = browser.start_kernel("a.ipynb")
            go = tmp_path / "go"
            # It does not end before the task has gone on: that takes its GPU back when half of its time is over.
            cell = kernel.send(
                f"# carrel: gpus=1\nimport os, time\nprint('begins', flush=True)\n"
                f"while not os.path.exists({str(go)!r}): time.sleep(0.05)"
            )
            paused = wait_until(lambda: (job := lab.client.job(task)).reason == "GpuLent" and job)
            assert (paused.state, paused.suspended_at is None) == ("RUNNING", False)
            wait_until(
                lambda: {row.job: row.state for node in lab.client.gpus().nodes for row in node.leases}.get(task) == "paused"
            )
            steps = witness.read_text()
            back = wait_until(lambda: (job := lab.client.job(task)).reason == "Running" and job.suspended_seconds and job)
            wait_until(lambda: witness.read_text() != steps)
            go.touch()
            assert kernel.result(cell).status == "ok"
        witness.with_name("steps.end").touch()
        ended = lab.client.wait(task, timeout=PATIENCE)
        assert (ended.state, ended.attempt) == ("COMPLETED", 1)
        assert witness.read_text().endswith("step\nover\n")
        assert ended.started_at is not None
        assert ended.ended_at is not None
        assert back.suspended_seconds <= ended.suspended_seconds
        log = b"".join(lab.client.log(task)).decode()
        assert "Cells of notebooks had its GPUs" in log


def library() -> str:
    """The residency library in the Python of these tests, as a lab finds it; "" without one. Other tests compile their own."""
    program = "from carrel.lab.server.preload import find_library; print(find_library()[0])"
    return subprocess.run([sys.executable, "-P", "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def printed_node(lab: Lab) -> dict[str, Any]:
    """The one node of the cluster, as `carrel gpus` says."""
    words = [sys.executable, "-m", "carrel.cli.main", "gpus", "--json", "--home", str(lab.home)]
    found = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    (node,) = found["nodes"]
    return dict(node)


def test_whole_gpus_are_reserved_and_the_walltime_ends_the_session(lab: Lab) -> None:
    session = lab.ask(gpus=2, reserve=True, time="4s")
    lab.until(session, lambda found: found.job.state == "RUNNING")
    assert "TresPerNode=gres:gpu:2 " in lab.shown(session)
    assert (session.note, session.job.resources.gpus) == ("", 2)
    ended = lab.client.wait(session.job.id, timeout=PATIENCE)
    # JupyterLab may take the warning before the walltime as its own good end.
    assert (ended.state, ended.reason) in (("TIMEOUT", "TimeLimit"), ("COMPLETED", "Completed"))
    # Of several GPUs Slurm gives no shards.
    several = lab.ask(gpus=2)
    assert (several.job.resources.gpus, several.reserve) == (2, False)
    assert "2 whole GPUs from start to end" in several.note


def doctor(lab: Lab) -> dict[str, dict[str, str]]:
    done = subprocess.run(
        [sys.executable, "-m", "carrel.cli.main", "doctor", "slurm", "--json", "--home", str(lab.home)],
        env={**os.environ, "SLURM_CONF": str(lab.site.layout.conf)},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_doctor_says_what_sessions_have_there(lab: Lab) -> None:
    found = doctor(lab)
    assert found["sessions"]["status"] == "ok"
    assert 'partition "cluster" takes them at once, and shares GPUs by shards' in found["sessions"]["message"]
    assert found["lending"]["status"] == "ok"
    assert '"cluster" 3, "tasks" 3' in found["lending"]["message"]
    assert "50 % of its time" in found["lending"]["message"]
    assert (found["cluster: broker"]["status"], "tasks: broker" in found) == ("warn", False)
    with lab.broker():
        assert doctor(lab)["cluster: broker"]["status"] == "ok"


def test_where_a_session_runs(lab: Lab) -> None:
    assert lab.ask(partition=None, gpus=0).job.partition == "here"
    # The first partition that is large enough.
    assert lab.ask(partition=None, gpus=4).job.partition == "cluster"
    assert lab.ask(partition=None, qos="brief", gpus=0).job.partition == "cluster"
    with pytest.raises(Impossible, match="9 GPUs"):
        lab.ask(gpus=9)
    with pytest.raises(Invalid, match='"tasks" takes no session'):
        lab.ask(partition="tasks")
    # What a JupyterHub does not ask for by name stays where its proxy finds it without more.
    hub = "http://127.0.0.1:8000/user/ada/"
    assert lab.ask(partition=None, gpus=0, hub=hub).job.partition == "here"
    # There it is told through the relay what its hub has for it, and says where it is.
    session = lab.ready(lab.ask(gpus=0, hub=hub))
    assert session.host == json.loads((lab.directory(session) / "session.json").read_text())["host"]
    told = dict.fromkeys(REQUIRED, "x") | {"JUPYTERHUB_SERVICE_URL": "http://0.0.0.0:0/user/ada/"}
    with socket.create_connection((session.host, lab.client.join_hub(session.job.id, told)), timeout=PATIENCE):
        pass
