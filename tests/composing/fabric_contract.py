"""What every driver of a fabric has to pass. A test of a driver is a class below `FabricContract` with a fixture `fabric`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from carrel.core.control.composing import Fabric
from carrel.core.domain.errors import CarrelError, Conflict
from carrel.core.domain.fabric import Block, BlockKind, Change, Step, by_name, slice_name


class FabricContract:
    """`fabric` has at least one GPU that can be cut, and may have blocks that can be attached; none is in use."""

    @pytest.fixture
    def fabric(self) -> Fabric:
        raise NotImplementedError

    @pytest.fixture
    def reopened(self, fabric: Fabric) -> Callable[[], Fabric]:
        """What opens the same fabric again, as a lab that was started anew does."""
        return lambda: fabric

    def test_blocks_have_names_of_their_own_and_slices_a_gpu(self, fabric: Fabric) -> None:
        blocks = by_name(fabric.blocks())
        assert blocks
        assert all(block.of in blocks for block in blocks.values() if block.of)

    def test_a_block_is_attached_once_and_for_all_to_see(self, fabric: Fabric, reopened: Callable[[], Fabric]) -> None:
        change = _attach(fabric.blocks())
        fabric.do(change, fence=1)
        fabric.do(change, fence=1)
        assert by_name(reopened().blocks())[change.block].machine == change.machine
        with pytest.raises(CarrelError):
            fabric.do(Change(step=Step.ATTACH, block=change.block, machine="another"), fence=1)
        fabric.do(change.back, fence=1)
        fabric.do(change.back, fence=1)
        assert by_name(reopened().blocks())[change.block].machine == ""

    def test_a_slice_is_made_where_it_was_planned_and_taken_away(self, fabric: Fabric, reopened: Callable[[], Fabric]) -> None:
        gpu = _cuttable(fabric.blocks())
        for profile in gpu.profiles:
            for start in profile.starts:
                change = _cut(gpu, profile.name, start)
                fabric.do(change, fence=1)
                fabric.do(change, fence=1)
                made = by_name(reopened().blocks())[change.block]
                assert (made.of, made.profile, made.start, made.machine) == (gpu.name, profile.name, start, gpu.machine)
                assert made.size == profile.memory
                fabric.do(change.back, fence=1)
                fabric.do(change.back, fence=1)
                assert change.block not in by_name(reopened().blocks())

    def test_slices_that_overlap_are_refused_and_the_others_stay(self, fabric: Fabric) -> None:
        gpu = _cuttable(fabric.blocks())
        small = min(gpu.profiles, key=lambda one: (one.memory_slices, one.compute))
        large = max(gpu.profiles, key=lambda one: one.memory_slices)
        fabric.do(_cut(gpu, small.name, small.starts[0]), fence=1)
        with pytest.raises(CarrelError):
            fabric.do(_cut(gpu, large.name, large.starts[0]), fence=1)
        assert [block.profile for block in fabric.blocks() if block.of == gpu.name] == [small.name]

    def test_what_is_not_there_is_named(self, fabric: Fabric) -> None:
        with pytest.raises(CarrelError, match="no-such-block"):
            fabric.do(Change(step=Step.ATTACH, block="no-such-block", machine="c1"), fence=1)

    def test_a_lab_that_was_replaced_changes_nothing(self, fabric: Fabric, reopened: Callable[[], Fabric]) -> None:
        gpu = _cuttable(fabric.blocks())
        profile = gpu.profiles[0]
        new, old = _cut(gpu, profile.name, profile.starts[0]), _cut(gpu, profile.name, profile.starts[-1])
        reopened().do(new, fence=2)
        with pytest.raises(Conflict):
            fabric.do(old, fence=1)
        assert [block.name for block in fabric.blocks() if block.of] == [new.block]


def _attach(blocks: Sequence[Block]) -> Change:
    loose = next((block for block in blocks if not block.fixed and not block.of and block.kind is BlockKind.GPU), None)
    if loose is None:
        pytest.skip("All blocks of this fabric are built in.")
    return Change(step=Step.ATTACH, block=loose.name, machine="c1")


def _cuttable(blocks: Sequence[Block]) -> Block:
    return next(block for block in blocks if block.profiles)


def _cut(gpu: Block, profile: str, start: int) -> Change:
    return Change(step=Step.CREATE_SLICE, block=slice_name(gpu.name, profile, start), of=gpu.name, profile=profile, start=start)
