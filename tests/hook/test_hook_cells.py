"""The kernel hook against a real broker: which cells take a lease, how they wait, and that it always ends."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_torch import write_fake_torch

from carrel.testing.waiting import wait_until
from support.broker_process import BrokerProcess
from support.kernel import Ran, TestKernel

Make = Callable[..., TestKernel]
BUSY = "# carrel: gpus=1\nimport time\ntime.sleep({})"
#: Has a GPU until the file is there.
UNTIL = "# carrel: gpus=1\nimport pathlib, time\nwhile not pathlib.Path({!r}).exists(): time.sleep(0.02)"


def leases(broker: BrokerProcess) -> list[dict[str, Any]]:
    return list(broker.status()["leases"])


def cells(broker: BrokerProcess, job: int = 1) -> int:
    """How many leases the session's kernel has had."""
    wait_until(lambda: not leases(broker), "the lease to end")
    return sum(row["cells"] for row in broker.status()["tenants"] if row["job"] == job)


@pytest.mark.gate
def test_a_cell_that_uses_no_gpu_takes_none(kernel: TestKernel, broker: BrokerProcess) -> None:
    assert kernel.run("sum(range(10))").text == "45\n"
    assert kernel.run("import json, math\nx = math.sqrt(4); print(x)").status == "ok"
    assert cells(broker) == 0


@pytest.mark.parametrize(
    ("code", "tags", "taken"),
    [
        ("# carrel: gpus=1\nprint(1)", [], 1),
        ("\n# a title\n# carrel: gpus=1\nprint(1)", [], 1),
        ("print(1)\n# carrel: gpus=1", [], 0),
        ("print(1)", ["gpus=1"], 1),
        ("# carrel: gpus=1\nprint(1)", ["cpu"], 0),
        ("%gpu on\nprint([n for n in range(2)])", [], 1),
        ("%gpu off\nprint([n for n in range(2)])", [], 0),
        ("# carrel: gpus=1\n%%time\nsum(range(10))", [], 1),
    ],
)
def test_marks(kernel: TestKernel, broker: BrokerProcess, code: str, tags: list[str], taken: int) -> None:
    assert kernel.run(code, tags=tags).error in ("", "UsageError")
    assert cells(broker) == taken


def test_the_switch_holds_for_the_cells_that_follow(kernel: TestKernel, broker: BrokerProcess) -> None:
    assert "Each cell takes" in kernel.run("%gpu on").text
    kernel.run("a = [n for n in range(3)]")
    assert cells(broker) == 1
    kernel.run("b = 1")  # plainly computes nothing
    assert cells(broker) == 1
    assert "no GPU from now on" in kernel.run("%gpu off").text
    kernel.run("c = [n for n in range(3)]")
    assert cells(broker) == 1


@pytest.mark.parametrize(
    "code",
    [
        "1/0",
        "def broken(:",
        "raise SystemExit(3)",
        "import asyncio\nawait asyncio.sleep(0.01)",
        "%%bash\ntrue",
        "!true",
        "raise KeyboardInterrupt",
    ],
)
def test_the_lease_ends_with_the_cell_however_it_ends(kernel: TestKernel, broker: BrokerProcess, code: str) -> None:
    kernel.run("%gpu on")
    kernel.run(f"# carrel: gpus=1\n{code}" if not code.startswith("%%") else code, tags=["gpus=1"])
    assert cells(broker) == 1
    assert kernel.run("print('alive')").text == "alive\n"


def test_a_cell_that_waits_says_so_in_one_line_and_then_runs(kernel_of: Make, broker: BrokerProcess, tmp_path: Path) -> None:
    first, second = kernel_of(1), kernel_of(2)
    busy = first.send(UNTIL.format(str(tmp_path / "go")))
    wait_until(lambda: leases(broker), "the first cell to have the GPU")
    waiting = second.send("# carrel: gpus=1\nprint('now')")
    before = second.result(waiting, until=lambda ran: bool(ran.shown))
    assert before.shown[0].startswith("waiting for a GPU: 1st in line")
    (tmp_path / "go").touch()
    ran = second.result(waiting)
    assert ran.status == "ok"
    assert ran.text == "now\n"
    assert len({*before.displays, *ran.displays}) == 1
    assert re.search(r"waited [\d.]+ s for GPU", ran.shown[-1])
    assert "GPU 0 (simulated)" in ran.shown[-1]
    assert first.result(busy).status == "ok"


def test_a_cell_that_gets_its_gpu_at_once_says_nothing(kernel: TestKernel) -> None:
    assert kernel.run("# carrel: gpus=1\nprint(1)").shown == []


def test_interrupting_a_cell_that_waits_stops_the_waiting_and_not_the_kernel(kernel_of: Make, broker: BrokerProcess) -> None:
    first, second = kernel_of(1), kernel_of(2)
    second.run("kept = 42")
    busy = first.send(BUSY.format(600))
    wait_until(lambda: leases(broker), "the first cell to have the GPU")
    waiting = second.send("# carrel: gpus=1\nkept = 0")
    following = second.send("kept = 1")
    second.result(waiting, until=lambda ran: bool(ran.shown))
    second.interrupt()
    assert second.result(waiting).error == "KeyboardInterrupt"
    assert second.result(following).status == "aborted"
    wait_until(lambda: not broker.status()["queue"], "the request to leave the queue")
    assert second.run("print(kept)").text == "42\n"
    first.interrupt()
    assert first.result(busy).error == "KeyboardInterrupt"


def test_interrupting_a_cell_that_runs_gives_the_gpu_back(kernel: TestKernel, broker: BrokerProcess) -> None:
    busy = kernel.send("# carrel: gpus=1\nimport time\nprint('on', flush=True)\ntime.sleep(600)")
    kernel.result(busy, until=lambda ran: "on" in ran.text)
    assert leases(broker)
    kernel.interrupt()
    assert kernel.result(busy).error == "KeyboardInterrupt"
    assert cells(broker) == 1


def test_an_interrupt_reaches_an_async_cell_at_once(kernel: TestKernel) -> None:
    busy = kernel.send("import asyncio\nprint('on')\nawait asyncio.sleep(600)")
    kernel.result(busy, until=lambda ran: "on" in ran.text)
    kernel.interrupt()
    assert kernel.result(busy).status == "error"


def test_a_killed_kernel_leaves_no_lease(kernel: TestKernel, broker: BrokerProcess) -> None:
    kernel.send(BUSY.format(600))
    wait_until(lambda: leases(broker), "the cell to have the GPU")
    kernel.kill()
    wait_until(lambda: not leases(broker), "the lease of the dead to end")


def test_a_cell_that_lets_no_other_thread_run_keeps_its_lease(kernel_of: Make, broker: BrokerProcess) -> None:
    first, second = kernel_of(1), kernel_of(2)
    # PyDLL keeps the interpreter's lock for the whole call: no thread of the kernel can say anything.
    code = "# carrel: gpus=1\nimport ctypes, time\nctypes.PyDLL(None).usleep(2_000_000)\nprint(time.monotonic())"
    busy = first.send(code)
    wait_until(lambda: leases(broker), "the first cell to have the GPU")
    began = float(second.run("# carrel: gpus=1\nimport time\nprint(time.monotonic())").text)
    # One clock for all processes (clock_gettime(2)): the second cell began after the first had done all its work.
    assert began > float(first.result(busy).text)


def test_the_broker_is_killed_while_a_cell_runs(kernel: TestKernel, broker: BrokerProcess, tmp_path: Path) -> None:
    busy = kernel.send(UNTIL.format(str(tmp_path / "go")) + "\nprint('done')")
    wait_until(lambda: leases(broker), "the cell to have the GPU")
    broker.kill()
    broker.restart()
    wait_until(lambda: [lease["job"] for lease in leases(broker)] == [1], "the lease to be found again")
    (tmp_path / "go").touch()
    assert kernel.result(busy).text == "done\n"
    assert cells(broker) == 1
    assert kernel.run("# carrel: gpus=1\nprint('again')").text == "again\n"


def test_the_broker_is_killed_while_a_cell_runs_and_comes_back_after_it(
    kernel: TestKernel, broker: BrokerProcess, tmp_path: Path
) -> None:
    busy = kernel.send(UNTIL.format(str(tmp_path / "go")))
    wait_until(lambda: leases(broker), "the cell to have the GPU")
    broker.kill()
    (tmp_path / "go").touch()
    assert kernel.result(busy).status == "ok"
    broker.restart()
    wait_until(lambda: not leases(broker), "the lease that was given back meanwhile to end")


def test_the_broker_is_away_when_a_cell_wants_a_gpu(kernel: TestKernel, broker: BrokerProcess) -> None:
    broker.kill()
    waiting = kernel.send("# carrel: gpus=1\nprint('at last')")
    ran = kernel.result(waiting, until=lambda ran: bool(ran.shown))
    assert "broker does not answer" in ran.shown[0]
    broker.restart()
    assert kernel.result(waiting).text == "at last\n"


def test_the_broker_is_killed_while_a_cell_waits(kernel_of: Make, broker: BrokerProcess, tmp_path: Path) -> None:
    first, second = kernel_of(1), kernel_of(2)
    busy = first.send(UNTIL.format(str(tmp_path / "go")))
    wait_until(lambda: leases(broker), "the first cell to have the GPU")
    waiting = second.send("# carrel: gpus=1\nprint('now')")
    wait_until(lambda: broker.status()["queue"], "the second cell to wait")
    broker.kill()
    broker.restart()
    (tmp_path / "go").touch()
    assert second.result(waiting).text == "now\n"
    assert first.result(busy).status == "ok"
    wait_until(lambda: not leases(broker), "all leases to end")


def test_a_kernel_without_a_broker_is_a_plain_one(tmp_path: Path) -> None:
    with TestKernel() as kernel:
        assert kernel.run("# carrel: gpus=1\nprint(1)").text == "1\n"
        assert "lends none here" in kernel.run("%gpu").text


def test_a_kernel_of_a_reservation_takes_no_lease(broker: BrokerProcess) -> None:
    session = broker.session(1)
    with TestKernel(variables={**session.variables, "CARREL_SESSION_RESERVED": "1"}) as kernel:
        assert kernel.run("# carrel: gpus=1\nprint(1)").text == "1\n"
    assert broker.status()["tenants"] == []


def test_a_kernel_whose_session_is_not_known_says_why_it_gets_none(broker: BrokerProcess) -> None:
    session = broker.session(1)
    with TestKernel(variables={**session.variables, "CARREL_TOKEN": "carrel-job.1.1." + "0" * 64}) as kernel:
        ran = kernel.run("# carrel: gpus=1\nprint('ran')")
        assert ran.error == "NoGPU"
        assert "ran" not in ran.text.splitlines()
        assert kernel.run("print('still works')").text == "still works\n"


def test_more_gpus_than_there_are_is_refused_in_words(kernel: TestKernel, broker: BrokerProcess) -> None:
    ran = kernel.run("# carrel: gpus=4\nprint('ran')")
    assert ran.error == "NoGPU"
    assert "ran" not in ran.text.splitlines()
    assert "4" in ran.text
    assert cells(broker) == 0


def test_silent_requests_take_no_lease(kernel: TestKernel, broker: BrokerProcess) -> None:
    kernel.run("%gpu on")
    kernel.run("[n for n in range(3)]", silent=True)
    assert cells(broker) == 0


def test_status_and_simulated_state(kernel: TestKernel, broker: BrokerProcess) -> None:
    assert "simulated GPU" in kernel.run("%gpu").text
    kernel.run("%gpu simulate 3G")
    kernel.run("# carrel: gpus=1\n1")
    tenant = wait_until(
        lambda: next((row for row in broker.status()["tenants"] if row["state"] == "resident"), None), "residency"
    )
    assert tenant["bytes"] == 3 * 2**30


@pytest.mark.gate
def test_what_cells_cost_is_said_where_they_are(broker: BrokerProcess, kernel_of: Callable[..., TestKernel]) -> None:
    variables = broker.session(1).variables
    with TestKernel(variables=variables) as kernel, TestKernel(variables=variables) as beside:
        assert kernel.run("%gpu cost").text.startswith("This kernel: 0 cells had GPUs, ")
        kernel.run("# carrel: gpus=1\n1")
        kernel.run("2")
        beside.run("# carrel: gpus=1\n1")
        kernel_of(2).run("# carrel: gpus=1\n1")
        lines = kernel.run("%gpu cost").text.splitlines()
        assert lines[0].startswith("In [2]: 1 GPU for 0.")
        assert lines[1].startswith("This kernel: 1 cell had GPUs, 0.")
        assert lines[2].startswith("All kernels of this session: 2 cells had GPUs, 0.")
        assert len(lines) == 3


@pytest.mark.parametrize("line", ["%gpu what", "%gpu hold", "%gpu hold long", "%gpu simulate lots"])
def test_a_wrong_magic_is_an_error_with_words(kernel: TestKernel, line: str) -> None:
    ran = kernel.run(line)
    assert ran.status == "error"
    assert "%gpu" in ran.text or "size" in ran.text


# ---- the first use of CUDA


@pytest.fixture
def torch_kernel(kernel_of: Make, tmp_path: Path) -> TestKernel:
    """A kernel whose environment has something that begins to use CUDA as PyTorch does."""
    write_fake_torch(tmp_path / "modules")
    kernel = kernel_of(1)
    kernel.run(f"import sys; sys.path.insert(0, {str(tmp_path / 'modules')!r})")
    return kernel


def test_the_first_use_of_cuda_takes_a_lease_and_cells_after_it_do(torch_kernel: TestKernel, broker: BrokerProcess) -> None:
    torch_kernel.run("import torch")
    assert cells(broker) == 0
    torch_kernel.run("torch.cuda.init(); print(torch._C.started)")
    assert cells(broker) == 1
    torch_kernel.run("y = torch.cuda.is_initialized()")
    assert cells(broker) == 2
    for plain in ("z = 1", "import os", "def f(x):\n    return x", "!true", "print('text')"):
        torch_kernel.run(plain)
    assert cells(broker) == 2


def test_the_first_use_waits_inside_the_cell_and_can_be_interrupted_there(
    torch_kernel: TestKernel, kernel_of: Make, broker: BrokerProcess
) -> None:
    other = kernel_of(2)
    busy = other.send(BUSY.format(30))
    wait_until(lambda: leases(broker), "the other cell to have the GPU")
    waiting = torch_kernel.send("import torch\nprint('before')\ntorch.cuda.init()\nprint('after')")
    ran = torch_kernel.result(waiting, until=lambda ran: bool(ran.shown))
    assert ran.text == "before\n"
    torch_kernel.interrupt()
    assert torch_kernel.result(waiting).error == "KeyboardInterrupt"
    assert torch_kernel.run("print(torch._C.started)").text == "[]\n"
    other.interrupt()
    other.result(busy)
    assert torch_kernel.run("torch.cuda.init(); print(torch._C.started)").text == "[1]\n"


def test_loading_the_driver_by_hand_is_a_first_use(kernel: TestKernel, broker: BrokerProcess) -> None:
    ran = kernel.run("import ctypes\ntry:\n    ctypes.CDLL('libcuda.so.1')\nexcept OSError:\n    print('no driver')")
    assert ran.text in ("no driver\n", "")
    assert cells(broker) == 1


def test_threads_that_outlive_their_cell_are_mentioned_once(torch_kernel: TestKernel, broker: BrokerProcess) -> None:
    torch_kernel.run("import torch, threading; torch.cuda.init()")
    code = "stop = threading.Event(); threading.Thread(target=stop.wait, daemon=True).start()"
    torch_kernel.run(code)
    second = torch_kernel.run(code)
    assert "go on after it" in second.stderr
    assert "go on after it" not in torch_kernel.run("print([1][0])").stderr


# ---- what users do to their kernels


@pytest.mark.parametrize(
    "code",
    [
        "import multiprocessing as mp\nwith mp.get_context('fork').Pool(2) as p:\n    print(sum(p.map(abs, [-1, -2])))",
        "import os\npid = os.fork()\nif pid == 0:\n    os._exit(0)\nprint(3 if os.waitpid(pid, 0)[1] == 0 else 0)",
        "import subprocess\nprint(subprocess.check_output(['echo', '3'], text=True).strip())",
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(2) as p:\n    print(sum(p.map(int, '12')))",
    ],
)
def test_processes_of_a_cell_harm_no_lease(kernel: TestKernel, broker: BrokerProcess, code: str) -> None:
    assert kernel.run(f"# carrel: gpus=1\n{code}").text == "3\n"
    assert cells(broker) == 1
    assert kernel.run("# carrel: gpus=1\nprint('on')").text == "on\n"


def test_a_child_that_lives_on_does_not_keep_the_kernels_lease(kernel: TestKernel, broker: BrokerProcess) -> None:
    kernel.run("# carrel: gpus=1\nimport os, time\npid = os.fork()\nif pid == 0:\n    time.sleep(600)\n    os._exit(0)")
    child = int(kernel.run("print(pid)").text)
    assert cells(broker) == 1
    kernel.kill()
    wait_until(lambda: not broker.status()["tenants"], "the dead kernel to be forgotten")
    os.kill(child, 9)


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.stdout = open('/dev/null', 'w')",
        "%reset -f",
        "import sys; sys.modules.pop('json', None)",
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)",
    ],
)
def test_what_users_do_to_their_process_leaves_the_next_cell_its_lease(
    kernel: TestKernel, broker: BrokerProcess, code: str
) -> None:
    kernel.run(code)
    ran: Ran = kernel.run("# carrel: gpus=1\nimport os\nos.write(1, b'')")
    assert ran.error in ("", "NoGPU")  # never a dead kernel, and never a cell without the GPU that it asked for
    assert ran.status in ("ok", "error")
