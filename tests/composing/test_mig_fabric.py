"""The driver of real slices passes the contract on a fake NVML that has the rules of real GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fabric_contract import FabricContract
from mig_process import MODELS, MigMachine, sliceable

from carrel.core.control.composing import Fabric
from carrel.core.domain.errors import Conflict, NotFound, Unavailable
from carrel.core.domain.fabric import Block, Change, Step, by_name, slice_name
from support.fake_driver import FakeDriver, build

pytestmark = pytest.mark.slow

#: nvml.h.
NO_PERMISSION, TIMEOUT, IN_USE, LOST, INSUFFICIENT = 4, 10, 19, 15, 23
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
PART = "nvmlGpuInstanceCreateComputeInstance"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return build(tmp_path_factory.mktemp("mig"))


@pytest.fixture
def driver(libraries: FakeDriver, tmp_path: Path) -> FakeDriver:
    return libraries.another(tmp_path / "driver", gpus=[*sliceable(), *sliceable(mig=False)])


@pytest.fixture
def fabric(driver: FakeDriver, tmp_path: Path) -> Iterator[MigMachine]:
    machine = MigMachine(driver, tmp_path / "fence")
    yield machine
    machine.close()


class TestMigFabric(FabricContract):
    @pytest.fixture
    def fabric(self, driver: FakeDriver, tmp_path: Path) -> Iterator[Fabric]:
        machine = MigMachine(driver, tmp_path / "fence")
        yield machine
        machine.close()

    @pytest.fixture
    def reopened(self, driver: FakeDriver, tmp_path: Path) -> Iterator[Callable[[], Fabric]]:
        machines: list[MigMachine] = []

        def again() -> Fabric:
            machines.append(MigMachine(driver, tmp_path / "fence"))
            return machines[-1]

        yield again
        for machine in machines:
            machine.close()


def cut(gpu: Block, profile: str, start: int) -> Change:
    return Change(step=Step.CREATE_SLICE, block=slice_name(gpu.name, profile, start), of=gpu.name, profile=profile, start=start)


def slices(fabric: Fabric) -> list[str]:
    return sorted(block.name for block in fabric.blocks() if block.of)


def the_gpu(fabric: Fabric) -> Block:
    return next(block for block in fabric.blocks() if block.profiles)


@pytest.mark.parametrize("model", MODELS)
def test_profiles_are_those_of_the_guide(libraries: FakeDriver, tmp_path: Path, model: str) -> None:
    machine = MigMachine(libraries.another(tmp_path / "driver", gpus=sliceable(model)), tmp_path / "fence")
    gpu = the_gpu(machine)
    machine.close()
    sizes = {"NVIDIA A100-SXM4-40GB": (5, 10, 20, 40), "NVIDIA H200": (18, 35, 71, 141)}
    one, two, four, all_of_it = sizes.get(model, (10, 20, 40, 80))
    assert {(each.name, each.compute, each.memory_slices, each.starts) for each in gpu.profiles} == {
        (f"1g.{one}gb", 1, 1, tuple(range(7))),
        (f"1g.{one}gb+me", 1, 1, tuple(range(7))),
        (f"1g.{two}gb", 1, 2, (0, 2, 4, 6)),
        (f"2g.{two}gb", 2, 2, (0, 2, 4)),
        (f"3g.{four}gb", 3, 4, (0, 4)),
        (f"4g.{four}gb", 4, 4, (0,)),
        (f"7g.{all_of_it}gb", 7, 8, (0,)),
    }
    assert (gpu.compute_slices, gpu.memory_slices) == (7, 8)


def test_only_gpus_in_mig_mode_are_there_and_a_slice_has_its_name_for_programs(fabric: MigMachine) -> None:
    gpu = the_gpu(fabric)
    fabric.do(cut(gpu, "3g.71gb", 4), fence=1)
    blocks = by_name(fabric.blocks())
    assert sorted(blocks) == ["gpu0", "gpu0/3g.71gb@4", "here-cpu"]
    made = blocks["gpu0/3g.71gb@4"]
    assert (made.title, made.uuid[:4], made.machine) == ("h200 3g.71gb", "MIG-", "here")


def test_only_the_gpus_that_were_named_are_cut(libraries: FakeDriver, tmp_path: Path) -> None:
    gpus = sliceable(count=2)
    machine = MigMachine(libraries.another(tmp_path / "driver", gpus=gpus), tmp_path / "fence", gpus=(gpus[1].uuid,))
    assert the_gpu(machine).name == "gpu1"
    with pytest.raises(NotFound, match="gpu0"):
        machine.do(Change(step=Step.CREATE_SLICE, block="x", of="gpu0", profile="1g.18gb"), fence=1)
    machine.close()


def test_a_slice_on_which_something_runs_stays(fabric: MigMachine, driver: FakeDriver) -> None:
    change = cut(the_gpu(fabric), "2g.35gb", 2)
    fabric.do(change, fence=1)
    driver.put_on(by_name(fabric.blocks())[change.block].uuid, 4711)
    with pytest.raises(Conflict, match="Process 4711 runs on 2g.35gb at 2"):
        fabric.do(change.back, fence=1)
    assert slices(fabric) == [change.block]


@pytest.mark.parametrize("call", [CREATE, PART])
def test_a_refusal_leaves_nothing_behind(fabric: MigMachine, driver: FakeDriver, call: str) -> None:
    gpu = the_gpu(fabric)
    driver.inject(call, "error", INSUFFICIENT)
    with pytest.raises(Conflict, match="The driver refuses it"):
        fabric.do(cut(gpu, "1g.18gb", 0), fence=1)
    assert slices(fabric) == []
    fabric.do(cut(gpu, "7g.141gb", 0), fence=1)  # all of the GPU is free


@pytest.mark.parametrize("call", [CREATE, PART])
def test_an_answer_that_was_lost_is_not_known_and_it_goes_on_from_what_is_there(
    fabric: MigMachine, driver: FakeDriver, call: str
) -> None:
    change = cut(the_gpu(fabric), "1g.18gb", 3)
    driver.inject(call, "lost", TIMEOUT)
    with pytest.raises(Unavailable, match="does not say whether it is done"):
        fabric.do(change, fence=1)
    fabric.do(change, fence=1)
    assert slices(fabric) == [change.block]
    fabric.do(change.back, fence=1)
    assert slices(fabric) == []


@pytest.mark.parametrize("call", [CREATE, PART])
def test_a_lab_that_died_in_between_goes_on(fabric: MigMachine, driver: FakeDriver, call: str) -> None:
    change = cut(the_gpu(fabric), "4g.71gb", 0)
    driver.inject(call, "die")
    with pytest.raises(Unavailable, match="died"):
        fabric.do(change, fence=1)
    assert slices(fabric) == ([] if call == CREATE else [change.block])
    fabric.do(change, fence=2)
    assert slices(fabric) == [change.block]


@pytest.mark.parametrize("call", ["nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"])
def test_what_was_half_destroyed_is_in_nobodys_way(fabric: MigMachine, driver: FakeDriver, call: str) -> None:
    gpu = the_gpu(fabric)
    change = cut(gpu, "1g.35gb", 2)
    fabric.do(change, fence=1)
    driver.inject(call, "die")
    with pytest.raises(Unavailable, match="died"):
        fabric.do(change.back, fence=1)
    assert slices(fabric) == []
    fabric.do(cut(gpu, "3g.71gb", 0), fence=2)
    assert slices(fabric) == ["gpu0/3g.71gb@0"]


def test_a_gpu_that_is_lost_does_not_hide_the_others(libraries: FakeDriver, tmp_path: Path) -> None:
    driver = libraries.another(tmp_path / "driver", gpus=sliceable(count=2))
    machine = MigMachine(driver, tmp_path / "fence")
    driver.inject("nvmlDeviceGetHandleByIndex_v2", "error", LOST)
    assert [block.name for block in machine.blocks()] == ["here-cpu", "gpu1"]
    machine.close()


def test_who_may_not_cut_gpus_reads_what_to_do(fabric: MigMachine, driver: FakeDriver) -> None:
    driver.inject("nvmlDeviceGetGpuInstances", "error", NO_PERMISSION, count=-1)
    with pytest.raises(Unavailable, match="Run the lab as root"):
        fabric.blocks()


def test_without_a_driver_the_lab_is_told_so(libraries: FakeDriver, tmp_path: Path) -> None:
    driver = libraries.another(tmp_path / "driver", gpus=sliceable())
    (driver.state / "config").unlink()
    machine = MigMachine(driver, tmp_path / "fence")
    with pytest.raises(Unavailable, match="No NVIDIA driver answers"):
        machine.blocks()
    machine.close()
