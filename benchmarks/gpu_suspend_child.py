"""The process that `gpu_suspend.py` suspends: PyTorch (or, on the fake driver, plain driver calls) with a state of known value.

It answers JSON lines: fill, check, train, count, stop, copy, rss. Only "count" and "rss" answer while it is suspended.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

GB = 10**9


class TorchBody:
    """Tensors that a formula tells, and a model that is trained."""

    #: Elements of int64 that are made and compared at once.
    SLICE = 16 * 1024**2

    def __init__(self) -> None:
        import torch

        torch.manual_seed(3)
        torch.use_deterministic_algorithms(True)
        self.torch = torch
        self.count = 0
        self.tensors: list[Any] = []
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()

    def fill(self, size: int) -> None:
        """Allocate `size` bytes in pieces of at most 1 GiB and write the formula's values."""
        while size > 0:
            piece = min(size, 1024**3)
            self.tensors.append(self.torch.empty(max(1, piece // 8), dtype=self.torch.int64, device="cuda"))
            self._each(len(self.tensors) - 1, lambda view, expected: view.copy_(expected))
            size -= piece
        self.torch.cuda.synchronize()

    def check(self) -> bool:
        """Compare every element with the formula."""
        same = True
        for number in range(len(self.tensors)):

            def compare(view: Any, expected: Any) -> None:
                nonlocal same
                same = same and bool(self.torch.equal(view, expected))

            self._each(number, compare)
        return same

    def _each(self, number: int, act: Any) -> None:
        tensor = self.tensors[number]
        for begin in range(0, tensor.numel(), self.SLICE):
            end = min(begin + self.SLICE, tensor.numel())
            index = self.torch.arange(begin, end, dtype=self.torch.int64, device="cuda")
            act(tensor[begin:end], index * 6364136223846793005 + (1442695040888963407 + number))

    def train(self, steps: int, running: threading.Event) -> str:
        """Train a model from the same start each time; return a digest of all its parameters."""
        torch = self.torch
        torch.manual_seed(7)
        width = 2048
        layers = [torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Linear(width, width)]
        model = torch.nn.Sequential(*layers).cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        data = torch.randn(64, width, device="cuda")
        self.count = 0
        for _ in range(steps):
            if not running.is_set():
                break
            loss = (model(data) - data.roll(1, 0)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.count += 1
            if self.count % 10 == 0:
                torch.cuda.synchronize()
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().cpu().numpy().tobytes())
        return digest.hexdigest()

    def copy(self, size: int) -> dict[str, float]:
        """Plain copies of `size` bytes, best of three: bytes a second."""
        torch = self.torch
        device = torch.empty(size, dtype=torch.uint8, device="cuda")
        rates = {}
        for kind, pinned in (("pageable", False), ("pinned", True)):
            host = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
            for way, to, source in (("to host", host, device), ("to device", device, host)):
                rates[f"{kind}, {way}"] = size / min(self._timed(to, source) for _ in range(3))
            del host
        return rates

    def _timed(self, to: Any, source: Any) -> float:
        self.torch.cuda.synchronize()
        began = time.perf_counter()
        to.copy_(source)
        self.torch.cuda.synchronize()
        return time.perf_counter() - began


class DriverBody:
    """The same on plain driver calls: what runs on the fake driver."""

    def __init__(self) -> None:
        from carrel.node.suspension.specimen_main import State

        self.state = State(0)
        self.count = 0

    def fill(self, size: int) -> None:
        self.state.grow(size)

    def check(self) -> bool:
        return self.state.same()

    def train(self, steps: int, running: threading.Event) -> str:
        self.state.enter()
        self.count = 0
        for _ in range(steps):
            if not running.is_set():
                break
            self.state.step()
            self.count += 1
        if not self.state.same():
            raise RuntimeError("the state is not what was computed")
        return hashlib.sha256(str(self.count).encode()).hexdigest()

    def copy(self, size: int) -> dict[str, float]:
        state, cuda = self.state, self.state.cuda
        address = int(state._call("cuMemAlloc", size))
        pageable = bytearray(size)
        hosts = {
            "pageable": ctypes.addressof((ctypes.c_char * size).from_buffer(pageable)),
            "pinned": int(state._call("cuMemHostAlloc", size, 0)),
        }
        rates = {}
        for kind, host in hosts.items():
            for way, name, words in (
                ("to host", "cuMemcpyDtoH", (host, address, size)),
                ("to device", "cuMemcpyHtoD", (address, host, size)),
            ):
                began = time.perf_counter()
                state._call(name, *words)
                rates[f"{kind}, {way}"] = size / (time.perf_counter() - began)
        cuda.cuMemFree(address)
        return rates


class Child:
    """Answers the parent; training is done beside that, in a thread."""

    def __init__(self, body: Any) -> None:
        self.body = body
        self.running = threading.Event()
        self.result: dict[str, object] = {}
        self.thread: threading.Thread | None = None

    def answer(self, order: dict[str, Any]) -> dict[str, object]:
        match order["do"]:
            case "fill":
                self.body.fill(int(order["size"]))
            case "check":
                return {"same": self.body.check()}
            case "copy":
                return {"rates": self.body.copy(int(order["size"]))}
            case "train":
                self.running.set()
                self.result = {}
                self.thread = threading.Thread(target=self._train, args=(int(order["steps"]),), daemon=True)
                self.thread.start()
            case "join":
                assert self.thread is not None
                self.thread.join()
                return self.result
            case "rss":
                found = re.search(r"^VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
                return {"rss": int(found[1]) * 1024 if found else 0}
        return {"count": self.body.count}

    def _train(self, steps: int) -> None:
        began = time.perf_counter()
        try:
            digest = self.body.train(steps, self.running)
            self.result = {"digest": digest, "seconds": time.perf_counter() - began, "count": self.body.count}
        except Exception as error:  # noqa: BLE001 - told to the parent, whatever it is
            self.result = {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["torch", "driver"])
    parser.add_argument("--device", required=True)
    options = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = options.device
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(answer: dict[str, object]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    began = time.perf_counter()
    try:
        child = Child(TorchBody() if options.kind == "torch" else DriverBody())
    except Exception as error:  # noqa: BLE001 - told to the parent, whatever it is
        say({"error": f"{type(error).__name__}: {error}"})
        return
    version = getattr(getattr(child.body, "torch", None), "__version__", "none (driver calls)")
    say({"ready": os.getpid(), "torch": str(version), "seconds": time.perf_counter() - began})
    with contextlib.suppress(KeyboardInterrupt):
        for line in sys.stdin:
            try:
                say(child.answer(json.loads(line)))
            except Exception as error:  # noqa: BLE001 - told to the parent, whatever it is
                say({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
