"""The engine whose work is done by a deputy: a process of another Unix user, on a real cluster."""

import json
import os
import pwd
import re
import subprocess
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from slurm_engines import said

from carrel.core.domain.array import ArrayElement
from carrel.core.domain.errors import NotFound, Unavailable
from carrel.core.domain.job import JobState
from carrel.core.domain.launch import Preparing
from carrel.core.domain.ports import Attempt
from carrel.core.spool import AttemptDirectory, Spool
from carrel.engines.deputy.engine import DeputyEngine
from carrel.engines.deputy.trial import try_deputy
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.engine import options_for
from carrel.engines.slurm.errors import SlurmDown
from carrel.engines.slurm.shared import SharedListing
from carrel.lab.server.home import LabHome as Home
from carrel.lab.server.signing import LabKey
from carrel.testing.builders import EngineListener, LabHome, make_launch
from carrel.testing.engine_contract import TOKEN, EngineContract
from carrel.testing.waiting import wait_until
from support.slurm_site import USERS
from support.unix_users import common_ground, run_as

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.xdist_group("slurm-engine"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users"),
]
ALICE, BOB = USERS["alice"], USERS["bob"]


@dataclass(frozen=True, slots=True)
class DeputyHome(LabHome):
    """A lab whose jobs run as alice: their files are hers."""

    user: str = ALICE

    @property
    def lab(self) -> str:
        """Tests reuse the numbers of jobs; a lab of its own keeps their jobs in Slurm apart."""
        return f"t{abs(hash(str(self.root))):x}"

    def attempt(self, launch) -> AttemptDirectory:
        return Spool(self.root / "users" / self.user / self.lab / "spool").attempt(launch.job_id, launch.attempt)


@pytest.fixture
def python(everybodys_python):
    return everybodys_python


@pytest.fixture
def home(site):
    with common_ground() as root:
        (root / "users").mkdir()
        (root / "users").chmod(0o1777)
        (root / "run").mkdir(mode=0o700)
        yield DeputyHome(root)


def command_of(home, site, python, user=None):
    """What starts a deputy, and the file that says what it may do."""
    file = home.run / f"deputy.{user or home.user}.toml"
    file.write_text(
        f'directory = "{home.root}/users/{{user}}"\n'
        f'[environment]\nPATH = "{site.environ["PATH"]}"\nSLURM_CONF = "{site.layout.conf}"\n'
    )
    file.chmod(0o644)
    home.run.chmod(0o711)
    return [*run_as(user or home.user), str(python), "-P", "-m", "carrel.engines.deputy.process", "--config", str(file)]


def key_of(home, name="key"):
    """The key of a lab."""
    (home.root / name).mkdir(mode=0o700, exist_ok=True)
    return LabKey(Home(home.root / name))


def deputy_engine(home, site, python, **options):
    return DeputyEngine(
        user=home.user,
        command=options.pop("command", None) or command_of(home, site, python),
        lab=home.lab,
        spool=home.spool,
        snapshots=home.snapshots,
        blobs=home.blobs,
        log=home.run / "deputy.log",
        options=options_for,
        immediate=lambda _launch: False,
        environ=os.environ,
        interval=0.3,
        timeout=60.0,
        signer=key_of(home),
        **options,
    )


class TestDeputyEngine(EngineContract):
    @pytest.fixture
    def make_engine(self, site, home, python):
        return lambda: deputy_engine(home, site, python)


@pytest.fixture
def deputed(home, site, python):
    """Makes engines, which are closed after the test."""
    made = []

    def make(**options):
        made.append(deputy_engine(home, site, python, **options))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def engine(deputed):
    return deputed()


def test_elements_of_an_array_are_one_array_of_slurms_of_their_owner(site, home, engine, listener):
    launches = [
        replace(
            make_launch(home, "echo $SLURM_ARRAY_TASK_ID", job_id=number, more_elements=number < 5),
            name="sweep",
            element=ArrayElement(array_id=1, index=number, array="1-5"),
        )
        for number in range(1, 6)
    ]
    for launch in launches:
        engine.start(launch, token=TOKEN)
    for launch in launches:
        assert listener.ended(launch).state is JobState.COMPLETED
        assert home.attempt(launch).log.read_text() == f"{launch.job_id}\n"
    (number,) = {(home.attempt(launch).path / "slurm").read_text().split()[-1] for launch in launches}
    assert set(site.run("squeue", "-h", "-t", "all", f"--jobs={number}", "-o", "%F %u").out.split()) == {number, ALICE}


def deputies(home):
    """The process ids of the deputies of this lab that are not being waited for."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"carrel.engines.deputy.process" in words and any(str(home.root).encode() in word for word in words):
                found.append(int(entry.name))
    return found


def test_the_job_is_the_users_own_and_so_are_its_files(site, home, engine, listener):
    launch = make_launch(home, "id -un; mkdir -p outputs; echo 41 > outputs/answer; touch outputs/nothing; sleep 0.2")
    engine.start(launch, token=TOKEN)
    ended = listener.ended(launch)
    assert ended.state is JobState.COMPLETED, ended
    directory = home.attempt(launch)
    uid = pwd.getpwnam(ALICE).pw_uid
    wait_until(lambda: not directory.work.exists())  # the runner tidies up after it has told the end
    files = [directory.path, *directory.path.rglob("*")]
    assert {path.lstat().st_uid for path in files} == {uid}
    assert not any(path.lstat().st_mode & 0o077 for path in [directory.path, home.root / "users" / ALICE / home.lab])
    # What the lab serves it has itself.
    own = home.spool.attempt(1, 1)
    assert own.log.read_text() == f"{ALICE}\n"
    contents = {file.path: home.blob(file.digest).read_bytes() for file in ended.outputs}
    assert contents == {"outputs/answer": b"41\n", "outputs/nothing": b""}
    # Hers go when the lab has written down that it has them.
    engine.forget(1, 1)
    wait_until(lambda: not list((home.root / "users" / ALICE / home.lab / "blobs").glob("??/*")))
    # Nobody else can read hers, and she cannot read the lab's.
    for path in (directory.journal, directory.log):
        assert site.run("cat", str(path), user="bob", check=False).code != 0
        assert site.run("cat", str(path), user="alice").code == 0
    for user in ("alice", "bob"):
        assert site.run("cat", str(own.log), user=user, check=False).code != 0


def test_outputs_that_did_not_fit_on_the_users_disk_are_collected(home, engine, listener):
    blobs = home.root / "users" / ALICE / home.lab / "blobs"
    launch = make_launch(home, "mkdir -p outputs; echo 41 > outputs/answer; while [ ! -e outputs/go ]; do sleep 0.1; done")
    engine.start(launch, token=TOKEN)
    wait_until(lambda: (home.attempt(launch).work / "outputs" / "answer").exists())
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,mode=0777", "carrel-test", blobs], check=True)
    try:
        (blobs / "ballast").write_bytes(b"x" * 4096)
        (home.attempt(launch).work / "outputs" / "go").touch()
        ended = listener.ended(launch)
        assert (ended.state, ended.reason.code, ended.uncollected) == (JobState.FAILED, "StorageFull", True), ended
        engine.forget(1, 1)
        failure = engine.collect(1, 1, 1024**2).failure
        assert failure is not None
        assert failure.code == "StorageFull"
    finally:
        subprocess.run(["umount", "--lazy", blobs], check=True)
    stored = engine.collect(1, 1, 1024**2)
    assert {file.path: home.blob(file.digest).read_bytes() for file in stored.files} == {
        "outputs/answer": b"41\n",
        "outputs/go": b"",
    }
    engine.remove_work(1, 1)
    wait_until(lambda: not home.attempt(launch).work.exists())
    with pytest.raises(NotFound):
        engine.collect(1, 1, 1024**2)


def test_a_deputy_that_is_killed_is_replaced_and_nothing_is_told_twice(home, engine, listener):
    os.mkfifo(home.root / "go")
    launch = make_launch(home, f"echo ready; read line < {home.root}/go; echo done")
    engine.start(launch, token=TOKEN)
    listener.wrote(launch, home.spool.attempt(1, 1).log, b"ready")
    (pid,) = deputies(home)
    os.kill(pid, 9)
    wait_until(lambda: pid not in deputies(home))
    (home.root / "go").write_text("go\n")
    assert listener.ended(launch).state is JobState.COMPLETED
    assert home.spool.attempt(1, 1).log.read_bytes() == b"ready\ndone\n"
    kinds = [type(record).__name__ for record in listener.story(launch).records]
    assert kinds.count("Claimed") == kinds.count("Started") == kinds.count("Ended") == 1


def asked_by(site, user):
    """How many messages of a user's the controller has had."""
    by_user = site.run("sdiag").out.split("statistics by user")[1]
    found = re.search(rf"^\s*{user}\s+\(\s*\d+\)\s+count:(\d+)", by_user, re.MULTILINE)
    return int(found[1]) if found else 0


def test_while_a_job_runs_the_labs_listing_is_enough(home, site, deputed):
    os.mkfifo(home.root / "go")
    asked = []
    commands = SlurmCommands(environ=site.environ, json=False)
    listing = SharedListing(lambda: (asked.append(1), commands.listing())[1])
    engine = deputed(listing=listing)
    listener = EngineListener(engine)
    launch = make_launch(home, f"echo ready; read line < {home.root}/go")
    engine.start(launch, token=TOKEN)
    listener.wrote(launch, home.spool.attempt(1, 1).log, b"ready")
    before, already = asked_by(site, ALICE), len(asked)
    wait_until(lambda: len(asked) >= already + 3)
    assert asked_by(site, ALICE) == before
    (home.root / "go").write_text("go\n")
    assert listener.ended(launch).state is JobState.COMPLETED


@pytest.mark.parametrize("lab", ["sees nothing", "has no answer"])
def test_where_the_lab_does_not_see_a_users_jobs_the_deputy_looks_itself(home, site, lab, deputed):
    def listing():
        if lab == "sees nothing":
            return ()
        raise SlurmDown("no", remedy="none")

    engine = deputed(listing=SharedListing(listing))
    listener = EngineListener(engine)
    launch = make_launch(home, "echo ready; sleep 600")
    engine.start(launch, token=TOKEN)
    listener.wrote(launch, home.spool.attempt(1, 1).log, b"ready")
    site.run("scancel", (home.attempt(launch).path / "slurm").read_text().strip())
    assert listener.ended(launch).state is JobState.CANCELLED


def test_a_log_that_was_cut_short_is_completed_after_a_restart(home, engine, listener, deputed):
    os.mkfifo(home.root / "go")
    launch = make_launch(home, f"echo ready; read line < {home.root}/go; head -c 1000000 /dev/zero")
    engine.start(launch, token=TOKEN)
    log = home.spool.attempt(1, 1).log
    offset = listener.wait(launch, lambda story: log.exists() and story.log_size == 6).offset
    engine.close()
    log.write_bytes(b"rea")
    (home.root / "go").write_text("go\n")
    second = deputed()
    listener = EngineListener(second)
    second.adopt([(Attempt(job_id=1, number=1, offset=offset), launch, TOKEN)])
    assert listener.ended(launch).state is JobState.COMPLETED
    assert log.read_bytes() == b"ready\n" + bytes(1000000)


def test_who_has_no_deputy_waits_and_is_told_why(home, deputed):
    words = ["sh", "-c", "echo sudo: unable to fork >&2; exit 1"]
    engine = deputed(command=words)
    listener = EngineListener(engine)
    launch = make_launch(home, "true")
    engine.start(launch, token=TOKEN)
    listener.wait(launch, lambda story: said(story, f"user {ALICE}") and said(story, "sudo: unable to fork"))
    engine.cancel(1, 1, by="carol")
    ended = listener.ended(launch)
    assert ended.state is JobState.CANCELLED
    assert "carol" in ended.reason.message


@pytest.mark.parametrize(
    "words",
    [
        "sudo: a password is required",
        "Sorry, user carrel is not allowed to execute /opt/carrel/bin/carrel-deputy as games on login1.",
        'carrel-deputy: games is not in the group "lab". An administrator of the cluster adds them.',
    ],
)
def test_whom_sudo_refuses_is_told_and_not_left_waiting(home, words, deputed):
    engine = deputed(command=["sh", "-c", 'echo "$0" >&2; exit 1', words])
    listener = EngineListener(engine)
    first, second = make_launch(home, "true"), make_launch(home, "true", job_id=2)
    engine.start(first, token=TOKEN)
    ends = [listener.ended(first)]
    engine.start(second, token=TOKEN)  # who comes later is told as well
    ends.append(listener.ended(second))
    for ended in ends:
        assert (ended.state, ended.reason.code) == (JobState.FAILED, "LaunchFailed")
        assert f"may not act as the Unix user {ALICE}: {words}" in ended.reason.message


@pytest.mark.parametrize(
    ("said_by_deputy", "told"),
    [
        ("garbage", "This came where a frame was expected: 'garbage'"),
        ('{"is": "hello", "version": 99, "carrel": "9.9", "user": "games"}', "The deputies are of Carrel 9.9"),
        ('{"is": "hello", "version": 1, "carrel": "9.9", "user": "root"}', "The deputy runs as root, not as games"),
        ('{"is": "news", "observation": {"job_id": 1}, "lost": []}', "makes no sense"),
        ('{"is": "log", "job": 1, "attempt": 1, "at": 0, "bytes": -1}', "frame was expected"),
    ],
)
def test_what_makes_no_sense_is_not_believed(home, said_by_deputy, told, deputed):
    engine = deputed(command=["sh", "-c", 'echo "$0"; cat > /dev/null', said_by_deputy])
    listener = EngineListener(engine)
    launch = make_launch(home, "true")
    engine.start(launch, token=TOKEN)
    listener.wait(launch, lambda story: said(story, told))
    assert listener.story(launch).ended is None


def test_news_of_jobs_of_others_are_not_believed(home, deputed):
    hello = '{"is":"hello","version":1,"carrel":"1","user":"games","nonce":"1"}'
    ready = '{"is":"ready","code":[]}'
    ended = '{"at":1.0,"type":"ended","state":"FAILED","reason":{"code":"NonZeroExitCode","message":"ha"}}'
    lies = [
        f'{{"is":"news","observation":{{"job_id":{job},"attempt":1,"entries":[{ended}],"offset":9,"beside":false,"log_size":null,'
        f'"gone":false}},"lost":[]}}'
        for job in (2, 1)
    ]
    log = '{"is":"log","job":2,"attempt":1,"at":0,"bytes":3}\nha\n'
    script = "".join(f"printf '%s\\n' '{line}'; " for line in (hello, ready)) + "read a; read b; "
    script += "".join(f"printf '%s\\n' '{line}'; " for line in (log.rstrip("\n"), *lies)) + "cat > /dev/null"
    engine = deputed(command=["bash", "-c", script])
    listener = EngineListener(engine)
    mine, other = make_launch(home, "true"), make_launch(home, "true", job_id=2)
    engine.start(mine, token=TOKEN)
    assert listener.ended(mine).reason.message == "ha"
    assert listener.story(other).ended is None
    assert not home.spool.attempt(2, 1).log.exists()


def test_who_has_a_deputys_pipe_asks_slurm_no_more_than_a_deputy_does(home, deputed):
    hello, ready = '{"is":"hello","version":1,"carrel":"1","user":"games","nonce":"1"}', '{"is":"ready","code":[]}'
    questions = 'for n in $(seq 400); do echo \'{"is":"list","id":\'$n\',"since":1e18}\'; done'
    script = f"echo '{hello}'; echo '{ready}'; read a; read b; {questions}; cat > /dev/null"
    asked = []

    def listing(since, numbers):
        asked.append(since)
        return []

    engine = deputed(command=["bash", "-c", script], listing=listing)
    listener = EngineListener(engine)
    launch = make_launch(home, "true")
    engine.start(launch, token=TOKEN)
    listener.wait(launch, lambda story: said(story, "questions for a listing came at once"))
    assert len([one for one in threading.enumerate() if one.name == "carrel-slurm-listing"]) <= 8
    assert len(asked) <= 8
    ask = SharedListing(lambda: asked.append(0.0) or [], monotonic=lambda: 5.0)
    before = len(asked)
    for _ in range(100):
        ask(1e18)
    assert len(asked) == before + 1


def test_a_deputy_refuses_what_its_administrator_has_not_allowed(home, site, python, deputed):
    def last_words(user, text, mode=0o644):
        command = command_of(home, site, python, user)
        Path(command[-1]).write_text(text)
        Path(command[-1]).chmod(mode)
        engine = deputed(command=command)
        listener = EngineListener(engine)
        launch = make_launch(home, "true")
        engine.start(launch, token=TOKEN)
        story = listener.wait(launch, lambda story: story.records)
        engine.close()
        return story.records[0].message

    assert "root has no deputy" in last_words("root", "")
    assert 'games is not in the group "shadow"' in last_words(ALICE, 'group = "shadow"')
    assert "could have been written by others" in last_words(ALICE, "", 0o666)
    assert '"grupe" is not understood' in last_words(ALICE, 'grupe = "lab"')
    assert 'directory is "carrel"' in last_words(ALICE, 'directory = "carrel"')
    assert 'lab_key is "mine"' in last_words(ALICE, 'lab_key = "mine"')
    other = key_of(home, "other").public
    assert "This is not the lab that deputies serve here" in last_words(ALICE, f'lab_key = "{other}"')


def test_a_deputy_serves_the_lab_that_its_administrator_has_named_and_no_other(home, site, python, deputed):
    """A second lab that somebody starts where the rule of sudo holds, with a map of its own, has another key."""
    command = command_of(home, site, python)
    file = Path(command[-1])
    file.write_text(f'lab_key = "{key_of(home).public}"\n{file.read_text()}')
    assert try_deputy(command, signer=key_of(home)).user == ALICE
    for signer in (key_of(home, "other"), None):
        with pytest.raises(Unavailable, match="not the lab that deputies serve here"):
            try_deputy(command, signer=signer)
    engine = deputed(command=command)
    listener = EngineListener(engine)
    launch = make_launch(home, "true")
    engine.start(launch, token=TOKEN)
    assert listener.ended(launch).state is JobState.COMPLETED
    order = json.loads(home.attempt(launch).order.read_bytes())
    assert (order["user"], order["launch"]["job_id"]) == (ALICE, 1)


def test_a_launch_file_that_is_changed_while_it_waits_in_slurm_never_runs(home, site, engine, listener):
    """What the user's own rights allow: it gains nobody anything, and it is found."""
    site.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        launch = make_launch(home, f"touch {home.root}/users/ran")
        engine.start(launch, token=TOKEN)
        wait_until(lambda: (home.attempt(launch).path / "slurm").exists())
        file = home.attempt(launch).launch
        text = json.loads(file.read_bytes())
        text["task"]["command"] = f"touch {home.root}/users/stolen"
        file.write_text(json.dumps(text))
    finally:
        site.run("scontrol", "update", "PartitionName=main", "State=UP")
    ended = listener.ended(launch)
    assert (ended.state, ended.reason.code) == (JobState.FAILED, "LaunchFailed")
    assert "The launch file was changed after the lab had signed it: task." in ended.reason.message
    assert not list((home.root / "users").glob("[rs]*"))


def refusal(home, deputed):
    """What the lab is told when a deputy refuses to work in the directory that its user has."""
    engine = deputed()
    listener = EngineListener(engine)
    launch = make_launch(home, f"touch {home.root}/users/ran")
    engine.start(launch, token=TOKEN)
    story = listener.wait(launch, lambda story: any(isinstance(record, Preparing) for record in story.records))
    assert not (home.root / "users" / "ran").exists()
    return " ".join(record.message for record in story.records if isinstance(record, Preparing))


def test_a_directory_that_somebody_else_made_first_is_not_used(home, site, deputed):
    site.run("mkdir", "-m", "777", str(home.root / "users" / ALICE), user="bob")
    assert f"{home.root}/users/{ALICE} belongs to {BOB}, who could put anything there" in refusal(home, deputed)


def test_a_directory_of_ones_own_in_one_that_others_may_write_is_not_used(home, site, deputed):
    (home.root / "users" / ALICE).mkdir()
    (home.root / "users" / ALICE).chmod(0o777)
    site.run("mkdir", "-m", "700", str(home.root / "users" / ALICE / home.lab), user="alice")
    assert f"may be written by everybody, who could put another {home.lab} there" in refusal(home, deputed)


def test_a_way_through_somebody_elses_link_is_not_used(home, site, deputed):
    own = home.root / "users" / "own"
    site.run("mkdir", "-m", "700", str(own), user="alice")
    site.run("ln", "-s", str(own), str(home.root / "users" / ALICE), user="bob")
    assert f"{home.root}/users/{ALICE} belongs to {BOB}" in refusal(home, deputed)


def test_a_directory_that_is_opened_to_others_while_the_deputy_works_is_noticed(home, site, python, engine, listener):
    first = make_launch(home, "true")
    engine.start(first, token=TOKEN)
    assert listener.ended(first).state is JobState.COMPLETED
    (home.root / "users" / ALICE).chmod(0o777)
    second = make_launch(home, "true", job_id=2)
    engine.start(second, token=TOKEN)
    listener.wait(second, lambda story: said(story, "may be written by everybody"))
    assert not home.attempt(second).path.exists()
    (home.root / "users" / ALICE).chmod(0o700)
    assert listener.ended(second).state is JobState.COMPLETED


def test_a_configuration_below_a_directory_of_somebody_else_is_not_believed(home, site, python, deputed):
    command = command_of(home, site, python)
    hers = home.root / "hers"
    site.run("mkdir", str(hers), user="bob")
    Path(command[-1]).rename(hers / "deputy.toml")
    command[-1] = str(hers / "deputy.toml")
    engine = deputed(command=command)
    listener = EngineListener(engine)
    launch = make_launch(home, "true")
    engine.start(launch, token=TOKEN)
    listener.wait(launch, lambda story: said(story, f"{hers} belongs to {BOB}"))
