"""The same file of ours in front of the ipykernels that people have."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from carrel.node.environments.mirrors import read_mirrors
from carrel.testing.waiting import wait_until
from support.broker_process import BrokerProcess
from support.kernel import TestKernel

VERSIONS = ("6.29.5", "6.31.0", "7.0.1")
UV = Path(sys.executable).parent / "uv"


@pytest.fixture(scope="module", params=VERSIONS)
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with nothing but one version of ipykernel."""
    place = tmp_path_factory.mktemp("env") / "venv"
    variables = {**os.environ, **read_mirrors(os.environ).variables}
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, place], check=True, env=variables)
    words = ["pip", "install", "--quiet", "--python", place / "bin/python", f"ipykernel=={request.param}"]
    subprocess.run([UV, *words], check=True, env=variables)
    return place / "bin/python"


def test_leases_waits_interrupts_and_errors(python: Path, broker: BrokerProcess, kernel_of: Callable[..., TestKernel]) -> None:
    first, second = kernel_of(1, python=python), kernel_of(2, python=python)
    assert first.run("import ipykernel, sys; print(ipykernel.__version__, sys.prefix)").text.split()[1] == str(
        python.parent.parent
    )
    assert first.run("# carrel: gpus=1\n1/0").error == "ZeroDivisionError"
    assert first.run("%gpu on").status == "ok"
    assert first.run("import asyncio\nawait asyncio.sleep(0.01)\nprint([1])").text == "[1]\n"
    busy = first.send("# carrel: gpus=1\nimport time\ntime.sleep(600)")
    wait_until(lambda: broker.status()["leases"], "the first cell to have the GPU")
    waiting = second.send("# carrel: gpus=1\nprint('ran')")
    following = second.send("print('ran too')")
    assert second.result(waiting, until=lambda ran: bool(ran.shown)).shown[0].startswith("waiting for a GPU")
    second.interrupt()
    assert second.result(waiting).error == "KeyboardInterrupt"
    assert second.result(following).status == "aborted"
    assert second.run("print('alive')").text == "alive\n"
    waiting = second.send("# carrel: gpus=1\nprint('ran')")
    second.result(waiting, until=lambda ran: bool(ran.shown))
    first.interrupt()
    assert first.result(busy).error == "KeyboardInterrupt"
    assert second.result(waiting).text == "ran\n"
    asleep = second.send("import asyncio\nprint('on')\nawait asyncio.sleep(600)")
    second.result(asleep, until=lambda ran: "on" in ran.text)
    second.interrupt()
    assert second.result(asleep).status == "error"
