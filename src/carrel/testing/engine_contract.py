"""What every engine must do: a suite to be inherited.

    class TestMyEngine(EngineContract):
        @pytest.fixture
        def home(self, tmp_path): return LabHome(tmp_path)

        @pytest.fixture
        def make_engine(self, home): ...   # a callable that returns a new engine on the same spool, each time it is called

Real processes run; nothing is simulated. An engine whose runners cannot be reached by `os.kill` overrides `kill_runner`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import pytest

from carrel.core.domain.job import JobState, Preemption
from carrel.core.domain.launch import Claimed, JournalRecord, Launch, Preparing, Resumed, Started, Suspended
from carrel.core.domain.ports import Attempt, Engine
from carrel.core.domain.qos import PreemptMode
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import InputSpec
from carrel.core.spool import read_claim
from carrel.testing.builders import AttemptEvents, EngineListener, LabHome, make_launch
from carrel.testing.waiting import wait_until

TOKEN = "carrel-test-token-0123456789"
_REQUEUE = Preemption(mode=PreemptMode.REQUEUE, by=9, qos="interactive", at=0.0, grace=60)
_SUSPEND = replace(_REQUEUE, mode=PreemptMode.SUSPEND)


class EngineContract:
    """Inherit, and give the fixtures `home` and `make_engine`."""

    @pytest.fixture
    def engines(self, make_engine: Callable[[], Engine]) -> Iterator[Callable[[], Engine]]:
        """Return a maker of engines that closes them after the test."""
        with ExitStack() as stack:

            def make() -> Engine:
                engine = make_engine()
                stack.callback(engine.close)
                return engine

            yield make

    @pytest.fixture
    def engine(self, engines: Callable[[], Engine]) -> Engine:
        """One engine."""
        return engines()

    @pytest.fixture
    def listener(self, engine: Engine) -> EngineListener:
        """Listens to `engine`."""
        return EngineListener(engine)

    def kill_runner(self, home: LabHome, launch: Launch) -> None:
        """Kill the runner of a claimed attempt with SIGKILL."""
        claim = read_claim(home.attempt(launch).claim)
        assert claim is not None
        os.kill(claim.pid, signal.SIGKILL)

    def test_a_command_runs_and_its_output_is_in_the_log(self, home: LabHome, engine: Engine, listener: EngineListener) -> None:
        """start -> COMPLETED, output in order, journal in order."""
        launch = make_launch(home, "cat greeting; echo world >&2", files={"greeting": "hello\n"})
        engine.start(launch, token=TOKEN)
        ended = listener.ended(launch)
        assert (ended.state, ended.exit_code, ended.reason.code) == (JobState.COMPLETED, 0, "Completed")
        assert home.attempt(launch).log.read_bytes() == b"hello\nworld\n"
        story = listener.wait(launch, lambda story: story.log_size == 12)
        assert isinstance(_first(story), Claimed)
        assert story.first(Started) is not None
        assert story.records[-1] is ended
        assert story.offset == home.attempt(launch).journal.stat().st_size

    def test_an_exit_code_is_passed_on(self, home: LabHome, engine: Engine, listener: EngineListener) -> None:
        """Another exit code than 0 is FAILED."""
        launch = make_launch(home, "exit 7")
        engine.start(launch, token=TOKEN)
        ended = listener.ended(launch)
        assert (ended.state, ended.exit_code, ended.reason.code) == (JobState.FAILED, 7, "NonZeroExitCode")

    def test_a_running_job_is_cancelled(self, home: LabHome, engine: Engine, listener: EngineListener) -> None:
        """cancel -> CANCELLED, with the name of who asked."""
        launch = make_launch(home, "echo ready; sleep 600")
        engine.start(launch, token=TOKEN)
        listener.wrote(launch, home.attempt(launch).log, b"ready")
        engine.cancel(1, 1, by="bob")
        ended = listener.ended(launch)
        assert (ended.state, ended.reason.code) == (JobState.CANCELLED, "Cancelled")
        assert "bob" in ended.reason.message

    def test_a_job_is_cancelled_while_it_is_prepared(self, home: LabHome, engine: Engine, listener: EngineListener) -> None:
        """A cancellation right after the start: the command never runs."""
        pipe = home.root / "pipe"
        os.mkfifo(pipe)  # staging this input takes for ever
        launch = make_launch(home, f"touch {home.root}/ran", task={"inputs": (InputSpec(path="never", uri=f"file://{pipe}"),)})
        engine.start(launch, token=TOKEN)
        listener.wait(launch, lambda story: story.records and any("fetching" in str(record) for record in story.records))
        engine.cancel(1, 1, by="bob")
        ended = listener.ended(launch)
        assert ended.state is JobState.CANCELLED
        assert not (home.root / "ran").exists()

    def test_a_cancellation_that_comes_at_once_is_not_lost(self, home: LabHome, engine: Engine, listener: EngineListener) -> None:
        """start and cancel in one breath."""
        launches = [make_launch(home, "sleep 600", job_id=number) for number in range(1, 9)]
        for launch in launches:
            engine.start(launch, token=TOKEN)
            engine.cancel(launch.job_id, launch.attempt, by="bob")
        assert {listener.ended(launch).state for launch in launches} == {JobState.CANCELLED}

    def test_a_job_that_gives_way_is_asked_and_then_ended(self, home: LabHome, engine: Engine, listener: EngineListener) -> None:
        """preempt -> SIGTERM, time for a checkpoint, PREEMPTED; the next attempt finds the checkpoint."""
        save = "trap 'echo 41 > $CARREL_CHECKPOINT_DIR/step; exit 3' TERM"
        command = f"if [ -e $CARREL_CHECKPOINT_DIR/step ]; then cat $CARREL_CHECKPOINT_DIR/step; exit; fi; {save}; echo ready; "
        launch = make_launch(home, command + "while :; do sleep 0.05; done")
        engine.start(launch, token=TOKEN)
        listener.wrote(launch, home.attempt(launch).log, b"ready")
        engine.preempt(1, 1, _REQUEUE)
        ended = listener.ended(launch)
        assert (ended.state, ended.reason.code, ended.exit_code) == (JobState.PREEMPTED, "Preempted", 3)
        assert '"interactive"' in ended.reason.message
        assert b"SIGTERM" in home.attempt(launch).log.read_bytes()
        engine.forget(1, 1, over=False)
        again = replace(launch, attempt=2)
        engine.start(again, token=TOKEN)
        assert listener.ended(again).state is JobState.COMPLETED
        assert home.attempt(again).log.read_bytes() == b"41\n"
        engine.forget(1, 2)
        wait_until(lambda: not home.attempt(again).checkpoint.exists())

    def test_a_job_that_does_not_end_by_itself_is_ended(self, home: LabHome, engine: Engine, listener: EngineListener) -> None:
        """SIGKILL after the time that it was given."""
        launch = make_launch(home, "trap '' TERM; echo ready; sleep 600 & wait; sleep 600")
        engine.start(launch, token=TOKEN)
        listener.wrote(launch, home.attempt(launch).log, b"ready")
        engine.preempt(1, 1, replace(_REQUEUE, grace=1))
        assert listener.ended(launch).state is JobState.PREEMPTED

    def test_a_job_that_ends_well_meanwhile_is_done(self, home: LabHome, engine: Engine, listener: EngineListener) -> None:
        """Exit code 0 after the signal is COMPLETED."""
        launch = make_launch(home, "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done")
        engine.start(launch, token=TOKEN)
        listener.wrote(launch, home.attempt(launch).log, b"ready")
        engine.preempt(1, 1, _REQUEUE)
        assert listener.ended(launch).state is JobState.COMPLETED

    def test_a_job_gives_way_while_it_is_prepared(self, home: LabHome, engine: Engine, listener: EngineListener) -> None:
        """The command never runs; a cancellation goes before it."""
        pipe = home.root / "pipe"
        os.mkfifo(pipe)  # staging this input takes for ever
        task = {"inputs": (InputSpec(path="never", uri=f"file://{pipe}"),)}
        launches = [make_launch(home, f"touch {home.root}/ran", job_id=number, task=task) for number in (1, 2)]
        for launch in launches:
            engine.start(launch, token=TOKEN)
            listener.wait(launch, lambda story: story.records and any("fetching" in str(record) for record in story.records))
        engine.preempt(1, 1, _REQUEUE)
        assert listener.ended(launches[0]).state is JobState.PREEMPTED
        engine.cancel(2, 1, by="bob")
        engine.preempt(2, 1, _REQUEUE)
        assert listener.ended(launches[1]).state is JobState.CANCELLED
        assert not (home.root / "ran").exists()

    def test_a_job_is_stopped_and_goes_on(self, home: LabHome, engines: Callable[[], Engine]) -> None:
        """Nothing of it runs meanwhile, its walltime neither; also a new engine lets it go on."""
        count = "while :; do echo $1 >> $2; sleep 0.02; done"
        command = f"(setsid sh -c '{count}' - child {home.root}/child &); echo ready; sh -c '{count}' - own {home.root}/own"
        launch = make_launch(home, command, resources=Resources(time=6, memory=2**29))
        first = engines()
        listener = EngineListener(first)
        first.start(launch, token=TOKEN)
        files = [home.root / "child", home.root / "own"]
        wait_until(lambda: all(file.exists() for file in files))
        first.preempt(1, 1, _SUSPEND)
        first.preempt(1, 1, _SUSPEND)
        offset = listener.wait(launch, lambda story: story.first(Suspended)).offset
        sizes = [file.stat().st_size for file in files]
        first.close()
        threading.Event().wait(7)  # longer than its walltime
        assert [file.stat().st_size for file in files] == sizes
        second = engines()
        listener = EngineListener(second)
        second.adopt([(Attempt(job_id=1, number=1, offset=offset), launch, TOKEN)])
        second.preempt(1, 1, None)
        resumed = listener.wait(launch, lambda story: story.first(Resumed)).first(Resumed)
        assert resumed.seconds >= 7
        wait_until(lambda: all(file.stat().st_size > size for file, size in zip(files, sizes, strict=True)))
        ended = listener.ended(launch)
        assert (ended.state, "6 s" in ended.reason.message) == (JobState.TIMEOUT, True)

    def test_a_job_that_is_stopped_can_be_cancelled(self, home: LabHome, engine: Engine, listener: EngineListener) -> None:
        """It does not run again for that."""
        launch = make_launch(home, f"trap 'touch {home.root}/again' TERM; echo ready; while :; do sleep 0.05; done")
        engine.start(launch, token=TOKEN)
        listener.wrote(launch, home.attempt(launch).log, b"ready")
        engine.preempt(1, 1, _SUSPEND)
        listener.wait(launch, lambda story: story.first(Suspended))
        engine.cancel(1, 1, by="bob")
        assert listener.ended(launch).state is JobState.CANCELLED
        assert not (home.root / "again").exists()

    def test_unknown_attempts_cannot_be_cancelled(self, home: LabHome, engine: Engine, listener: EngineListener) -> None:
        """Nothing happens, now or when an attempt of that number comes."""
        engine.cancel(1, 1, by="bob")
        engine.preempt(1, 1, _REQUEUE)
        launch = make_launch(home, "true")
        engine.start(launch, token=TOKEN)
        assert listener.ended(launch).state is JobState.COMPLETED

    def test_the_walltime_ends_a_job(self, home: LabHome, engine: Engine, listener: EngineListener) -> None:
        """-> TIMEOUT."""
        launch = make_launch(home, "trap '' TERM; sleep 600 & wait", resources=Resources(time=1, memory=2**29))
        engine.start(launch, token=TOKEN)
        ended = listener.ended(launch)
        assert (ended.state, ended.reason.code) == (JobState.TIMEOUT, "TimeLimit")

    def test_starting_an_attempt_again_runs_it_once(self, home: LabHome, engines: Callable[[], Engine]) -> None:
        """The same attempt, twice in one engine and once more in the next."""
        launch = make_launch(home, f"echo ran >> {home.root}/ran; echo ready; read line < {home.root}/go")
        os.mkfifo(home.root / "go")
        first = engines()
        listener = EngineListener(first)
        first.start(launch, token=TOKEN)
        first.start(launch, token=TOKEN)
        listener.wrote(launch, home.attempt(launch).log, b"ready")
        first.close()
        second = engines()
        listener = EngineListener(second)
        second.start(launch, token=TOKEN)
        (home.root / "go").write_text("go\n")
        assert listener.ended(launch).state is JobState.COMPLETED
        assert (home.root / "ran").read_text() == "ran\n"

    def test_a_new_engine_adopts_a_running_job(self, home: LabHome, engines: Callable[[], Engine]) -> None:
        """close, then adopt: nothing is lost or told twice, and a cancellation still arrives."""
        os.mkfifo(home.root / "go")
        launch = make_launch(home, f"echo ready; read line < {home.root}/go; echo done; sleep 600")
        first = engines()
        listener = EngineListener(first)
        first.start(launch, token=TOKEN)
        story = listener.wait(launch, lambda story: story.first(Started))
        offset = story.offset
        first.close()
        (home.root / "go").write_text("go\n")
        second = engines()
        listener = EngineListener(second)
        second.adopt([(Attempt(job_id=1, number=1, offset=offset), launch, TOKEN)])
        listener.wrote(launch, home.attempt(launch).log, b"done")
        second.cancel(1, 1, by="bob")
        assert listener.ended(launch).state is JobState.CANCELLED
        assert listener.story(launch).first(Started) is None

    def test_an_end_without_an_engine_is_told_to_the_next(self, home: LabHome, engines: Callable[[], Engine]) -> None:
        """The job ends while nobody looks."""
        os.mkfifo(home.root / "go")
        launch = make_launch(home, f"read line < {home.root}/go; exit 4")
        first = engines()
        listener = EngineListener(first)
        first.start(launch, token=TOKEN)
        listener.wait(launch, lambda story: story.first(Started))
        first.close()
        (home.root / "go").write_text("go\n")
        claim = home.attempt(launch).claim
        wait_until(lambda: (found := read_claim(claim)) is not None and not found.held)
        second = engines()
        listener = EngineListener(second)
        second.adopt([(Attempt(job_id=1, number=1), launch, TOKEN)])
        assert listener.ended(launch).exit_code == 4
        assert not listener.story(launch).gone

    def test_an_attempt_that_was_recorded_but_never_started_is_started(
        self, home: LabHome, engine: Engine, listener: EngineListener
    ) -> None:
        """The server died between recording and starting."""
        launch = make_launch(home, "echo here")
        engine.adopt([(Attempt(job_id=1, number=1), launch, TOKEN)])
        assert listener.ended(launch).state is JobState.COMPLETED

    def test_a_runner_that_was_killed_is_gone(self, home: LabHome, engine: Engine, listener: EngineListener) -> None:
        """Evidence, not an end; its command is gone too, its log stays."""
        launch = make_launch(
            home, f"echo ready; (setsid sleep 600 & echo $! > {home.root}/stray); echo $$ > {home.root}/pid; sleep 600"
        )
        engine.start(launch, token=TOKEN)
        wait_until(lambda: (home.root / "pid").exists() and (home.root / "pid").read_text().strip())
        listener.wrote(launch, home.attempt(launch).log, b"ready")
        self.kill_runner(home, launch)
        story = listener.wait(launch, lambda story: story.gone)
        assert story.ended is None
        for name in ("pid", "stray"):
            pid = int((home.root / name).read_text())
            wait_until(partial(_dead, pid))
        engine.forget(1, 1)
        assert home.attempt(launch).log.read_bytes().startswith(b"ready\n")

    def test_a_runner_that_was_killed_without_an_engine_is_gone(self, home: LabHome, engines: Callable[[], Engine]) -> None:
        """Found out at adoption; the attempt is not run again."""
        launch = make_launch(home, f"echo ran >> {home.root}/ran; echo ready; sleep 600")
        first = engines()
        listener = EngineListener(first)
        first.start(launch, token=TOKEN)
        listener.wrote(launch, home.attempt(launch).log, b"ready")
        first.close()
        self.kill_runner(home, launch)
        second = engines()
        listener = EngineListener(second)
        second.adopt([(Attempt(job_id=1, number=1), launch, TOKEN)])
        listener.wait(launch, lambda story: story.gone)
        second.forget(1, 1)
        assert (home.root / "ran").read_text() == "ran\n"

    def test_news_that_were_not_taken_come_again(self, home: LabHome, engines: Callable[[], Engine]) -> None:
        """The receiver fails once (its database was locked)."""
        engine = engines()
        listener = EngineListener(engine, refuse=2)
        launch = make_launch(home, "echo hello")
        engine.start(launch, token=TOKEN)
        assert listener.ended(launch).state is JobState.COMPLETED
        assert isinstance(_first(listener.story(launch)), Claimed)

    def test_a_forgotten_attempt_leaves_no_secrets(self, home: LabHome, engine: Engine, listener: EngineListener) -> None:
        """Journal and log stay, the token does not."""
        launch = make_launch(home, "echo hello")
        engine.start(launch, token=TOKEN)
        listener.ended(launch)
        engine.forget(1, 1)
        directory = home.attempt(launch)
        assert directory.journal.exists()
        assert directory.log.read_bytes() == b"hello\n"
        wait_until(lambda: not directory.token.exists())
        assert not any(TOKEN.encode() in path.read_bytes() for path in directory.path.iterdir() if path.is_file())

    def test_nodes_have_what_jobs_ask_for(self, engine: Engine) -> None:
        """Every engine has a node."""
        assert all(node.cpus >= 1 and node.memory > 0 for node in engine.nodes())
        assert engine.withheld() <= {device.uuid for node in engine.nodes() for device in node.devices}


def _first(story: AttemptEvents) -> JournalRecord:
    """The first thing that happened to an attempt. Before it, an engine may have said why nothing happens."""
    return next(record for record in story.records if not isinstance(record, Preparing))


def _dead(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True
