"""What a cell shows beside what Python prints: all that is written past its streams, and what to do about a missing module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.testing.waiting import wait_until
from support.kernel import TestKernel


@pytest.fixture
def kernel() -> Iterator[TestKernel]:
    with TestKernel() as kernel:
        yield kernel


@pytest.mark.gate
def test_a_library_that_prints_while_it_holds_the_interpreters_lock(kernel: TestKernel) -> None:
    ran = kernel.run("import ctypes; c = ctypes.PyDLL(None)\nc.printf(b'1' * 3_000_000), c.fflush(None)")
    assert ran.status == "ok"
    assert ran.text.count("1") > 3_000_000 - 10
    assert kernel.run("c.write(2, b'2' * 3_000_000, 3_000_000);").stderr.count("2") == 3_000_000


def test_what_a_cell_writes_last_is_its_own(kernel: TestKernel) -> None:
    for number in range(20):
        assert kernel.run(f"import os; os.write(1, b'last {number}');").text == f"last {number}"
    assert kernel.run("import sys, subprocess; subprocess.run(['echo', 'one'], stdout=sys.stdout);").text == "one\n"


def test_a_character_in_two_writes(kernel: TestKernel) -> None:
    code = "import os, time\nfor byte in 'é€'.encode(): os.write(1, bytes([byte])); time.sleep(0.01)"
    assert kernel.run(code).text == "é€"


def test_a_cell_that_waits_for_its_children(kernel: TestKernel) -> None:
    assert kernel.run("import os\ntry: os.wait()\nexcept ChildProcessError: print('none')").text == "none\n"


def test_a_module_that_is_missing_comes_with_how_to_install_it(kernel: TestKernel) -> None:
    ran = kernel.run("import skimage.nothing_such")
    assert ran.error == "ModuleNotFoundError"
    assert ran.stderr.endswith("is not installed in this environment. Install it: %pip install scikit-image\n")
    assert "not installed" not in kernel.run("raise ImportError('another')").stderr


def test_nothing_is_left_of_a_kernel(kernel: TestKernel) -> None:
    found = kernel.run("import os; print(os.stat('/proc/self/fd/1').st_ino)").text.strip()
    (carrier,) = [process for process in Path("/proc").glob("[0-9]*") if reads(process, f"pipe:[{found}]")]
    kernel.kill()
    wait_until(lambda: not carrier.exists(), "the process that carries the output to end")


def reads(process: Path, pipe: str) -> bool:
    """Whether the process has the pipe elsewhere than as its output."""
    try:
        return any(str(fd.readlink()) == pipe for fd in (process / "fd").iterdir() if fd.name not in ("1", "2"))
    except OSError:
        return False
