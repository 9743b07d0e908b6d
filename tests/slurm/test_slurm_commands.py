"""Slurm's commands, the real ones, in all kinds of trouble: every call ends, and says what may be concluded."""

import os
import signal

import pytest

from carrel.core.domain.errors import Unavailable
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.errors import SlurmDown, SlurmEmpty, SlurmFailed, SlurmRefused, SlurmSlow
from carrel.engines.slurm.listing import Garbage, find
from carrel.engines.slurm.states import end_of, is_live
from carrel.testing.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-engine")]

SCRIPT = "#!/bin/sh\nsleep 600\n"


@pytest.fixture
def commands(faults):
    return SlurmCommands(environ=faults.environ, json=False)


@pytest.fixture
def hasty(site):
    """For a controller that does not answer."""
    return SlurmCommands(environ={**site.environ, "SLURM_CONF": str(site.layout.hasty_conf)}, json=False)


def submit(site, commands, name, script=SCRIPT, *options):
    """Submit as the lab does: `name` is the job's identity."""
    called = ["--job-name=train", f"--comment={name}"]
    return commands.submit([*called, "--parsable", f"--output={site.shared}/%j.out", *options], script)


@pytest.mark.gate
@pytest.mark.parametrize("json", [False, True])
def test_a_job_is_followed_from_submission_to_its_end(site, faults, json):
    commands = SlurmCommands(environ=faults.environ, json=json)
    name = f"carrel.lab.{int(json)}.7"
    number = submit(site, commands, name, SCRIPT, "--nodelist=node2", f"--chdir={site.shared}")
    wait_until(lambda: find(commands.listing(), name)[0].state == "RUNNING")
    (job,) = find(commands.listing(), name)
    assert (job.id, job.nodes) == (number, "node2")
    assert commands.job(number, name).state == "RUNNING"
    assert commands.job(number, "carrel.lab.2.1") is None
    assert commands.job(999999, name) is None
    commands.cancel(number, name="carrel.another.1.1")  # a number that was given again
    assert commands.job(number, name).state == "RUNNING"
    commands.cancel(number, name=name)
    wait_until(lambda: find(commands.listing(), name)[0].state == "CANCELLED")
    commands.cancel(number, name=name)
    # What Slurm first writes down of a job has neither name nor directory.
    records = wait_until(lambda: [job for job in commands.history([number]) if end_of(job) and job.directory])
    assert "Slurm by " in end_of(records[-1]).reason.message
    assert {job.directory for job in records} == {str(site.shared)}


def test_only_waiting_jobs_are_cancelled_when_asked_so_and_only_the_script_gets_the_signal(site, commands):
    running = submit(site, commands, "running", "#!/bin/sh\ntrap 'echo told' USR1\necho ready\nwhile :; do sleep 0.05; done\n")
    waiting = submit(site, commands, "waiting", SCRIPT, "--hold")
    wait_until(lambda: site.output(running))
    commands.cancel_waiting(running, name="running")
    commands.cancel_waiting(waiting, name="waiting")
    wait_until(lambda: site.state(waiting) == "CANCELLED")
    assert site.state(running) == "RUNNING"
    commands.signal(running, "USR1", name="running")
    commands.signal(waiting, "USR1", name="waiting")
    wait_until(lambda: "told" in site.output(running))
    assert site.state(running) == "RUNNING"


def test_the_environment_of_the_server_changes_nothing(site, faults):
    environ = {**faults.environ, "SBATCH_HOLD": "1", "SBATCH_QOS": "nosuch", "SQUEUE_STATES": "F", "SQUEUE_FORMAT": "%i"}
    commands = SlurmCommands(environ={**environ, "SECRET": "x", "SLURM_JOB_ID": "1"})
    number = submit(site, commands, "clean", "#!/bin/sh\nenv\n")
    site.wait_for(number, "COMPLETED")
    assert find(commands.listing(), "clean")
    assert "SECRET" not in site.output(number)


# --- trouble ----------------------------------------------------------------------------------------------------------------

CALLS = {
    "sbatch": lambda commands: commands.submit(["--parsable", "--hold"], SCRIPT),
    "squeue": lambda commands: commands.listing(),
    "sacct": lambda commands: commands.history([1]),
    "scontrol": lambda commands: commands.nodes(),
    "scancel": lambda commands: commands.cancel(commands.submit(["--parsable", "--hold", "--comment=held"], SCRIPT), name="held"),
}


ERRORS = {
    "slow": SlurmSlow,
    "late": SlurmSlow,
    "busy": SlurmSlow,
    "down": SlurmDown,
    "fails": SlurmFailed,
    "silent": SlurmEmpty,
    "swallowed": SlurmEmpty,
    "garbage": Garbage,
}
#: scancel says nothing when all is well; sacct and scontrol, asked about nothing, fail before they can be late.
NO_FAULTS = {
    "scancel": {"silent", "swallowed", "garbage"},
    "scontrol": {"late"},
    "sacct": {"late"},
}


@pytest.mark.parametrize(
    ("program", "fault"), [(program, fault) for program in CALLS for fault in ERRORS if fault not in NO_FAULTS.get(program, ())]
)
def test_every_fault_of_every_program_has_its_error(site, faults, program, fault):
    error = ERRORS[fault]
    faults.set(fault, program)
    # Only what never answers is not waited for: on a busy machine an answer may take long.
    commands = SlurmCommands(environ=faults.environ, json=False, timeout=3 if error is SlurmSlow else 60)
    with pytest.raises(error) as told:
        CALLS[program](commands)
    assert told.value.message
    assert told.value.remedy


@pytest.mark.parametrize("json", [False, True])
def test_a_listing_of_nothing_is_a_listing(site, faults, json):
    faults.set("loses", "squeue", text="carrel.lab.9.1")
    commands = SlurmCommands(environ=faults.environ, json=False)
    submit(site, commands, "carrel.lab.9.1", SCRIPT, "--hold")
    assert not find(commands.listing(), "carrel.lab.9.1")
    faults.clear()
    assert find(SlurmCommands(environ=faults.environ, json=json).listing(), "carrel.lab.9.1")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--qos=nosuch"], "Invalid qos specification"),
        (["--partition=nosuch"], "Invalid partition name specified"),
        (["--gres=gpu:99"], "Requested node configuration is not available"),
        (["--account=nosuch"], "Invalid account or account/partition combination specified"),
        (["--time=soon"], "Invalid --time specification"),
        (["--no-such-option"], "unrecognized option"),
        (["--qos=short", "--time=10"], "QOSMaxWallDurationPerJobLimit"),
    ],
)
def test_what_slurm_refuses_is_told_in_its_own_words(site, commands, options, reason):
    with pytest.raises(SlurmRefused, match=reason):
        submit(site, commands, "refused", SCRIPT, *options)
    # Slurm keeps a record of some that it refused, but runs none.
    assert not any(is_live(job) for job in find(commands.listing(), "refused"))


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        *[
            (f"sbatch: error: Batch job submission failed: {words}", False)
            for words in (
                "Unexpected missing socket error",
                "Communication connection failure",
                "Message receive failure",
                "Insane message length",
                "I/O error writing script/environment to file",
                "Transport endpoint is not connected",
                "Connection reset by peer",
                "Unable to create job record, try again",
                "Slurm internal error, contact system administrator",
                "Zero Bytes were transmitted or received",
                "Slurm backup controller in standby mode",
                "Error generating job credential",
            )
        ],
        *[
            (f"sbatch: error: Batch job submission failed: {words}", True)
            for words in (
                "Unspecified error",  # a site's own rules (job_submit.lua)
                "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
                "Requested partition configuration not available now",
            )
        ],
        ("sbatch: unrecognized option '--message-of-the-day'", True),
        ("sbatch: error: Invalid --time specification", True),
    ],
)
def test_only_what_slurm_says_of_the_job_is_a_refusal(tmp_path, said, refused):
    program = tmp_path / "sbatch"
    program.write_text(f"#!/bin/sh\ncat >/dev/null; cat >&2 <<'END'\n{said}\nEND\nexit 1\n")
    program.chmod(0o755)
    commands = SlurmCommands(environ={"PATH": f"{tmp_path}:/usr/bin:/bin"}, json=False)
    with pytest.raises(SlurmRefused if refused else Unavailable, match=r".") as told:
        commands.submit([], SCRIPT)
    assert isinstance(told.value, SlurmRefused) is refused


def test_a_submission_whose_answer_is_lost_may_have_made_a_job(site, faults, commands):
    faults.set("swallowed", "sbatch")
    with pytest.raises(SlurmEmpty):
        submit(site, commands, "carrel.lab.3.1", SCRIPT, "--hold")
    assert find(commands.listing(), "carrel.lab.3.1")


def test_a_dead_controller_is_down_and_comes_back(site, commands, hasty):
    number = submit(site, commands, "survivor")
    site.wait_for(number, "RUNNING")
    site.wait_until_saved(number)
    site.kill("slurmctld")
    with pytest.raises(SlurmDown):
        hasty.listing()
    with pytest.raises(SlurmDown):
        submit(site, hasty, "never")
    site.start_controller()
    assert find(commands.listing(), "survivor")
    assert not find(commands.listing(), "never")


def test_a_controller_that_hangs_is_slow(site, hasty):
    os.kill(site.pid("slurmctld"), signal.SIGSTOP)
    try:
        with pytest.raises(SlurmSlow):
            hasty.listing()
    finally:
        os.kill(site.pid("slurmctld"), signal.SIGCONT)


def test_accounting_that_is_down_is_no_end(site, commands):
    site.kill("slurmdbd")
    with pytest.raises(SlurmDown):
        commands.history([1])
    commands.listing()


def test_missing_programs_are_told(tmp_path):
    with pytest.raises(SlurmFailed, match="sbatch cannot be started"):
        SlurmCommands(environ={"PATH": str(tmp_path)}).version()
