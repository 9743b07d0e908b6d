"""What is asked of Slurm becomes arguments and a script: whole golden files, and what is refused."""

import re
import shlex
import subprocess
import tempfile
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.errors import Invalid
from carrel.engines.slurm.environ import MODULES, command_environ, read_environ
from carrel.engines.slurm.immediate import srun_arguments
from carrel.engines.slurm.options import Notice, SlurmOptions, sbatch_arguments, slurm_memory, slurm_time
from carrel.engines.slurm.passed import _OURS, _SHORT, _TAKEN, FLAGS, PASSED, WITH_OPTIONAL_VALUE, WITH_VALUE
from carrel.engines.slurm.script import batch_script

pytestmark = pytest.mark.quick

LOCALE = {"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}
GOLDEN = Path(__file__).parent / "scripts"
EVERYTHING = SlurmOptions(
    partition="gpu,debug",
    qos="high",
    account="physics",
    time=90061,
    memory=16 * 1024**3,
    cpus=8,
    gpus=2,
    gpu_type="a100",
    nodes=3,
    tasks_per_node=2,
    constraint="nvlink&ib",
    exclusive="user",
    reservation="course",
    mail="alice@example.org",
    mail_events=("END", "FAIL"),
    modules=("gcc/12.2", "cuda/12.4"),
    variables={"SEED": "7", "GREETING": "it's $HOME; `date`\nend"},
    requeue=True,
    notice=Notice(signal="USR1", seconds=120),
    passed=("--nice=100", "--licenses=matlab:1", "--contiguous", "--no-kill"),
)


def arguments(options):
    return sbatch_arguments(
        options, name="mnist", comment="carrel.lab.7.1", directory="/spool/7/1", output="/spool/7/1/slurm.log"
    )


@pytest.mark.parametrize(("name", "options"), [("everything", EVERYTHING), ("nothing", SlurmOptions())])
def test_arguments_and_script_are_those_of_the_golden_files(name, options):
    script = batch_script(["/opt/carrel/bin/python", "-m", "carrel.node.runner.batch", "/spool/7/1 x"], options)
    assert "\n".join([*arguments(options), ""]) == (GOLDEN / f"{name}.arguments").read_text()
    assert script == (GOLDEN / f"{name}.sh").read_text()


def test_every_option_changes_what_slurm_is_told():
    plain = SlurmOptions()
    for field in fields(SlurmOptions):
        if field.name in ("gpu_type", "mail_events", "shards"):
            continue  # nothing without gpus, without mail; and never beside gpus
        changed = replace(plain, **{field.name: getattr(EVERYTHING, field.name)})
        told = (arguments(changed), batch_script(["true"], changed))
        assert told != (arguments(plain), batch_script(["true"], plain)), field.name


def test_slices_are_asked_for_by_the_type_that_slurm_gives_them():
    assert "--gres=gpu:1g.10gb:1" in arguments(SlurmOptions(gpus=1, gpu_type="1g.10gb"))
    assert "--gres=gpu:a100_3g.20gb:2" in arguments(SlurmOptions(gpus=2, gpu_type="a100_3g.20gb"))


def test_shards_are_asked_for_in_the_place_of_gpus():
    assert "--gres=shard:2" in arguments(SlurmOptions(shards=2))
    assert "--gres=shard:2" in srun_arguments(SlurmOptions(shards=2), name="n", comment="c", directory="/", script="/s")
    for wrong in ({"shards": -1}, {"shards": 1, "gpus": 1}):
        with pytest.raises(Invalid, match="shards is"):
            SlurmOptions(**wrong)


@given(st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True), st.text(st.characters(exclude_characters="\0"))))
def test_variables_arrive_as_they_are(variables):
    variables = {f"T_{name}": value.encode(errors="ignore").decode() for name, value in variables.items()}
    script = batch_script(["env", "-0"], SlurmOptions(variables=variables))
    done = subprocess.run(["bash", "-s"], input=script.encode(), capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"})
    found = dict(line.split(b"=", 1) for line in done.stdout.split(b"\0") if line)
    assert {name: found[name.encode()].decode() for name in variables} == variables


@given(st.dictionaries(st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True), st.text(st.characters(exclude_characters="\0"))))
def test_what_modules_set_is_left_for_the_command_and_nothing_of_it_reaches_the_runner(variables):
    variables = {f"T_{name}": value.encode(errors="ignore").decode() for name, value in variables.items()}
    assert read_environ(b"\0".join(f"{name}={value}".encode() for name, value in variables.items())) == variables
    with tempfile.TemporaryDirectory() as directory:
        body = "; ".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())
        profile = f'module() {{ export LOADED="$LOADED $2"; {body}\n}}; export -f module\n'
        script = profile + batch_script(["env", "-0"], SlurmOptions(modules=("gcc/12.2", "cuda")))
        done = subprocess.run(["bash", "-s"], input=script.encode(), capture_output=True, check=True, cwd=directory, env=LOCALE)
        runner, command = read_environ(done.stdout), read_environ((Path(directory) / MODULES).read_bytes())
    assert not {"LOADED", *variables} & set(runner)
    assert command["LOADED"] == " gcc/12.2 cuda"
    assert {name: command[name] for name in variables} == variables


def test_a_command_sees_what_describes_its_job_and_nothing_that_changes_what_it_would_ask_for():
    given = {
        "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node1", "SLURM_CPUS_ON_NODE": "2", "SLURM_GPUS_ON_NODE": "1",
        "SLURM_CONF": "/c", "EBROOTGCC": "/opt/gcc", "BASH_FUNC_module%%": "() { :; }", "SCRATCH": "/local/7",
    }  # fmt: skip
    kept_back = {
        "SBATCH_PARTITION": "x", "SALLOC_QOS": "x", "SRUN_CPUS_PER_TASK": "9", "SLURM_CPU_BIND": "none", "SLURM_MPI_TYPE": "none",
        "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_EXPORT_ENV": "ALL", "SLURM_TASK_PID": "3", "PMI_RANK": "0",
        "TMPDIR": "/tmp", "CARREL_URL": "http://other", "PWD": "/",
    }  # fmt: skip
    assert command_environ(given | kept_back) == given


def test_a_module_that_is_missing_ends_the_script_before_the_command(tmp_path):
    script = batch_script(["touch", str(tmp_path / "ran")], SlurmOptions(modules=("nosuch/1",)))
    done = subprocess.run(["bash", "-s"], input=script, text=True, capture_output=True)
    assert done.returncode != 0
    assert not (tmp_path / "ran").exists()


@given(st.integers(1, 10**8))
def test_times_are_rounded_up_to_the_minute(seconds):
    days, hours, minutes, rest = map(int, re.fullmatch(r"(\d+)-(\d\d):(\d\d):(\d\d)", slurm_time(seconds)).groups())
    told = ((days * 24 + hours) * 60 + minutes) * 60 + rest
    assert hours < 24
    assert minutes < 60
    assert seconds <= told < seconds + 60


@given(st.integers(1, 2**50))
def test_memory_is_rounded_up_and_never_all_of_a_node(size):
    told = int(slurm_memory(size).removesuffix("M")) * 1024**2
    assert size <= told < size + 1024**2


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"partition": "gpu --uid=0"}, "partition"),
        ({"constraint": "a b"}, "constraint"),
        ({"mail_events": ("DONE",), "mail": "a@b.org"}, "TIME_LIMIT_80"),
        ({"mail_events": ("END",)}, "no mail address"),
        ({"mail": "a b"}, "mail"),
        ({"gpu_type": "a100"}, "gpus is 0"),
        ({"exclusive": "yes"}, "mcs"),
        ({"modules": ("gcc; rm",)}, "module"),
        ({"variables": {"A-B": "1"}}, "A-B"),
        ({"nodes": 0}, "nodes is 0"),
        ({"gpus": -1}, "gpus is -1"),
        ({"notice": Notice(signal="KILL", seconds=10)}, "USR1"),
        ({"notice": Notice(signal="USR1", seconds=70000)}, "65535"),
        ({"passed": ("--nice=5", "--nice=6")}, "twice"),
        ({"passed": ("--licences=matlab",)}, "--licenses"),
        ({"passed": ("--uid=0",)}, "who a job runs as"),
        ({"passed": ("--partition=gpu",)}, "Set partition in the task"),
        ({"passed": ("--array=0-9",)}, "Set array in the task"),
        ({"passed": ("-a", "0-9")}, "Set array in the task"),
        ({"passed": ("--mem=4G",)}, "Set memory in the task"),
        ({"passed": ("-p", "gpu")}, "Set partition in the task"),
        ({"passed": ("-w node1",)}, "--nodelist"),
        ({"passed": ("nice=5",)}, "two dashes"),
        ({"passed": ("",)}, "two dashes"),
        ({"passed": ("--licenses",)}, "no value"),
        ({"passed": ("--contiguous=1",)}, "does not take"),
        ({"passed": ("--nodelist=a\n--uid=0",)}, "cannot be printed"),
    ],
)
def test_what_slurm_would_refuse_or_misread_is_refused_by_name(wrong, told):
    with pytest.raises(Invalid, match=re.escape(told)):
        SlurmOptions(**wrong)


@given(st.lists(st.text(max_size=30), max_size=3))
def test_nothing_that_is_not_on_the_list_is_passed(options):
    try:
        SlurmOptions(passed=tuple(options))
    except Invalid:
        return
    assert all(option.startswith("--") and option[2:].partition("=")[0] in PASSED for option in options)


@given(st.sampled_from(sorted(WITH_VALUE)), st.from_regex(r"[\w:,.@-]+", fullmatch=True))
def test_what_is_on_the_list_is_passed_as_it_is(option, value):
    assert arguments(SlurmOptions(passed=(f"--{option}={value}",)))[-1] == f"--{option}={value}"


@pytest.mark.gate
@pytest.mark.slurm
@pytest.mark.xdist_group("slurm-engine")
def test_the_list_knows_every_option_of_the_installed_sbatch(shared_site):
    """An option of a newer Slurm is refused until somebody has thought about it; one that does not exist is not offered."""
    words = shared_site.run("sbatch", "--help").out
    there = set(re.findall(r"--([a-z][a-z-]+)", words))
    assert there
    known = PASSED | set(_TAKEN) | set(_OURS)
    assert there <= known, there - known
    for option in PASSED - there:  # the help leaves some out; what does not exist is refused before anything else
        assert "unrecognized option" not in shared_site.run("sbatch", f"--{option}", "--usage", check=False).err, option
    assert set(_SHORT.values()) <= known
    assert len(PASSED) == len(WITH_VALUE) + len(FLAGS) + len(WITH_OPTIONAL_VALUE)


@pytest.mark.slurm
@pytest.mark.xdist_group("slurm-engine")
def test_slurm_does_what_the_options_say(site):
    options = SlurmOptions(
        partition="main",
        qos="high",
        account="research",
        time=7200,
        memory=300 * 1024**2,
        cpus=2,
        gpus=1,
        gpu_type="fake",
        nodes=2,
        tasks_per_node=2,
        constraint="fast",
        exclusive="exclusive",
        mail="alice@example.org",
        mail_events=("END",),
        variables={"GREETING": "it's"},
        requeue=True,
        notice=Notice(signal="USR1", seconds=120),
        passed=("--nice=7", "--switches=1@5"),
    )
    arguments = sbatch_arguments(
        options, name="hello", comment="carrel.lab.7.1", directory=str(site.shared), output=str(site.shared / "options.out")
    )
    script = batch_script(["sh", "-c", 'echo "$GREETING"; sleep 600'], options)
    number = site.run("sbatch", *arguments, stdin=script).out.strip()
    told = site.run("scontrol", "-o", "show", "job", number).out
    for words in (
        "JobName=hello", "Comment=carrel.lab.7.1", "Partition=main", "QOS=high", "Account=research", "TimeLimit=02:00:00",
        "MinMemoryNode=300M", "CPUs/Task=2", "TresPerNode=gres:gpu:fake:1", "NumNodes=2", "Features=fast", "OverSubscribe=NO",
        "MailUser=alice@example.org", "MailType=END", "Requeue=1", "Nice=7",
        "Switches=1@00:05:00", "NtasksPerN:B:S:C=2:0:*:*",
    ):  # fmt: skip
        assert words in told, words
    assert shlex.split(told)
