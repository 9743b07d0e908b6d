"""A future as `concurrent.futures` knows them, whose call may wait again after it has begun."""

from __future__ import annotations

from concurrent.futures import CancelledError
from typing import Any

import pytest

from carrel.client.executor import Future

pytestmark = pytest.mark.quick


def test_a_future_can_be_cancelled_when_its_call_has_begun_once_and_waits_again() -> None:
    future: Future[Any] = Future("f", lambda one: one.cancel_here(), lambda: None)
    future._begun = True  # a worker had it, and died
    assert future.running()
    assert future.cancel()
    assert (future.cancelled(), future.running(), future.done()) == (True, False, True)
    with pytest.raises(CancelledError):
        future.result(0)


def test_a_future_that_has_a_result_cannot_be_cancelled() -> None:
    future: Future[int] = Future("f", lambda one: one.cancel_here(), lambda: None)
    future.set_result(3)
    assert not future.cancel()
    assert (future.result(0), future.running()) == (3, False)
