"""What observations mean for jobs: every ending, every repetition."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduled import job

from carrel.core.control.inbox import merge
from carrel.core.control.launching import job_token, read_job_token
from carrel.core.control.news import OFTEN, after_stops, interpret
from carrel.core.domain.job import Job, JobState, Preemption, Reason
from carrel.core.domain.launch import (
    Advised,
    Continued,
    Ended,
    EnvironmentReady,
    Journaled,
    Observation,
    Paused,
    Preparing,
    Resumed,
    Sampled,
    Started,
    Suspended,
    Usage,
)
from carrel.core.domain.qos import PreemptMode
from carrel.core.domain.resources import Resources
from carrel.core.spool.journal import entry_from_plain

JOB = job(7, "alice", gpus=0, state=JobState.CONFIGURING, attempt=2, node="n1")


def observe(*records: object, **fields: object) -> Observation:
    entries = tuple(Journaled(at=100.0 + i, record=record) for i, record in enumerate(records))  # type: ignore[arg-type]
    return Observation(job_id=7, attempt=2, entries=entries, offset=10 * len(entries), **fields)  # type: ignore[arg-type]


def ended(state: JobState, code: str = "NonZeroExitCode", exit_code: int | None = 3) -> Ended:
    return Ended(state=state, reason=Reason(code=code, message="Exit code 3."), exit_code=exit_code)


def test_a_job_that_starts_and_ends_at_once_is_one_change_with_both_events() -> None:
    news = observe(Started(pid=1), ended(JobState.COMPLETED, "Completed", 0), log_size=5)
    change = interpret(JOB, news, log_size=0, now=200.0)
    assert (change.state, change.started_at, change.ended_at, change.exit_code) == (JobState.COMPLETED, 100.0, 101.0, 0)
    assert [(event.type, event.data.get("state")) for event in change.events] == [("state", "RUNNING"), ("log", None)]
    assert change.events[1].data == {"attempt": 2, "offset": 0, "size": 5}


def test_preparing_keeps_the_state_and_tells_the_owner() -> None:
    ready = EnvironmentReady(digest="sha256:e", lock="sha256:l", python="3.11.7", built=True, seconds=3.1)
    change = interpret(JOB, observe(Preparing(message="installing 12 packages"), ready), log_size=0, now=200.0)
    assert (change.state, change.environment, change.environment_built) == (JobState.CONFIGURING, "sha256:e", True)
    assert change.reason == Reason(code="Preparing", message="installing 12 packages")
    assert change.events[0].data == {"message": "installing 12 packages"}


def test_an_engine_says_in_its_own_code_why_it_waits_and_how_it_ended() -> None:
    change = interpret(
        JOB, observe(Preparing(message="The tide is out.", reason="HighWater"), beside=True), log_size=0, now=200.0
    )
    assert (change.state, change.reason) == (JobState.CONFIGURING, Reason(code="HighWater", message="The tide is out."))
    assert [event.data for event in change.events] == [{"message": "The tide is out.", "reason": "HighWater"}]
    change = interpret(JOB, observe(ended(JobState.FAILED, "QuayClosed")), log_size=0, now=200.0)
    assert change.reason == Reason(code="QuayClosed", message="Exit code 3.")
    change = interpret(JOB, observe(ended(JobState.PREEMPTED, "LowWater")), log_size=0, now=200.0)
    assert change.state is JobState.PENDING
    assert change.reason == Reason(code="LowWater", message="Exit code 3. It is in line again.")


def test_a_code_is_no_longer_than_what_is_written_down() -> None:
    for record in (Preparing(message="", reason="A" * 100), ended(JobState.FAILED, "A" * 100)):
        change = interpret(JOB, observe(record), log_size=0, now=200.0)
        assert change.reason.code == "A" * 64


def test_the_log_is_told_only_as_far_as_it_grew() -> None:
    assert interpret(JOB, observe(log_size=5), log_size=5, now=1.0).events == ()
    (event,) = interpret(JOB, observe(log_size=9), log_size=5, now=1.0).events
    assert event.data == {"attempt": 2, "offset": 5, "size": 9}


@pytest.mark.parametrize("state", sorted({JobState.FAILED, JobState.NODE_FAIL}))
def test_a_failure_with_retries_left_goes_back_to_the_queue(state: JobState) -> None:
    change = interpret(replace(JOB, retries_left=2), observe(ended(state)), log_size=0, now=1.0)
    assert (change.state, change.attempt_state, change.retries_left) == (JobState.PENDING, state, 1)
    assert change.attempt_reason == Reason(code="NonZeroExitCode", message="Exit code 3.")
    assert change.reason.message == f"Attempt 2 ended {state}: Exit code 3. It is tried again; 1 retry left after that."


def test_who_gave_way_is_in_line_again_with_as_many_retries() -> None:
    change = interpret(replace(JOB, retries_left=2), observe(ended(JobState.PREEMPTED, "Preempted")), log_size=0, now=1.0)
    assert (change.state, change.attempt_state, change.retries_left) == (JobState.PENDING, JobState.PREEMPTED, None)
    assert change.reason == Reason(code="Preempted", message="Exit code 3. It is in line again.")
    assert change.attempt_reason == Reason(code="Preempted", message="Exit code 3.")
    cancelled = interpret(
        replace(JOB, cancelled_by="alice"), observe(ended(JobState.PREEMPTED, "Preempted")), log_size=0, now=1.0
    )
    assert (cancelled.state, cancelled.attempt_state) == (JobState.CANCELLED, JobState.PREEMPTED)


def test_whose_gpu_could_not_be_cleared_is_in_line_again_with_as_many_retries() -> None:
    change = interpret(replace(JOB, retries_left=2), observe(ended(JobState.PREEMPTED, "GpuBlocked")), log_size=0, now=1.0)
    assert (change.state, change.attempt_state, change.retries_left) == (JobState.PENDING, JobState.PREEMPTED, None)
    assert change.reason == Reason(code="GpuBlocked", message="Exit code 3. It is in line again.")


def test_whose_gpu_state_is_lost_again_and_again_has_failed() -> None:
    news = observe(ended(JobState.PREEMPTED, "GpuStateLost"))
    again = interpret(JOB, news, log_size=0, now=1.0, unlucky=OFTEN - 2)
    assert (again.state, again.attempt_state) == (JobState.PENDING, JobState.PREEMPTED)
    failed = interpret(JOB, news, log_size=0, now=1.0, unlucky=OFTEN - 1)
    assert (failed.state, failed.attempt_state) == (JobState.FAILED, JobState.FAILED)
    assert (
        failed.reason.message
        == f"Exit code 3. That happened {OFTEN} times in a row. With --no-preempt others do not get its GPUs."
    )
    tried = interpret(replace(JOB, retries_left=1), news, log_size=0, now=1.0, unlucky=OFTEN - 1)
    assert (tried.state, tried.retries_left) == (JobState.PENDING, 0), "from then on it costs retries"


def test_a_runner_that_is_gone_while_it_gave_way_has_given_way() -> None:
    way = Preemption(mode=PreemptMode.REQUEUE, by=9, qos="desk", at=90.0, grace=60)
    change = interpret(replace(JOB, preemption=way), observe(gone=True), log_size=0, now=200.0)
    assert (change.state, change.attempt_state) == (JobState.PENDING, JobState.PREEMPTED)
    stopped = replace(JOB, preemption=replace(way, mode=PreemptMode.SUSPEND), state=JobState.SUSPENDED, suspended_at=150.0)
    lost = interpret(stopped, observe(gone=True), log_size=0, now=200.0)
    assert (lost.state, lost.suspended_seconds) == (JobState.NODE_FAIL, 50.0)
    assert interpret(replace(JOB, preemption=way, cancelled_by="a"), observe(gone=True), log_size=0, now=1.0).state == "CANCELLED"


def test_pauses_are_counted_and_for_how_many_people_they_were() -> None:
    job = replace(JOB, state=JobState.RUNNING)
    change = interpret(
        job, observe(Paused(), Continued(seconds=5.0, people=1), Paused(), Continued(seconds=7.0, people=2)), log_size=0, now=1.0
    )
    assert (change.pauses, change.pause_people, change.suspended_seconds) == (2, 2, 12.0)
    job = after_stops(job, change)
    # Nobody said for how many people it was.
    change = interpret(job, observe(Paused(), Continued(seconds=1.0)), log_size=0, now=1.0)
    assert (change.pauses, change.pause_people, change.suspended_seconds) == (3, 2, 13.0)
    change = interpret(after_stops(job, change), observe(Paused(), ended(JobState.FAILED)), log_size=0, now=200.0)
    assert change.pauses == 4, "it ended in its pause"
    assert entry_from_plain({"at": 1.0, "type": "continued", "seconds": 5.0}).record == Continued(seconds=5.0)


def test_being_stopped_and_going_on_are_told_and_counted() -> None:
    way = Preemption(mode=PreemptMode.SUSPEND, by=9, qos="desk", at=90.0, grace=60)
    running = replace(JOB, state=JobState.RUNNING, preemption=way, suspended_seconds=5.0)
    change = interpret(running, observe(Suspended()), log_size=0, now=200.0)
    assert (change.state, change.suspended_at, change.ended_at) == (JobState.SUSPENDED, 100.0, None)
    assert change.reason.message.startswith('Job 9 of QoS "desk" took this job\'s ')
    assert change.reason.message.endswith("This job resumes by itself when they are free.")
    stopped = replace(running, state=JobState.SUSPENDED, suspended_at=50.0)
    change = interpret(stopped, observe(Resumed(seconds=50.0)), log_size=0, now=200.0)
    assert (change.state, change.suspended_at, change.suspended_seconds) == (JobState.RUNNING, None, 55.0)
    assert [event.data["state"] for event in change.events] == ["RUNNING"]
    change = interpret(stopped, observe(ended(JobState.CANCELLED)), log_size=0, now=200.0)
    assert (change.state, change.suspended_seconds) == (JobState.CANCELLED, 55.0)


@pytest.mark.parametrize("state", sorted({JobState.COMPLETED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY, JobState.CANCELLED}))
def test_what_would_only_happen_again_is_not_retried(state: JobState) -> None:
    change = interpret(replace(JOB, retries_left=2), observe(ended(state)), log_size=0, now=1.0)
    assert (change.state, change.attempt_state, change.retries_left) == (state, state, None)


def test_a_cancelled_job_is_not_retried() -> None:
    job = replace(JOB, retries_left=2, cancelled_by="Alice")
    assert interpret(job, observe(ended(JobState.FAILED)), log_size=0, now=1.0).state is JobState.FAILED


def test_a_lost_runner_is_node_fail_and_says_what_is_not_known() -> None:
    change = interpret(replace(JOB, state=JobState.RUNNING), observe(gone=True), log_size=0, now=55.0)
    assert (change.state, change.ended_at) == (JobState.NODE_FAIL, 55.0)
    assert change.reason.code == "RunnerLost"
    assert "not known" in change.reason.message


def test_an_end_in_the_journal_outweighs_a_missing_runner() -> None:
    change = interpret(JOB, observe(ended(JobState.COMPLETED, "Completed", 0), gone=True), log_size=0, now=55.0)
    assert change.state is JobState.COMPLETED


def test_merging_keeps_order_and_drops_lines_that_were_read_twice() -> None:
    first = observe(Started(pid=1), log_size=3)
    again = replace(first, log_size=None)
    more = Observation(
        job_id=7, attempt=2, entries=(Journaled(at=9, record=Sampled(usage=Usage())),), offset=20, log_size=8, gone=True
    )
    other = Observation(job_id=8, attempt=1, log_size=1)
    (seven, eight) = merge([first, again, other, more])
    assert seven.entries == first.entries + more.entries
    assert (seven.offset, seven.log_size, seven.gone) == (20, 8, True)
    assert eight == other


def test_that_a_command_had_not_begun_is_not_forgotten_where_news_come_together() -> None:
    lines = Observation(job_id=7, attempt=1, entries=(Journaled(at=1.0, record=Preparing(message="inputs")),), offset=90)
    lost = Observation(job_id=7, attempt=1, gone=True, unbegun=True)
    (both,) = merge([lines, lost])
    assert (both.entries, both.gone, both.unbegun) == (lines.entries, True, True)
    assert merge([lines, replace(lost, unbegun=False)])[0].unbegun is False


def test_of_what_an_engine_says_beside_the_journal_the_last_counts_and_the_journal_outweighs_it() -> None:
    first, second = (
        Observation(job_id=7, attempt=2, entries=(Journaled(at=9, record=Preparing(message=text)),), beside=True)
        for text in ("waits", "still waits")
    )
    assert merge([first, second]) == [second]
    log = Observation(job_id=7, attempt=2, log_size=3)
    assert merge([first, log]) == [replace(first, log_size=3)]
    read = observe(Started(pid=1))
    (both,) = merge([first, read])
    assert (both.entries, both.offset, both.beside) == (first.entries + read.entries, read.offset, False)
    assert merge([read, first]) == [read]


@given(job_id=st.integers(1, 2**40), attempt=st.integers(1, 1000), secret=st.binary(min_size=16, max_size=32))
def test_a_job_token_names_its_attempt_and_nothing_else_opens(job_id: int, attempt: int, secret: bytes) -> None:
    token = job_token(secret, job_id, attempt)
    assert read_job_token(secret, token) == (job_id, attempt)
    assert read_job_token(secret + b"x", token) is None
    assert read_job_token(secret, token[:-1] + ("0" if token[-1] != "0" else "1")) is None
    assert read_job_token(secret, token.replace(f".{attempt}.", f".{attempt + 1}.")) is None


@pytest.mark.parametrize(
    "token",
    [
        "",
        "carrel-job",
        "carrel-job.1.1",
        "carrel-job.x.1.aa",
        "carrel-job.1.-1.aa",
        "carrel-job.1.1.é",
        "carrel-job.².1.aa",
        f"carrel-job.{'9' * 5000}.1.aa",
    ],
)
def test_what_is_no_job_token_is_not_one(token: str) -> None:
    assert read_job_token(b"secret", token) is None


TIMES_OUT = Ended(state=JobState.TIMEOUT, reason=Reason(code="TimeLimit", message="It reached its walltime of 1 h."))
GOES_ON = replace(JOB, requeues_left=2)


def test_a_job_that_may_go_on_does_so_from_its_checkpoint() -> None:
    change = interpret(GOES_ON, observe(replace(TIMES_OUT, checkpointed=True)), log_size=0, now=200.0)
    assert (change.state, change.requeues_left, change.attempt_state) == (JobState.PENDING, 1, JobState.TIMEOUT)
    assert change.reason.message == (
        "Attempt 2 ended TIMEOUT: It reached its walltime of 1 h. It goes on from its checkpoint; it may do so 1 more time."
    )


@pytest.mark.parametrize(
    ("job", "end", "says"),
    [
        (GOES_ON, TIMES_OUT, "changed nothing in its checkpoint directory"),
        (JOB, replace(TIMES_OUT, checkpointed=True), "as often as it asked for"),
        (JOB, TIMES_OUT, "walltime of 1 h."),
        (replace(GOES_ON, cancelled_by="bob"), replace(TIMES_OUT, checkpointed=True), "walltime"),
        (GOES_ON, replace(TIMES_OUT, checkpointed=True, reason=Reason(code="Deadline", message="At its deadline.")), "deadline"),
    ],
)
def test_without_progress_turns_or_the_wish_it_is_over(job: Job, end: Ended, says: str) -> None:
    change = interpret(job, observe(end), log_size=0, now=200.0)
    assert (change.state, change.requeues_left) == (JobState.TIMEOUT, None)
    assert says in change.reason.message


def test_who_goes_on_after_walltimes_does_so_after_the_loss_of_a_node_once_retries_are_used_up() -> None:
    lost = interpret(GOES_ON, Observation(job_id=7, attempt=2, gone=True), log_size=0, now=200.0)
    assert (lost.state, lost.requeues_left, lost.retries_left) == (JobState.PENDING, 1, None)
    retried = interpret(replace(GOES_ON, retries_left=1), Observation(job_id=7, attempt=2, gone=True), log_size=0, now=200.0)
    assert (retried.state, retried.requeues_left, retried.retries_left) == (JobState.PENDING, None, 0)


ENDS = st.builds(
    Ended,
    state=st.sampled_from([JobState.TIMEOUT, JobState.NODE_FAIL, JobState.FAILED]),
    reason=st.sampled_from([Reason(code="TimeLimit", message=""), Reason(code="NodeLost", message="")]),
    checkpointed=st.booleans(),
)


@given(st.lists(ENDS, min_size=30, max_size=30), st.integers(0, 5), st.integers(0, 5))
def test_no_job_goes_on_for_ever(ends: list[Ended], requeues: int, retries: int) -> None:
    job, attempts = replace(JOB, requeues_left=requeues, retries_left=retries), 0
    for end in ends:
        change = interpret(job, observe(end), log_size=0, now=200.0)
        attempts += 1
        if change.state is not JobState.PENDING:
            break
        left = {"requeues_left": change.requeues_left, "retries_left": change.retries_left}
        job = replace(job, **{name: value for name, value in left.items() if value is not None})
    assert attempts <= 1 + requeues + retries


FAULT = "Xid 79: it has fallen off the bus"


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.NODE_FAIL])
def test_what_failed_on_a_gpu_with_a_fault_is_tried_elsewhere_and_keeps_its_retries(state: JobState) -> None:
    job = replace(JOB, retries_left=1, requeues_left=2)
    change = interpret(job, observe(ended(state)), log_size=0, now=200.0, fault=FAULT)
    assert (change.state, change.retries_left, change.requeues_left) == (JobState.PENDING, 1, 2)
    assert change.attempt_reason == Reason(code="DeviceFault", message=f"Exit code 3. A GPU that it had is drained: {FAULT}.")


def test_a_fault_excuses_no_other_end_and_not_for_ever() -> None:
    for state in (JobState.TIMEOUT, JobState.OUT_OF_MEMORY, JobState.COMPLETED, JobState.CANCELLED):
        assert interpret(JOB, observe(ended(state)), log_size=0, now=200.0, fault=FAULT).state is state
    often = interpret(JOB, observe(ended(JobState.FAILED)), log_size=0, now=200.0, fault=FAULT, unlucky=OFTEN)
    cancelled = interpret(replace(JOB, cancelled_by="ada"), observe(ended(JobState.FAILED)), log_size=0, now=200.0, fault=FAULT)
    assert [often.state, cancelled.state] == [JobState.FAILED, JobState.FAILED]


def test_advice_of_a_runner_is_an_event_and_stays_with_the_attempt() -> None:
    job = replace(JOB, state=JobState.RUNNING, started_at=100.0 - 600, resources=Resources(cpus=4, gpus=1))
    change = interpret(job, observe(Advised(code="FewWorkers", message="Try more.")), log_size=0, now=200.0)
    (event,) = change.events
    assert (event.type, event.data) == ("progress", {"message": "Try more.", "reason": "LowGpuUse", "cause": "FewWorkers"})
    assert change.advice == "Try more."
