"""Jobs of `carrel.submitit` in a real lab: results, errors, what is printed, arrays, several tasks."""

from __future__ import annotations

import asyncio
import functools
import os
import pickle
import signal
import sys
from pathlib import Path

import pytest
from submitted import Opens, begins_and_waits

from carrel import Client, submitit
from carrel.testing.waiting import wait_until


@pytest.mark.gate
def test_a_function_is_a_job_of_the_lab_with_its_own_walltime(opens: Opens, client: Client) -> None:
    executor = opens()
    executor.update_parameters(name="adds", timeout_min=7, gpus_per_node=1)
    base = 10
    job = executor.submit(lambda a, *, b: (a + b + base, os.environ["CUDA_VISIBLE_DEVICES"]), 1, b=2)
    value, devices = job.result()
    assert value == 13
    assert devices
    assert (job.state, job.done(), job.exception(), job.num_tasks) == ("COMPLETED", True, None, 1)
    seen = client.job(int(job.job_id))
    assert (seen.name, seen.resources.time, seen.resources.gpus, seen.resources.memory) == ("adds", 420, 1, 256 << 20)
    assert job.submission().args == (1,)


def test_a_job_is_found_again_by_its_number_and_by_its_pickle(opens: Opens, client: Client, tmp_path: Path) -> None:
    job = opens().submit(pow, 2, 5)
    job.wait()
    assert submitit.Job(tmp_path / "elsewhere", job.job_id, client=client).result() == 32
    again = pickle.loads(pickle.dumps(job))
    again._client = client
    assert again.result() == 32


def test_a_result_of_another_labs_job_of_that_number_is_not_believed(opens: Opens) -> None:
    job = opens().submit(pow, 2, 5)
    job.paths.result_pickle.write_bytes(pickle.dumps(("success", "of another lab")))
    assert job.result() == 32


def test_what_is_raised_is_a_failed_job_with_its_traceback(opens: Opens) -> None:
    def fails() -> None:
        print("before")
        raise ValueError("on purpose")

    job = opens().submit(fails)
    error = job.exception()
    assert isinstance(error, submitit.FailedJobError)
    assert "Traceback" in str(error)
    assert "ValueError: on purpose" in str(error)
    assert f'{__file__}", line ' in str(error)
    with pytest.raises(submitit.FailedJobError, match="on purpose"):
        job.result()
    assert (job.state, job.stdout()) == ("FAILED", "before\n")
    assert "on purpose" in (job.stderr() or "")


def test_what_functools_has_wrapped_travels_there_and_back(opens: Opens) -> None:
    @functools.lru_cache
    def doubled(number: int) -> int:
        return 2 * number

    class Held:
        @functools.cached_property
        def value(self) -> int:
            return doubled(4)

    held = Held()
    assert opens().submit(lambda: (held.value, held)).result()[1].value == 8


def test_a_result_that_cannot_be_pickled_is_an_error_that_says_so(opens: Opens) -> None:
    with pytest.raises(submitit.FailedJobError, match="pickle"):
        opens().submit(lambda: __import__("threading").Lock()).result()


def test_a_process_that_is_killed_has_no_result(opens: Opens) -> None:
    def dies() -> None:
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    job = opens().submit(dies)
    error = job.exception()
    assert type(error) is submitit.UncompletedJobError
    assert "last words" in str(error)
    assert job.state == "FAILED"


def test_streams_are_apart_or_together(opens: Opens) -> None:
    def prints() -> None:
        print("out")
        print("err", file=sys.stderr)
        os.system("echo of a program")

    executor = opens()
    job = executor.submit(prints)
    job.wait()
    assert sorted((job.stdout() or "").split("\n")) == ["", "of a program", "out"]
    assert job.stderr() == "err\n"
    executor.update_parameters(stderr_to_stdout=True)
    together = executor.submit(prints)
    together.wait()
    assert sorted((together.stdout() or "").split("\n")) == ["", "err", "of a program", "out"]
    assert together.stderr() is None


def test_a_job_that_runs_shows_its_log_and_is_cancelled(opens: Opens, tmp_path: Path) -> None:
    def prints_and_waits(place: str) -> None:
        print("working", flush=True)
        begins_and_waits(place)

    job = opens().submit(prints_and_waits, str(tmp_path))
    wait_until(lambda: "working" in (job.stdout() or ""), "its log")
    assert job.state == "RUNNING"
    assert not job.done()
    job.cancel()
    job.wait()
    assert job.state == "CANCELLED"
    with pytest.raises(submitit.UncompletedJobError, match="cancelled"):
        job.result()


def test_an_object_that_is_thrown_away_cancels_its_job(opens: Opens, client: Client, tmp_path: Path) -> None:
    job = opens().submit(begins_and_waits, str(tmp_path)).cancel_at_deletion()
    number = int(job.job_id)
    del job
    assert client.wait(number).state == "CANCELLED"


def test_an_array_has_a_job_for_each_element(opens: Opens, client: Client) -> None:
    executor = opens()
    executor.update_parameters(slurm_array_parallelism=2)
    jobs = executor.map_array(pow, [2, 3, 4], [5, 2, 2])
    assert [job.result() for job in jobs] == [32, 9, 16]
    array = jobs[0].job_id.partition("_")[0]
    assert [job.job_id for job in jobs] == [f"{array}_{index}" for index in range(3)]
    assert client.array(int(array)).array == "0-2%2"
    assert [job.submission().args for job in jobs] == [(2, 5), (3, 2), (4, 2)]
    assert [job.result() for job in executor.submit_array([lambda: 1, lambda: 2])] == [1, 2]
    assert executor.map_array(pow, [], []) == []


def test_a_batch_is_submitted_at_its_end_as_one_array(opens: Opens) -> None:
    executor = opens()
    with executor.batch():
        jobs = [executor.submit(abs, -number) for number in range(2)]
        with pytest.raises(AttributeError, match="not submitted yet"):
            _ = jobs[0].job_id
        with pytest.raises(RuntimeError, match=r"with executor.batch"):
            executor.update_parameters(timeout_min=1)
    assert type(jobs[0]) is submitit.Job
    assert [job.result() for job in jobs] == [0, 1]
    assert len({job.job_id.partition("_")[0] for job in jobs}) == 1
    with executor.batch(allow_implicit_submissions=True):
        job = executor.submit(abs, -4)
        assert job.job_id
        assert type(job) is submitit.Job
    with pytest.warns(RuntimeWarning, match="empty"), executor.batch():
        pass


def test_nothing_of_a_batch_that_fails_is_submitted(opens: Opens, client: Client) -> None:
    executor = opens()
    executor.update_parameters(name="of-a-batch-that-fails")
    with pytest.raises(ZeroDivisionError), executor.batch():
        job = executor.submit(abs, -1)
        _ = 1 / 0
    assert list(client.jobs(name="of-a-batch-that-fails")) == []
    with pytest.raises(AttributeError):
        job.result()


def test_several_tasks_know_their_places(opens: Opens) -> None:
    def place() -> tuple[int, int, int, int, str]:
        here = submitit.JobEnvironment()
        torch = submitit.helpers.TorchDistributedEnvironment().export()
        print("rank", here.global_rank)
        if here.global_rank == 5:
            raise RuntimeError("never")
        return here.local_rank, here.num_tasks, here.num_nodes, torch.world_size, here.job_id

    executor = opens()
    executor.update_parameters(tasks_per_node=3, nodes=1)
    job = executor.submit(place)
    assert job.results() == [(rank, 3, 1, 3, job.job_id) for rank in range(3)]
    assert job.task(2).result()[0] == 2
    assert job.stdout() == "rank 0\nrank 1\nrank 2\n"
    assert job.task(1).stdout() == "rank 1\n"
    with pytest.raises(ValueError, match="between 0 and 2"):
        job.task(3)
    with pytest.raises(RuntimeError, match="3 tasks"):
        job.result()


def test_the_error_of_one_of_several_tasks_is_the_jobs(opens: Opens) -> None:
    def one_fails() -> None:
        if submitit.JobEnvironment().local_rank == 1:
            raise RuntimeError("the second")

    executor = opens()
    executor.update_parameters(tasks_per_node=2)
    assert "RuntimeError: the second" in str(executor.submit(one_fails).exception())


def test_jobs_can_be_awaited(opens: Opens) -> None:
    jobs = opens().map_array(abs, [-1, -2])

    async def gather() -> list[object]:
        first = await asyncio.gather(*(job.awaitable().result(0.05) for job in jobs))
        others = [await each for each in jobs[0].awaitable().results_as_completed(0.05)]
        return [*first, *others, *(await jobs[1].awaitable().results(0.05))]

    assert asyncio.run(gather()) == [1, 2, 1, 2]


def test_lines_of_shell_before_and_after(opens: Opens, tmp_path: Path) -> None:
    executor = opens()
    marks = tmp_path / "before {it}", tmp_path / "after"
    executor.update_parameters(slurm_setup=[f'touch "{marks[0]}"'], slurm_teardown=[f"touch {marks[1]}"])
    assert executor.submit(marks[0].exists).result()
    assert marks[1].exists()
    job = executor.submit(sys.exit, 3)
    assert "SystemExit: 3" in str(job.exception())
    assert job.state == "FAILED"


def test_a_function_works_where_it_was_submitted(opens: Opens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data.txt").write_text("here")
    monkeypatch.chdir(tmp_path)
    assert opens().submit(lambda: Path("data.txt").read_text()).result() == "here"


def test_folders_that_are_registered_travel(opens: Opens, tmp_path: Path) -> None:
    (tmp_path / "of_a_colleague").mkdir()
    (tmp_path / "of_a_colleague" / "__init__.py").write_text("answer = 42\n")
    executor = opens()
    executor.register_dev_folders([tmp_path / "of_a_colleague"])
    assert executor.submit(lambda: __import__("of_a_colleague").answer).result() == 42


def test_completed_jobs_come_as_they_end(opens: Opens, tmp_path: Path) -> None:
    executor = opens()
    slow, fast = executor.submit(begins_and_waits, str(tmp_path)), executor.submit(abs, -1)
    order = submitit.helpers.as_completed([slow, fast], poll_frequency=0.05)
    assert next(order) is fast
    (tmp_path / "go").touch()
    assert next(order) is slow
    submitit.helpers.monitor_jobs([slow, fast], 0.05, test_mode=True)


def test_what_the_lab_does_not_take_says_why(opens: Opens) -> None:
    executor = opens()
    executor.update_parameters(slurm_partition="nowhere")
    with pytest.raises(submitit.FailedSubmissionError, match="nowhere"):
        executor.submit(abs, -1)
    assert list(executor.folder.glob("*.pkl")) == []


def test_a_job_that_is_not_there_is_unknown(client: Client, tmp_path: Path) -> None:
    assert submitit.Job(tmp_path, "999999", client=client).state == "UNKNOWN"
