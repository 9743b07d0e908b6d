"""What brokers of a cluster's nodes have said reaches the lab, once and late as it may be, and nobody else's word does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carrel.lab.server.node_reports import STALE_SECONDS, NodeReports
from carrel.node.leases.report import Report, read_report, report_bytes, report_key
from carrel.testing.waiting import wait_until

pytestmark = pytest.mark.quick

SECRET = b"s" * 32
KEY = report_key(SECRET)
NOW = time.time()
Charges = Mapping[tuple[int, int], float]


def report(
    *, broker: str = "aa", number: int = 1, at: float = NOW, node: str = "n1", ended: bool = False, **jobs: float
) -> Report:
    """That job 7 has borrowed 5 GPU-seconds: `job7=5.0`."""
    charges = [{"job": int(name.removeprefix("job")), "attempt": 1, "owner": "ada", "seconds": of} for name, of in jobs.items()]
    status = {"tier": "simulated", "devices": [], "tenants": [], "leases": [], "queue": [], "charges": charges}
    return Report(node=node, broker=broker, number=number, at=at, ended=ended, status=status)


class Directory:
    """The lab's directory, its reader, and what was charged."""

    def __init__(self, path: Path) -> None:
        self.path, self.now = path, NOW
        self.charged: Charges = {}
        self.told = 0
        self.reports = NodeReports(path, secret=SECRET, clock=lambda: self.now, look_time=0.01)

    def start(self) -> None:
        def take(charges: Charges) -> None:
            self.charged, self.told = charges, self.told + 1

        self.reports.start(take)

    def put(self, said: Report, *, key: bytes = KEY, name: str = "") -> Path:
        file = self.path / (name or said.file)
        temporary = self.path / ".new"
        temporary.write_bytes(report_bytes(said, key))
        return temporary.replace(file)

    def ages(self) -> list[tuple[str, float, bool]]:
        return [(news.node, news.age, news.current) for news in self.reports.nodes()]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    found = Directory(tmp_path)
    yield found
    found.reports.close()


def test_what_was_said_while_no_lab_ran_is_charged_and_brokers_count_for_themselves(directory: Directory) -> None:
    # The first broker of the node lost its journal with the node, and another one began to count from nothing.
    directory.put(report(broker="aa", job7=100.0, job8=1.0))
    directory.put(report(broker="bb", job7=5.0))
    directory.put(report(broker="cc", node="n2", job9=3.0))
    directory.start()
    wait_until(lambda: directory.told)
    assert directory.charged == {(7, 1): 105.0, (8, 1): 1.0, (9, 1): 3.0}
    directory.put(report(broker="bb", number=2, job7=6.0))
    wait_until(lambda: directory.charged[7, 1] == 106.0)


def alter(data: bytes) -> bytes:
    return data.replace(b'"seconds":5.0', b'"seconds":9.0')


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.write_bytes(file.read_bytes()[:-20]),
        lambda file: file.write_bytes(alter(file.read_bytes())),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(report_bytes(report(number=9, job7=99.0), b"another key")),
        lambda file: file.write_bytes(report_bytes(report(broker="bb", number=9, job7=99.0), KEY)),
        # One that was true once.
        lambda file: file.write_bytes(report_bytes(report(number=1, job7=1.0), KEY)),
        lambda file: (file.unlink(), file.symlink_to("/etc/passwd")),
        lambda file: (file.unlink(), os.mkfifo(file)),
    ],
    ids=["torn", "altered", "empty", "forged", "another's", "older", "link", "pipe"],
)
def test_nothing_else_is_believed(directory: Directory, spoil: Callable[[Path], Any]) -> None:
    file = directory.put(report(number=5, job7=5.0))
    directory.start()
    wait_until(lambda: directory.charged)
    spoil(file)
    directory.put(report(broker="dd", job8=1.0))
    wait_until(lambda: (8, 1) in directory.charged)
    assert directory.charged == {(7, 1): 5.0, (8, 1): 1.0}


def test_the_age_of_what_was_said_is_known_and_old_news_are_not_current(directory: Directory) -> None:
    directory.put(report(broker="aa", number=1, at=NOW - 5))
    directory.put(report(broker="bb", number=1, at=NOW - 300, node="n2"))
    directory.put(report(broker="cc", number=1, at=NOW - 4, node="n3", ended=True))
    # The clock of this node is ahead of ours.
    directory.put(report(broker="dd", number=1, at=NOW + 1000, node="n4"))
    # An earlier broker of n1's.
    directory.put(report(broker="ee", number=1, at=NOW - 50))
    directory.start()
    wait_until(lambda: len(directory.reports.nodes()) == 4)
    assert directory.ages() == [("n1", 5, True), ("n2", 300, False), ("n3", 4, False), ("n4", 0, True)]
    directory.now = NOW + STALE_SECONDS
    assert [current for _, _, current in directory.ages()] == [False] * 4
    directory.put(report(broker="aa", number=2, at=directory.now))
    wait_until(lambda: directory.ages()[0] == ("n1", 0, True))


def test_a_report_of_another_version_says_so() -> None:
    said = report()
    assert read_report(report_bytes(said, KEY), KEY) == said
    with pytest.raises(ValueError, match="lab's secret"):
        read_report(report_bytes(said, KEY), report_key(b"another"))
    with pytest.raises(ValueError, match="names no broker"):
        read_report(report_bytes(replace(said, broker="../x"), KEY), KEY)
