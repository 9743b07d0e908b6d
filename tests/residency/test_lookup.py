"""All ways by which programs find the driver's functions end at the gate; and a program without a broker notices nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from residency_rig import LIMIT, MIB, Rig, libcuda, library

HERE = Path(__file__).parent


def compiled(target: Path, source: str, *flags: str) -> Path:
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-o", target, HERE / source, *flags], check=True)
    return target


@pytest.mark.parametrize("how", ["linked", "OPENED", "ASKED"])
def test_a_program_in_c_waits_and_its_memory_moves(how: str, machine: Rig, tmp_path: Path) -> None:
    flags = [str(libcuda()), f"-Wl,-rpath,{libcuda().parent}"] if how == "linked" else [f"-D{how}", "-ldl"]
    program = compiled(tmp_path / "program", "program.c", *flags)
    with subprocess.Popen(
        [program], env=machine.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as running:
        peer = machine.server.accept(linger=3600)
        assert peer.pid == running.pid
        assert peer.hello["gate"] == "closed"
        peer.grant()
        assert running.stdout.readline() == "ready\n"
        assert peer.give(5 * MIB, 5 * MIB)["ok"]
        told = set()
        for _ in range(3):
            running.stdin.write("\n")
            told.add(running.stdout.readline())
            assert peer.pause()["movable"] == [8 * MIB]
            assert peer.out()["place"] == "out"
            assert peer.back()["ok"]
            peer.go()
        running.stdin.close()
        assert running.wait(LIMIT) == 0
        assert len(told) == 1
        assert told.pop().startswith("0 wrong at ")


def test_both_kinds_of_default_stream_have_functions_of_their_own(machine: Rig) -> None:
    program = machine.program()
    for name in ("cuLaunchKernel", "cuMemcpyHtoDAsync", "cuMemcpyDtoH", "cuGraphLaunch", "cuMemsetD8", "cuEventRecord"):
        legacy, own = program.good("where", name=name), program.good("where", name=name, flags=2)
        assert legacy["at"] != own["at"], name
        assert legacy["file"] == own["file"] == str(library())
        assert program.good("where", name=name) == legacy
    assert program.good("where", name="cuDeviceGetName")["file"] == str(libcuda())


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"CARREL_BROKER": ""}, "no broker"),
        ({"CARREL_RESIDENCY": "off"}, "switched off"),
        ({"CARREL_BROKER_HELPER": "x"}, "a helper of the broker"),
    ],
)
def test_it_stands_aside(variables: dict[str, str], why: str, machine: Rig) -> None:
    program = machine.program(variables)
    program.good("init")
    program.good("context")
    at = program.good("alloc", size=4 * MIB, seed=3)["at"]
    assert program.order("check", at=at, size=4 * MIB, seed=3)["same"]
    assert program.order("status")["gate"] == "off"
    assert not machine.server.waits()


def test_without_a_driver_nothing_is_found(tmp_path: Path) -> None:
    code = "import ctypes; print(hasattr(ctypes.CDLL(None), 'cuInit'), hasattr(ctypes.CDLL(None), 'cuMemAlloc_v2'))"
    environment = {**os.environ, "LD_PRELOAD": str(library()), "CARREL_BROKER": str(tmp_path / "none")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_who_asks_for_the_next_is_still_who_asks(tmp_path: Path) -> None:
    other = compiled(tmp_path / "next.so", "next.c", "-shared", "-fPIC", "-ldl")
    for order in (f"{library()} {other}", f"{other} {library()}"):
        done = subprocess.run(
            [sys.executable, "-c", "import os; os.getppid()"],
            env={**os.environ, "LD_PRELOAD": order, "CARREL_BROKER": str(tmp_path / "none")},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "asked 1\n"


def test_children_have_gates_of_their_own(machine: Rig) -> None:
    program, _ = machine.started()
    idle = program.order("fork", cuda=False)["child"]
    assert program.order("wait", child=idle)["code"] == 0
    assert not machine.server.waits()  # a child that uses no GPU asks for none
    words = [sys.executable, str(HERE / "residency_worker.py"), "{}"]
    code = f"import subprocess; print(subprocess.run({words!r}, input='', text=True, capture_output=True).returncode)"
    assert program.order("spawn", words=[sys.executable, "-c", code])["out"] == "0\n"
    assert not machine.server.waits()


def test_a_fork_before_the_first_use_asks_for_itself(machine: Rig) -> None:
    program = machine.program()
    child = program.order("fork", cuda=True)["child"]
    peer = machine.server.accept()
    assert peer.pid == child
    peer.grant()
    assert program.order("wait", child=child)["code"] == 0
    waiting = program.begin("init")
    assert program.finish(waiting)["result"] == 0


def test_a_fork_of_a_program_on_the_gpu_leaves_it_alone(machine: Rig) -> None:
    program, peer = machine.started()
    at = program.good("alloc", size=4 * MIB, seed=5)["at"]
    child = program.order("fork", cuda=False)["child"]
    assert program.order("wait", child=child)["code"] == 0
    assert peer.give(4 * MIB)["ok"]
    peer.pause()
    assert peer.out()["ok"]
    assert peer.back()["ok"]
    assert peer.go()["ok"]
    assert program.order("check", at=at, size=4 * MIB, seed=5)["same"]
