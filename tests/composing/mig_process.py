"""The `mig` driver in a process of its own, which sees the fake NVML: a machine with GPUs that can be cut, as a test has it."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carrel.core.domain.errors import Unavailable, class_of
from carrel.core.domain.fabric import Block, Change
from carrel.core.domain.serial import from_plain, to_plain
from carrel.core.domain.units import GIB
from support.fake_driver import FakeDriver, FakeGpu

#: What the fake driver cuts as the real one does, with its bytes.
MODELS = {
    "NVIDIA A100-SXM4-40GB": 40 * GIB,
    "NVIDIA A100-SXM4-80GB": 80 * GIB,
    "NVIDIA H100 80GB HBM3": 80 * GIB,
    "NVIDIA H200": 141 * GIB,
}


def sliceable(model: str = "NVIDIA H200", count: int = 1, *, mig: bool = True) -> list[FakeGpu]:
    """GPUs in MIG mode, with names of their own: locks on devices are shared by everything that runs here."""
    return [FakeGpu(uuid=f"GPU-{uuid.uuid4()}", memory=MODELS[model], name=model, mig=mig) for _ in range(count)]


@dataclass
class MigMachine:
    """`Fabric` by way of pipes. When its process dies in a call, the call raises `Unavailable`; the next one starts another."""

    driver: FakeDriver
    #: File with the number of the newest lab, and directory of the locks of devices.
    path: Path
    gpus: tuple[str, ...] = ()
    _process: subprocess.Popen[str] | None = None

    def blocks(self) -> Sequence[Block]:
        return [from_plain(Block, one) for one in self._ask({})]

    def do(self, change: Change, *, fence: int) -> None:
        self._ask({"change": to_plain(change), "fence": fence})

    def close(self) -> None:
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait(timeout=30)
            self._process.stdout.close()
            self._process = None

    def _ask(self, message: dict[str, Any]) -> Any:
        if self._process is None:
            words = [sys.executable, str(Path(__file__).with_name("mig_server.py")), str(self.path), json.dumps(self.gpus)]
            self._process = subprocess.Popen(
                words, env=self.driver.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise Unavailable("The process died.")
        answer = json.loads(line)
        if "error" in answer:
            code, words = answer["error"]
            raise class_of(code)(words)
        return answer["ok"]
