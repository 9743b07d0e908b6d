"""Ways out of a challenge: what its programs leave behind, what a team's code encodes, and what the lab's calls tell of them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hostile
import httpx
import pytest
from parity import INPUT, LABEL, YAML, browser, checked, scored, write_challenge, write_code
from test_challenge_attacks import PREDICTIONS, hostile_code

from carrel import Client
from carrel.core.domain.challenge import SubmissionState, SubmissionView
from carrel.core.domain.errors import CarrelError
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import API
from support.lab_process import LabProcess, start_lab

Person = Callable[[str], Client]
#: A scoring program that leaves its references wherever it can write.
LITTER = """\
import contextlib
for place in (os.path.expanduser("~"), "/tmp", "/var/tmp", "/dev/shm", os.environ["TMPDIR"], os.environ["CARREL_CHECKPOINT_DIR"],
              "..", "outputs", "predictions", os.path.dirname(sys.executable), os.environ["CARREL_REFERENCE"] + "/.."):
    with contextlib.suppress(OSError):
        open(place + "/litter", "w").write(open(os.environ["CARREL_REFERENCE"] + "/labels.txt").read())
print(open(os.environ["CARREL_REFERENCE"] + "/labels.txt").read(), file=sys.stderr)
"""
LIVE = ("PENDING", "CONFIGURING", "RUNNING")
PLENTY = "limits: {per_day: 900, total: 900, at_once: 1, failures_per_day: 900}"


@pytest.fixture
def careless(client: Client, tmp_path: Path) -> str:
    """A challenge whose scoring litters, with limits that no test reaches; the same for all tests of a module."""
    if not any(one.name == "careless" for one in client.challenges().challenges):
        yaml = re.sub("limits: .*", PLENTY, YAML.replace("name: parity", "name: careless"))
        score = write_challenge(tmp_path / "careless", yaml) / "programs/scoring/score.py"
        score.write_text(score.read_text().replace("truth = ", LITTER + "truth = ", 1))
        client.keep_challenge(tmp_path / "careless")
        checked(client, "careless")
        client.publish_challenge("careless")
    return "careless"


def theirs(client: Client, name: str) -> list[int]:
    """Numbers of the jobs of a challenge's programs."""
    return [job.id for job in client.jobs("all", limit=None) if job.owner == f"challenge:{name}"]


def all_that_is_told(reader: Client, name: str, number: int) -> str:
    """Every answer of the lab's about a submission, and about what is a user's own."""
    headers = {"Authorization": f"Bearer {reader.token}"}
    about = f"/challenges/{name}"
    paths = [
        *(
            "/challenges",
            about,
            f"{about}/board",
            f"{about}/submissions",
            f"{about}/submissions/{number}",
            "/lab",
            "/nodes",
            "/gpus",
        ),
        *(
            "/jobs",
            "/events",
            "/sessions",
            "/share",
            "/storage",
            "/report/use",
            "/report/jobs",
            "/report/starts",
            "/report/sessions",
            "/environments",
        ),
        *("/announcements", "/reservations", "/cells", "/pools", "/sweeps", "/baselines", "/secrets", "/tokens", "/users"),
    ]
    pages = ["/", "/challenges", f"/challenges/{name}", "/gpus", "/notebooks", "/use", "/sweeps", "/baselines"]
    with httpx.Client(base_url=reader.url, headers=headers) as http:
        told = [http.get(API + path) for path in paths]
    with browser(reader) as http:
        told += [http.get(path) for path in pages]
        assert {one.status_code for one in told[-len(pages) :]} == {200}
    return "\n".join(one.text for one in told)


def test_what_the_scoring_leaves_nobody_finds(
    client: Client, person: Person, careless: str, tmp_path: Path, lab: LabProcess
) -> None:
    """Not the next submission of a team, though it is of the same user, nor the log that a team could read."""
    eve = person("eve")
    eve.join_challenge(careless, accept_rules=True)
    for code in ("def predict(number): return 0", hostile_code(lab)):
        done = scored(eve, code, tmp_path, careless)
        assert done.submission.state is SubmissionState.COMPLETED, done
    ingestion = next(job for job in client.jobs("all", limit=None) if job.name == f"careless-{done.submission.id}-ingestion")
    log = b"".join(client.log(ingestion.id)).decode()
    assert f"{len(hostile.ATTACKS)} attacks" in log, log
    assert not [line for line in log.splitlines() if line.startswith("GOT")], log
    assert LABEL not in all_that_is_told(eve, careless, done.submission.id)
    assert LABEL in client.challenge_log(careless, done.submission.id)  # it has printed them, for organisers


#: Looked for by a task, which may have a token, a network and a home of its own.
OWN = frozenset({"token", "token_files", "the_lab_by_tcp", "the_network", "names", "udp", "unix_sockets", "leave_marks"})


def test_tasks_of_a_team_find_nothing_but_the_training_data(
    client: Client, person: Person, careless: str, tmp_path: Path, lab: LabProcess
) -> None:
    """The same attacks from a task of a member's, as a session or the starter's kernel could make them."""
    eve = person("edgar")
    eve.join_challenge(careless, accept_rules=True)
    scored(eve, "def predict(number): return 0", tmp_path, careless)
    train = eve.challenge(careless).train
    begin = f"import os\nos.environ['CARREL_INPUT'] = {train!r}\nos.environ.setdefault('TMPDIR', '/tmp')\n"
    end = f"ATTACKS = [attack for attack in ATTACKS if attack.__name__ not in {sorted(OWN)!r}]\npredict(0)\n"
    log = task(eve, tmp_path / "task", begin + hostile_code(lab) + end)
    assert " attacks (" in log, log
    assert not [line for line in log.splitlines() if line.startswith("GOT")], log


def task(user: Client, place: Path, script: str) -> str:
    """Run a script as a task, and return its log."""
    place.mkdir(parents=True)
    (place / "model_task.py").write_text(script)
    return b"".join(user.log(user.wait(user.submit_project(place / "model_task.py").id).id)).decode()


#: What code does with a word of the inputs, so that somebody outside might read it.
CARRIERS = {
    "an exception": "raise ValueError(word)",
    "the exit code": "os._exit(ord(word[0]))",
    "a signal": "os.kill(os.getpid(), 9)",
    "its last words": "print(word, flush=True); os._exit(3)",
    "the name of an output": "open('outputs/' + word, 'w').close()",
    "the name of a directory": "os.makedirs('outputs/a/' + word)",
    "the size of an output": "open('outputs/size', 'wb').truncate(len(word) * 1_000_003)",
    "an extended attribute": "os.setxattr('outputs', 'user.word', word.encode())",
    "a checkpoint": "open(os.environ['CARREL_CHECKPOINT_DIR'] + '/' + word, 'w').write(word)",
    "the scores": "json.dump({'accuracy': word}, open('outputs/scores.json', 'w'))",
    "the name of its process": "open('/proc/self/comm', 'w').write(word)",
    "a flood of words": "print(word * 100_000, file=sys.stderr)",
    "words for a terminal": "print('\\x1b]0;' + word + '\\x07', flush=True); os._exit(3)",
    "a note of the lab's": "print('[carrel] ' + word, flush=True); os._exit(3)",
    "progress": "print('progress: ' + word, flush=True)",
    "a metric": "__import__('mlflow').log_metric(word, 1)",
    "a call to the lab": "__import__('carrel').Client()",
    "predictions": "open('outputs/predictions.txt', 'w').write(word); os._exit(0)",
    "much memory": "found = bytearray(2 ** 40)",
    "many processes": "[os.fork() for _ in range(4)] and os._exit(1)",
}


@pytest.mark.parametrize("what", CARRIERS)
def test_what_code_encodes_stays_in_the_lab(client: Client, person: Person, careless: str, tmp_path: Path, what: str) -> None:
    """A team is told one of a few ends, or a score; the word is in nothing that it or anybody else but organisers can read."""
    eve = person(f"carrier{sorted(CARRIERS).index(what)}")
    eve.join_challenge(careless, accept_rules=True)
    code = (
        "import json, os, sys\nword = open(os.environ['CARREL_INPUT'] + '/numbers.txt').read().split()[0]\n"
        f"def predict(number):\n    {CARRIERS[what]}\n    return 0\n"
    )
    done = scored(eve, code, tmp_path, careless).submission
    assert set(done.scores) <= {"accuracy"}
    assert done.message in (
        "",
        "Its code ended with an error.",
        "The scoring program refused the predictions.",
    ) or done.message in ("It took more memory than a submission may.")
    told = all_that_is_told(eve, careless, done.id)
    assert INPUT not in told
    assert LABEL not in told
    assert f"{careless}-{done.id}-" not in told  # nor are its jobs there
    assert f"challenge:{careless}" not in told  # in reports, lists of users, or as who holds something


def test_a_submission_that_takes_its_time_is_told_like_any_other(client: Client, person: Person, tmp_path: Path) -> None:
    """Two that differ by what they wait for end in the same step: where the challenge asks for steps, they look alike."""
    yaml = re.sub("limits: .*", PLENTY.replace("at_once: 1", "at_once: 2"), YAML.replace("name: parity", "name: timed"))
    client.keep_challenge(write_challenge(tmp_path / "timed", yaml + "steps: {time: 86400}\n"))
    checked(client, "timed")
    client.publish_challenge("timed")
    eve = person("timo")
    eve.join_challenge("timed", accept_rules=True)
    quick = eve.submit_to_challenge("timed", write_code(tmp_path / "quick", "def predict(number): return 0"))
    slow = eve.submit_to_challenge(
        "timed", write_code(tmp_path / "slow", "import time\ntime.sleep(300)\ndef predict(number): return 0")
    )
    running = ended = False
    began = time.monotonic()
    while not (running and ended):
        told = {one.submission.id: one for one in client.challenge_submissions("timed").submissions}
        ended = told[quick.submission.id].submission.state.ended
        running = told[slow.submission.id].submission.stage == "ingestion" and not told[slow.submission.id].waits
        assert time.monotonic() - began < 120

    def seen(one: SubmissionView) -> tuple[Any, ...]:
        found = eve.challenge_submission("timed", one.submission.id)
        return found.submission.state, found.submission.stage, found.submission.ended_at, found.waits, found.position

    assert seen(quick) == seen(slow)
    for job in client.jobs("all", limit=None):
        if job.name.startswith("timed-") and job.state in LIVE:
            client.cancel(job.id)


def test_every_call_about_a_job_says_that_there_is_none(
    client: Client, person: Person, careless: str, tmp_path: Path, lab: LabProcess
) -> None:
    """All endpoints of the API that name a job, with the numbers of jobs of the programs: as about a job that there is not."""
    eve = person("elsa")
    eve.join_challenge(careless, accept_rules=True)
    scored(eve, "def predict(number): return 0", tmp_path, careless)
    job = theirs(client, careless)[0]
    tried = 0
    with httpx.Client(base_url=lab.url, headers={"Authorization": f"Bearer {eve.token}"}) as http:
        for path, methods in http.get("/openapi.json").json()["paths"].items():
            for method in methods if "{job_id}" in path or "{array_id}" in path else ():
                real, none = (
                    http.request(method, re.sub(r"\{\w+\}", "7007007", re.sub(r"\{(job|array)_id\}", str(one), path)), json={})
                    for one in (job, 10**9)
                )
                assert real.status_code == none.status_code >= 400, (method, path, real.text)
                said = [re.sub(rf"\b{number}\b", "N", found.text) for number, found in ((job, real), (10**9, none))]
                assert said[0] == said[1], (method, path)
                tried += 1
        assert tried > 15
        for query in (
            f"/comparison?job={job}&job={job - 1}",
            f"/comparison/results?job={job}&job={job - 1}",
            f"/cells?job={job}",
        ):
            found = http.get(API + query)
            assert found.status_code >= 400 or str(job) not in found.text, (query, found.text)
        for path, body in {
            "/comparison/why": {"jobs": [str(job), str(job - 1)]},
            "/comparison/why/runs": {"jobs": [str(job), str(job - 1)]},
            "/baselines": {"job": job, "project": "x"},
        }.items():
            assert http.post(API + path, json=body).status_code in (404, 422), path


def test_pages_of_the_jobs_are_not_there(client: Client, person: Person, careless: str, tmp_path: Path) -> None:
    """As those of a job that there is not, with all their parts; a comparison of them neither."""
    eve = person("esther")
    eve.join_challenge(careless, accept_rules=True)
    scored(eve, "def predict(number): return 0", tmp_path, careless)
    with browser(eve) as http:
        for job in theirs(client, careless)[:2]:
            parts = (
                "",
                "/log",
                "/metrics",
                "/events",
                "/course",
                "/record",
                "/outputs/outputs/scores.json",
                "/view/outputs/scores.json",
            )
            for page in (*(f"/jobs/{{}}{part}" for part in parts), "/jobs/compare?job={}&job={}"):
                real, none = (http.get(page.replace("{}", str(number))) for number in (job, 7007007))
                assert (real.status_code, LABEL in real.text) == (none.status_code, False), page
                assert real.status_code >= 400 or f"{careless}-" not in real.text, page


def test_no_task_hears_of_the_programs_by_waiting_for_them(client: Client, person: Person, careless: str, tmp_path: Path) -> None:
    """Dependencies and inputs name them in vain, and as one names a job that there is not."""
    eve = person("ester")
    eve.join_challenge(careless, accept_rules=True)
    scored(eve, "def predict(number): return 0", tmp_path, careless)
    (tmp_path / "task").mkdir()
    script = tmp_path / "task" / "task.py"
    script.write_text("print('ran')")
    told = []
    for job in (theirs(client, careless)[-1], 10**9):
        for words in (f"afterany:{job}", f"afterok:{job}", f"afternotok:{job}"):
            with pytest.raises(CarrelError) as refused:
                eve.submit_project(script, dependency=words)
            told.append(str(refused.value.message).replace(str(job), "N"))
    assert told[:3] == told[3:]


def test_nobody_learns_which_content_the_lab_has(
    client: Client, person: Person, careless: str, lab: LabProcess, tmp_path: Path
) -> None:
    """By its digest, code of others is as code that there is not: to ask for it, to run it, to submit it, to send it again."""
    eve, ada = person("egon"), person("anton")
    for one in (eve, ada):
        one.join_challenge(careless, accept_rules=True)
    known = scored(ada, "def predict(number): return 1  # a secret of ada's", tmp_path, careless).submission.snapshot
    version = client.challenge_checks(careless).submissions[0].submission.version
    none = "sha256:" + "0" * 64
    with httpx.Client(base_url=lab.url, headers={"Authorization": f"Bearer {eve.token}"}) as http:
        for digest in (known, version):
            for method, path, body in (
                ("HEAD", "/snapshots/{}", None),
                ("GET", "/snapshots/{}", None),
                ("PUT", "/snapshots/{}", None),
                ("POST", "/jobs", {"snapshot": "{}", "script": "model.py"}),
                ("POST", "/jobs/preview", {"snapshot": "{}", "script": "model.py"}),
                ("POST", f"/challenges/{careless}/submissions", {"snapshot": "{}"}),
                ("POST", "/challenges", {"snapshot": "{}"}),
            ):
                first, second = (
                    http.request(
                        method, API + path.replace("{}", one), json=body and json.loads(json.dumps(body).replace("{}", one))
                    )
                    for one in (digest, none)
                )
                assert first.status_code == second.status_code >= 400, (method, path, first.text)
                assert first.text.replace(digest, "") == second.text.replace(none, ""), (method, path)


def test_events_of_the_programs_reach_nobody(
    client: Client, person: Person, careless: str, tmp_path: Path, lab: LabProcess
) -> None:
    """Those of one's own jobs alone, and the log of audits is for operators."""
    eve = person("erna")
    eve.join_challenge(careless, accept_rules=True)
    scored(eve, "def predict(number): return 0", tmp_path, careless)
    jobs = set(theirs(client, careless))
    with httpx.Client(base_url=lab.url, headers={"Authorization": f"Bearer {eve.token}"}) as http:
        events = http.get(f"{API}/events?limit=500").json()["events"]
        assert not jobs & {event.get("job_id") for event in events}
        assert http.get(f"{API}/audit").status_code == 403
        assert http.get(f"{API}/jobs?owner=all").status_code == 403
        assert not jobs & {job["id"] for job in http.get(f"{API}/jobs?limit=500").json()["jobs"]}


def test_nobody_becomes_the_programs_user(client: Client, person: Person, careless: str, lab: LabProcess) -> None:
    """No user, token, invitation or share names it; an administrator's jobs are the administrator's."""
    eve = person("emilia")
    programs = f"challenge:{careless}"
    with httpx.Client(base_url=lab.url, headers={"Authorization": f"Bearer {eve.token}"}) as http:
        for method, path, body in (
            ("POST", "/users", {"subject": programs}),
            ("POST", "/tokens", {"subject": programs, "name": "x"}),
            ("POST", "/invitations", {"subject": programs}),
            ("POST", f"/users/{programs}/reset", None),
            ("GET", f"/tokens?owner={programs}", None),
        ):
            found = http.request(method, API + path, json=body)
            assert found.status_code in (401, 403, 404, 422) or programs not in found.text, (path, found.text)
    with pytest.raises(CarrelError):
        client.add_user(programs)


@pytest.fixture(scope="module")
def lab_with_gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
    """A lab whose GPUs are simulated."""
    home = tmp_path_factory.mktemp("gpus") / "home"
    home.mkdir(mode=0o700)
    (home / "carrel.toml").write_text('isolation = "kernel"\n')
    process = start_lab(home, "--cpus", "8", simulate_gpus=2)
    yield process
    process.end_jobs()
    process.stop()


def test_of_a_gpu_others_see_that_it_is_taken(lab_with_gpus: LabProcess, tmp_path: Path) -> None:
    """Not by whom, for what, and how much of its memory is in use; nor what the submission before has left of variables."""
    root = Client(url=lab_with_gpus.url, token=lab_with_gpus.token)
    place = write_challenge(tmp_path / "parity")
    program = place / "programs/ingestion/MLproject"
    program.write_text(program.read_text().replace("memory: 256M", "gpus: 1, memory: 256M"))
    root.keep_challenge(place)
    checked(root)
    root.publish_challenge("parity")
    eve = Client(url=lab_with_gpus.url, token=root.add_user("eve").token)
    eve.join_challenge("parity", accept_rules=True)
    number = eve.submit_to_challenge("parity", write_code(tmp_path / "slow", "import time\ntime.sleep(300)")).submission.id
    with httpx.Client(base_url=eve.url, headers={"Authorization": f"Bearer {eve.token}"}) as http:
        began = time.monotonic()
        while "held" not in (told := http.get(f"{API}/nodes").text):
            assert time.monotonic() - began < 120
        told += http.get(f"{API}/gpus").text + http.get("/gpus").text + http.get("/").text
    assert f"parity-{number}" not in told
    assert "challenge:" not in told
    root.cancel(next(job.id for job in root.jobs("all", limit=None) if job.state in LIVE))
    root.close()
    eve.close()


@pytest.mark.mlflow
def test_mlflow_has_nothing_of_the_programs(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """Their runs are in a workspace of their own user's: a team finds no experiment, run, model or artifact there."""
    home = tmp_path_factory.mktemp("mlflow") / "home"
    home.mkdir(mode=0o700)
    (home / "carrel.toml").write_text('isolation = "kernel"\n')
    lab = start_lab(home, "--cpus", "8", simulate_gpus=0, tracking=True)
    try:
        root = Client(url=lab.url, token=lab.token)
        root.keep_challenge(write_challenge(tmp_path / "parity"))
        checked(root)
        root.publish_challenge("parity")
        eve = Client(url=lab.url, token=root.add_user("eve").token)
        eve.join_challenge("parity", accept_rules=True)
        scored(eve, "def predict(number): return 0", tmp_path)
        job = theirs(root, "parity")[0]
        run = wait_until(lambda: root.job(job).run_id, lambda: root.job(job), timeout=4 * PATIENCE)
        with httpx.Client(base_url=f"{lab.url}/mlflow/api/2.0", headers={"Authorization": f"Bearer {eve.token}"}) as http:
            found = [
                http.get(f"/mlflow/runs/get?run_id={run}"),
                http.get(f"/mlflow/artifacts/list?run_id={run}"),
                http.get(f"/mlflow/metrics/get-history?run_id={run}&metric_key=accuracy"),
                http.post("/mlflow/experiments/search", json={"max_results": 100}),
                http.post("/mlflow/runs/search", json={"experiment_ids": [str(number) for number in range(10)]}),
                http.get("/mlflow/registered-models/search"),
            ]
        assert [one.status_code for one in found[:3]] == [404] * 3
        assert not [one.text for one in found if run in one.text.replace(str(one.url), "") and one.status_code == 200]
        assert not [one.text for one in found if "parity-" in one.text]
        root.close()
        eve.close()
    finally:
        lab.end_jobs()
        lab.stop()


def test_each_attack_is_listed_with_what_it_got() -> None:
    """Organisers read in the docs what was tried."""
    page = (Path(__file__).parents[2] / "docs" / "challenges.md").read_text()
    rows = page.split("### Attacks that are tried")[1].split("\n\n")[2].splitlines()[2:]
    listed = {name for row in rows for name in row.split(" | ")[0].strip("| ").split(", ")}
    code = {attack.__name__.replace("_", " ") for attack in hostile.ATTACKS}
    assert code | PREDICTIONS.keys() | CARRIERS.keys() <= listed
    assert len(listed) >= 80
