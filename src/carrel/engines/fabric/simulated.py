"""A fabric without hardware: which block is in which machine stands in a file, which outlives the lab as hardware does."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from carrel.core.domain.errors import Conflict, NotFound, Unavailable
from carrel.core.domain.fabric import Block, Change, Step, by_name
from carrel.core.policy.slices import room_of
from carrel.engines.fabric.parts import Fault

_LIST = "`carrel compose blocks` lists all."


@dataclass(slots=True)
class _State:
    """What is kept in the file."""

    #: The largest fence of a change.
    fence: int = 0
    #: The machine of each block that is in one.
    machines: dict[str, str] = field(default_factory=dict)
    #: Slices: name, GPU, profile, start.
    slices: list[tuple[str, str, str, int]] = field(default_factory=list)
    #: Blocks that their machine does not see.
    unseen: list[str] = field(default_factory=list)
    #: How often each fault was acted out.
    acted: dict[str, int] = field(default_factory=dict)


class SimulatedFabric:
    """Implements `carrel.core.control.composing.Fabric`. Thread-safe, also between processes."""

    def __init__(self, path: Path, blocks: Sequence[Block], faults: Sequence[Fault] = ()) -> None:
        """`path` is the file; its directory is there. `blocks` are those that the fabric has, `faults` what goes wrong."""
        self._path, self._blocks, self._faults = path, tuple(blocks), tuple(faults)

    def blocks(self) -> Sequence[Block]:
        """All blocks as they are now, slices among them."""
        with self._state() as state:
            return self._look(state)

    def do(self, change: Change, *, fence: int) -> None:
        """Make the change. A block that is in one machine is not attached to another."""
        with self._state(write=True) as state:
            if fence < state.fence:
                raise Conflict(
                    f"The change comes from a lab that was replaced ({fence}, after {state.fence}).",
                    remedy="Nothing was changed; the lab that runs now makes its own changes.",
                )
            state.fence = fence
            fault = self._fault(change, state)
            if fault == "refused":
                raise Conflict("the fabric refused it (simulated)")
            self._make(change, state)
            if fault == "unseen" and change.block not in state.unseen:
                state.unseen.append(change.block)
        if fault == "lost":
            raise Unavailable("no answer came in time (simulated)")

    def _make(self, change: Change, state: _State) -> None:
        blocks = by_name(self._look(state))
        if change.is_done(blocks):
            return
        block, gpu = blocks.get(change.block), blocks.get(change.of)
        if change.step in (Step.ATTACH, Step.DETACH):
            if block is None or block.of or block.fixed:
                raise NotFound(
                    f'There is no block "{change.block}" that could be moved.', remedy="`carrel compose blocks` lists all."
                )
            if change.step is Step.DETACH:
                state.machines.pop(block.name, None)
                state.unseen = [name for name in state.unseen if name != block.name]
                return
            if block.machine:
                raise Conflict(f"{block.name} is in {block.machine}.", remedy="Detach it first.")
            state.machines[block.name] = change.machine
            return
        if change.step is Step.DESTROY_SLICE:
            state.slices = [one for one in state.slices if one[0] != change.block]
            return
        profile = None if gpu is None else gpu.profile_named(change.profile)
        if gpu is None or profile is None:
            raise NotFound(f'"{change.of}" cannot be cut into {change.profile}.', remedy=_LIST)
        there = [one for one in blocks.values() if one.of == gpu.name]
        if change.start not in profile.starts or not room_of(gpu, there).takes(profile, change.start):
            raise Conflict(
                f"There is no room for {change.profile} at {change.start} of {gpu.name}.", remedy="Destroy a slice first."
            )
        state.slices.append((change.block, gpu.name, change.profile, change.start))

    def _fault(self, change: Change, state: _State) -> str:
        if change.step not in (Step.ATTACH, Step.CREATE_SLICE):
            return ""
        for number, fault in enumerate(self._faults):
            times = state.acted.get(str(number), 0)
            if times < fault.times and fnmatchcase(change.block, fault.block):
                state.acted[str(number)] = times + 1
                return fault.what
        return ""

    def _look(self, state: _State) -> Sequence[Block]:
        found = []
        for block in self._blocks:
            machine = block.machine or state.machines.get(block.name, "")
            found.append(replace(block, machine=machine, seen=block.name not in state.unseen))
        there = by_name(found)
        for name, of, title, start in state.slices:
            gpu = there.get(of)
            profile = None if gpu is None else gpu.profile_named(title)
            if gpu is None or profile is None:
                continue  # the GPU was taken out of the fabric
            found.append(
                replace(
                    gpu,
                    name=name,
                    of=of,
                    profile=title,
                    start=start,
                    size=profile.memory,
                    profiles=(),
                    seen=name not in state.unseen,
                )
            )
        return found

    @contextmanager
    def _state(self, *, write: bool = False) -> Iterator[_State]:
        """What the file says, for this process alone; with `write`, it is kept afterwards, also when an error is raised."""
        with (self._path.parent / f"{self._path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX if write else fcntl.LOCK_SH)
            try:
                kept = json.loads(self._path.read_text())
                state = _State(**(kept | {"slices": [tuple(one) for one in kept["slices"]]}))
            except FileNotFoundError:
                state = _State()
            try:
                yield state
            finally:
                if write:
                    draft = self._path.with_suffix(".new")
                    draft.write_text(json.dumps({name: getattr(state, name) for name in _State.__slots__}))
                    draft.replace(self._path)
