"""Changes as people write them, and the machines and rules that come of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.errors import Invalid
from carrel.core.domain.node import Device, Node
from carrel.core.domain.qos import JobKind
from carrel.lab.server.rules import read_lab_rules
from carrel.simulate.what_if import WhatIf, read_what_if, with_gpus


def node(name: str, gpus: int, **more: object) -> Node:
    devices = tuple(Device(uuid=f"GPU-{name}-{index}", index=index, type="h200", name="H200", memory=1) for index in range(gpus))
    return Node(name=name, cpus=8, memory=64, devices=devices, **more)  # type: ignore[arg-type]


def gpus_of(nodes: Sequence[Node]) -> list[int]:
    return [len(one.devices) for one in nodes]


# ---- how they are written


def test_changes_as_people_write_them() -> None:
    found = read_what_if(
        ["gpus=+4", "qos.batch.priority = 5", "qos.normal.max_time=12h", 'qos.short.kinds=["task"]', "default_qos=short"]
    )
    rules = {
        "qos.batch.priority": 5,
        "qos.normal.max_time": "12h",
        "qos.short.kinds": ["task"],
        "default_qos": "short",
    }
    assert found == WhatIf(gpus="+4", rules=rules)


@pytest.mark.parametrize("text", ["1\nother = 2", "a = b", '"open', "12h", "2026-13-45"])
def test_what_is_no_value_of_toml_is_text(text: str) -> None:
    assert read_what_if([f"qos.a.b={text}"]).rules == {"qos.a.b": text}


# ---- machines


def test_nodes_like_the_largest_are_added_and_the_last_has_the_rest() -> None:
    nodes = (node("a", 2), node("b", 4, drained="for repair"), node("c", 0))
    more = with_gpus(nodes, "+6")
    assert more[:3] == nodes
    assert [(one.name, len(one.devices), one.cpus, one.drained) for one in more[3:]] == [
        ("b-more-1", 4, 8, None),
        ("b-more-2", 2, 8, None),
    ]
    assert all(device.simulated for one in more[3:] for device in one.devices)


def test_the_last_nodes_go_first_and_nodes_without_gpus_stay() -> None:
    nodes = (node("a", 4), node("login", 0), node("b", 4), node("c", 2))
    fewer = with_gpus(nodes, "-5")
    assert [(one.name, len(one.devices)) for one in fewer] == [("a", 4), ("login", 0), ("b", 1)]
    assert fewer[2].devices == nodes[2].devices[:1]


def test_as_many_as_there_are_changes_nothing() -> None:
    nodes = (node("a", 4), node("b", 1))
    assert with_gpus(nodes, "5") == with_gpus(nodes, "+0") == nodes


def test_a_new_node_takes_no_name_that_there_is() -> None:
    nodes = (node("a", 2), node("a-more-1", 2))
    assert [one.name for one in with_gpus(nodes, "6")] == ["a", "a-more-1", "a-more-2"]
    assert [one.name for one in with_gpus(with_gpus(nodes, "6"), "8")][-1] == "a-more-3"


@pytest.mark.parametrize("wish", ["0", "-4", "-400"])
def test_one_gpu_at_least_is_left(wish: str) -> None:
    with pytest.raises(Invalid, match="There are 4 GPUs; "):
        with_gpus((node("a", 4),), wish)


def test_where_there_are_no_gpus_none_can_be_like_them() -> None:
    with pytest.raises(Invalid, match="There are no GPUs"):
        with_gpus((node("a", 0),), "+4")


@given(
    present=st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any),
    wanted=st.integers(1, 40),
)
def test_there_are_as_many_as_was_asked_for(present: list[int], wanted: int) -> None:
    nodes = tuple(node(f"n{number}", gpus) for number, gpus in enumerate(present))
    change = wanted - sum(present)
    after = with_gpus(nodes, f"{change:+}")
    assert after == with_gpus(nodes, str(wanted))
    assert sum(gpus_of(after)) == wanted
    assert len({one.name for one in after}) == len(after)
    assert len({device.uuid for one in after for device in one.devices}) == wanted
    assert max(gpus_of(after)) <= max(present)
    empty = [one for one in nodes if not one.devices]
    assert [one for one in after if not one.devices] == empty


# ---- rules


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "carrel.toml"


def test_a_change_of_a_class_of_a_preset_keeps_the_rest_of_it(file: Path) -> None:
    before = read_lab_rules(file)
    after = read_lab_rules(file, {"qos.short.priority": 3})
    assert (before.qos["short"].priority, after.qos["short"].priority) == (10, 3)
    assert (after.qos["short"].max_time, after.qos["short"].default_time) == (1800, 1800)
    assert {name: one for name, one in after.qos.items() if name != "short"} == {
        name: one for name, one in before.qos.items() if name != "short"
    }


def test_a_file_with_classes_of_its_own_has_no_others_when_one_is_changed(file: Path) -> None:
    file.write_text('[qos.only]\nmax_time = "2h"\npriority = 1\n')
    after = read_lab_rules(file, {"qos.only.priority": 7, "qos.only.kinds": ["task"]})
    assert list(after.qos) == ["only"]
    only = after.qos["only"]
    assert (only.max_time, only.priority, only.kinds) == (7200, 7, frozenset({JobKind.TASK}))


def test_changes_of_priority_and_accounts(file: Path) -> None:
    file.write_text('[accounts.physics]\nshares = 2\nusers = {ada = 3}\n[priority]\nhalf_life = "1d"\n')
    after = read_lab_rules(
        file,
        {
            "priority.promises": 10,
            "priority.backfill_times": "expected",
            "priority.share_weight": 0,
            "priority.age_weight": "20m",
            "accounts.physics.shares": 5,
            "accounts.new.shares": 4,
        },
    )
    assert (after.share_weight, after.age_weight, after.half_life) == (0, 1200, 86400)
    conservative = read_lab_rules(file, {"priority.promises": 10, "priority.backfill_times": "expected"})
    assert (conservative.promises, conservative.backfill_times) == (10, "expected")
    assert (after.accounts["physics"].shares, after.accounts["physics"].users) == (5, {"ada": 3})
    assert after.accounts["new"].shares == 4


def test_another_preset_and_another_class_for_work_that_names_none(file: Path) -> None:
    after = read_lab_rules(file, {"preset": "mlerp", "qos.lion.priority": 3, "default_qos": "lion"})
    assert (list(after.qos), after.default_qos, after.qos["lion"].priority) == (
        ["cheetah", "lion", "panther", "tabby"],
        "lion",
        3,
    )
    assert after.qos["lion"].max_time == 24 * 3600
    file.write_text("[qos.lion]\nmax_jobs_per_user = 1\n")
    mixed = read_lab_rules(file, {"preset": "mlerp"}).qos["lion"]
    assert (mixed.max_jobs_per_user, mixed.max_time) == (1, 24 * 3600)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("port", 1, '"port" is no rule'),
        ("qos", {}, '"qos" is no rule'),
        ("priority", {}, '"priority" is no rule'),
        ("", 1, '"" is no rule'),
        ("qos.", 1, 'There is no class of service "" to change'),
        ("qos.shrt.priority", 1, 'There is no class of service "shrt" to change'),
        ("qos.short.priority.x", 1, "qos.short.priority is {'x': 1}"),
        ("priority.weight", 1, 'With that change: priority: there is no setting "weight"'),
        ("accounts.physics.shares.x", 1, '"accounts.physics.shares.x" is no rule: "shares" is 2'),
        ("accounts.physics.parent", "chemistry", 'accounts.physics.parent is "chemistry"'),
        ("default_qos", "none", 'default_qos is "none"'),
        ("preset", ["x"], "With that change: preset is"),
    ],
)
def test_a_change_that_cannot_be_is_refused(file: Path, path: str, value: object, said: str) -> None:
    file.write_text('preset = "default"\n[accounts.physics]\nshares = 2\n')
    with pytest.raises(Invalid) as caught:
        read_lab_rules(file, {path: value})
    assert said in caught.value.message
    assert caught.value.remedy


def test_what_is_wrong_in_the_file_is_said_of_the_file(file: Path) -> None:
    file.write_text("[priority]\nage_weight = 'x'\n")
    with pytest.raises(Invalid) as caught:
        read_lab_rules(file, {"qos.short.priority": 1})
    assert caught.value.message.startswith(f"{file}: priority.age_weight")
