"""Wherever the first use of CUDA comes from: its lease lives as long as whoever uses it, and not longer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_torch import write_fake_torch

from carrel.testing.waiting import wait_until
from support.broker_process import BrokerProcess, start_broker
from support.kernel import TestKernel

Make = Callable[..., TestKernel]


class Scene:
    """A kernel whose process has not used CUDA yet, as often as one likes, and work that ends when the test says so."""

    def __init__(self, broker: BrokerProcess, kernel: TestKernel, place: Path) -> None:
        self.broker = broker
        self.kernel = kernel
        self.gate = place / "gate"
        os.mkfifo(self.gate)
        write_fake_torch(place)
        ran = kernel.run(
            f"import sys; sys.path.insert(0, {str(place)!r})\n"
            "import asyncio, os, threading, time, torch, _thread\n"
            "from concurrent.futures import ThreadPoolExecutor\n"
            "def use():\n    torch.cuda.init()\n"
            f"def wait():\n    open({str(self.gate)!r}).read()\n"
            "async def wait_async():\n    await asyncio.to_thread(wait)\n"
            "def work():\n    use(); wait()\n"
            "async def work_async():\n    use(); await wait_async()\n"
            "pool = ThreadPoolExecutor(1)\n"
            "def anew():\n"
            "    get_ipython().kernel.guard.touched = False\n"
            "    torch._C.started.clear()\n"
        )
        assert ran.status == "ok", ran.text

    def begin(self) -> None:
        assert self.kernel.run("anew()").status == "ok"
        wait_until(lambda: not self.leases(), "no lease before the test")

    def leases(self) -> list[str]:
        return [lease["id"] for lease in self.broker.status()["leases"]]

    def lease(self) -> str:
        """Of the work that has begun."""
        return str(wait_until(self.leases, "the work to have a lease")[0])

    def let_go(self) -> None:
        """The work ends."""
        with self.gate.open("w"):
            pass

    def nothing_is_left(self) -> None:
        wait_until(lambda: not self.leases(), "the lease to go back after its last user")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    place = tmp_path_factory.mktemp("shares")
    with start_broker(place / "broker", devices=1) as broker, TestKernel(variables=broker.session(1).variables) as kernel:
        yield Scene(broker, kernel, place)


#: Users that are over before their cell is: the cell does not end while they live.
INSIDE = {
    "cell": "work()",
    "nested cell": "get_ipython().run_cell('work()')",
    "cell with a top-level await": "await asyncio.sleep(0)\nuse()\nawait wait_async()",
    "awaited task": "await asyncio.create_task(work_async())",
    "joined thread": "t = threading.Thread(target=work); t.start(); t.join()",
    "pool that is waited for": "pool.submit(work).result()",
    "display hook": "class Shown:\n    def _repr_html_(self):\n        work()\n        return 'x'\nShown()",
    "hook after a cell": (
        "def after():\n    get_ipython().events.unregister('post_execute', after)\n    work()\n"
        "get_ipython().events.register('post_execute', after)"
    ),
    "a thread that ends, and a cell that goes on": "t = threading.Thread(target=use); t.start(); t.join()\nwait()",
}
#: Users that go on after their cell.
OUTSIDE = {
    "task": "task = asyncio.create_task(work_async())",
    "thread": "threading.Thread(target=work, daemon=True).start()",
    "raw thread": "_thread.start_new_thread(work, ())",
    "worker of a pool that lies idle afterwards": "future = pool.submit(work)",
    "work in the loop's pool": "waiting = asyncio.get_event_loop().run_in_executor(None, work)",
    "timer": "threading.Timer(0.05, work).start()",
}
#: Users in the main thread that are no cell.
CALLBACKS = {
    "callback of the loop": "asyncio.get_event_loop().call_later(0.05, work)",
    "forgotten task": (
        "async def forever():\n    use(); await asyncio.Future()\n"
        "task = asyncio.create_task(forever())\nawait asyncio.sleep(0)\nkept = task; del task\n"
        "def forget():\n    global kept\n    wait(); kept = None; import gc; gc.collect()\n"
        "asyncio.get_event_loop().call_later(0.05, forget)"
    ),
}


@pytest.mark.gate
@pytest.mark.parametrize("name", INSIDE)
def test_inside_of_a_cell(scene: Scene, name: str) -> None:
    scene.begin()
    busy = scene.kernel.send(INSIDE[name])
    scene.lease()
    scene.let_go()
    assert scene.kernel.result(busy).status == "ok"
    scene.nothing_is_left()


@pytest.mark.parametrize("name", OUTSIDE)
def test_after_the_cell_that_began_it(scene: Scene, name: str) -> None:
    scene.begin()
    assert scene.kernel.run(OUTSIDE[name]).status == "ok"
    lease = scene.lease()
    # Cells without a lease, with a part of it, and with an error: none of them returns what is not theirs.
    for code in ("x = 1", "# carrel: gpus=1\nprint([1])", "# carrel: gpus=1\n1/0"):
        scene.kernel.run(code)
        assert scene.leases() == [lease]
    scene.let_go()
    scene.nothing_is_left()


@pytest.mark.parametrize("name", CALLBACKS)
def test_in_the_main_thread_between_cells(scene: Scene, name: str) -> None:
    scene.begin()
    assert scene.kernel.run(CALLBACKS[name]).status == "ok"
    scene.lease()
    scene.let_go()
    scene.nothing_is_left()


def test_a_silent_request(scene: Scene) -> None:
    scene.begin()
    busy = scene.kernel.send("work()", silent=True)
    scene.lease()
    scene.let_go()
    scene.kernel.result(busy)
    scene.nothing_is_left()


def test_a_silent_request_whose_thread_goes_on(scene: Scene) -> None:
    scene.begin()
    scene.kernel.run("threading.Thread(target=work, daemon=True).start()", silent=True)
    lease = scene.lease()
    scene.kernel.run("x = 1", silent=True)
    assert scene.leases() == [lease]
    scene.let_go()
    scene.nothing_is_left()


def test_a_widgets_callback(scene: Scene) -> None:
    scene.begin()
    made = scene.kernel.run(
        "def opened(comm, message):\n    comm.on_msg(lambda message: work())\n"
        "get_ipython().kernel.comm_manager.register_target('test', opened)"
    )
    assert made.status == "ok"
    scene.kernel.tell("comm_open", comm_id="c1", target_name="test", data={})
    scene.kernel.tell("comm_msg", comm_id="c1", data={})
    scene.lease()
    scene.let_go()
    scene.nothing_is_left()


def test_a_completion(scene: Scene) -> None:
    scene.begin()
    scene.kernel.run("class Slow:\n    def __dir__(self):\n        work()\n        return ['attribute']\nslow = Slow()")
    scene.kernel.run("%config IPCompleter.use_jedi = False\n%config IPCompleter.evaluation = 'dangerous'")
    scene.kernel.tell("complete_request", code="slow.", cursor_pos=5)
    scene.lease()
    scene.let_go()
    scene.nothing_is_left()


def test_the_end_of_the_interpreter(kernel_of: Make, broker: BrokerProcess, tmp_path: Path) -> None:
    kernel = kernel_of(1)
    scene = Scene(broker, kernel, tmp_path)
    assert kernel.run("import atexit; atexit.register(work)").status == "ok"
    kernel.client.shutdown()
    scene.lease()
    scene.let_go()
    wait_until(lambda: not scene.leases(), "the lease to go back with the process")


def test_two_users_that_wait_ask_once_and_neither_waits_for_the_other(
    kernel_of: Make, broker: BrokerProcess, tmp_path: Path
) -> None:
    other, kernel = kernel_of(2), kernel_of(1)
    scene = Scene(broker, kernel, tmp_path)
    busy = other.send("# carrel: gpus=1\nimport time\ntime.sleep(600)")
    wait_until(scene.leases, "the other kernel to have the GPU")
    kernel.run("threading.Thread(target=work, daemon=True).start()")
    wait_until(lambda: broker.status()["queue"], "the thread to wait")
    waiting = kernel.send("# carrel: gpus=1\nprint('ran')")
    kernel.result(waiting, until=lambda ran: bool(ran.shown))
    assert len(broker.status()["queue"]) == 1
    kernel.interrupt()
    assert kernel.result(waiting).error == "KeyboardInterrupt"
    assert len(broker.status()["queue"]) == 1  # the thread's
    other.interrupt()
    other.result(busy)
    wait_until(lambda: [lease for lease in broker.status()["leases"] if lease["job"] == 1], "the thread to have the GPU")
    assert kernel.run("# carrel: gpus=1\nprint('too')").text == "too\n"
    scene.let_go()
    scene.nothing_is_left()


# ---- a question to the user


ASKING = {
    "input": ("# carrel: gpus=1\nprint('said', input('name? '))", "name?", "Ada", "said Ada"),
    "getpass": ("# carrel: gpus=1\nimport getpass\nprint('said', getpass.getpass('key? '))", "key?", "secret", "said secret"),
    "debugger": ("# carrel: gpus=1\nimport pdb\npdb.set_trace()\nprint('went', 'on')", "db", "c", "went on"),
}


@pytest.mark.parametrize("name", ASKING)
def test_while_a_person_thinks_the_gpu_is_there_for_others(kernel_of: Make, broker: BrokerProcess, name: str) -> None:
    code, prompt, answer, printed = ASKING[name]
    kernel, other = kernel_of(1), kernel_of(2)
    asking = kernel.send(code, stdin=True)
    assert prompt in kernel.question()
    busy = other.send("# carrel: gpus=1\nprint('on', flush=True)\nimport time\ntime.sleep(600)")
    other.result(busy, until=lambda ran: "on" in ran.text)
    kernel.answer(answer)
    ran = kernel.result(asking, until=lambda ran: bool(ran.shown))
    assert ran.shown[0].startswith("waiting for a GPU")
    assert printed not in ran.text
    other.interrupt()
    other.result(busy)
    ran = kernel.result(asking)
    assert ran.status == "ok"
    assert printed in ran.text
    wait_until(lambda: not broker.status()["leases"], "the lease to end with the cell")


def test_an_interrupt_at_a_question_ends_the_cell_and_no_lease_is_left(kernel: TestKernel, broker: BrokerProcess) -> None:
    asking = kernel.send("# carrel: gpus=1\ninput('name? ')", stdin=True)
    kernel.question()
    wait_until(lambda: not broker.status()["leases"], "the GPU to go back meanwhile")
    kernel.interrupt()
    assert kernel.result(asking).error == "KeyboardInterrupt"
    wait_until(lambda: not broker.status()["leases"], "no lease to be left")


def test_the_broker_is_told_that_a_cell_waits_for_its_user(broker: BrokerProcess) -> None:
    session = broker.session(1)
    with TestKernel(variables=session.variables) as kernel:
        asking = kernel.send("# carrel: gpus=1\ninput('name? ')", stdin=True)
        kernel.question()
        kernel.answer("Ada")
        assert kernel.result(asking).status == "ok"
    assert [row["outcome"] for row in broker.status(session.token)["history"]] == ["ok", "input"]


def test_a_question_of_a_cell_without_a_gpu_takes_none(kernel: TestKernel, broker: BrokerProcess) -> None:
    asking = kernel.send("print('said', input('name? '))", stdin=True)
    kernel.question()
    kernel.answer("Ada")
    assert kernel.result(asking).text == "said Ada\n"
    assert [row["cells"] for row in broker.status()["tenants"]] == [0]
