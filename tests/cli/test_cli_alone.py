"""The command line without a lab: how it starts, what it loads, how it fails."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import CARREL, PATIENCE, CommandLine, script

from carrel.cli.completion import completions
from carrel.cli.doctor import run_checks
from carrel.cli.main import COMMANDS, app, load, main
from carrel.cli.synonyms import SYNONYMS
from carrel.core.submission import ResourceOptions, TaskOptions, options_of
from carrel.lab.server.settings import SETTINGS
from support.lab_process import LabProcess

ROOT = Path(__file__).parents[2]
#: Options of a task that are whole numbers.
WHOLE = [
    option.flags[0].removeprefix("--")
    for option in [*options_of(ResourceOptions).values(), *options_of(TaskOptions).values()]
    if option.kind.plain is int and option.flags
]
#: What the packages of a lab's server bring, and a client must not need.
SERVER_ONLY = (
    "fastapi",
    "starlette",
    "sqlalchemy",
    "uvicorn",
    "mlflow",
    "jinja2",
    "psycopg",
    "uv",
    "fsspec",
    "pynvml",
)
BLOCKER = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
"""


@pytest.fixture
def alone(tmp_path: Path) -> CommandLine:
    """The command line on a machine without a lab."""
    return CommandLine({"CARREL_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)})


def modules_after(code: str) -> set[str]:
    script = (
        f"import sys\nbefore = set(sys.modules)\n{code}\nprint(*sorted(set(sys.modules) - before), sep='\\n', file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=PATIENCE)
    return set(done.stderr.split())


def packages(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


@pytest.mark.gate
def test_import_carrel_loads_nothing_else() -> None:
    modules = modules_after("import carrel")
    assert {module for module in modules if module.startswith("carrel")} == {"carrel"}
    assert not packages(modules) & {"httpx", "pydantic", "typer", "rich", "yaml", "ssl", "asyncio", *SERVER_ONLY}


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["run", "--help"], ["up", "--help"]], ids=" ".join)
def test_help_loads_neither_client_nor_server(words: list[str]) -> None:
    modules = modules_after(f"from carrel.cli.main import main; main({words!r})")
    assert "carrel.cli.main" in modules
    assert not packages(modules) & {"httpx", "yaml", "asyncio", *SERVER_ONLY}
    if len(words) == 1:  # typer itself reads the values of options with pydantic
        assert "pydantic" not in modules
    assert not {"carrel.client.client", "carrel.wire.v1", "carrel.lab.server.up", "carrel.core.tasks", "rich.console"} & modules


def test_a_client_loads_what_it_speaks_of() -> None:
    modules = modules_after("from carrel.wire import v1; import carrel.client.client")
    assert {"carrel.wire.v1.base", "carrel.client.challenges"} <= modules
    assert (
        not {"carrel.wire.v1.jobs", "carrel.wire.v1.sessions", "carrel.core.domain.challenge", "carrel.core.submission"} & modules
    )
    more = modules_after("from carrel.wire import v1; assert v1.JobView.__name__ in dir(v1); from carrel.wire.v1 import Board")
    assert {"carrel.wire.v1.jobs", "carrel.core.domain.challenge"} <= more


def test_a_name_that_is_not_in_the_wire_is_refused_with_the_nearest() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from carrel.wire import v1; v1.JobVeiw"], capture_output=True, text=True, check=False
    )
    assert "'carrel.wire.v1' has no attribute 'JobVeiw'. Did you mean: 'JobView'?" in done.stderr


@pytest.mark.gate
def test_a_command_does_not_load_the_command_line_of_its_http_library() -> None:
    code = "sys.argv = ['carrel', 'version', '--help']; from carrel.cli.main import main; main(); import httpx"
    assert not {"rich.console", "pygments"} & modules_after(code)


def test_client_and_commands_work_without_the_servers_packages(lab: LabProcess, lab_home: Path, tmp_path: Path) -> None:
    task = script(tmp_path / "code", "echo from a laptop; mkdir outputs; echo 1 > outputs/one\n")
    code = (
        BLOCKER.format(blocked=set(SERVER_ONLY)) + "from carrel.cli.main import main\n"
        f"assert main(['run', {task!r}, '--name', 'laptop']) == 0\n"
        "import carrel\n"
        "with carrel.Client() as client:\n"
        "    (job,) = client.jobs(name='laptop')\n"
        f"for words in (['ps'], ['nodes'], ['lab'], ['show', str(job.id)], ['outputs', str(job.id), {str(tmp_path / 'o')!r}]):\n"
        "    assert main(words) == 0, words\n"
        "assert main(['doctor']) == 0\n"
        "sys.exit(main(['up', '--port', '0']))\n"
    )
    variables = CommandLine({"CARREL_HOME": str(lab_home)}).environment()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=variables, timeout=PATIENCE, check=False
    )
    assert done.returncode == 6, done.stderr
    assert "from a laptop" in done.stdout
    assert re.search(r"Install them: pip install .*\[server\]'", done.stderr)
    assert (tmp_path / "o/outputs/one").read_text() == "1\n"


NOWHERE = {"CARREL_URL": "http://127.0.0.1:9", "CARREL_HOME": "/nonexistent"}


@pytest.mark.parametrize(
    ("variables", "code", "kind", "remedy"),
    [
        ({}, 6, "unavailable", "carrel up"),
        (NOWHERE, 4, "unauthenticated", ""),
        ({**NOWHERE, "CARREL_TOKEN": "x"}, 6, "unavailable", ""),
    ],
    ids=["no lab", "no token", "no answer"],
)
def test_without_a_lab_it_is_said_what_is_missing(
    alone: CommandLine, tmp_path: Path, variables: dict[str, str], code: int, kind: str, remedy: str
) -> None:
    here = CommandLine({**alone.variables, **variables})
    for words in (("ps",), ("submit", script(tmp_path / "code", "true\n"))):
        done = here(*words)
        assert (done.code, done.out) == (code, "")
        assert remedy in done.err.splitlines()[1]
        assert here(*words, "--json").problem["type"] == f"urn:carrel:problem:{kind}"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("sumbit",), "submit"),
        (("user", "ad", "x"), "add"),
        (("ps", "--stat", "x"), "--state"),
        (("run", "x", "--memry", "1"), "--memory"),
    ],
)
def test_what_is_mistyped_is_guessed(alone: CommandLine, words: tuple[str, ...], hint: str) -> None:
    done = alone(*words)
    assert done.code == 2
    assert hint in done.err.splitlines()[1]
    assert alone(*words, "--json").problem["type"] == "urn:carrel:problem:invalid"


@pytest.mark.parametrize(
    ("words", "fact", "remedy"),
    [
        *((["run", f"--{name}", "x", "task.py"], f'--{name} is "x".', "Say a whole number.") for name in WHOLE),
        *((["run", f"--{name}", "1.5", "task.py"], f'--{name} is "1.5".', "Say a whole number.") for name in WHOLE),
        (["run", "--gpus", "-1", "task.py"], '--gpus is "-1".', "Say 0 or more."),
        (["submit", "--nodes", "0", "task.py"], '--nodes is "0".', "Say 1 or more."),
        (["sweep", "list", "-n", "501"], '--limit is "501".', "Say 500 or less."),
        (["sweep", "show", "x"], 'SWEEP is "x".', "Say a whole number."),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)
def test_what_is_no_number_is_said_in_words_of_ours(alone: CommandLine, words: list[str], fact: str, remedy: str) -> None:
    done = alone(*words)
    assert (done.code, done.err.splitlines()) == (2, [f"error: {fact}", f"       {remedy}"])


@pytest.mark.parametrize(
    ("word", "command"),
    [
        ("status", "carrel ps"),
        ("list", "carrel ps"),
        ("queue", "carrel ps"),
        ("squeue", "carrel ps"),
        ("stop", "carrel cancel"),
        ("rm", "carrel cancel"),
        ("kill", "carrel cancel"),
        ("sbatch", "carrel submit"),
        ("help", "carrel --help"),
    ],
)
def test_a_word_of_another_program_names_the_command_that_does_it(
    word: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word, "3"]) == 2
    fact, remedy = capsys.readouterr().err.splitlines()
    assert f'"{word}"' in fact
    assert command in remedy


def test_synonyms_name_commands_that_there_are() -> None:
    assert not set(SYNONYMS) & set(COMMANDS)
    for word, remedy in SYNONYMS.items():
        assert set(re.findall(r"carrel ([a-z]+)", remedy)) <= set(COMMANDS), word


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([""], [*COMMANDS]),
        (["no"], ["notebook", "nodes"]),
        (["--v"], ["--version"]),
        (["run", "--gpu"], ["--gpu-memory", "--gpu-type", "--gpus", "--gpus-per-node"]),
        (["run", "train.py", "--", "--gp"], []),
        (["run", "tr"], []),  # names of files are the shell's
        (["env", "l"], ["list", "lock"]),
        (["user", "add", "--ad"], ["--admin"]),
        (["nonsense", "x"], []),
    ],
)
def test_completion(words: list[str], expected: list[str]) -> None:
    assert sorted(completions(words)) == sorted(expected)


def test_completion_loads_the_command_alone() -> None:
    modules = modules_after("from carrel.cli.main import main; main(['completion', 'words', '--', 'run', '--g'])")
    assert {name for name in modules if name.startswith("carrel.cli.")} >= {"carrel.cli.run", "carrel.cli.completion"}
    assert not {"carrel.cli.jobs", "carrel.cli.up", "carrel.client.client", "carrel.wire.v1"} & modules


def test_bash_completes_with_what_is_printed(alone: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "carrel").write_text(f'#!/bin/sh\nexec {shlex.join(CARREL)} "$@"\n')
    (tmp_path / "carrel").chmod(0o755)
    asked = 'eval "$(carrel completion bash)"; COMP_WORDS=(carrel run --gpu-m); COMP_CWORD=2; _carrel; echo "${COMPREPLY[@]}"'
    environment = {**alone.environment(), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", asked], capture_output=True, text=True, env=environment, timeout=PATIENCE, check=True
    )
    assert done.stdout == "--gpu-memory\n"


def test_an_unknown_option_shows_where_the_scripts_own_begin(alone: CommandLine) -> None:
    done = alone("run", "train.py", "--epochs", "3", "--gpus", "1")
    assert done.code == 2
    assert "carrel run train.py -- --epochs 3 --gpus 1" in done.err
    assert "carrel run train.py -- --lr 0.1" in alone("run", "--lr", "0.1", "train.py").err


def test_doctor_without_a_lab(alone: CommandLine) -> None:
    done = alone("doctor", "--json")
    checks = {check["name"]: check["status"] for check in done.json["checks"]}
    assert (done.code, checks["lab"], checks["token"]) == (0, "warn", "warn")


def test_doctor_says_once_what_is_wrong_in_the_settings(alone: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(mode=0o755)
    (tmp_path / "home" / "carrel.toml").write_text("[accounts.a]\nusers = [1]\n")
    done = alone("doctor", "--json")
    failed = [check["name"] for check in done.json["checks"] if check["status"] == "fail"]
    assert (done.code, failed) == (1, ["settings"])
    assert done.out.count("accounts.a.users") == 1
    (tmp_path / "home" / "carrel.toml").write_text("simulate_gpus = 4\n")
    (gpus,) = [check for check in alone("doctor", "--json").json["checks"] if check["name"] == "gpus"]
    assert (gpus["status"], "4 simulated GPUs" in gpus["message"]) == ("ok", True)
    # `carrel up` will close the directory in which the file was put.
    assert [check["status"] for check in done.json["checks"] if check["name"] == "home"] == ["warn"]


def test_a_group_alone_shows_its_commands(alone: CommandLine) -> None:
    for group in ("audit", "user", "env"):
        done = alone(group)
        assert (done.code, done.err, "Commands:" in done.out) == (2, "", True)


def test_doctor_names_a_disk_that_no_gpu_state_can_go_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARREL_STATE_DISK", "1G")
    monkeypatch.setattr("carrel.node.broker.boot_key.find_place.__defaults__", ((tmp_path,),))
    (failed,) = (check for check in run_checks(tmp_path, None) if check.name == "states")
    assert failed.status == "fail"
    assert f"{tmp_path} is not in memory" in failed.message
    assert "state_disk" in failed.remedy


def test_doctor_fails_for_a_token_that_others_can_read(alone: CommandLine, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "token").write_text("secret")
    (home / "token").chmod(0o644)
    done = alone("doctor")
    assert done.code == 1
    assert "chmod 600" in done.out
    (home / "token").chmod(0o600)
    assert alone("doctor").code == 0


def test_a_fault_of_our_own_is_one_line_and_a_private_file(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom carrel.cli import main as command, jobs\n"
        "def broken(*_): raise RuntimeError('the roof\\nfell in')\njobs.open_client = broken\n"
        "sys.exit(command.main(['ps', '--name', 'private']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    fact, remedy = done.stderr.splitlines()
    assert "the roof" in fact
    file = Path(remedy.split()[-1])
    assert file.stat().st_mode & 0o777 == 0o600
    assert "Traceback" in file.read_text()
    assert "private" not in file.read_text()


def test_a_full_disk_is_no_fault_of_our_own(alone: CommandLine) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*CARREL, "version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=alone.environment(),
            check=False,
            timeout=PATIENCE,
        )
    assert done.returncode == 6
    assert "No space left" in done.stderr
    assert "fault" not in done.stderr


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        *((("show", number), f'"{number}" is not the number of a job') for number in ("x", "0", "1.5", "9" * 30)),
        (("ps", "--name", "\udcff"), "no text"),
        (("show", "ü"), '"?" is not the number'),  # on a terminal without that character
    ],
)
def test_an_argument_that_is_none_is_refused(alone: CommandLine, words: tuple[str, ...], fact: str) -> None:
    done = CommandLine({**alone.variables, "PYTHONIOENCODING": "ascii"})(*words)
    assert (done.code, fact in done.err) == (2, True)


def test_a_reader_that_goes_away_is_no_fault(alone: CommandLine) -> None:
    process = alone.start("version", "--json")
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=PATIENCE) == 0
    process.stderr.close()


def test_ctrl_c_stops_a_lab_cleanly(alone: CommandLine) -> None:
    process = alone.start("up", "--port", "0", "--no-tracking", "--simulate-gpus", "1", "--json")
    assert '"url"' in process.stdout.readline()
    assert alone("lab").code == 0
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, rest, err) == (0, "", "")
    assert alone("lab").code == 6


def test_a_password_in_an_argument_is_refused(alone: CommandLine) -> None:
    done = alone("up", "--database", "postgresql+psycopg://me:secret@host/lab")
    assert done.code == 2
    assert "secret" not in done.err
    assert "CARREL_DATABASE" in done.err


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its full name, without groups that are no command themselves."""
    for name in COMMANDS:
        command = load(name)
        inner = getattr(command, "commands", None) or {}
        if not inner or any(param.name == "as_json" for param in command.params):
            yield name, command
        yield from ((f"{name} {each}", made) for each, made in inner.items())


def test_the_page_names_every_command_and_option_and_no_other() -> None:
    page = (ROOT / "docs/commands.md").read_text()
    sections = dict(re.findall(r"^### carrel (\S.*?)\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL))
    found = dict(commands())
    assert set(sections) == set(found)
    for name, command in found.items():
        real = {option for param in command.params for option in (*param.opts, *param.secondary_opts) if option.startswith("-")}
        documented = set(re.findall(r"`(--[a-z][a-z-]*|-[A-Za-z])(?=[ `])", sections[name]))
        # Of all commands the page says once that they have these.
        common = {"--json", "--home", "-h", "--help"}
        assert documented - common == real - common, name


def test_every_command_has_json_and_help() -> None:
    for name, command in commands():
        options = {option for param in command.params for option in param.opts}
        assert "--json" in options, name
        assert command.help, name
        for param in command.params:
            assert param.name == "help" or getattr(param, "help", None), f"{name} {param.name}"


def test_the_options_of_up_are_settings() -> None:
    # What the administrator says of a home that is elsewhere, or that others could change, is said once.
    names = {param.name for param in load("up").params} - {"home", "as_json", "help", "moved", "copy", "strict_modes"}
    assert names <= {setting.name for setting in SETTINGS}


def test_names_in_the_table_are_the_groups() -> None:
    group: Any = typer.main.get_command(app)
    assert group.list_commands(None) == list(COMMANDS)
