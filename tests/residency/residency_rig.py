"""The library, a program that runs with it on the fake driver, and the broker's side of the conversation, played by the test."""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "residency"))

from carrel_residency.build import compile_library
from support.fake_driver import FakeDriver, build
from support.residency_peer import LIMIT, Peer, Server

MIB = 1024**2
_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(os.uname().machine, "")
SOURCES = Path(__file__).parents[2] / "residency" / "src"


@functools.cache
def _place() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="carrel-residency-")


@functools.cache
def library() -> Path:
    """The library, compiled once per run of the tests, with warnings as errors."""
    target = Path(_place().name) / "libcarrel_residency.so"
    compile_library(target, sources=SOURCES, flags=["-Werror"])
    return target


@functools.cache
def _driver() -> FakeDriver:
    return build(Path(_place().name) / "driver")


def fake_driver(state: Path, **options: Any) -> FakeDriver:
    return _driver().another(state, **options)


def libcuda() -> Path:
    return _driver().libraries / "libcuda.so.1"


class Program:
    """A `residency_worker`."""

    def __init__(self, environment: dict[str, str], **options: Any) -> None:
        words = [sys.executable, str(Path(__file__).with_name("residency_worker.py")), json.dumps(options)]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self.process = subprocess.Popen(
            words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, bufsize=1
        )
        self._data = b""
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        assert "ready" in self._line()

    def _line(self) -> dict[str, Any]:
        file = self.process.stdout.fileno()
        while b"\n" not in self._data:
            assert select.select([file], [], [], LIMIT)[0], f"no answer; {self.errors()}"
            data = os.read(file, 65536)
            assert data, f"the program ended; {self.errors()}"
            self._data += data
        line, self._data = self._data.split(b"\n", 1)
        return dict(json.loads(line))

    def begin(self, do: str, **fields: Any) -> int:
        """Give an order that is carried out in a thread; in the main one with thread=False."""
        self._number += 1
        self.process.stdin.write(json.dumps({"order": self._number, "do": do, "thread": True, **fields}) + "\n")
        self.process.stdin.flush()
        return self._number

    def finish(self, number: int) -> dict[str, Any]:
        while number not in self._answers:
            answer = self._line()
            self._answers[answer.pop("order")] = answer
        answer = self._answers.pop(number)
        assert "error" not in answer, answer["error"]
        return answer

    def order(self, do: str, **fields: Any) -> dict[str, Any]:
        return self.finish(self.begin(do, thread=False, **fields))

    def good(self, do: str, **fields: Any) -> dict[str, Any]:
        """An order that ends with CUDA_SUCCESS."""
        answer = self.order(do, **fields)
        assert answer["result"] == 0, (do, answer, self.errors())
        return answer

    def wait_at_the_gate(self) -> None:
        """Until the main thread sleeps in futex(2), which nothing but the gate lets it do while it carries out an order."""
        while Path(f"/proc/{self.process.pid}/task/{self.process.pid}/syscall").read_text().split()[0] != _FUTEX:
            time.sleep(0.001)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self._errors.close()


class Rig:
    """One machine: a driver, a broker that the test plays, and programs."""

    def __init__(self, place: Path, **options: Any) -> None:
        self.driver = fake_driver(place / "machine", **options)
        self.server = Server(place / "broker.sock")
        self._programs: list[Program] = []

    def environment(self, **variables: str) -> dict[str, str]:
        environment = self.driver.environment()
        environment |= {"LD_PRELOAD": str(library()), "CARREL_BROKER": str(self.server.path), "CARREL_TOKEN": "a token"}
        environment |= {"CARREL_RESIDENCY_PIECE": str(2 * MIB), **variables}
        return environment

    def program(self, variables: dict[str, str] | None = None, **options: Any) -> Program:
        started = Program(self.environment(**(variables or {})), **options)
        self._programs.append(started)
        return started

    def started(self, *, linger: float = 3600.0, **options: Any) -> tuple[Program, Peer]:
        """A program with a context and a lease that it does not give back by itself."""
        program = self.program(**options)
        program.good("init")
        waiting = program.begin("context", thread=False)
        peer = self.server.accept(linger=linger)
        peer.grant()
        assert program.finish(waiting)["result"] == 0
        return program, peer

    def close(self) -> None:
        for program in self._programs:
            program.close()
        self.server.close()


@contextmanager
def rig(place: Path, **options: Any) -> Iterator[Rig]:
    made = Rig(place, **options)
    try:
        yield made
    finally:
        made.close()
