"""Commands that do what they should not. None may harm the lab, escape, or stay."""

import os
import re
import resource
from pathlib import Path

import pytest

from carrel.core.domain.job import JobState
from carrel.core.domain.launch import LaunchLimits
from carrel.testing.waiting import wait_until

DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3):
            os.close(fd)
        open(os.environ["CARREL_OUTPUT_DIR"] + "/pid", "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
os.wait()
while not os.path.exists(os.environ["CARREL_OUTPUT_DIR"] + "/pid"):
    time.sleep(0.01)
print("left a daemon")
"""


@pytest.mark.gate
def test_a_daemon_does_not_stay(any_lab):
    ended = any_lab.run("python3 daemon.py", files={"daemon.py": DAEMON})
    assert ended.state is JobState.COMPLETED
    assert "left a process behind" in ended.reason.message
    pid = any_lab.home.blob(ended.outputs[0].digest).read_text()
    assert not Path("/proc", pid).exists()


def test_children_that_multiply_do_not_stay(any_lab):
    ended = any_lab.run(
        "for i in 1 2 3 4 5 6 7 8; do (trap '' TERM HUP; setsid sh -c 'while :; do sleep 0.01; done') & done; sleep 0.2; exit 2"
    )
    assert ended.exit_code == 2
    mark = f"CARREL_OUTPUT_DIR={any_lab.home.spool.root}".encode()
    assert not [path for path in Path("/proc").glob("[0-9]*") if mark in environ(path)]


def environ(path):
    try:
        return (path / "environ").read_bytes()
    except OSError:
        return b""


def test_a_command_may_close_its_output(lab):
    launch = lab.start(f"exec >&- 2>&-; touch {lab.home.root}/closed; read line < {lab.home.root}/go; exit 9")
    os.mkfifo(lab.home.root / "go")
    wait_until(lambda: (lab.home.root / "closed").exists())
    (lab.home.root / "go").write_text("go\n")
    assert lab.ended(launch).exit_code in (1, 9)  # 1: the pipe was not made yet


@pytest.mark.parametrize("limited", [True, False])
def test_a_hundred_megabytes_of_output(lab, limited):
    limits = LaunchLimits(log=10_000_000) if limited else LaunchLimits()
    assert lab.run("head -c 100000000 /dev/zero | tr '\\0' 'x'; echo; echo end", limits=limits).state is JobState.COMPLETED
    log = lab.output()
    notes = re.findall(rb"^\[carrel\] (.*)$", log, re.MULTILINE)
    if not limited:
        assert (len(log), log[-6:], notes) == (100_000_005, b"x\nend\n", [])
        return
    assert len(log) < 10_001_000
    assert b"reached its limit" in notes[0]
    assert notes[1].startswith(b"90000005 bytes")


def test_output_without_an_end_of_line_and_binary_output(lab):
    lab.run(
        "printf 'no newline'; printf '\\377\\000\\001'; head -c 1000000 /dev/urandom > r; cat r; mkdir -p outputs; cp r outputs/r"
    )
    stored = next(path for path in lab.home.blobs.rglob("*") if path.is_file())
    assert lab.output() == b"no newline\xff\x00\x01" + stored.read_bytes()


def test_the_order_of_output_and_errors_is_kept(lab):
    lab.run("for i in $(seq 500); do echo out $i; echo err $i >&2; done")
    assert lab.output().decode() == "".join(f"out {i}\nerr {i}\n" for i in range(1, 501))


def test_secrets_do_not_get_into_the_log(lab):
    letters = 'for i in $(seq 0 27); do printf "%s" "${CARREL_TOKEN:$i:1}"; sleep 0.01; done'
    lab.run(f'echo "a$CARREL_TOKEN"; {letters}; echo; printf "carrel-"')
    assert b"carrel-test-token" not in lab.output()
    assert lab.output() == b"a********\n********\ncarrel-"


def test_a_prompt_that_looks_like_a_secret_is_shown_in_time(lab):
    launch = lab.start("printf carrel-test; sleep 600")
    lab.wrote(launch, b"carrel-test")
    lab.cancel(launch)
    lab.ended(launch)


def test_a_command_that_deletes_its_directory(any_lab):
    ended = any_lab.run('rm -rf "$PWD"; echo gone')
    assert ended.state is JobState.COMPLETED
    assert ended.outputs == ()


def test_a_command_that_deletes_its_whole_attempt_is_not_run_again(lab):
    launch = lab.start(f"echo ran >> {lab.home.root}/ran; cd /; rm -rf {lab.home.spool.root}/1; exit 1")
    story = lab.listener.wait(launch, lambda story: story.gone or story.ended)
    assert story.gone or story.ended.exit_code == 1
    assert (lab.home.root / "ran").read_text() == "ran\n"


def test_a_command_cannot_read_standard_input_and_inherits_no_descriptors(lab):
    assert lab.run("cat; echo $?; ls /proc/self/fd | wc -l").exit_code == 0
    read, descriptors = map(int, lab.output().split())
    assert read == 0
    assert descriptors <= 4  # 0, 1, 2 and that of ls itself


def test_no_core_dumps_and_many_files(lab):
    lab.run("ulimit -c; ulimit -n; ulimit -H -n")
    core, files, most = lab.output().split()
    assert core == b"0"
    assert files == most
    # Fewer than the lab, which so can send descriptors although commands leave theirs under way (unix(7)).
    assert 1024 <= int(files) < resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def test_links_in_the_place_of_its_directories_lead_nowhere(lab):
    outside = lab.home.root / "outside"
    (outside / "outputs").mkdir(parents=True)
    (outside / "outputs" / "secret").write_text("hidden")
    ended = lab.run(f'cd ..; rm -rf work tmp "$TMPDIR"; ln -s {outside} work; ln -s {outside} tmp')
    assert ended.state is JobState.COMPLETED
    assert ended.outputs == ()
    lab.engine.forget(1, 1)
    assert (outside / "outputs" / "secret").read_text() == "hidden"
