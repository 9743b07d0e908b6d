"""A kernel that was killed says why, whichever is known first: its end, or what the runner says of it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from session_rig import short_directory, wait_until

from carrel.notebooks.jupyter.kernels import SessionKernelManager

WORDS = "Process 7 was ended."


@asynccontextmanager
async def a_kernel(manager: SessionKernelManager) -> AsyncIterator[Any]:
    """A kernel that runs a cell, whose end is looked for by `kernel.look()` alone."""
    name = await manager.start_kernel(kernel_name="python3")
    kernel: Any = manager.get_kernel(name)
    kernel.stop_restarter()
    manager.recall(name).requested("request", "cell", "f()", time.time())
    try:
        yield kernel
    finally:
        await manager.shutdown_kernel(name, now=True)


def killed(kernel: Any, how: signal.Signals) -> None:
    """End the kernel, and return when it is gone."""
    os.kill(kernel.provisioner.pid, how)
    wait_until(lambda: kernel.provisioner.process.poll() is not None, "its end")


def words_of(manager: SessionKernelManager, kernel: Any) -> str:
    return "".join(content["text"] for _, content in manager.last_words(kernel.kernel_id))


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Any:
    with short_directory() as place:
        monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(place))
        yield SessionKernelManager(connection_dir=str(place))


@pytest.mark.parametrize("first", ["words", "end"])
def test_the_cell_of_a_killed_kernel_says_why(manager: SessionKernelManager, first: str) -> None:
    async def run() -> None:
        hear = manager.hear_runner()
        async with a_kernel(manager) as kernel:
            if first == "words":
                hear(WORDS)
            killed(kernel, signal.SIGKILL)
            looking = asyncio.create_task(kernel._restarter.poll())
            if first == "end":
                await asyncio.sleep(0)  # it looks, and finds the end
                assert not looking.done()
                hear(WORDS)
            await looking
            assert words_of(manager, kernel) == f"[carrel] This kernel is gone. {WORDS}\n"

    asyncio.run(run())


def test_a_kernel_that_failed_itself_is_given_no_words_of_another_process(manager: SessionKernelManager) -> None:
    async def run() -> None:
        manager.hear_runner()(WORDS)
        async with a_kernel(manager) as kernel:
            killed(kernel, signal.SIGSEGV)
            await kernel._restarter.poll()
            assert words_of(manager, kernel) == ""

    asyncio.run(run())
