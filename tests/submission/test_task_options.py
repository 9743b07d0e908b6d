"""One declaration: what follows from it is there, in each place where people say what a task asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.cli.main import load
from carrel.core.domain.errors import Invalid
from carrel.core.domain.slurm import SlurmRequest
from carrel.core.submission import (
    Kind,
    ResourceOptions,
    SlurmOptions,
    TaskArguments,
    TaskOptions,
    engine_options,
    option,
    options_of,
)
from carrel.core.submission.kinds import COUNT, DURATION
from carrel.core.tasks.backend_config import SLURM_KEYS
from carrel.core.tasks.section import RESOURCE_KEYS, SECTION_KEYS
from carrel.wire.v1 import ResourceRequest, TaskRequest
from carrel.wire.v1 import SlurmRequest as SentToSlurm
from carrel.wire.v1.declared import request_of

DECLARED = options_of(TaskOptions)
RESOURCES = options_of(ResourceOptions)


@pytest.mark.parametrize("name", DECLARED)
def test_an_option_is_known_everywhere(name: str) -> None:
    declared = DECLARED[name]
    assert (name in TaskRequest.model_fields) is declared.in_requests
    assert (name in get_type_hints(TaskArguments)) is declared.in_requests
    assert (name in SECTION_KEYS) is declared.in_files
    assert not declared.in_config or declared.in_config in SLURM_KEYS


@pytest.mark.parametrize("name", RESOURCES)
def test_a_resource_is_known_everywhere(name: str) -> None:
    assert name in ResourceRequest.model_fields
    assert name in RESOURCE_KEYS


@pytest.mark.parametrize("name", options_of(SlurmOptions))
def test_what_is_asked_of_slurm_is_known_everywhere(name: str) -> None:
    declared = engine_options()["slurm"][name]
    assert name in SlurmRequest.__dataclass_fields__
    assert name in SentToSlurm.model_fields
    assert name in options_of(SlurmOptions)
    assert not declared.in_config or declared.in_config in SLURM_KEYS


@pytest.mark.parametrize("command", ["run", "submit"])
def test_the_command_line_has_all_of_them(command: str) -> None:
    flags = {flag: parameter for parameter in load(command).params for flag in parameter.opts}
    for declared in (*DECLARED.values(), *RESOURCES.values(), *engine_options()["slurm"].values()):
        for flag in declared.flags:
            assert flags[flag].help == declared.help


@dataclass(frozen=True, kw_only=True)
class More:
    """What a task of another lab may ask for."""

    patience: int | None = option(kind=DURATION, help="How long it waits.")
    seats: int | None = option(kind=COUNT, synonym="chairs", help="How many.")
    undeclared: int = 0


def test_a_new_option_needs_no_more_than_its_declaration() -> None:
    fields = request_of(More).model_fields
    assert {name: field.description for name, field in fields.items()} == {
        "patience": "How long it waits.",
        "seats": "How many.",
        "chairs": "The same as seats.",
    }
    assert options_of(More)["patience"].kind.read("patience", "2h") == 7200


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("retries", 101, "retries is 101."),
        ("requeue", -1, "requeue is -1."),
        ("tasks_per_node", 0, "tasks_per_node is 0."),
        ("warning", "soon", 'warning: "soon" is not a duration.'),
        ("network", "slow", 'network is "slow".'),
        ("image", "No Image", '"No Image" is not the name of an image.'),
        ("dependency", "later:1", '"later:1"'),
        ("array", "a-b", '"a-b"'),
        ("visible", "all", 'A job cannot be visible to "all".'),
        ("experiment", " ", 'The experiment " " cannot be used.'),
        ("variables", {"CARREL_JOB": "1"}, "CARREL_"),
        ("variables", {"A": "\0"}, "zero byte"),
        ("variables", {"A": 131_070 * "x"}, "131,072 bytes with its name"),
        ("secrets", ["1"], '"1" cannot be the name of a secret.'),
        ("resolve_as_of", "yesterday", 'resolve_as_of is "yesterday"'),
        ("launcher", "mpirun", 'There is no launcher "mpirun".'),
    ],
)
def test_what_cannot_be_is_refused_by_name(name: str, value: Any, says: str) -> None:
    with pytest.raises(Invalid) as caught:
        DECLARED[name].kind.read(name, value)
    assert says in caught.value.message
    assert caught.value.remedy


def _values(kind: Kind) -> st.SearchStrategy[Any]:
    if kind.plain is bool:
        return st.booleans()
    if kind.plain is int:
        return st.integers(kind.least or 0, min(kind.most or 9, 9))
    if kind.plain is list:
        return st.lists(st.sampled_from("ABC"), max_size=2).map(tuple)
    if kind.plain is dict:
        return st.dictionaries(st.sampled_from("ABC"), st.sampled_from("xy"), max_size=2)
    return st.sampled_from("xyz")


def _some(declaration: type) -> st.SearchStrategy[dict[str, Any]]:
    known = {name: _values(one.kind) for name, one in options_of(declaration).items()}
    return st.fixed_dictionaries({}, optional=known)


SLURM = st.builds(
    SlurmRequest, constraint=st.sampled_from(["", "a"]), options=st.sampled_from([(), ("--nice=1",), ("--nice=2",)])
)
SAID = st.builds(
    lambda said, resources, slurm: TaskOptions(**said, resources=ResourceOptions(**resources), slurm=slurm),
    _some(TaskOptions),
    _some(ResourceOptions),
    SLURM,
)


@given(SAID, SAID)
def test_what_is_said_more_specifically_holds(one: TaskOptions, other: TaskOptions) -> None:
    both = one.over(other)
    for name in DECLARED:
        first, second = getattr(one, name), getattr(other, name)
        if name == "variables":
            assert both.variables == {**second, **first}
        elif name == "secrets":
            assert set(both.secrets) == {*first, *second}
        else:
            assert getattr(both, name) == (second if first is None else first)


@given(SAID)
def test_who_says_nothing_changes_nothing(one: TaskOptions) -> None:
    silent = TaskOptions()
    assert silent.over(one).over(silent) == one.over(silent) == silent.over(one)


@given(SAID, SAID, SAID)
def test_sources_can_be_joined_in_any_grouping(one: TaskOptions, two: TaskOptions, three: TaskOptions) -> None:
    left, right = one.over(two).over(three), one.over(two.over(three))
    # Without GPUs there is no kind of GPU: which source said so is not known any more.
    if 0 not in (one.resources.gpus, two.resources.gpus):
        assert left == right
