"""What is there before the command starts: inputs, parameters, environment, tracking."""

import hashlib
import http.server
import json
import shlex
import threading
import time

import pytest

from carrel.core.domain.job import JobState
from carrel.core.domain.launch import EnvironmentReady, InputsReady, LaunchTracking, Preparing, Started
from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe, InputSpec
from carrel.node.runner.asking import uses_mlflow, wait_for_run
from carrel.testing.builders import LabHome, make_launch
from carrel.testing.engine_contract import TOKEN


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


@pytest.mark.gate
def test_inputs_are_staged_with_their_digests(lab):
    source = lab.home.root / "my data"
    (source / "deep").mkdir(parents=True)
    (source / "a").write_text("alpha")
    (source / "deep" / "b").write_text("beta")
    launch = lab.start(
        "cat data/a data/deep/b one/file",
        task={
            "inputs": (
                InputSpec(path="data", uri=f"file://{lab.home.root}/my%20data"),
                InputSpec(path="one/file", uri=str(source / "a"), digest=digest(b"alpha")),
            )
        },
    )
    assert lab.ended(launch).state is JobState.COMPLETED
    assert lab.output() == b"alphabetaalpha"
    digests = lab.story(launch).first(InputsReady).digests
    assert digests["one/file"] == digest(b"alpha")
    assert digests["data"].startswith("sha256:")


def test_an_input_over_http(lab):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"data")

        do_HEAD = do_GET

        def log_message(self, *arguments):
            pass

    with serving(Handler) as address:
        launch = lab.start("cat in", task={"inputs": (InputSpec(path="in", uri=f"{address}/x?token=hidden"),)})
        ended = lab.ended(launch)
    assert ended.state is JobState.COMPLETED, ended
    assert lab.output() == b"data"
    assert "hidden" not in str(lab.story(launch).records)


def test_a_changed_input_is_refused(lab):
    (lab.home.root / "in").write_text("new")
    ended = lab.run("true", task={"inputs": (InputSpec(path="in", uri=f"file://{lab.home.root}/in", digest=digest(b"old")),)})
    assert (ended.state, ended.reason.code) == (JobState.FAILED, "InputFailed")
    assert digest(b"old") in ended.reason.message
    assert digest(b"new") in ended.reason.message


@pytest.mark.parametrize("path", ["../out", "/tmp/out", "sub/../../out", "."])
def test_an_input_stays_inside(lab, path):
    (lab.home.root / "in").write_text("x")
    ended = lab.run("true", task={"inputs": (InputSpec(path=path, uri=f"file://{lab.home.root}/in"),)})
    assert (ended.state, ended.reason.code) == (JobState.FAILED, "InputFailed")


def test_an_input_replaces_a_link_and_does_not_follow_it(lab):
    (lab.home.root / "in").write_text("new")
    launch = lab.start(
        "cat code.txt link",
        files={"code.txt": "old"},
        links={"link": "code.txt"},
        task={"inputs": (InputSpec(path="link", uri=f"file://{lab.home.root}/in"),)},
    )
    assert lab.ended(launch).state is JobState.COMPLETED
    assert lab.output() == b"oldnew"


def test_path_parameters_lie_where_the_command_names_them(lab):
    (lab.home.root / "it's here.csv").write_text("1,2\n")
    place = "inputs/table/it's here.csv"
    parameters = {place: f"file://{lab.home.root}/it%27s%20here.csv"}
    launch = lab.start(f"cat {shlex.quote(place)}", task={"path_parameters": parameters})
    assert lab.ended(launch).state is JobState.COMPLETED
    assert lab.output() == b"1,2\n"
    assert lab.story(launch).first(InputsReady).digests == {place: digest(b"1,2\n")}


def test_a_repeated_task_gets_the_packages_of_its_lock_and_not_newer_ones(lab):
    show = "python -c 'import importlib.metadata as m; print(m.version(\"iniconfig\"))'"
    old = EnvironmentRecipe(kind=EnvironmentKind.REQUIREMENTS, requirements=("iniconfig==2.0.0",))
    first = lab.start(show, task={"environment": old})
    assert lab.listener.ended(first).state is JobState.COMPLETED
    lock = lab.home.blob(lab.story(first).first(EnvironmentReady).lock).read_text()
    again = EnvironmentRecipe(kind=EnvironmentKind.REQUIREMENTS, requirements=("iniconfig",), lock=lock)
    second = lab.start(show, task={"environment": again})
    assert lab.listener.ended(second).state is JobState.COMPLETED
    assert lab.output() == b"2.0.0\n"


def test_an_environment_is_built_and_its_lock_kept(lab):
    recipe = EnvironmentRecipe(kind=EnvironmentKind.REQUIREMENTS, source="requirements.txt", requirements=("iniconfig==2.1.0",))
    launch = lab.start("python -c 'import iniconfig; print(iniconfig.__file__)'", task={"environment": recipe})
    ended = lab.listener.ended(launch)
    assert ended.state is JobState.COMPLETED, lab.output()
    ready = lab.story(launch).first(EnvironmentReady)
    assert ready.built
    assert b"iniconfig==2.1.0" in lab.home.blob(ready.lock).read_bytes()
    assert lab.output().startswith(str(lab.home.environments).encode()), "the log is the command's alone"
    again = lab.start("python -c 'import iniconfig'", task={"environment": recipe})
    assert lab.ended(again).state is JobState.COMPLETED
    assert lab.story(again).first(EnvironmentReady).built is False


def test_an_environment_that_cannot_be_is_explained_in_the_words_of_the_resolver(lab):
    recipe = EnvironmentRecipe(kind=EnvironmentKind.REQUIREMENTS, source="requirements.txt", requirements=("iniconfig==999",))
    launch = lab.start("true", task={"environment": recipe})
    ended = lab.listener.ended(launch)
    assert (ended.state, ended.reason.code) == (JobState.FAILED, "EnvironmentFailed")
    assert "iniconfig==999" in ended.reason.message
    assert lab.story(launch).first(Started) is None


@pytest.mark.parametrize(
    ("lock", "found"),
    [
        ("mlflow==3.17.2 \\\n    --hash=sha256:00", True),
        ("numpy==2\nmlflow-skinny==3.1\n", True),
        ('[[package]]\nname = "mlflow"\nversion = "3"', True),
        ("@EXPLICIT\nhttps://conda.example.org/noarch/mlflow-skinny-3.1.0-pyhd8ed1ab_0.conda#00\n", True),
        ("@EXPLICIT\nhttps://conda.example.org/linux-64/python-3.11.8-h1.conda#00\n# pip mlflow==3.1.0\n", True),
        ("@EXPLICIT\nhttps://conda.example.org/noarch/mlflow-export-import-1.0-py_0.conda#00\n", False),
        ("mlflow-export-import==1\n", False),
        ("my-mlflow==1\n# via mlflow\n", False),
        ("", False),
    ],
)
def test_whether_a_lock_holds_mlflow(lock, found):
    assert uses_mlflow(lock) is found


class serving:
    """A real HTTP server on loopback, for as long as the block lasts."""

    def __init__(self, handler):
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self):
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def test_the_run_is_waited_for_until_there_is_one(tmp_path):
    """Straight at the function: an environment with mlflow in it takes minutes to build."""
    requests = []

    class Gateway(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append((self.path, self.headers["Authorization"]))
            body = json.dumps({"run_id": "r1", "experiment_id": "7", "uri": "http://lab/mlflow"}).encode()
            self.send_response(202 if len(requests) < 2 else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    said = []
    with serving(Gateway) as address:
        launch = make_launch(LabHome(tmp_path), "true", job_id=42, gateway=address)
        found = wait_for_run(launch, TOKEN, said.append, time.monotonic, time.monotonic() + 30)
    assert found == LaunchTracking(uri="http://lab/mlflow", run_id="r1", experiment_id="7")
    assert requests == [("/api/v1/jobs/42/run?wait=20", f"Bearer {TOKEN}")] * 2
    assert said == ["waiting for the tracking server"]


def test_tracking_variables(lab):
    gateway = "http://127.0.0.1:9"
    ours = LaunchTracking(uri=f"{gateway}/mlflow", run_id="r1", experiment_id="7")
    launch = lab.start("env | grep MLFLOW | sort", gateway=gateway, tracking=ours)
    lab.ended(launch)
    assert lab.output().decode().splitlines() == [
        "MLFLOW_EXPERIMENT_ID=7",
        f'MLFLOW_RUN_CONTEXT={{"carrel.job": "{launch.job_id}", "mlflow.user": "{launch.owner}"}}',
        "MLFLOW_RUN_ID=r1",
        "MLFLOW_TRACKING_TOKEN=********",
        f"MLFLOW_TRACKING_URI={gateway}/mlflow",
    ]
    # the lab's token is not sent to somebody else's server
    lab.run(
        "env | grep MLFLOW | sort",
        gateway=gateway,
        tracking=LaunchTracking(uri="https://example.org/", run_id="r1", experiment_id="7"),
    )
    assert b"TOKEN" not in lab.output()


def test_the_lab_is_asked_without_a_proxy_also_where_the_task_names_one(lab):
    proxy = {"https_proxy": "http://127.0.0.1:9", "no_proxy": "example.org,localhost", "NO_PROXY": "localhost, 10.0.0.0/8"}
    lab.run("env | grep -i ^no_proxy | sort", gateway="https://lab.example:8642", task={"variables": proxy})
    hosts = "example.org,localhost,10.0.0.0/8,127.0.0.1,::1,lab.example"
    assert lab.output().decode().splitlines() == [f"NO_PROXY={hosts}", f"no_proxy={hosts}"]


def test_nobody_waits_for_tracking_without_mlflow(lab):
    gateway = "http://127.0.0.1:9"
    launch = lab.start("true", gateway=gateway, tracking=LaunchTracking(uri=f"{gateway}/mlflow"))
    assert lab.ended(launch).state is JobState.COMPLETED
    assert lab.story(launch).first(Preparing) is None
