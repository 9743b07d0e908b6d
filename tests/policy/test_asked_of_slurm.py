"""What a task asks of Slurm meets what its partition asks for every job: both hold, or it is refused by name."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.errors import Impossible, Invalid
from carrel.core.domain.partition import Partition
from carrel.core.domain.slurm import SlurmRequest, read_options
from carrel.core.policy.partitions import refuse_without_engine, without_harmless
from carrel.engines.slurm.partition import SlurmPartition, slurm_partition
from carrel.engines.slurm.site import check_request

HERE = Partition(name="here")
GPU = slurm_partition("gpu", SlurmPartition(partition="gpu"))
FEATURES = st.lists(st.sampled_from(["a100", "h200", "nvlink", "ib"]), unique=True, max_size=3)
OPTIONS = st.lists(st.sampled_from(["--nice=1", "--nice=2", "--exclude=n1", "--contiguous"]), unique_by=lambda o: o.split("=")[0])


def asked(*options: str, modules: tuple[str, ...] = ()) -> SlurmRequest:
    return read_options(options, modules=modules)


@given(st.builds(lambda f, o: (f, o), FEATURES, OPTIONS), st.builds(lambda f, o: (f, o), FEATURES, OPTIONS))
def test_what_the_partition_says_always_holds_and_what_the_task_says_too(
    site: tuple[list[str], list[str]], task: tuple[list[str], list[str]]
) -> None:
    first = SlurmRequest(constraint="&".join(site[0]), options=tuple(site[1]))
    second = SlurmRequest(constraint="&".join(task[0]), options=tuple(task[1]))
    contradicts = {"--nice=1", "--nice=2"} <= {*site[1], *task[1]}
    if contradicts:
        with pytest.raises(Invalid, match="--nice"):
            second.within(first)
        return
    both = second.within(first)
    assert set(both.constraint.split("&")) - {""} == {*site[0], *task[0]}
    assert set(both.options) == {*site[1], *task[1]}
    assert len(both.options) == len(set(both.options))


@pytest.mark.parametrize(
    ("site", "task", "named"),
    [
        ("--reservation=course", "--reservation=mine", 'reservation is "mine", but in this partition it is "course"'),
        ("--exclusive=user", "--exclusive", 'exclusive is "exclusive"'),
        ("--constraint=a100|h200", "--constraint=ib", 'constraint is "ib"'),
        ("--constraint=ib", "--constraint=[rack1|rack2]", "constraint"),
        ("--exclude=n1", "--exclude=n2", '--exclude is "--exclude=n2"'),
    ],
)
def test_a_contradiction_is_refused_by_name(site: str, task: str, named: str) -> None:
    with pytest.raises(Invalid, match=re.escape(named)):
        asked(task).within(asked(site))
    assert asked(site).within(asked(site)) == asked(site)
    assert asked(task).within(asked()) == asked(task)


def test_options_are_read_as_sbatch_has_them() -> None:
    said = asked(
        "--constraint=a&b", "--exclusive", "--mail-user=ada@example.org", "--mail-type=end,FAIL", "--nice=7", modules=("cuda",)
    )
    assert said == SlurmRequest(
        constraint="a&b", exclusive="exclusive", mail="ada@example.org", mail_events=("END", "FAIL"), modules=("cuda",),
        options=("--nice=7",),
    )  # fmt: skip
    assert said.describe() == (
        "--constraint=a&b", "--exclusive=exclusive", "--mail-user=ada@example.org", "--mail-type=END,FAIL", "--nice=7",
        "module cuda",
    )  # fmt: skip
    for wrong in (("--constraint",), ("--reservation=",), ("--exclusive", "--exclusive=user")):
        with pytest.raises(Invalid, match=wrong[0].rstrip("=")):
            read_options(wrong)


def test_the_more_specific_source_wins_field_by_field() -> None:
    file = SlurmRequest(constraint="a100", modules=("gcc",), options=("--nice=1", "--exclude=n1"))
    line = SlurmRequest(constraint="h200", options=("--nice=2",))
    assert line.over(file) == SlurmRequest(constraint="h200", modules=("gcc",), options=("--exclude=n1", "--nice=2"))
    assert SlurmRequest().over(file) == file == file.over(SlurmRequest())


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (SlurmRequest(constraint="a b"), "constraint"),
        (SlurmRequest(options=("--licences=matlab",)), "--licenses"),
        (SlurmRequest(options=("--time=3",)), "Set time in the task"),
        (SlurmRequest(options=("--uid=0",)), "who a job runs as"),
        (SlurmRequest(modules=("gcc; rm",)), "module"),
        (SlurmRequest(mail="ada@example.org", mail_events=("DONE",)), "DONE"),
    ],
)
def test_what_slurm_would_not_understand_is_refused_before_it_is_asked(request_: SlurmRequest, told: str) -> None:
    with pytest.raises(Invalid, match=re.escape(told)):
        check_request(SlurmPartition(partition="gpu"), request_)


def test_the_labs_own_machine_refuses_by_name_what_only_slurm_can_do() -> None:
    wish = SlurmRequest(constraint="a100", modules=("cuda",), options=("--nice=7",))
    with pytest.raises(Impossible, match='constraint, modules, --nice.*"here" is the lab\'s own machine') as caught:
        refuse_without_engine({"slurm": wish}, HERE, [HERE, GPU])
    assert 'a partition of the cluster: "gpu"' in caught.value.remedy
    with pytest.raises(Impossible, match="this lab has no cluster"):
        refuse_without_engine({"slurm": wish}, None, [])
    for chosen in (None, GPU):
        refuse_without_engine({"slurm": wish}, chosen, [HERE, GPU])
    refuse_without_engine({}, HERE, [HERE])


def test_what_one_engine_understands_is_refused_by_name_where_another_runs_the_jobs() -> None:
    with pytest.raises(Impossible) as caught:
        refuse_without_engine({"tide": {"quay": 2}}, GPU, [GPU])
    assert str(caught.value) == (
        'The task asks for quay, which only a partition of a Tide cluster can do, and partition "gpu" is one of a Slurm cluster. '
        "Leave it out."
    )
    with pytest.raises(Impossible, match="a Tide cluster can do, and this lab has none of these"):
        refuse_without_engine({"tide": {"quay": 2}}, None, [GPU])


def test_mail_and_modules_are_noted_and_left_out_where_there_is_no_slurm() -> None:
    wish = SlurmRequest(mail="ada@example.org", mail_events=("FAIL",), modules=("GCCcore/.11.3.0", "Python/3.10.4"))
    for chosen, partitions in ((None, []), (None, [HERE]), (HERE, [HERE, GPU])):
        rest, notes = without_harmless(wish, chosen, partitions)
        assert rest is None
        assert ["ada@example.org" in notes[0], "GCCcore/.11.3.0, Python/3.10.4" in notes[1], len(notes)] == [True, True, 2]
    for chosen in (None, GPU):
        assert without_harmless(wish, chosen, [HERE, GPU]) == (wish, ())
    assert without_harmless(None, HERE, [HERE]) == (None, ())
    rest, notes = without_harmless(asked("--nice=7", modules=("cuda",)), HERE, [HERE])
    assert (rest, len(notes)) == (asked("--nice=7"), 1)
    with pytest.raises(Impossible, match="--nice"):
        refuse_without_engine({"slurm": rest}, HERE, [HERE])
