"""The broker over the real CUDA bindings and a fake driver: states with real contents, really moved, and its failures."""

from __future__ import annotations

import ctypes
import functools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kernels import FakeKernel, check_journal, eventually, leases_of, tenant_of

from carrel.core.domain.lease import LendingRules
from carrel.core.domain.node import Device
from support.broker_process import BrokerProcess
from support.fake_driver import FakeDriver, build, find_compiler, start_specimen

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="the fake driver is compiled from C, and there is no compiler")

MIB = 1024**2
MEMORY = 256 * MIB
#: Of the state of each kernel: two do not fit a device.
SIZE = 140 * MIB


@functools.cache
def _libraries() -> tuple[FakeDriver, tempfile.TemporaryDirectory[str]]:
    place = tempfile.TemporaryDirectory(prefix="carrel-fake-driver-")
    return build(Path(place.name)), place


class Node:
    """A broker on a machine with the fake driver, and kernels with CUDA state."""

    def __init__(self, driver: FakeDriver, broker: BrokerProcess, kernels: Callable[..., FakeKernel]) -> None:
        self.driver = driver
        self.broker = broker
        self._kernels = kernels
        self._jobs = 0

    def kernel(self, **session: Any) -> FakeKernel:
        self._jobs += 1
        return self._kernels(self.broker, self.broker.session(self._jobs, owner=f"user{self._jobs}", **session))

    def task(self) -> FakeKernel:
        """What acts as the runner of a task on the first device."""
        self._jobs += 1
        return self._kernels(self.broker, self.broker.task(self._jobs, devices=1), role="runner")

    def with_state(self, size: int = SIZE, **session: Any) -> FakeKernel:
        """A kernel whose first cell took `size` bytes of its device."""
        kernel = self.kernel(**session)
        lease = kernel.acquire()
        assert lease["op"] == "granted", lease
        self.take(kernel, lease, size)
        kernel.release(lease)
        return kernel

    def seen(self, kernel: FakeKernel, size: int = SIZE) -> None:
        """Wait until the broker has seen `size` bytes of the kernel's state; it looks every two seconds of its time."""

        self.goes_on_until(lambda: size <= tenant_of(self.broker, kernel)["bytes"] < size + 24 * MIB)

    def goes_on_until(self, happened: Callable[[], object]) -> None:
        """Let the broker's time go on until `happened` is true."""
        eventually(lambda: self.broker.advance(2.0) or happened())

    def take(self, kernel: FakeKernel, lease: dict[str, Any], size: int = SIZE) -> None:
        kernel.tell(f"!cuda {size} {lease['devices'][0]['uuid']}")
        kernel.expect("cuda")


def same(kernel: FakeKernel) -> bool:
    """True when every byte of the kernel's state is what it wrote."""
    kernel.tell("!check")
    return bool(kernel.expect("check")["same"])


@pytest.fixture
def nodes(tmp_path: Path, brokers: Callable[..., BrokerProcess], kernels: Callable[..., FakeKernel]) -> Callable[..., Node]:
    def start(gpus: int = 1, **options: Any) -> Node:
        driver = _libraries()[0].another(tmp_path / "machine", gpus=gpus, memory=MEMORY)
        devices = tuple(
            Device(uuid=gpu.uuid, index=index, type="h200", name=gpu.name, memory=MEMORY) for index, gpu in enumerate(driver.gpus)
        )
        # The specimen of the probe takes 64 MiB, and a state may come back beside 8 MiB.
        rules = options.pop("rules", LendingRules(margin=8 * MIB))
        broker = brokers(devices=devices, environment=driver.environment(), rules=rules, **options)
        return Node(driver, broker, kernels)

    return start


@pytest.mark.gate
def test_two_kernels_share_one_device_and_nothing_is_lost(nodes: Callable[..., Node]) -> None:
    node = nodes()
    first, second = node.with_state(), node.with_state()
    assert first.welcome["tier"] == "suspend"
    for _ in range(2):
        for kernel, other in ((first, second), (second, first)):
            lease = kernel.acquire()
            assert lease["resumed"] is True
            assert same(kernel)
            assert tenant_of(node.broker, other)["state"] == "suspended"
            kernel.release(lease)
    (device,) = node.broker.status()["devices"]
    assert device["used"] < MEMORY
    assert device["strangers"] == []


@pytest.mark.parametrize(
    ("memory", "workers", "moves"), [(SIZE, 0, False), (SIZE + 512 * MIB, 512 * MIB, False), (64 * SIZE, 0, True)]
)
def test_in_a_cluster_a_state_moves_for_which_its_job_has_memory(
    nodes: Callable[..., Node], memory: int, workers: int, moves: bool
) -> None:
    node = nodes(shared=True)
    first = node.with_state(shares=(0,), memory=memory)
    if workers:
        first.tell(f"!hoard {workers}")
        first.expect("hoard")
    second = node.kernel(shares=(0,))
    second.ask()
    if moves:
        second.expect("granted")
        assert tenant_of(node.broker, first)["state"] == "suspended"
    else:
        eventually(lambda: "more than its job asked for" in tenant_of(node.broker, first)["why_not"])
        assert tenant_of(node.broker, first)["state"] == "resident"
        assert same(first)


def test_a_cell_is_suspended_in_mid_flight_and_goes_on(nodes: Callable[..., Node]) -> None:
    node = nodes(rules=LendingRules(margin=8 * MIB, time_slice=1.0))
    first, second = node.kernel(), node.kernel()
    lease = first.acquire()
    node.take(first, lease)
    first.tell("!run")
    first.expect("run")
    node.seen(first)
    second.queue()
    node.broker.advance(1.0)
    other = second.expect("granted")
    assert first.expect("paused")["lease"] == lease["lease"]
    node.take(second, other)
    assert tenant_of(node.broker, first)["state"] == "suspended"
    second.release(other)
    resumed = first.expect("resumed")
    first.tell("!stop")
    assert first.expect("stop")["count"] > 0
    assert same(first)
    first.release({**lease, "fence": resumed["fence"]})
    assert leases_of(node.broker) == []


def test_a_checkpoint_that_fails_leaves_the_kernel_running_on_its_device(nodes: Callable[..., Node]) -> None:
    node = nodes()
    first = node.with_state()
    node.driver.inject("cuCheckpointProcessCheckpoint", "error", 801, pid=first.pid)
    second = node.kernel()
    second.ask()
    held = eventually(lambda: [row for row in leases_of(node.broker) if row["state"] == "held"])
    assert held[0]["tenant"] == tenant_of(node.broker, first)["id"]
    assert "801" in tenant_of(node.broker, first)["why_not"] or "NOT_SUPPORTED" in tenant_of(node.broker, first)["why_not"]
    assert same(first)
    second.nothing("granted")


def test_a_checkpoint_that_breaks_the_process_is_said(nodes: Callable[..., Node]) -> None:
    node = nodes()
    first = node.with_state()
    node.driver.inject("cuCheckpointProcessCheckpoint", "fail", pid=first.pid)
    second = node.kernel()
    second.ask()
    assert "FAILED" in first.expect("lost")["message"]
    assert tenant_of(node.broker, first)["state"] == "lost"
    first.kill()
    second.expect("granted")


def test_a_restore_without_room_is_never_tried(nodes: Callable[..., Node]) -> None:
    """A program outside of the lab fills the device while a state is in host memory: it waits, because a failure is for good."""
    node = nodes()
    first = node.with_state()
    second = node.with_state()
    second.kill()
    eventually(lambda: len(node.broker.status()["tenants"]) == 1)
    stranger = start_specimen(node.driver, size=150 * MIB)
    try:
        request = first.ask()
        node.goes_on_until(lambda: node.broker.status()["devices"][0]["strangers"])
        node.broker.advance(60.0)
        first.nothing("granted", "lost")
        assert tenant_of(node.broker, first)["state"] in ("suspended", "resuming")
    finally:
        stranger.close()
    node.goes_on_until(lambda: tenant_of(node.broker, first)["state"] == "resident")
    granted = first.expect("granted")
    assert granted["request"] == request
    assert same(first)


def test_how_busy_its_gpu_was_is_kept_with_a_cell(nodes: Callable[..., Node]) -> None:
    node = nodes()
    kernel = node.kernel()
    idle = kernel.acquire()
    node.take(kernel, idle, 8 * MIB)
    node.seen(kernel, 8 * MIB)
    kernel.release(idle)
    lease = kernel.acquire()
    kernel.tell("!run")
    kernel.expect("run")
    # Each time that a stranger comes or goes is seen by another look. The fake driver's GPU is busy in most of them, not in all.
    for _ in range(4):
        stranger = start_specimen(node.driver, size=4 * MIB)
        node.goes_on_until(lambda: node.broker.status()["devices"][0]["strangers"])
        stranger.close()
        node.goes_on_until(lambda: not node.broker.status()["devices"][0]["strangers"])
    kernel.tell("!stop")
    kernel.expect("stop")
    kernel.release(lease)
    computed, before = node.broker.status(kernel.job.token)["history"]
    assert before["busy"] == 0
    assert 0 < computed["busy"] <= 100


def test_strangers_on_the_device_are_seen_and_reported(nodes: Callable[..., Node]) -> None:
    node = nodes()
    kernel = node.kernel()
    stranger = start_specimen(node.driver, size=4 * MIB)
    try:
        kernel.acquire()
        node.goes_on_until(lambda: node.broker.status()["devices"][0]["strangers"])
        notice = kernel.expect("notice")
        assert str(stranger.target.pid) in notice["message"]
        assert "without a lease" in notice["message"]
        (device,) = node.broker.status()["devices"]
        assert [row["pid"] for row in device["strangers"]] == [stranger.target.pid]
    finally:
        stranger.close()


def test_a_broker_that_dies_in_the_middle_of_a_move(nodes: Callable[..., Node]) -> None:
    node = nodes()
    first = node.with_state()
    node.driver.inject("cuCheckpointProcessCheckpoint", "rate", MIB, pid=first.pid)
    second = node.kernel()
    second.ask()
    eventually(lambda: tenant_of(node.broker, first)["state"] == "suspending")
    node.broker.restart()
    node.driver.let_go()
    lease = second.expect("granted")
    second.release(lease, cuda=False)
    node.driver.clear()
    node.driver.inject("cuCheckpointProcessRestore", "rate", MIB, pid=first.pid)
    first.ask()
    eventually(lambda: tenant_of(node.broker, first)["state"] == "resuming")
    node.broker.restart()
    node.driver.let_go()
    granted = first.expect("granted")
    assert granted["op"] == "granted"
    assert same(first)


def away_from_its_home(node: Node) -> tuple[FakeKernel, FakeKernel, FakeKernel]:
    """Of three kernels on two devices: whose state is in host memory, who computes on its home, and who is idle on the other."""
    first, idle = node.with_state(), node.with_state()
    busy = node.kernel()
    lease = busy.acquire()
    node.take(busy, lease)
    assert tenant_of(node.broker, first)["state"] == "suspended"
    assert tenant_of(node.broker, first)["home"] == [lease["devices"][0]["uuid"]]
    return first, busy, idle


def where(kernel: FakeKernel) -> str:
    """The device on which the driver tells the kernel that it is."""
    kernel.tell("!where")
    return str(kernel.expect("where")["device"])


def test_a_state_in_host_memory_comes_back_on_the_device_that_is_free(nodes: Callable[..., Node]) -> None:
    node = nodes(gpus=2)
    first, busy, idle = away_from_its_home(node)
    (here,) = tenant_of(node.broker, first)["home"]
    (there,) = tenant_of(node.broker, idle)["home"]
    lease = first.acquire()
    assert [device["uuid"] for device in lease["devices"]] == [there]
    assert same(first)
    assert where(first) == there
    assert tenant_of(node.broker, idle)["state"] == "suspended", "it made way, and comes back on any device, too"
    first.release(lease)
    busy.close()
    eventually(lambda: not leases_of(node.broker))
    lease = idle.acquire()
    assert same(idle)
    assert where(idle) == here


def test_a_state_that_does_not_come_back_elsewhere_waits_for_its_home_from_then_on(nodes: Callable[..., Node]) -> None:
    node = nodes(gpus=2)
    first, busy, _idle = away_from_its_home(node)
    (home,) = tenant_of(node.broker, first)["home"]
    node.driver.inject("cuCheckpointProcessRestore", "refuse_map", pid=first.pid)
    first.ask()
    node.goes_on_until(lambda: tenant_of(node.broker, first)["home"] == [home] and not node.driver.pending())
    assert tenant_of(node.broker, first)["state"] == "suspended"
    busy.close()
    node.goes_on_until(lambda: tenant_of(node.broker, first)["state"] == "resident")
    lease = first.expect("granted")
    assert [device["uuid"] for device in lease["devices"]] == [home]
    assert same(first)
    assert where(first) == home


def test_a_broker_that_dies_while_a_state_comes_back_elsewhere(nodes: Callable[..., Node]) -> None:
    """The next one brings it to the same device."""
    node = nodes(gpus=2)
    first, _busy, idle = away_from_its_home(node)
    (there,) = tenant_of(node.broker, idle)["home"]
    node.driver.inject("cuCheckpointProcessRestore", "rate", MIB, pid=first.pid)
    first.ask()
    eventually(lambda: tenant_of(node.broker, first)["state"] == "resuming" and not node.driver.pending())
    node.broker.kill()
    node.driver.let_go()
    node.broker.restart()
    lease = first.expect("granted")
    assert [device["uuid"] for device in lease["devices"]] == [where(first)] == [there]
    assert same(first)
    assert check_journal(node.broker) > 0


def test_a_device_that_still_shows_the_process_is_not_lent(nodes: Callable[..., Node]) -> None:
    node = nodes()
    first = node.with_state()
    node.driver.inject("cuCheckpointProcessCheckpoint", "ghost", -1, pid=first.pid)
    second = node.kernel()
    second.ask()
    eventually(lambda: node.broker.status()["devices"][0]["withheld"])
    assert "still seen" in node.broker.status()["devices"][0]["withheld"]
    node.driver.let_go()
    node.goes_on_until(lambda: node.broker.status()["devices"][0]["withheld"] is None)
    second.expect("granted")
    assert node.broker.status()["devices"][0]["withheld"] is None


# ---- what does not survive a suspension


@pytest.fixture
def xla(tmp_path: Path) -> Path:
    """A library that looks like JAX's from outside: any library, under its name."""
    path = tmp_path / "site-packages" / "jaxlib" / "libjax_common.so"
    path.parent.mkdir(parents=True)
    shutil.copy(find_library("libm.so.6"), path)
    return path


def find_library(name: str) -> Path:
    """The file of a library that every process can load."""
    ctypes.CDLL(name)
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(Path(line.split()[-1]) for line in lines if line.endswith(f"/{name}"))


def test_a_process_that_has_loaded_xla_is_never_suspended_and_holds_its_gpu(nodes: Callable[..., Node], xla: Path) -> None:
    """It says nothing of JAX itself: a hostile kernel, or one whose thread has loaded it."""
    node = nodes()
    first = node.with_state()
    first.tell(f"!load {xla}")
    first.expect("load")
    node.driver.inject("cuCheckpointProcessLock", "segv", pid=first.pid)  # what is locked dies, as with XLA what is suspended
    second = node.kernel()
    second.ask()
    (held,) = eventually(lambda: [row for row in leases_of(node.broker) if row["state"] == "held"])
    assert held["tenant"] == tenant_of(node.broker, first)["id"]
    assert held["held_until"] is not None
    assert tenant_of(node.broker, first)["why_not"] == "JAX"
    assert tenant_of(node.broker, first)["suspendable"] is False
    message = second.expect("queued")
    while "JAX" not in message["message"]:
        message = second.expect("queued")
    assert message["code"] == "GpuHeld"
    assert "(GPU state of another session is held on it and cannot be moved: JAX)" in message["message"]
    assert "JAX" in first.expect("notice")["message"]
    assert same(first)
    assert len(node.driver.pending()) == 1, "its state was touched"
    node.driver.clear()
    node.broker.restart()
    eventually(lambda: tenant_of(node.broker, first)["why_not"] == "JAX")


def test_a_cell_in_mid_flight_that_loads_xla_while_it_is_being_locked_goes_on(nodes: Callable[..., Node], xla: Path) -> None:
    node = nodes(rules=LendingRules(margin=8 * MIB, time_slice=0.5))
    first, second = node.kernel(), node.kernel()
    lease = first.acquire()
    node.take(first, lease)
    node.seen(first)
    node.driver.inject("cuCheckpointProcessLock", "hang", -1, pid=first.pid)
    second.queue()
    node.broker.advance(0.5)
    eventually(lambda: not node.driver.pending())  # the lock is under way
    first.tell(f"!load {xla}")
    first.expect("load")
    node.driver.let_go()
    eventually(lambda: tenant_of(node.broker, first)["why_not"] == "JAX")
    assert same(first)
    assert [row["tenant"] for row in leases_of(node.broker)] == [tenant_of(node.broker, first)["id"]]
    first.release(lease)
    assert [row["state"] for row in leases_of(node.broker)] == ["held"]


def test_a_state_of_jax_is_held_from_its_first_cell_on(nodes: Callable[..., Node]) -> None:
    """An honest kernel: it names the modules that the broker has asked it to look for."""
    node = nodes()
    first, second = node.kernel(), node.kernel()
    assert first.welcome["stay"]["jaxlib"] == "JAX"
    lease = first.acquire()
    node.take(first, lease)
    first.release(lease, blockers=["JAX"])
    assert [row["state"] for row in leases_of(node.broker)] == ["held"]
    second.ask()
    assert "cannot be moved: JAX" in second.expect("queued")["message"]


def test_what_a_process_says_of_itself_is_not_shown_to_others(nodes: Callable[..., Node]) -> None:
    node = nodes()
    first, second = node.kernel(), node.kernel()
    lease = first.acquire()
    node.take(first, lease)
    first.release(lease, blockers=["CALL ME AT 555", "CUDA IPC"])
    assert tenant_of(node.broker, first)["why_not"] == "CALL ME AT 555, CUDA IPC"
    message = second.queue()["message"]
    assert "CALL" not in message
    assert "cannot be moved: CUDA IPC" in message


def group(node: Node, *files: str) -> tuple[FakeKernel, list[int]]:
    """The runner of a task, as root of processes that compute on one device; each has mapped one of `files` ("": none)."""
    uuid = node.driver.uuids[0]
    runner = node.task()
    runner.acquire(devices=[uuid], lends=True)
    pids = []
    for file in files:
        runner.tell(f"!child {SIZE // len(files)} {uuid} {file}".rstrip())
        pids.append(int(runner.expect("child")["pid"]))
    runner.tell("!ask run")
    runner.expect("ask")
    node.goes_on_until(lambda: tenant_of(node.broker, runner)["bytes"] >= SIZE)
    return runner, pids


def newcomer(node: Node) -> FakeKernel:
    """A cell that asks for the device of a task, which has had its turn."""
    cell = node.kernel()
    cell.queue()
    node.broker.advance(60.0)
    return cell


#: A task gives way as soon as somebody asks.
AT_ONCE = LendingRules(margin=8 * MIB, task_turn=0.0, task_share=0.0)


def ended(runner: FakeKernel) -> list[bool]:
    """Whether each process of the group has its state as it wrote it."""
    runner.tell("!ask stop")
    runner.expect("ask")
    runner.tell("!ask check")
    return [bool(answer["same"]) for answer in runner.expect("ask")["answers"]]


def test_processes_of_one_task_are_paused_as_one_and_go_on_as_one(nodes: Callable[..., Node]) -> None:
    node = nodes(rules=AT_ONCE)
    runner, _pids = group(node, "", "")
    cell = newcomer(node)
    granted = cell.expect("granted")
    runner.expect("paused")
    node.take(cell, granted)
    tenant = tenant_of(node.broker, runner)
    assert (tenant["state"], tenant["bytes"] >= SIZE) == ("suspended", True), "both of them, or the cell had no room"
    cell.release(granted)
    runner.expect("resumed")
    assert ended(runner) == [True, True]


def test_one_process_that_cannot_be_paused_keeps_all_of_them_running(nodes: Callable[..., Node]) -> None:
    node = nodes(rules=AT_ONCE)
    runner, pids = group(node, "", "")
    node.driver.inject("cuCheckpointProcessCheckpoint", "error", 801, pid=pids[1], count=-1)
    newcomer(node)
    said = runner.expect("notice")["message"]
    assert f"process {pids[1]}" in said
    assert f"process {pids[1]}" in tenant_of(node.broker, runner)["why_not"]
    # Others do not read what the driver says of the processes.
    assert "a task of another user has it)" in waiting_for(node)
    assert ended(runner) == [True, True]
    assert {row["role"]: row["state"] for row in leases_of(node.broker)} == {"runner": "active"}


def test_a_group_that_speaks_nccl_says_that_it_cannot_be_paused(nodes: Callable[..., Node]) -> None:
    node = nodes(rules=AT_ONCE)
    with tempfile.NamedTemporaryFile(prefix="nccl-", dir="/dev/shm") as shared:
        shared.truncate(4096)
        runner, _pids = group(node, "", shared.name)
        newcomer(node)
        assert "NCCL between processes" in runner.expect("notice")["message"]
        eventually(lambda: "cannot be paused: NCCL between processes" in waiting_for(node))
        assert ended(runner) == [True, True]


def waiting_for(node: Node) -> str:
    """What the only one in line reads."""
    return str(node.broker.status()["queue"][0]["message"])


def test_a_task_gives_way_to_a_cell_in_mid_flight_and_goes_on_with_the_same_state(nodes: Callable[..., Node]) -> None:
    node = nodes(rules=LendingRules(margin=8 * MIB, task_turn=0.0, task_share=0.0))
    uuid = node.driver.uuids[0]
    runner = node.task()
    lease = runner.acquire(devices=[uuid], lends=True)
    node.take(runner, lease)
    runner.tell("!run")
    runner.expect("run")
    node.seen(runner)
    cell = node.kernel()
    cell.queue()
    node.broker.advance(60.0)  # what has moved lately stays for a while
    granted = cell.expect("granted")
    assert runner.expect("paused")["lease"] == lease["lease"]
    assert tenant_of(node.broker, runner)["state"] == "suspended"
    node.take(cell, granted)
    cell.release(granted)
    assert runner.expect("resumed")["lease"] == lease["lease"]
    assert tenant_of(node.broker, cell)["state"] == "suspended", "the task may need more than it has"
    runner.tell("!stop")
    assert runner.expect("stop")["count"] > 0
    assert same(runner)
