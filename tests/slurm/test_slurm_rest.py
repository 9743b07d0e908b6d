"""slurmrestd, the real one, on a real cluster: it makes the jobs that sbatch makes, and in trouble no job is made twice."""

import os
import re
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from carrel.core.domain.array import ArrayElement
from carrel.core.domain.errors import CarrelError, Invalid
from carrel.core.domain.job import JobState
from carrel.engines.deputy.configuration import read_configuration
from carrel.engines.deputy.engine import DeputyEngine
from carrel.engines.slurm import rest
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.engine import SlurmEngine, options_for
from carrel.engines.slurm.errors import SlurmDown, SlurmEmpty, SlurmRefused, SlurmSlow
from carrel.engines.slurm.listing import Garbage, find
from carrel.engines.slurm.options import SlurmOptions, sbatch_arguments
from carrel.engines.slurm.rest import SlurmRest
from carrel.engines.slurm.rest_answers import NotDone
from carrel.engines.slurm.rest_http import read_address
from carrel.testing.builders import EngineListener, LabHome, make_launch
from carrel.testing.engine_contract import TOKEN
from carrel.testing.rest_faults import RestFaults
from carrel.testing.slurm_faults import SlurmFaults
from carrel.testing.slurm_site import REST_PACKAGES, USERS, missing_for_rest
from carrel.testing.unix_users import common_ground, run_as
from carrel.testing.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-engine")]

SCRIPT = "#!/bin/sh\nsleep 600\n"


@pytest.fixture
def site(slurm_programs, shared_site):
    """The cluster of all tests here, with slurmrestd."""
    missing = missing_for_rest()
    if missing:
        message = f"{', '.join(missing)} not found (Debian: apt-get install {REST_PACKAGES})"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    yield shared_site
    shared_site.clear()


@pytest.fixture
def address(site):
    """Where slurmrestd listens."""
    address = site.start_rest()
    yield address
    site.stop_rest()


@pytest.fixture
def tokens(site):
    """Where one listens that knows users by their tokens."""
    address = site.start_rest_with_tokens()
    yield address
    site.stop_rest()


@pytest.fixture
def faults(site, tmp_path):
    return SlurmFaults(tmp_path / "bin", site.environ)


@pytest.fixture
def front(address, tmp_path):
    with RestFaults(tmp_path / "front", Path(address.removeprefix("unix:"))) as front:
        yield front


def slurm_rest(environ, address, **options):
    return SlurmRest(read_address(address), SlurmCommands(environ=environ, json=False, timeout=60), **options)


def arguments(site, options, name, comment="a job"):
    return sbatch_arguments(options, name=name, comment=comment, directory=str(site.shared), output=f"{site.shared}/%x.out")


def submit(site, slurm, name, *more, script=SCRIPT):
    return slurm.submit([*arguments(site, SlurmOptions(memory=2**28), name), *more], script)


# --- the same jobs ----------------------------------------------------------------------------------------------------------

#: What differs from job to job, and between two that run on the same node.
_OWN = re.compile(r"JobId=|Scheduler=|JobName=|Std(Out|Err)=|.*Time=|LastSchedEval=|AllocNode:Sid=|(CPU|GPU)_IDs=|GRES=gpu")
_VARIABLES = re.compile(
    r"SLURM_(JOB_?ID|JOB_NAME|TASK_PID|JOB_GPUS|STEP_GPUS|JOB_(START|END)_TIME)=|.*(VISIBLE|AFFINITY|ORDINAL)"
)
_TELLS = "#!/bin/bash\nenv | sort\nulimit -S -a\nulimit -H -a\numask\nnice\npwd\nreadlink /proc/self/fd/0\n"

JOBS = {
    "everything": (
        SlurmOptions(
            partition="main,debug", qos="high", account="research", time=300, memory=2**29, cpus=3, gpus=1, gpu_type="fake",
            nodes=1, constraint="fast|slow", exclusive="user", mail="root", mail_events=("END", "FAIL"),
            passed=("--begin=now", "--nice=7", "--exclude=node[1,3-4]", "--wckey=w", "--prefer=slow", "--time-min=2"),
        ),
        'quotes "\' and $HOME\nnew lines, é €',
    ),
    "little": (SlurmOptions(time=60, requeue=True, exclusive="exclusive", passed=("--exclude=node[1,3-4]",)), ""),
    "reserved": (SlurmOptions(time=60, reservation="course", cpus=2, gpus=1, passed=("--licenses=tool:2",)), "100%"),
}  # fmt: skip


@pytest.fixture
def course(site):
    words = ("ReservationName=course", "Nodes=node1", "StartTime=now", "Duration=60", f"Users={site.layout.user}")
    site.run("scontrol", "create", "reservation", *words)
    yield "course"
    site.clear()
    site.run("scontrol", "delete", "ReservationName=course")


@pytest.mark.gate
def test_a_job_is_the_same_by_sbatch_and_by_slurmrestd(site, address, faults, course):
    slurm = slurm_rest(faults.environ, address)
    by_hand = SlurmCommands(environ=faults.environ)
    found = slurm.look()
    assert (found.version[:6], found.user, found.sbatch_only) == ("22.05.", site.layout.user, "")
    for word, (options, comment) in JOBS.items():
        numbers = [
            way.submit(arguments(site, options, f"{word}.{way.__class__.__name__}", comment), _TELLS) for way in (by_hand, slurm)
        ]
        for number in numbers:
            site.wait_for(number, "COMPLETED")
        told = [site.run("scontrol", "--details", "show", "job", str(number)).out.split() for number in numbers]
        # Slurm's backfill may begin a job with --time-min under a shorter limit; the other jobs show that limits arrive.
        own = re.compile(rf"{_OWN.pattern}|TimeLimit=") if "--time-min=2" in options.passed else _OWN
        shown = [[pair for pair in pairs if not own.match(pair)] for pairs in told]
        assert shown[0] == shown[1], word
        written = [(site.shared / f"{word}.{name}.out").read_text().splitlines() for name in ("SlurmCommands", "SlurmRest")]
        seen = [[line for line in lines if not _VARIABLES.match(line)] for lines in written]
        assert seen[0] == seen[1], word
        assert len(seen[0]) > 40
    assert not any("SlurmRest" in call for call in faults.calls("sbatch"))


def test_what_cannot_be_said_goes_by_sbatch_and_what_is_refused_has_sbatchs_words(site, address, faults):
    slurm = slurm_rest(faults.environ, address)
    number = submit(site, slurm, "two", "--nodes=2-2", "--contiguous")
    assert "NumNodes=2" in site.run("scontrol", "show", "job", str(number)).out
    with pytest.raises(SlurmRefused, match="QOSMaxWallDurationPerJobLimit"):
        submit(site, slurm, "long", "--qos=short", "--time=10")
    with pytest.raises(SlurmRefused, match="Invalid partition name specified"):
        submit(site, slurm, "nowhere", "--partition=nosuch")
    assert len(faults.calls("sbatch")) == 3
    # What slurmrestd does not ask about a job and sbatch does.
    plugins = site.root / "etc" / "plugstack.conf"
    plugins.write_text("# nothing\n\noptional nosuch.so\n")
    try:
        submit(site, slurm_rest(faults.environ, address), "plugged")
    finally:
        plugins.unlink()
    assert len(faults.calls("sbatch")) == 4


def test_only_a_job_of_that_name_is_ended(site, address, faults):
    slurm = slurm_rest(faults.environ, address)
    running, waiting = submit(site, slurm, "carrel.t.1.1"), submit(site, slurm, "carrel.t.2.1", "--begin=now+1hour")
    site.wait_for(running, "RUNNING")
    slurm.cancel(running, name="carrel.another.1.1")
    slurm.cancel_waiting(running, name="carrel.t.1.1")
    assert slurm.job(running, "carrel.t.1.1").state == "RUNNING"
    assert slurm.job(running, "carrel.t.9.1") is None
    assert slurm.job(999999, "carrel.t.1.1") is None
    slurm.cancel(running, name="carrel.t.1.1")
    slurm.cancel_waiting(waiting, name="carrel.t.2.1")
    slurm.cancel(999999, name="carrel.t.1.1")
    assert site.wait_for(waiting, "CANCELLED")
    assert site.wait_for(running, "CANCELLED")
    slurm.cancel(running, name="carrel.t.1.1")
    if site.running("slurmrestd"):  # one that crashed leaves all to the commands, and nobody noticed
        assert not any(faults.calls(program) for program in ("sbatch", "scancel"))


def test_a_question_whose_connection_broke_is_asked_once_more(site, faults, front):
    slurm = slurm_rest(faults.environ, front.address)
    number = submit(site, slurm, "carrel.t.3.1", "--begin=now+1hour")
    front.break_off()
    assert slurm.job(number, "carrel.t.3.1").state == "PENDING"
    front.break_off()
    slurm.cancel(number, name="carrel.t.3.1")
    assert site.wait_for(number, "CANCELLED")
    asked = [line.split()[0] for line in front.requests]
    assert asked == ["GET", "POST", "GET", "GET", "GET", "GET", "DELETE"]
    assert faults.calls("scancel") == []
    front.break_off(2)  # twice is no accident
    assert slurm.job(number, "carrel.t.3.1").state == "CANCELLED"
    assert slurm.job(number, "carrel.t.3.1").state == "CANCELLED"
    assert len(front.requests) == len(asked) + 2


# --- trouble ----------------------------------------------------------------------------------------------------------------

#: What a fault means, and how many jobs there are then.
FAULTS = {
    "cut": (SlurmDown, 0),
    "lost": (SlurmDown, 1),
    "half": (SlurmDown, 1),
    "empty": (SlurmEmpty, 1),
    "garbage": (Garbage, 1),
    "hidden": (Garbage, 1),
    "late": (SlurmSlow, 1),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_submission_that_was_not_answered_is_not_repeated(site, faults, front, fault):
    error, jobs = FAULTS[fault]
    slurm = slurm_rest(faults.environ, front.address, timeout=1.0 if fault == "late" else 60.0)
    front.set(fault)
    with pytest.raises(error):
        submit(site, slurm, f"carrel.{fault}.1.1", "--begin=now+1hour")
    assert len(find(slurm.listing(), f"carrel.{fault}.1.1")) == jobs
    assert faults.calls("sbatch") == []
    submit(site, slurm, f"carrel.{fault}.1.2", "--begin=now+1hour")  # for a while the commands do it
    assert len(faults.calls("sbatch")) == 1


def test_who_is_not_heard_asks_sbatch_at_once(site, faults, front):
    now = [0.0]
    slurm = slurm_rest(faults.environ, front.address, monotonic=lambda: now[0])
    front.set("refused")
    submit(site, slurm, "carrel.t.4.1", "--begin=now+1hour")
    submit(site, slurm, "carrel.t.4.2", "--begin=now+1hour")
    assert (len(faults.calls("sbatch")), front.submissions()) == (2, 1)
    front.set("")
    now[0] += rest.ASIDE
    submit(site, slurm, "carrel.t.4.3", "--begin=now+1hour")
    assert (len(faults.calls("sbatch")), front.submissions()) == (2, 2)


def test_a_daemon_that_is_away_or_somebody_elses_leaves_all_to_the_commands(site, faults, caplog):
    slurm = slurm_rest(faults.environ, f"unix:{site.root}/run/nothing")
    number = submit(site, slurm, "carrel.t.5.1", "--begin=now+1hour")
    slurm.cancel(number, name="carrel.t.5.1")
    site.wait_for(number, "CANCELLED")
    assert sum("do the work of slurmrestd" in message for message in caplog.messages) == 1
    if os.getuid() == 0:
        with pytest.raises(CarrelError, match="runs as nobody, and not as root"):
            slurm_rest(site.environ, site.start_rest(user="nobody")).look()
        site.stop_rest()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users")
def test_whoever_listens_in_slurmrestds_place_gets_no_token(site, faults):
    words = (
        "import socket, sys; l = socket.create_server(('127.0.0.1', 0)); print(l.getsockname()[1], flush=True); sys.stdin.read()"
    )
    command = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", "/usr/bin/python3", "-c", words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        address = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        with pytest.raises(NotDone, match="belongs to user 54321") as told:
            slurm_rest(faults.environ, address).look()
        process.stdin.close()
    assert told.value.away


def test_a_controller_that_hangs_is_slow_and_may_have_heard_all_the_same(site, address, faults):
    slurm = slurm_rest(faults.environ, address)
    submit(site, slurm, "before", "--begin=now+1hour")
    os.kill(site.pid("slurmctld"), signal.SIGSTOP)
    try:
        with pytest.raises(SlurmSlow):
            submit(site, slurm, "hangs", "--begin=now+1hour")
    finally:
        os.kill(site.pid("slurmctld"), signal.SIGCONT)
    wait_until(lambda: find(slurm.listing(), "hangs"))
    assert faults.calls("sbatch") == []


def test_a_token_says_who_we_are_and_is_renewed(site, faults, tokens, monkeypatch):
    monkeypatch.setattr(rest, "_LIFESPAN", 1)
    slurm = slurm_rest(faults.environ, tokens)
    number = submit(site, slurm, "mine", "--begin=now+1hour")
    assert f"UserId={site.layout.user}(" in site.run("scontrol", "show", "job", str(number)).out

    def expired():
        try:
            submit(site, slurm, "expires", "--begin=now+1hour")
        except SlurmDown:
            return True
        return False

    wait_until(expired)
    submit(site, slurm, "again", "--begin=now+1hour")
    assert find(slurm.listing(), "again")
    assert faults.calls("sbatch") == []
    faults.set("fails", "scontrol")
    slurm = slurm_rest(faults.environ, str(slurm.address))
    submit(site, slurm, "without", "--begin=now+1hour")
    assert len(faults.calls("sbatch")) == 1


# --- the engine -------------------------------------------------------------------------------------------------------------


def test_the_engine_submits_by_slurmrestd_and_finds_what_was_not_answered(site, faults, front, tmp_path):
    """The first job's answer is lost and slurmrestd dies: its job is found by its name, and the next is sbatch's."""
    home = LabHome(tmp_path / "home")
    commands = SlurmCommands(environ=faults.environ, json=False, timeout=60)
    transport = SlurmRest(read_address(front.address), commands)
    lab = f"t{abs(hash(str(home.root))):x}"
    engine = SlurmEngine(
        spool=home.spool, run_dir=home.run, lab=lab, environ=faults.environ, commands=commands, transport=transport, interval=0.3
    )
    try:
        listener = EngineListener(engine)
        first = make_launch(home, f"echo ran >> {home.root}/ran")
        engine.start(first, token=TOKEN)
        assert listener.ended(first).state is JobState.COMPLETED
        assert (front.submissions(), faults.calls("sbatch")) == (1, [])
        front.set("lost")
        second = make_launch(home, f"echo ran >> {home.root}/ran", job_id=2)
        engine.start(second, token=TOKEN)
        wait_until(lambda: front.accepted() == 2)
        site.kill("slurmrestd")
        assert listener.ended(second).state is JobState.COMPLETED
        third = make_launch(home, f"echo ran >> {home.root}/ran", job_id=3)
        engine.start(third, token=TOKEN)
        assert listener.ended(third).state is JobState.COMPLETED
    finally:
        engine.close()
    assert len(faults.calls("sbatch")) == 1
    assert (home.root / "ran").read_text() == "ran\n" * 3


def test_slurmrestd_makes_arrays_whose_elements_run_and_are_cancelled(site, faults, front, tmp_path):
    home = LabHome(tmp_path / "home")
    commands = SlurmCommands(environ=faults.environ, json=False, timeout=60)
    transport = SlurmRest(read_address(front.address), commands)
    lab = f"t{abs(hash(str(home.root))):x}"
    engine = SlurmEngine(
        spool=home.spool, run_dir=home.run, lab=lab, environ=faults.environ, commands=commands, transport=transport, interval=0.3
    )
    command = f"echo $SLURM_ARRAY_TASK_ID; while [ ! -e {home.root}/go ]; do sleep 0.1; done"
    launches = [
        replace(
            make_launch(home, command, job_id=number, more_elements=number < 4),
            name="sweep",
            element=ArrayElement(array_id=1, index=number, array="1-4"),
        )
        for number in range(1, 5)
    ]
    try:
        listener = EngineListener(engine)
        for launch in launches:
            engine.start(launch, token=TOKEN)
        for launch in launches:
            listener.wrote(launch, home.attempt(launch).log, f"{launch.job_id}\n".encode())
        engine.cancel(3, 1, by="alice")
        assert listener.ended(launches[2]).state is JobState.CANCELLED
        (home.root / "go").touch()
        for launch in (launches[0], launches[1], launches[3]):
            assert listener.ended(launch).state is JobState.COMPLETED
    finally:
        engine.close()
    assert (front.submissions(), faults.calls("sbatch")) == (1, [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users")
def test_a_deputy_speaks_to_slurmrestd_with_its_users_token(site, tokens, everybodys_python):
    python = str(everybodys_python)
    with common_ground() as root:
        (root / "users").mkdir()
        (root / "users").chmod(0o1777)
        (root / "run").mkdir()
        programs = root / "programs"
        programs.mkdir()
        (programs / "sbatch").write_text("#!/bin/sh\nexit 1\n")
        (programs / "sbatch").chmod(0o755)
        told = root / "deputy.toml"
        told.write_text(
            f'directory = "{root}/users/{{user}}"\nslurm_rest = "{tokens}"\n'
            f'[environment]\nPATH = "{programs}:{site.environ["PATH"]}"\nSLURM_CONF = "{site.layout.conf}"\n'
        )
        told.chmod(0o644)
        home = LabHome(root)
        engine = DeputyEngine(
            user=USERS["alice"],
            command=[*run_as(USERS["alice"]), python, "-P", "-m", "carrel.engines.deputy.process", "--config", str(told)],
            lab="rest",
            spool=home.spool,
            snapshots=home.snapshots,
            blobs=home.blobs,
            log=root / "run" / "deputy.log",
            options=options_for,
            immediate=lambda _launch: False,
            environ=os.environ,
            interval=0.3,
            timeout=60.0,
        )
        try:
            listener = EngineListener(engine)
            launch = make_launch(home, "id -un")
            engine.start(launch, token=TOKEN)
            assert listener.ended(launch).state is JobState.COMPLETED
            assert home.spool.attempt(1, 1).log.read_text() == f"{USERS['alice']}\n"
        finally:
            engine.close()
        told.write_text('slurm_rest = "unix:/run/rest"\n')
        with pytest.raises(Invalid, match="speaks for one user alone"):
            read_configuration(told)
