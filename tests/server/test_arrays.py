"""Arrays in a lab that runs: their limit, their ends, what waits for them, and that a killed server keeps all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.core.domain.errors import Impossible, Invalid, NotFound
from carrel.testing.waiting import PATIENCE, wait_until
from support.small_lab import MortalLab


class Lab(MortalLab):
    def begin(self, directory: Path) -> None:
        """A test of its own: nobody has been started, nobody may end."""
        self.go, self.started = directory / "go", directory / "started"
        self.go.mkdir()
        self.started.mkdir()

    def waiting_script(self, end: str = "true") -> str:
        """Each element says that it was started, and ends when it may."""
        me = "$SLURM_ARRAY_TASK_ID"
        return (
            f"env | grep _ARRAY_ | sort; echo $CARREL_ATTEMPT >> {self.started}/{me}\n"
            f"while [ ! -e {self.go}/{me} ]; do sleep 0.05; done; {end}\n"
        )

    def until_started(self, *indices: int) -> None:
        wait_until(lambda: {file.name for file in self.started.iterdir()} >= {str(index) for index in indices})

    def until_states(self, array: int, **states: int) -> None:
        wait_until(lambda: Counter(job.state for job in self.client.array(array).jobs) == states)

    def end(self, job_id: int) -> tuple[str, str]:
        job = self.ended(job_id)
        return job.state, job.reason


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("arrays") / "lab", "--cpus", "8")
    yield lab
    lab.stop()


@pytest.fixture
def lab(shared: Lab, tmp_path: Path) -> Lab:
    shared.begin(tmp_path)
    return shared


@pytest.mark.gate
def test_an_array_keeps_its_limit_and_its_elements_through_the_death_of_the_server(lab: Lab) -> None:
    script = lab.waiting_script("test $SLURM_ARRAY_TASK_ID != 4")
    first = lab.submit(script, array="0,2-6:2,9%2", key="once", variables={"SLURM_ARRAY_TASK_ID": "77"})
    assert lab.submit(script, array="0,2-6:2,9%2", key="once", variables={"SLURM_ARRAY_TASK_ID": "77"}).id == first.id
    array = first.id
    elements = {job.array_task_id: job.id for job in lab.client.array(array).jobs}
    assert (list(elements), elements[0], len(set(elements.values()))) == ([0, 2, 4, 6, 9], array, 5)
    after_one = lab.submit("true", dependency=f"afterok:{array}_0").id
    after_all = lab.submit("true", dependency=f"afterany:{array}").id
    not_well = lab.submit("true", dependency=f"afternotok:{array}").id
    never = lab.submit("true", dependency=f"afterok:{array}").id
    each = lab.submit("true", array="0,4,6", dependency=f"aftercorr:{array}").id
    lab.until_started(0, 2)
    wait_until(lambda: lab.client.job(elements[4]).reason == "JobArrayTaskLimit")
    held = lab.client.job(elements[4])
    assert (held.state, held.queue is not None) == ("PENDING", True)
    assert held.message.startswith(f"2 of at most 2 elements of array {array} run; ")
    assert lab.client.job(after_all).message == f"It starts when all elements of array {array} have ended."
    assert lab.client.job(after_all).dependency == f"afterany:{array}_*"

    lab.kill_and_restart()
    lab.until_states(array, RUNNING=2, PENDING=3)
    assert {job.array_task_id: job.id for job in lab.client.array(array).jobs} == elements
    (lab.go / "0").touch()
    lab.until_started(4)
    assert lab.end(after_one) == ("COMPLETED", "Completed")
    assert lab.end(each) == ("COMPLETED", "Completed")
    lab.until_states(array, COMPLETED=1, RUNNING=2, PENDING=2)
    assert lab.client.job(never).state == "PENDING"
    (lab.go / "4").touch()
    assert lab.end(elements[4]) == ("FAILED", "NonZeroExitCode")
    # One has failed, so all of them can never end well any more.
    assert lab.end(never) == ("CANCELLED", "DependencyNeverSatisfied")
    assert lab.end(lab.client.element(each, 4).id) == ("CANCELLED", "DependencyNeverSatisfied")
    assert lab.client.job(not_well).state == "PENDING"
    lab.until_started(6)
    lab.client.cancel(elements[9])
    lab.until_states(array, COMPLETED=1, FAILED=1, RUNNING=2, CANCELLED=1)

    cancelled = lab.client.cancel_array(array)
    assert [job.array_task_id for job in cancelled.jobs] == [0, 2, 4, 6, 9]
    assert [job.state for job in lab.client.wait_array(array, timeout=PATIENCE)] == [
        "COMPLETED", "CANCELLED", "FAILED", "CANCELLED", "CANCELLED",
    ]  # fmt: skip
    assert lab.end(after_all) == lab.end(not_well) == ("COMPLETED", "Completed")
    assert {file.name: file.read_text().split() for file in lab.started.iterdir()} == {name: ["1"] for name in "0246"}
    log = lab.log(elements[6]).split()
    assert log[:8] == [
        f"CARREL_ARRAY_JOB_ID={array}", "CARREL_ARRAY_TASK_ID=6", f"SLURM_ARRAY_JOB_ID={array}", "SLURM_ARRAY_TASK_COUNT=5",
        "SLURM_ARRAY_TASK_ID=6", "SLURM_ARRAY_TASK_MAX=9", "SLURM_ARRAY_TASK_MIN=0", "SLURM_ARRAY_TASK_STEP=2",
    ]  # fmt: skip
    # One that is repeated finds what it found before.
    again = lab.client.rerun(elements[4])
    assert (again.array_task_id, again.array, again.array_job_id) == (4, "0,2-6:2,9%2", again.id)
    assert lab.end(again.id) == ("FAILED", "NonZeroExitCode")


def test_what_cannot_be_is_refused_by_name_and_nothing_is_left(lab: Lab) -> None:
    array = lab.submit("test $SLURM_ARRAY_TASK_ID = 1", array="1-2").id
    alone = lab.submit("true").id
    before = len(list(lab.client.jobs(limit=None)))
    assert [job.state for job in lab.client.wait_array(array, timeout=PATIENCE)] == ["COMPLETED", "FAILED"]
    for wrong, error, words in (
        ({"array": "3-1"}, Invalid, "ends before it begins"),
        ({"array": "0-1001"}, Invalid, "at most 1001 elements"),
        ({"dependency": f"afterok:{array}_7"}, NotFound, f"Array {array} has no element 7"),
        ({"dependency": f"afterok:{alone}_*"}, NotFound, f"Job {alone} is not an array"),
        ({"dependency": f"aftercorr:{array}"}, Invalid, "is for the elements of an array"),
        ({"array": "1-3", "dependency": f"aftercorr:{array}"}, NotFound, f"Array {array} has no element 3"),
        ({"array": "1-3", "dependency": f"aftercorr:{alone}"}, Invalid, "is not an array"),
        ({"array": "1-3", "dependency": f"afterok:{array}"}, Impossible, f"Job {array}_2 has ended FAILED"),
    ):
        with pytest.raises(error, match=words):
            lab.submit("true", **wrong)
    with pytest.raises(NotFound, match=f"There is no array {alone}"):
        lab.client.cancel_array(alone)
    assert len(list(lab.client.jobs(limit=None))) == before
