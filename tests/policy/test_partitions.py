"""Which part of the lab a job runs in."""

from __future__ import annotations

import pytest

from carrel.core.domain.errors import Invalid
from carrel.core.domain.partition import Partition
from carrel.core.domain.qos import JobKind, QoS
from carrel.core.policy.partitions import choose_partitions, choose_qos_in

QOS = {
    "cheetah": QoS(name="cheetah"),
    "lion": QoS(name="lion", kinds=frozenset({JobKind.TASK})),
    "tabby": QoS(name="tabby", kinds=frozenset({JobKind.SESSION})),
}
PARTS = {
    "BigCats": Partition(name="BigCats", qos=("lion", "cheetah")),
    "HouseCats": Partition(name="HouseCats", qos=("tabby",)),
    "All": Partition(name="All"),
}


def names(name: str | None, qos: str) -> list[str]:
    return [part.name for part in choose_partitions(name, QOS[qos], PARTS)]


def test_work_that_names_none_may_go_to_all_that_take_its_class_in_order() -> None:
    assert names(None, "tabby") == ["HouseCats", "All"]
    assert names(None, "lion") == ["BigCats", "All"]
    assert names("BigCats", "lion") == ["BigCats"]
    assert choose_partitions(None, QOS["lion"], {}) == []


def test_a_partition_that_does_not_take_the_class_is_refused_with_one_that_does() -> None:
    with pytest.raises(Invalid) as refused:
        names("HouseCats", "lion")
    assert refused.value.message == 'Partition "HouseCats" does not take QoS "lion"; it takes "tabby".'
    assert refused.value.remedy == 'Choose one of those, or partition "BigCats" or "All" for QoS "lion".'
    with pytest.raises(Invalid, match='There is no partition "BigCat". Did you mean "BigCats"'):
        names("BigCat", "lion")
    with pytest.raises(Invalid, match='There is no partition "x": this lab has none'):
        choose_partitions("x", QOS["lion"], {})


def test_a_class_that_is_not_named_follows_from_the_partition() -> None:
    def chosen(name: str | None, kind: JobKind, part: str | None) -> str:
        return choose_qos_in(name, kind, QOS, None if part is None else PARTS[part], default="cheetah").name

    assert chosen(None, JobKind.TASK, None) == "cheetah"
    assert chosen(None, JobKind.TASK, "BigCats") == "cheetah"
    assert chosen(None, JobKind.SESSION, "HouseCats") == "tabby"
    assert chosen("lion", JobKind.TASK, "BigCats") == "lion"
    with pytest.raises(Invalid, match='Partition "HouseCats" takes no task. Its classes of service are "tabby"'):
        chosen(None, JobKind.TASK, "HouseCats")
