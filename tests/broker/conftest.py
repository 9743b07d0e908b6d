"""Real brokers and fake kernels for the tests of the broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bus_node import Node, start_node
from kernels import FakeKernel, check_journal

from support.broker_process import BrokerProcess, start_broker


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Starts brokers for whom time stands still (unless `still=False`); at the end their journals must be sound."""
    started: list[BrokerProcess] = []

    def start(**options: Any) -> BrokerProcess:
        broker = start_broker(tmp_path / f"broker{len(started)}", **{"still": True, **options})
        started.append(broker)
        return broker

    yield start
    for broker in started:
        broker.close()
        check_journal(broker)


@pytest.fixture
def kernels() -> Iterator[Callable[..., FakeKernel]]:
    """Starts fake kernels."""
    started: list[FakeKernel] = []

    def start(*arguments: Any, **options: Any) -> FakeKernel:
        kernel = FakeKernel(*arguments, **options)
        started.append(kernel)
        return kernel

    yield start
    for kernel in started:
        kernel.close()


@pytest.fixture
def bus_nodes(tmp_path: Path, brokers: Callable[..., BrokerProcess]) -> Iterator[Callable[..., Node]]:
    """Starts nodes on which programs have the residency library; all ends with the test."""
    started: list[Node] = []

    def start(gpus: int = 1, **options: Any) -> Node:
        started.append(start_node(tmp_path, brokers, gpus=gpus, **options))
        return started[-1]

    yield start
    for node in started:
        node.close()
