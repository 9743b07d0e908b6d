"""A broker with one simulated GPU, and kernels that borrow it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.broker_process import BrokerProcess, start_broker
from support.kernel import TestKernel


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with start_broker(tmp_path / "broker", devices=1) as broker:
        yield broker


@pytest.fixture
def kernel_of(broker: BrokerProcess) -> Iterator[Callable[..., TestKernel]]:
    """Makes kernels of sessions, by the number of the session."""
    with ExitStack() as stack:

        def make(session: int = 1, **more: Any) -> TestKernel:
            variables = {**broker.session(session).variables, **more.pop("variables", {})}
            return stack.enter_context(TestKernel(variables=variables, **more))

        yield make


@pytest.fixture
def kernel(kernel_of: Callable[..., TestKernel]) -> TestKernel:
    return kernel_of()


@pytest.fixture
def python(heavy_python: Path) -> Path:
    """The interpreter of an environment as people have them."""
    return heavy_python
