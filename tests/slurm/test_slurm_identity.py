"""A lab that belongs to nobody's account, two researchers with their own, and the real sudo between them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel import Client
from carrel.core.domain.errors import Denied, Impossible, Invalid, NotFound
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import EnvironmentRequest, ResourceRequest, SessionRequest
from support.forged_journal import FORGER
from support.image_lab import need_image_programs
from support.image_registry import Registry
from support.images import programs, write_layer
from support.lab_process import LabProcess, start_lab
from support.notebook_client import Kernel, SessionBrowser
from support.package_index import PackageIndex
from support.slurm_site import USERS, SlurmSite
from support.unix_users import common_ground, run_as
from tiers import TESTS

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.xdist_group("slurm-lab"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users"),
]
#: Who the lab runs as: a user that every Debian has, and that is not root.
KEEPER = "backup"
ALICE, BOB = USERS["alice"], USERS["bob"]

RULES = """
default_qos = "normal"

[qos.normal]
[qos.short]

[partitions.cluster]
engine = "slurm"
slurm_partition = "main"
slurm_qos = "{qos}"
[partitions.soon]
engine = "slurm"
slurm_partition = "main"
slurm_immediate = true
"""


@pytest.fixture(scope="module")
def private_site(slurm_programs: None) -> Iterator[SlurmSite]:
    """A cluster on which nobody sees the jobs of others."""
    with SlurmSite(nodes=1, lines=("PrivateData=jobs,usage,users",), shards=16) as site:
        yield site


@pytest.fixture(scope="module")
def sudo() -> None:
    if shutil.which("sudo") is None:
        if os.environ.get("CI"):
            pytest.fail("sudo not found (Debian: apt-get install sudo)")
        pytest.skip("sudo is not here")


class Lab:
    """A lab that `KEEPER` runs, with two users."""

    def __init__(self, root: Path, site: SlurmSite, python: Path) -> None:
        self.root, self.site = root, site
        self.home = root / "lab"
        self.home.mkdir(mode=0o700)
        self.python = python
        self.environment = python.parent.parent
        (root / "users").mkdir()
        (root / "users").chmod(0o1777)
        configuration = root / "deputy.toml"
        configuration.write_text(
            f'directory = "{root}/users/{{user}}"\n'
            f'[environment]\nPATH = "{site.environ["PATH"]}"\nSLURM_CONF = "{site.layout.conf}"\n'
        )
        configuration.chmod(0o644)
        command = f"{python.parent}/carrel-deputy --config {configuration}"
        self.rule = Path("/etc/sudoers.d") / f"carrel-test-{os.getpid()}"
        self.rule.write_text(f"{KEEPER} ALL=({ALICE},{BOB}) NOPASSWD: {command}\n")
        self.rule.chmod(0o440)
        self.people = root / "people.toml"
        self.people.write_text(
            f'alice = "{ALICE}"\nada = "{ALICE}"\nbob = "{BOB}"\neve = "root"\nmallory = "nobody-here"\nzoe = "{KEEPER}"\n'
        )
        self.people.chmod(0o644)
        self.broker = site.root / "b"
        self.settings = f'slurm_broker = "{self.broker}"\nslurm_lend = 50\ntask_turn = "1s"\n'
        self.settings += f'slurm_identity = "map:{self.people}"\nslurm_deputy = "sudo -n -u {{user}} -- {command}"\n'
        self.write(RULES)
        account = pwd.getpwnam(KEEPER)
        os.chown(self.home, account.pw_uid, account.pw_gid)
        self.variables = {
            "SLURM_CONF": str(site.layout.conf), "HOME": str(self.home), "USER": KEEPER, "LOGNAME": KEEPER,
        }  # fmt: skip
        self.start()
        self.admin = Client(url=self.process.url, token=self.process.token)
        self.tokens = {name: self.admin.add_user(name).token for name in ("alice", "bob", "eve", "mallory", "carol", "zoe")}
        # She may name an environment by its path.
        self.tokens["ada"] = self.admin.add_user("ada", "admin").token

    def write(self, rules: str) -> None:
        (self.home / "carrel.toml").write_text(self.settings + rules)
        shutil.chown(self.home / "carrel.toml", KEEPER)

    def start(self) -> None:
        self.process: LabProcess = start_lab(
            self.home, "--cpus", "4", simulate_gpus=1, variables=self.variables, python=[*run_as(KEEPER), str(self.python)]
        )

    def client(self, name: str) -> Client:
        return Client(url=self.process.url, token=self.tokens[name])

    def submit(self, name: str, script: str, partition: str | None = "cluster", **more: object) -> int:
        directory = self.root / f"work{time.monotonic_ns()}"
        directory.mkdir()
        (directory / "work.sh").write_text(script)
        more = {"resources": ResourceRequest(memory="64M"), **more}
        with self.client(name) as client:
            return client.submit_project(directory / "work.sh", partition=partition, **more).id  # type: ignore[arg-type]

    def ended(self, name: str, job: int) -> object:
        with self.client(name) as client:
            return client.wait(job, timeout=PATIENCE)

    def as_keeper(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run this Python as the lab's user."""
        return subprocess.run(
            [*run_as(KEEPER), str(self.python), *words],
            env={**os.environ, **self.variables}, capture_output=True, text=True, timeout=150, check=False,
        )  # fmt: skip

    def log(self, name: str, job: int) -> str:
        with self.client(name) as client:
            return b"".join(client.log(job)).decode()

    def close(self) -> None:
        try:
            self.process.end_jobs()
            self.admin.close()
            self.process.stop()
        finally:
            self.rule.unlink(missing_ok=True)


@pytest.fixture
def lab(private_site: SlurmSite, sudo: None, everybodys_python: Path) -> Iterator[Lab]:
    with common_ground() as root:
        lab = Lab(root, private_site, everybodys_python)
        yield lab
        lab.close()
        private_site.clear()


def owner_of(pid: int) -> str:
    return pwd.getpwuid(Path(f"/proc/{pid}").stat().st_uid).pw_name


@pytest.mark.gate
def test_two_users_have_nothing_of_each_others(lab: Lab, private_site: SlurmSite) -> None:
    go = lab.root / "go"
    script = f"id -un; echo $$ > pid; id -un > outputs/who; echo ready; while [ ! -e {go} ]; do sleep 0.1; done"
    jobs = {name: lab.submit(name, script) for name in ("alice", "bob")}
    for name, job in jobs.items():
        wait_until(lambda name=name, job=job: "ready" in lab.log(name, job))
    users = {"alice": ALICE, "bob": BOB}
    # Slurm knows whose they are, and shows each only their own; the processes and files are theirs.
    seen = {name: private_site.run("squeue", "-h", "-o", "%u", user=name).out.split() for name in users}
    assert seen == {name: [user] for name, user in users.items()}
    for name, user in users.items():
        (work,) = (lab.root / "users" / user).glob(f"*/spool/{jobs[name]}/1/work")
        assert owner_of(int((work / "pid").read_text())) == user
        assert {path.lstat().st_uid for path in work.parent.rglob("*")} == {pwd.getpwnam(user).pw_uid}
        other = "bob" if name == "alice" else "alice"
        for path in ("launch.json", "token", "journal.jsonl", "log"):
            assert private_site.run("cat", str(work.parent / path), user=other, check=False).code != 0
            assert subprocess.run([*run_as(KEEPER), "cat", work.parent / path], capture_output=True, check=False).returncode != 0
        assert not [path for path in lab.home.rglob("*") if path.lstat().st_uid != pwd.getpwnam(KEEPER).pw_uid]
    # Neither the lab nor Slurm lets one near the other's.
    number = private_site.run("squeue", "-h", "-o", "%A", user="bob").out.strip()
    assert private_site.run("scancel", number, user="alice", check=False).code != 0
    with lab.client("alice") as alice:
        assert [job.id for job in alice.jobs(limit=None)] == [jobs["alice"]]
        for forbidden in (
            lambda: alice.job(jobs["bob"]), lambda: alice.cancel(jobs["bob"]), lambda: b"".join(alice.log(jobs["bob"])),
        ):  # fmt: skip
            with pytest.raises(NotFound):
                forbidden()
    go.touch()
    for name, job in jobs.items():
        assert lab.ended(name, job).state == "COMPLETED"  # type: ignore[attr-defined]
        assert lab.log(name, job).splitlines()[0] == users[name]
        with lab.client(name) as client:
            (path,) = client.download_outputs(job, lab.root / name)
            assert Path(path).read_text() == f"{users[name]}\n"


@pytest.mark.gate
def test_what_a_user_writes_into_the_journal_of_a_task_is_not_believed(lab: Lab) -> None:
    secret = "alice's result"
    first = lab.submit("alice", f'printf "{secret}" > outputs/result')
    assert lab.ended("alice", first).state == "COMPLETED"  # type: ignore[attr-defined]
    hers = f"sha256:{hashlib.sha256(secret.encode()).hexdigest()}"
    digests = f"{lab.home}/token sha256:../token /dev/zero {lab.home}/signing.key {hers}"
    forger = lab.submit("bob", f"/usr/bin/python3 - {digests} <<'END'\n{FORGER}\nEND\nsleep 1; true")
    others = [lab.submit("alice", "true") for _ in range(3)]
    assert [lab.ended("alice", job).state for job in others] == ["COMPLETED"] * 3  # type: ignore[attr-defined]
    ended = lab.ended("bob", forger)
    assert lab.log("bob", forger).splitlines()[0] == "forged"
    with lab.client("bob") as bob:
        # The line with the digest of hers is all that a runner could have said, and so it is the end; the content is not his.
        assert ended.state == "FAILED", ended  # type: ignore[attr-defined]
        assert "could not be taken into the lab's store" in ended.message  # type: ignore[attr-defined]
        assert bob.outputs(forger) == []
        told = json.dumps(bob.record(forger))
        assert not [word for word in (lab.process.token, secret) if word in told]
    # No moment of it, and no state, is in the lab's way after it was killed.
    lab.admin.close()
    lab.process.kill()
    lab.start()
    lab.admin = Client(url=lab.process.url, token=lab.process.token)
    assert lab.ended("alice", lab.submit("alice", "true")).state == "COMPLETED"  # type: ignore[attr-defined]
    assert {job.id for job in lab.admin.jobs(owner="all", limit=None)} >= {first, forger, *others}


def test_a_task_of_a_user_submits_another_with_the_labs_client(lab: Lab) -> None:
    theirs = subprocess.run(["/usr/bin/python3", "-V"], capture_output=True, text=True, check=True).stdout
    if not theirs.startswith(f"Python {sys.version_info.major}.{sys.version_info.minor}."):
        pytest.skip("the machine's Python has another version than the lab's, whose packages it cannot use")
    program = """
import os, carrel
from carrel.wire.v1 import ResourceRequest
os.chdir(os.environ["TMPDIR"])
open("child.sh", "w").write("id -un")
with carrel.Client() as lab:
    child = lab.submit_project("child.sh", partition="cluster", resources=ResourceRequest(cpus=1, memory="64M"))
    print(carrel.__file__, lab.wait(child.id).state, *lab.stream_log(child.id))
"""
    job = lab.submit("alice", f"/usr/bin/python3 - <<'END'\n{program}\nEND")
    assert lab.ended("alice", job).state == "COMPLETED", lab.log("alice", job)  # type: ignore[attr-defined]
    where, state, user = lab.log("alice", job).split()
    assert (state, user) == ("COMPLETED", ALICE)
    assert Path(where).is_relative_to(lab.root / "users" / ALICE)
    assert owner_of_file(Path(where)) == ALICE


def owner_of_file(path: Path) -> str:
    return pwd.getpwuid(path.stat().st_uid).pw_name


@pytest.mark.gate
def test_inputs_are_fetched_as_their_owner_before_the_place(lab: Lab) -> None:
    code = lab.root / "code"
    code.mkdir()
    with PackageIndex(lab.root / "web") as web, lab.client("alice") as client:
        (code / "MLproject").write_text(
            "name: t\nentry_points:\n  main:\n    command: cat data\n"
            f"carrel:\n  inputs: {{data: '{web.publish('data', b'the data')}'}}\n"
        )
        job = client.submit_project(code, partition="cluster", resources=ResourceRequest(memory="64M"))
        told = wait_until(
            lambda: seen if "fetching" in (seen := client.job(job.id)).message or seen.ended else None, lambda: client.job(job.id)
        )
        assert (told.state, told.reason) == ("PENDING", "StageIn")
        web.open.set()
        ended = client.wait(job.id, timeout=PATIENCE)
        assert (ended.state, ended.attempt, lab.log("alice", job.id)) == ("COMPLETED", 1, "the data"), ended.message
        assert web.asked["data"] == 1
    (kept,) = (lab.root / "users" / ALICE).glob("*/inputs")
    assert {path.lstat().st_uid for path in [kept, *kept.rglob("*")]} == {pwd.getpwnam(ALICE).pw_uid}
    fetch = f"*/spool/{job.id}/0"
    wait_until(lambda: not list((lab.root / "users" / ALICE).glob(fetch)), "nothing of the fetch to stay but what it fetched")


def test_an_image_is_fetched_and_run_as_its_owner(lab: Lab) -> None:
    need_image_programs()
    code = lab.root / "code"
    code.mkdir()
    with Registry() as registry, lab.client("alice") as client:
        digest = registry.publish("1", [write_layer({**programs("sh", "cat"), "etc/motd": b"an image\n"})], {"PATH": "/bin"})
        command = "cat /etc/motd; cat /proc/self/status > outputs/status"
        (code / "MLproject").write_text(
            f"name: t\ndocker_env: {{image: '{registry.host}/lab/train:1'}}\nentry_points:\n  main:\n    command: '{command}'\n"
        )
        job = client.submit_project(code, partition="cluster", resources=ResourceRequest(memory="64M"))
        ended = client.wait(job.id, timeout=PATIENCE)
        assert (ended.state, lab.log("alice", job.id)) == ("COMPLETED", "an image\n"), ended.message
        assert digest in json.dumps(client.record(job.id))
    (kept,) = (lab.root / "users" / ALICE).glob("*/environments/envs/*/root")
    assert {path.lstat().st_uid for path in [kept, *kept.rglob("*")]} == {pwd.getpwnam(ALICE).pw_uid}


def test_who_is_nobody_on_the_cluster_starts_nothing_there(lab: Lab) -> None:
    for name, words in (
        ("carol", "carol has no user on the cluster"),
        ("zoe", f"zoe would be {KEEPER} on the cluster, who runs the lab"),
        ("eve", "eve would be root"),
        ("mallory", 'mallory would be "nobody-here" on the cluster, whom this machine does not know'),
    ):
        with pytest.raises(Denied, match=words):
            lab.submit(name, "id")
    with pytest.raises(Denied, match="carol has no user on the cluster"):
        lab.submit("carol", "id -un", partition=None)
    assert lab.ended("alice", lab.submit("alice", "id", partition="soon")).state == "COMPLETED"  # type: ignore[attr-defined]


def test_the_labs_own_user_runs_nobodys_code(lab: Lab) -> None:
    witness = lab.root / "users" / "witness"
    with tarfile.open(lab.root / "evil-1.tar.gz", "w:gz") as sdist:
        text = f"import pathlib, os; pathlib.Path({str(witness)!r}).write_text(str(os.getuid()))".encode()
        for name, data in (("setup.py", text), ("PKG-INFO", b"Metadata-Version: 2.1\nName: evil\nVersion: 1\n")):
            entry = tarfile.TarInfo(f"evil-1/{name}")
            entry.size = len(data)
            sdist.addfile(entry, io.BytesIO(data))
    (lab.root / "evil-1.tar.gz").chmod(0o644)
    evil = EnvironmentRequest(name="evil", requirements=[f"evil @ file://{lab.root}/evil-1.tar.gz"])
    for name in ("alice", "ada"):
        with lab.client(name) as client, pytest.raises(Denied, match=f"would run as {KEEPER}, who runs the lab"):
            client.create_environment(evil)
    assert not witness.exists()
    # No partition of the lab's own machine, neither while it runs nor when it starts.
    lab.write(f"{RULES}[partitions.here]\n")
    with pytest.raises(Invalid, match=f"Jobs of partition here would run on this machine as {KEEPER}"):
        lab.admin.reload_rules()
    with pytest.raises(Invalid, match='no partition "here"'):
        lab.submit("alice", "id", partition="here")
    lab.admin.close()
    lab.process.stop()
    with pytest.raises(RuntimeError, match="run_users_code_as_lab = true"):
        lab.start()
    # Where it is allowed by that name, it is so; and what waited when it was forbidden again fails by name.
    lab.write(f"run_users_code_as_lab = true\n{RULES}[partitions.here]\n")
    lab.start()
    lab.admin = Client(url=lab.process.url, token=lab.process.token)
    ran = lab.submit("alice", "id -un", partition="here")
    assert lab.ended("alice", ran).state == "COMPLETED"  # type: ignore[attr-defined]
    assert lab.log("alice", ran) == f"{KEEPER}\n"
    with lab.client("ada") as ada:  # what she has in the lab by name her user on the cluster cannot read
        ada.create_environment(EnvironmentRequest(name="torch", path=str(lab.environment)))
        with pytest.raises(Impossible, match=f"run as the Unix user {ALICE}, who cannot read it"):
            ada.start_session(SessionRequest(partition="cluster", environment="torch"))


def test_a_lab_that_was_killed_goes_on_as_the_users_that_it_began_as(lab: Lab) -> None:
    go = lab.root / "go"
    witness = lab.root / "users" / "witness"
    script = f"echo ran >> {witness}.$(id -un); echo ready; while [ ! -e {go} ]; do sleep 0.1; done; echo after; id -un"
    job = lab.submit("alice", script)
    wait_until(lambda: "ready" in lab.log("alice", job))
    lab.admin.close()
    lab.process.kill()
    # Meanwhile alice has become somebody else.
    lab.people.write_text(f'alice = "{BOB}"\n')
    lab.start()
    lab.admin = Client(url=lab.process.url, token=lab.process.token)
    go.touch()
    ended = lab.ended("alice", job)
    assert ended.state == "COMPLETED", ended  # type: ignore[attr-defined]
    assert lab.log("alice", job).split() == ["ready", "after", ALICE]
    assert [path.name for path in witness.parent.glob("witness.*")] == [f"witness.{ALICE}"]
    assert Path(f"{witness}.{ALICE}").read_text() == "ran\n"
    again = lab.submit("alice", "id -un")
    assert lab.ended("alice", again).state == "COMPLETED"  # type: ignore[attr-defined]
    assert lab.log("alice", again) == f"{BOB}\n"


def test_without_the_rule_of_sudo_nobody_is_left_waiting(lab: Lab) -> None:
    text = lab.rule.read_text()
    lab.rule.unlink()
    ended = lab.ended("bob", lab.submit("bob", "id -un"))
    assert (ended.state, ended.reason) == ("FAILED", "LaunchFailed")  # type: ignore[attr-defined]
    assert re.search(f"may not act as the Unix user {BOB}: sudo: .*password.*administrator", ended.message)  # type: ignore[attr-defined]
    lab.rule.write_text(text)
    lab.rule.chmod(0o440)
    assert lab.ended("bob", lab.submit("bob", "id -un")).state == "COMPLETED"  # type: ignore[attr-defined]
    # The rule lets the lab run deputies, and nothing else.
    for words in (["id"], ["sh", "-c", "id"], [str(lab.python), "-c", "0"]):
        done = subprocess.run(
            [*run_as(KEEPER), "sudo", "-n", "-u", BOB, "--", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode != 0
        assert "password" in done.stderr
    done = subprocess.run(
        [*run_as(KEEPER), "sudo", "-n", "--", lab.python.parent / "carrel-deputy"], capture_output=True, check=False
    )
    assert done.returncode != 0


def test_cells_of_owners_borrow_from_a_broker_that_is_root(lab: Lab) -> None:
    # Root's, with the lab's secret; the owner's files are read with the owner's rights, and the lab's written with the lab's.
    words = [str(lab.python), "-m", "carrel.cli.main", "broker", "--home", str(lab.home), "--simulate-gpus", "4"]
    words += ["--node", lab.site.layout.nodes[0]]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as broker, lab.client("ada") as ada:
        try:
            assert broker.stdout is not None
            assert "lends 4 GPUs" in broker.stdout.readline()
            wait_until(lab.broker.exists)
            asked = SessionRequest(partition="soon", memory="512M", environment=str(lab.environment))
            session = ada.start_session(asked)
            wait_until(lambda: (found := ada.session(session.job.id)).ready or found.job.ended)
            with SessionBrowser(ada.open_session(session.job.id)) as browser:
                kernel = browser.start_kernel("mine.ipynb")
                cell = kernel.execute("# carrel: gpus=1\nimport os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
                assert cell.text.startswith("SIM-"), cell
                # Both sides know whose it is, and ada pays.
                (tenant,) = browser.request("GET", "/carrel/status").json()["status"]["tenants"]
                assert (tenant["mine"], tenant["label"]) == (True, "mine.ipynb")
                wait_until(lambda: any(node.tenants for node in ada.gpus().nodes))
                (tenant,) = ada.gpus().nodes[0].tenants
                assert (tenant.mine, tenant.owner, tenant.label) == (True, "ada", f"notebook {session.job.id}: mine.ipynb")
                with lab.client("bob") as bob:
                    (hidden,) = bob.gpus().nodes[0].tenants
                    assert (hidden.owner, hidden.label, hidden.job) == ("", "", None)
                wait_until(lambda: [row.user for row in lab.admin.share().standings if row.hours])
                assert [row.user for row in lab.admin.share().standings if row.hours] == ["ada"]
                give_way(lab, kernel)
            (report,) = (lab.home / "reports").iterdir()
            assert report.owner() == KEEPER
            ada.cancel(session.job.id)
            assert ada.wait(session.job.id, timeout=PATIENCE).state == "CANCELLED"
        finally:
            broker.terminate()


def give_way(lab: Lab, kernel: Kernel) -> None:
    """A task of another user, whose files the lab cannot read, gives the GPU of the kernel's session to a cell and goes on."""
    go = lab.root / "task-goes-on"
    job = lab.submit(
        "bob", f"while [ ! -e {go} ]; do sleep 0.1; done", resources=ResourceRequest(gpus=1, memory="64M", time="1h")
    )
    with lab.client("bob") as bob:
        wait_until(lambda: any(lease.job == job for node in bob.gpus().nodes for lease in node.leases), lambda: bob.job(job))
        assert kernel.execute("# carrel: gpus=1\nprint('has it')").text == "has it\n"
        wait_until(lambda: (now := bob.job(job)).suspended_seconds and now.reason == "Running", lambda: bob.job(job))
        go.touch()
        assert bob.wait(job, timeout=PATIENCE).state == "COMPLETED"


def test_a_session_works_as_its_owner(lab: Lab) -> None:
    study = lab.root / "users" / ALICE / "study"  # a directory of her own, which the lab cannot even see
    subprocess.run([*run_as(ALICE), "mkdir", "-p", "-m", "700", study], check=True)
    with lab.client("ada") as ada:
        asked = SessionRequest(partition="cluster", memory="512M", environment=str(lab.environment), directory=str(study))
        session = ada.start_session(asked)
        wait_until(lambda: (found := ada.session(session.job.id)).ready or found.job.ended)
        found = ada.session(session.job.id)
        assert found.ready, (found, b"".join(ada.log(session.job.id)))
        (file,) = (lab.root / "users" / ALICE).glob(f"*/spool/{session.job.id}/1/session.json")
        with SessionBrowser(ada.open_session(session.job.id)) as browser:
            cell = browser.start_kernel().execute("import getpass, os; print(os.getuid(), os.getcwd())")
            uid, place = cell.text.split()
            assert int(uid) == pwd.getpwnam(ALICE).pw_uid
            assert Path(place) == study
            # Nobody else reads the key to it, not even the lab.
            for words in (run_as(BOB), run_as(KEEPER)):
                assert subprocess.run([*words, "cat", file], capture_output=True, check=False).returncode != 0
            # The lab is killed; the browser that was let in goes on.
            lab.admin.close()
            lab.process.kill()
            lab.start()
            lab.admin = Client(url=lab.process.url, token=lab.process.token)
            wait_until(lambda: browser.request("GET", "/api/status").status_code == 200)
    with lab.client("bob") as bob:
        assert not bob.sessions()
        # Who is no administrator may choose a directory too, where the session has their own rights.
        theirs = bob.start_session(SessionRequest(partition="cluster", memory="64M", directory=str(study)))
        assert theirs.directory == str(study)
        bob.cancel(theirs.job.id)
    with lab.client("ada") as ada:
        ada.cancel(session.job.id)
        assert ada.wait(session.job.id, timeout=PATIENCE).state == "CANCELLED"


def test_doctor_tries_a_deputy(lab: Lab) -> None:
    def deputy(*words: str) -> dict[str, str]:
        done = lab.as_keeper("-m", "carrel.cli.main", "doctor", "slurm", "--json", f"--home={lab.home}", *words)
        found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
        assert found["identity"]["message"] == f"jobs run as the Unix users that {lab.people} names"
        assert "lab_key = " in found["key"]["remedy"]
        return dict(found["deputy"])

    fine = deputy("--as", "alice")
    assert (fine["status"], fine["message"]) == (
        "ok", f"alice is {ALICE} there; their jobs keep their files in {lab.root}/users/{ALICE}",
    )  # fmt: skip
    assert deputy()["remedy"] == "`carrel doctor slurm --as USER` tries one."
    assert "eve would be root" in deputy("--as", "eve")["message"]
    lab.rule.unlink()
    broken = deputy("--as", "bob")
    assert broken["status"] == "fail"
    assert "password" in broken["message"]


def test_a_job_that_attacks_the_lab_is_repelled(lab: Lab) -> None:
    def attack() -> subprocess.CompletedProcess[str]:
        return lab.as_keeper(str(checkout / "tools" / "attack.py"), f"--home={lab.home}", "--as", "alice")

    # A checkout that the lab's user can enter.
    checkout = lab.root / "checkout"
    for part in ("tools", "tests/support"):
        shutil.copytree(TESTS.parent / part, checkout / part, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["chmod", "-R", "a+rX", checkout], check=True)
    fine = attack()
    assert fine.returncode == 0, (fine.stdout, fine.stderr)
    assert f"repelled   read {lab.home}/token" in fine.stdout.splitlines()
    # Something that a job of hers can see, and should not.
    lab.site.run("mkdir", "-m", "755", str(lab.root / "users" / BOB), user="bob")
    open_ = attack()
    assert open_.returncode == 1, (open_.stdout, open_.stderr)
    assert f"SUCCEEDED  look into {lab.root}/users/{BOB}, which is {BOB}'s" in open_.stdout.splitlines()
