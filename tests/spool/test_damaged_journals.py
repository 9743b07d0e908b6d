"""Journals on a disk that loses and changes bytes: what is whole is found, and nothing else is believed."""

import json
import os
import random
import zlib

import pytest

from carrel.core.control.news import OFTEN, interpret
from carrel.core.domain.job import Job, JobState, Reason, check_transition
from carrel.core.domain.launch import (
    Claimed,
    Damaged,
    Ended,
    EnvironmentReady,
    InputsReady,
    Observation,
    Preparing,
    Resumed,
    Sampled,
    Started,
    StoredFile,
    Suspended,
    Usage,
)
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.domain.serial import to_plain
from carrel.core.spool import (
    AttemptDirectory,
    Journal,
    entry_to_plain,
    note_begun,
    read_claim,
    read_entries,
    take_claim,
)
from carrel.engines.attempts import Watched
from carrel.engines.slurm.followed import write_end

ENDS = [
    Ended(state=JobState.COMPLETED, reason=Reason(code="Completed", message="Exit code 0."), exit_code=0),
    Ended(state=JobState.FAILED, reason=Reason(code="NonZeroExitCode", message="Exit code 3."), exit_code=3),
    Ended(
        state=JobState.COMPLETED,
        reason=Reason(code="Completed", message='It said {"at": 1} and deadbeef {"type": "ended"}\n.'),
        exit_code=0,
        outputs=tuple(StoredFile(path=f"outputs/{n} {{}}", size=n, digest=f"sha256:{n:064x}") for n in range(20)),
    ),
    Ended(state=JobState.TIMEOUT, reason=Reason(code="TimeLimit", message="It reached its walltime."), signal=15),
]


def a_job():
    return Job(
        id=1,
        kind=JobKind.TASK,
        owner="ada",
        account="default",
        name="job",
        qos="normal",
        resources=Resources(),
        state=JobState.CONFIGURING,
        reason=Reason(code="Preparing", message=""),
        submitted_at=0.0,
        retries_left=0,
        attempt=1,
    )


def a_story(chance):
    """The records of one attempt, as a runner writes them."""
    records = [Claimed(pid=chance.randrange(1, 99999)), Preparing(message="Finding the environment é")]
    records += [EnvironmentReady(digest="sha256:a", lock="", python="cpython-3.11.7", built=False, seconds=0.5)]
    records += [InputsReady(digests={"data": "sha256:b"})] if chance.random() < 0.5 else []
    records += [Started(pid=chance.randrange(1, 99999), hardware={"cpu": "x"}, seeds={"PYTHONHASHSEED": "0"})]
    for _ in range(chance.randrange(6)):
        records += [Sampled(usage=Usage(cpu_seconds=chance.random(), memory=chance.randrange(2**40)))]
        if chance.random() < 0.2:
            records += [Suspended(), Resumed(seconds=2.0)]
    return [*records, chance.choice(ENDS)] if chance.random() < 0.85 else records


def damage(chance, data):
    """Return `data` with bytes changed, cut out and cut off, and where the bytes stood that are left as they were."""
    left = [(place, byte) for place, byte in enumerate(data)]
    for _ in range(chance.randrange(1, 4)):
        if not left:
            break
        at, kind = chance.randrange(len(left)), chance.randrange(5)
        if kind < 2:
            left[at] = (-1, left[at][1] ^ (1 << chance.randrange(8)))
        elif kind == 2:
            left[at : at + chance.randrange(1, 400)] = []
        elif kind == 3:
            size = min(chance.randrange(1, 200), len(left) - at)
            left[at : at + size] = [(-1, 0)] * size
        else:
            breaks = [place for place, (_, byte) in enumerate(left) if byte == 10]
            for place in chance.sample(breaks, min(2, len(breaks))):
                left[place] = (-1, chance.randrange(256))
    return bytes(byte for _, byte in left), left


def is_whole(left, start, end):
    """True when the bytes from `start` to `end` are all there, side by side."""
    at = next((number for number, (place, _) in enumerate(left) if place == start), None)
    return at is not None and [place for place, _ in left[at : at + end - start]] == list(range(start, end))


@pytest.mark.parametrize("seeds", [range(150), pytest.param(range(1000, 6000), marks=pytest.mark.soak)])
def test_a_damaged_journal_tells_no_untrue_end(tmp_path, seeds):
    for seed in seeds:
        chance = random.Random(seed)
        path = tmp_path / f"journal{seed}"
        journal, lines, records = Journal(path), [], a_story(chance)
        for number, record in enumerate(records):
            before = path.stat().st_size
            journal.append(float(number + 1), record)
            lines.append((before, path.stat().st_size - 1))
        journal.close()
        data, left = damage(chance, path.read_bytes())
        path.write_bytes(data)

        entries, offset = read_entries(path, over=True)
        found = [(entry.at, entry.record) for entry in entries if not isinstance(entry.record, Damaged)]
        written = [(float(number + 1), record) for number, record in enumerate(records)]
        whole = [pair for pair, line in zip(written, lines, strict=True) if is_whole(left, *line)]
        assert found == whole, seed
        assert offset <= len(data)

        change = interpret(
            a_job(),
            Observation(job_id=1, attempt=1, entries=entries, offset=offset, gone=not entries or not is_end(entries)),
            log_size=0,
            now=99.0,
        )
        check_transition(1, JobState.CONFIGURING, change.state)
        end = next((record for _, record in whole if isinstance(record, Ended)), None)
        assert change.state is (end.state if end else JobState.NODE_FAIL), seed
        assert change.exit_code == (end.exit_code if end else None)
        path.unlink()


def is_end(entries):
    return isinstance(entries[-1].record, Ended)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_read_in_parts_is_what_is_read_at_once(tmp_path, seed):
    chance = random.Random(seed)
    path = tmp_path / "journal"
    journal = Journal(path)
    for number, record in enumerate(a_story(chance)):
        journal.append(float(number), record)
    journal.close()
    data, _ = damage(chance, path.read_bytes())
    path.write_bytes(b"")
    parts, offset = [], 0
    for at in [*sorted(chance.randrange(len(data) + 1) for _ in range(5)), len(data)]:
        path.write_bytes(data[:at])
        entries, offset = read_entries(path, offset)
        parts += entries
    last, _ = read_entries(path, offset, over=True)
    assert [entry.record for entry in (*parts, *last)] == [entry.record for entry in read_entries(path, over=True)[0]]


def test_a_line_that_is_being_written_is_no_damage(tmp_path):
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.append(1.0, Claimed(pid=7))
    size = path.stat().st_size
    journal.append(2.0, Started(pid=8))
    journal.close()
    data = path.read_bytes()
    for cut in range(size, len(data) - 1):
        path.write_bytes(data[:cut])
        for over in (False, True):
            assert [entry.record for entry in read_entries(path, over=over)[0]] == [Claimed(pid=7)]


def test_an_object_without_a_checksum_is_not_believed(tmp_path):
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.append(1.0, Claimed(pid=7))
    with path.open("ab") as file:
        file.write(json.dumps(entry_to_plain(2.0, ENDS[0])).encode() + b"\n")
        forged = json.dumps(to_plain(ENDS[0])).encode()
        file.write(b"%08x %s\n" % (zlib.crc32(forged) ^ 1, forged))
    assert [type(entry.record) for entry in read_entries(path)[0]] == [Claimed, Damaged, Damaged]
    journal.close()


def test_an_end_is_written_after_one_whose_newline_was_lost(tmp_path):
    directory = AttemptDirectory(tmp_path)
    journal = Journal(directory.journal)
    journal.append(1.0, Claimed(pid=7))
    journal.append(2.0, Started(pid=8))
    journal.close()
    os.truncate(directory.journal, directory.journal.stat().st_size - 1)
    write_end(directory, ENDS[1], 3.0)
    assert [entry.record for entry in read_entries(directory.journal)[0]] == [Claimed(pid=7), Started(pid=8), ENDS[1]]


# --- runners that are killed before the command begins ----------------------------------------------------------------------


@pytest.fixture
def attempt(tmp_path):
    """An attempt that was claimed by a runner that is gone now."""
    directory = AttemptDirectory(tmp_path)
    os.close(take_claim(directory.claim, os.getpid()))
    journal = Journal(directory.journal)
    journal.append(1.0, Claimed(pid=7))
    journal.append(2.0, Preparing(message="…"))
    journal.close()
    from carrel.testing.builders import LabHome, make_launch

    launch = make_launch(LabHome(tmp_path), "true")
    return Watched(launch=launch, token="", directory=directory, dead=True)


def add(watched, at, record):
    journal = Journal(watched.directory.journal)
    journal.append(at, record)
    journal.close()


def test_a_runner_that_died_before_the_command_is_followed_by_another_at_no_cost(attempt):
    news = attempt.news()
    assert news.gone
    assert news.unbegun
    for before in range(OFTEN):
        change = interpret(a_job(), news, log_size=0, now=3.0, unlucky=before)
        assert (change.state, change.attempt_state) == (JobState.PENDING, JobState.NODE_FAIL)
        assert (change.reason.code, change.attempt_reason.code, change.retries_left) == ("Requeued", "RunnerLost", 0)
    last = interpret(a_job(), news, log_size=0, now=3.0, unlucky=OFTEN)
    assert (last.state, last.reason.code) == (JobState.NODE_FAIL, "RunnerLost")


def test_what_may_have_begun_does_not_begin_again(attempt):
    note_begun(attempt.directory.claim)
    assert read_claim(attempt.directory.claim).begun
    news = attempt.news()
    assert (news.gone, news.unbegun) == (True, False)
    assert interpret(a_job(), news, log_size=0, now=3.0).state is JobState.NODE_FAIL


@pytest.mark.parametrize("record", [Started(pid=8), Sampled(usage=Usage()), Suspended()])
def test_what_the_journal_says_began_has_begun_also_where_the_claim_lost_its_mark(attempt, record):
    add(attempt, 3.0, record)
    assert not attempt.news().unbegun


def test_a_damaged_journal_is_no_proof_that_nothing_began(attempt):
    with attempt.directory.journal.open("ab") as file:
        file.write(b"\0" * 40 + b"\n")
    news = attempt.news()
    assert (news.gone, news.unbegun) == (True, False)
    (event,) = [event for event in interpret(a_job(), news, log_size=0, now=4.0).events if "damaged" in str(event.data)]
    assert event.data["reason"] == "JournalDamaged"


def test_that_it_runs_is_known_also_where_that_line_is_damaged(attempt):
    attempt.dead = False
    add(attempt, 3.0, Sampled(usage=Usage()))
    change = interpret(a_job(), attempt.news(), log_size=0, now=4.0)
    assert (change.state, change.started_at) == (JobState.RUNNING, 3.0)
