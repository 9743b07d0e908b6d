"""Jobs that go on from a checkpoint: after their walltime, and after preemption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from submitted import CannotTell, GivesUp, Opens, Steps, begins_and_waits

from carrel import Client, submitit


def soon_over(opens: Opens, **more: Any) -> submitit.AutoExecutor:
    executor = opens(**more)
    # It is told after nine seconds: a Python that starts slowly has begun by then.
    executor.update_parameters(timeout_min=13 / 60, slurm_signal_delay_s=4)
    return executor


def test_a_job_goes_on_after_its_walltime_with_what_its_checkpoint_says(opens: Opens, client: Client, tmp_path: Path) -> None:
    job = soon_over(opens).submit(Steps(str(tmp_path)), "word")
    assert job.result() == ("word!", 2)
    seen = client.job(int(job.job_id))
    assert (seen.state, seen.attempt, seen.requeues_left) == ("COMPLETED", 2, 2)
    lines = (job.stdout() or "").splitlines()
    assert [line for line in lines if not line.startswith("carrel:")] == ["begun 1", "checkpoint 1", "begun 2"]


def test_a_sequence_calls_nothing_twice(opens: Opens, tmp_path: Path) -> None:
    place = tmp_path / "calls"

    def called(name: str) -> str:
        with place.open("a") as file:
            file.write(name)
        return name

    sequence = submitit.helpers.FunctionSequence(verbose=True)
    sequence.add(called, "a")
    sequence.add(Steps(str(tmp_path)), "b")
    sequence.add(called, "c")
    job = soon_over(opens).submit(sequence)
    assert job.result() == ["a", ("b", 2), "c"]
    assert place.read_text() == "ac"
    assert "Starting from 1/3" in (job.stdout() or "")


def test_it_goes_on_no_more_often_than_it_may(opens: Opens, tmp_path: Path) -> None:
    job = soon_over(opens, slurm_max_num_timeout=1).submit(Steps(str(tmp_path), times=9), "word")
    error = job.exception()
    assert type(error) is submitit.UncompletedJobError
    assert job.state == "TIMEOUT"
    assert "begun 2" in str(error)


def test_a_function_without_a_checkpoint_ends_at_its_walltime(opens: Opens, client: Client, tmp_path: Path) -> None:
    job = soon_over(opens).submit(begins_and_waits, str(tmp_path))
    error = job.exception()
    assert type(error) is submitit.UncompletedJobError
    assert "TIMEOUT" in str(error)
    assert client.job(int(job.job_id)).attempt == 1


@pytest.mark.parametrize(("kind", "said"), [(GivesUp, "returned None"), (CannotTell, "the disk is full")])
def test_without_a_checkpoint_it_does_not_go_on_and_says_why(opens: Opens, tmp_path: Path, kind: type[Steps], said: str) -> None:
    job = soon_over(opens).submit(kind(str(tmp_path), times=9), "word")
    assert said in str(job.exception())
    assert "begun 2" not in (job.stdout() or "")


def test_of_several_tasks_the_first_takes_the_checkpoint(opens: Opens, tmp_path: Path) -> None:
    executor = soon_over(opens)
    executor.update_parameters(tasks_per_node=2)
    job = executor.submit(Steps(str(tmp_path)), "word")
    assert job.results() == [("word!", 2)] * 2
    assert "checkpoint" not in (job.task(1).stdout() or "")
