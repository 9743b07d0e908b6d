"""What is kept of a job: the files that its patterns name, and nothing else."""

import hashlib
import os
import stat
from types import SimpleNamespace

import pytest

from carrel.core.domain.job import JobState
from carrel.core.domain.launch import LaunchLimits
from carrel.core.spool import read_claim
from carrel.node.runner.collecting import collect_outputs
from carrel.node.runner.finish import storing_check
from carrel.node.runner.output_files import pattern_expression
from carrel.node.runner.outputs import StoringEnded
from carrel.testing.waiting import wait_until


def stored(lab, ended):
    return {file.path: lab.home.blob(file.digest).read_bytes() for file in ended.outputs}


@pytest.mark.gate
def test_outputs_are_kept_by_content(lab):
    ended = lab.run("mkdir outputs/deep; echo one > outputs/a; echo one > outputs/deep/b; echo no > c; exit 1")
    assert stored(lab, ended) == {"outputs/a": b"one\n", "outputs/deep/b": b"one\n"}
    assert {file.digest for file in ended.outputs} == {"sha256:" + hashlib.sha256(b"one\n").hexdigest()}
    assert [file.size for file in ended.outputs] == [4, 4]
    blob = lab.home.blob(ended.outputs[0].digest)
    assert stat.S_IMODE(blob.stat().st_mode) == 0o400
    assert not any((lab.home.blobs / "incoming").iterdir())


def test_outputs_of_a_directory_in_the_code(lab):
    ended = lab.run("pwd; echo x > $CARREL_OUTPUT_DIR/x; cat here", files={"sub/here": "yes\n"}, task={"directory": "sub"})
    assert stored(lab, ended) == {"outputs/x": b"x\n"}
    assert lab.output().endswith(b"/work/sub\nyes\n")


def test_patterns(lab):
    ended = lab.run(
        "mkdir -p models/v1 logs; touch models/v1/w.pt models/w.pt models/w.txt logs/1.log logs/2.log root.log",
        task={"outputs": ("models/**/*.pt", "logs/?.log", "*.log")},
    )
    assert {file.path for file in ended.outputs} == {"models/v1/w.pt", "models/w.pt", "logs/1.log", "logs/2.log", "root.log"}


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("outputs/**", ["outputs/a", "outputs/a/b"], ["outputs", "x/outputs/a"]),
        ("results", ["results", "results/a/b"], ["results2", "a/results"]),
        ("**/*.csv", ["a.csv", "a/b.csv", "a/b/c.csv"], ["a.csv2", "acsv"]),
        ("a[0-9].txt", ["a1.txt"], ["ab.txt"]),
        ("a[!0-9].txt", ["ab.txt"], ["a1.txt", "a/.txt"]),
        ("[z-a].txt", ["[z-a].txt"], ["z.txt"]),
        ("*.txt", [".txt", "a b\n.txt"], ["d/a.txt"]),
        ("a+(b).txt", ["a+(b).txt"], ["aab.txt"]),
        ("*a*b*c", ["abc", "xaxbxc", "aabbcc", "abcc/d"], ["acb", "abcd", "a/b/c"]),
        ("**/a*/**/b/*c", ["a/b/c", "x/ab/y/b/b/cc", "a/a/b/c/d"], ["a/b", "b/a/c", "x/b/c"]),
        ("a/**/**/b", ["a/b", "a/x/y/b"], ["b", "a/c"]),
    ],
)
def test_a_pattern_matches(pattern, yes, no):
    expression = pattern_expression(pattern.split("/"))
    assert [path for path in yes if not expression.fullmatch(path)] == []
    assert [path for path in no if expression.fullmatch(path)] == []


@pytest.mark.parametrize(
    ("pattern", "name"),
    [("*a" * 60 + "b", "a" * 250), ("**/a/" * 30 + "b", "a/" * 1000 + "c"), ("**/*a*a/" * 30 + "b", "aa/" * 600 + "c")],
)
def test_a_pattern_that_nearly_matches_takes_no_longer_than_others(pattern, name):
    # In time that grows with each star it would not end before the test does.
    assert not pattern_expression(pattern.split("/")).fullmatch(name)


def test_directories_deeper_than_a_path_can_say_are_said_and_what_lies_above_is_kept(lab):
    ended = lab.run(
        "mkdir -p outputs/closed; echo x > outputs/closed/x; chmod 0 outputs/closed; echo one > outputs/a; cd outputs\n"
        "n=$(printf 'd%.0s' $(seq 200)); for i in $(seq 30); do mkdir $n; cd -P $n; done"
    )
    assert ended.state is JobState.COMPLETED
    assert "outputs/a" in stored(lab, ended)
    assert "1 outputs were not kept because" in ended.reason.message
    assert "outputs/dddd" in ended.reason.message
    assert len(ended.reason.message) < 1000


def test_what_takes_no_room_takes_none_when_it_is_stored(lab):
    """A file of 3 GB without a block, and one with a byte here and there: read as they are, with the room that they had."""
    few = "for at in 0 99 299; do echo x | dd of=outputs/few bs=1M seek=$at conv=notrunc; done"
    command = f"truncate -s 300M outputs/empty outputs/few; {few}; truncate -s 400M outputs/large"
    ended = lab.run(command, limits=LaunchLimits(outputs=700 * 1024**2))
    blobs = {file.path: lab.home.blob(file.digest) for file in ended.outputs}
    assert {path: blob.stat().st_size for path, blob in blobs.items()} == dict.fromkeys(
        ["outputs/empty", "outputs/few"], 300 * 1024**2
    )
    assert all(blob.stat().st_blocks * 512 <= 1024**2 for blob in blobs.values())
    few = blobs["outputs/few"].read_bytes()
    assert [few[at * 1024**2 :][:3] for at in (0, 99, 298, 299)] == [b"x\n\0", b"x\n\0", b"\0\0\0", b"x\n\0"]
    assert {file.digest for file in ended.outputs if file.path == "outputs/few"} == {"sha256:" + hashlib.sha256(few).hexdigest()}
    assert b"the limit is 700M: outputs/large (400M)" in lab.output(), "the size that others read counts"


def test_nothing_from_outside_gets_in(lab):
    secret = lab.home.root / "secret"
    secret.write_text("hidden")
    ended = lab.run(
        f"cd outputs; echo mine > mine; ln -s {secret} file; ln -s {lab.home.root} dir; ln -s mine inside; mkfifo pipe; "
        "ln -s nowhere broken; ln -s /dev/zero zero; ln -s . loop"
    )
    assert stored(lab, ended) == {"outputs/mine": b"mine\n", "outputs/inside": b"mine\n"}
    assert "6 outputs were not kept" in ended.reason.message
    assert (lab.home.spool.attempt(1, 1).work / "outputs" / "mine").exists()


def test_outputs_behind_links_inside_are_kept_under_their_names(lab):
    # As hydra, Lightning and many scripts leave them: `outputs` is a link, and so is the latest run.
    ended = lab.run(
        "rmdir outputs; mkdir -p runs/7/sub; ln -s 7 runs/latest; ln -s runs/latest outputs; "
        "echo w > outputs/model.txt; echo s > outputs/sub/s; ln -s sub outputs/again; ln -s ../.. outputs/all"
    )
    assert stored(lab, ended) == {"outputs/model.txt": b"w\n", "outputs/sub/s": b"s\n"}
    assert "1 outputs were not kept" in ended.reason.message
    assert "outputs/all" in ended.reason.message
    other = lab.run(
        "mkdir -p runs/8; ln -s ../runs/8 outputs/latest; echo w > outputs/latest/w; cd outputs; ln -s . x; ln -s x y"
    )
    assert stored(lab, other) == {"outputs/latest/w": b"w\n"}


def test_a_file_in_the_place_of_the_directory_of_outputs_is_kept(lab):
    ended = lab.run("rmdir outputs; echo the result > outputs")
    assert stored(lab, ended) == {"outputs": b"the result\n"}


def test_a_pattern_behind_a_link_that_leads_out_is_not_followed_and_said(lab):
    ended = lab.run(f"rmdir outputs; ln -s {lab.home.root} outputs")
    assert ended.outputs == ()
    assert (
        "1 outputs were not kept because they are no regular files inside the working directory: outputs." in ended.reason.message
    )
    behind = lab.run(f"rmdir outputs; ln -s {lab.home.root} outputs", task={"outputs": ("outputs/secret/**",)})
    assert behind.outputs == ()


def test_a_limit_says_what_was_not_kept(lab):
    ended = lab.run(
        "head -c 1000 /dev/zero > outputs/a; head -c 3000000 /dev/zero > outputs/b; head -c 1000 /dev/zero > outputs/c",
        limits=LaunchLimits(outputs=1_000_000),
    )
    assert ended.state is JobState.COMPLETED
    assert [file.path for file in ended.outputs] == ["outputs/a", "outputs/c"]
    assert "outputs/b" in ended.reason.message
    assert "2.9M" in ended.reason.message
    assert b"outputs/b" in lab.output()


def test_the_working_directory_goes_when_everything_is_kept(lab):
    launch = lab.start("echo x > outputs/x; echo y > y; touch $TMPDIR/t")
    lab.ended(launch)
    directory = lab.home.attempt(launch)
    wait_until(lambda: not read_claim(directory.claim).held)
    assert not directory.work.exists()
    assert not os.path.lexists(directory.temporary)


def test_unreadable_and_oddly_named_outputs(lab):
    ended = lab.run("cd outputs; echo x > locked; chmod 000 locked; echo y > $'bad\\377name'; echo z > $'new\\nline'")
    assert sorted(stored(lab, ended).items()) == [
        ("outputs/bad\\xffname", b"y\n"),
        ("outputs/locked", b"x\n"),
        ("outputs/new\nline", b"z\n"),
    ]


def test_outputs_in_a_directory_that_is_closed_to_its_owner_are_kept(lab):
    ended = lab.run("mkdir outputs/closed; echo x > outputs/closed/x; chmod 0 outputs/closed; chmod 0 outputs")
    assert stored(lab, ended) == {"outputs/closed/x": b"x\n"}


def test_outputs_that_several_patterns_name_are_kept_once_and_in_order(lab):
    command = "mkdir -p outputs/b; cd outputs; touch z b/c b/a; echo 1 > a.csv; ln -s b again"
    ended = lab.run(command, task={"outputs": ("**/*.csv", "outputs/b", "outputs/*", "outputs/again/c")})
    assert [file.path for file in ended.outputs] == [
        *("outputs/a.csv", "outputs/z", "outputs/b/a", "outputs/b/c", "outputs/again/c")
    ]


#: Never stored: a hole takes no room, but the time to hash it.
ENDLESS = "echo x > outputs/a; truncate -s 4T outputs/b; echo y > outputs/c"
ROOM = 8 * 1024**4


def test_a_cancellation_ends_the_storing_of_outputs_and_what_is_left_can_be_collected(lab):
    launch = lab.start(ENDLESS, limits=LaunchLimits(outputs=ROOM))
    first = lab.home.blob("sha256:" + hashlib.sha256(b"x\n").hexdigest())
    wait_until(first.exists)
    wait_until(lambda: any((lab.home.blobs / "incoming").iterdir()))
    lab.cancel(launch)
    ended = lab.ended(launch)
    assert (ended.state, ended.reason.code, ended.exit_code, ended.uncollected) == (JobState.CANCELLED, "Cancelled", 0, True)
    assert ended.reason.message.startswith("Cancelled by bob while its outputs were stored; not all of them are.")
    assert "outputs --collect 1" in ended.reason.message
    assert "Exit code 0" in ended.reason.message
    assert stored(lab, ended) == {"outputs/a": b"x\n"}
    assert not any((lab.home.blobs / "incoming").iterdir())
    (lab.home.attempt(launch).work / "outputs" / "b").unlink()
    found = collect_outputs(lab.home.attempt(launch), lab.home.blobs, ROOM)
    assert ([file.path for file in found.files], found.left) == (["outputs/a", "outputs/c"], False)


def test_storing_outputs_has_an_end(lab):
    ended = lab.run(ENDLESS, limits=LaunchLimits(outputs=ROOM, prepare=8))
    assert (ended.state, ended.reason.code, ended.exit_code, ended.uncollected) == (JobState.FAILED, "OutputFailed", 0, True)
    assert "took longer than the 8 s that the lab allows (prepare_time)" in ended.reason.message
    assert stored(lab, ended) == {"outputs/a": b"x\n"}
    assert (lab.home.spool.attempt(1, 1).work / "outputs" / "c").exists()


@pytest.mark.quick
def test_a_job_that_was_cancelled_has_a_minute_for_its_outputs():
    moments = iter((1000.0, 1000.0, 1059.0, 1061.0))
    check = storing_check(SimpleNamespace(cancelled_by=lambda: "bob"), lambda: next(moments), 3600.0)
    check()
    check()
    with pytest.raises(StoringEnded) as raised:
        check()
    assert raised.value.reason.code == "OutputFailed"
    assert "the 60 s that a cancelled job has for that" in raised.value.reason.message
