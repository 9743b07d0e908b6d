"""Parts of machines: blocks that a fabric attaches to machines, and slices into which GPUs are cut.

The words are those of Redfish's CompositionService (DMTF DSP0268): a block belongs to a zone, and blocks of one zone can be in
one machine. A slice is a block, too: it consumes counters of its GPU (compute slices, memory slices), as Kubernetes'
partitionable devices do (KEP-4815), so what fits beside what is arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from carrel.core.domain.control_characters import visible
from carrel.core.domain.errors import Invalid
from carrel.core.domain.noun import derived, private
from carrel.core.domain.units import GIB, format_count, format_size

#: Blocks of one wish, at most.
MOST = 10_000
#: Characters of a name of tasks.
_LIKE = 200
_GIGABYTES = re.compile(r"\.(\d+)gb")
_WORD = re.compile(r"[A-Za-z0-9._+@/-]{1,128}")


class BlockKind(StrEnum):
    """What a block is."""

    #: Processors with their memory: a machine is made around one.
    CPU = "cpu"
    GPU = "gpu"
    MEMORY = "memory"
    STORAGE = "storage"
    NIC = "nic"
    FPGA = "fpga"


def nominal(profile: str) -> int:
    """Return the bytes that the name of a profile says ("1g.10gb"); 0 where it says none."""
    found = _GIGABYTES.search(profile)
    return int(found[1]) * GIB if found else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceProfile:
    """One size into which a GPU can be cut (NVML: a GPU instance profile)."""

    #: "1g.10gb".
    name: str
    #: Compute slices and memory slices that it takes of its GPU.
    compute: int
    memory_slices: int
    #: Bytes of its memory.
    memory: int
    #: Memory slices at which one may begin (NVML: possible placements).
    starts: tuple[int, ...]

    @property
    def nominal(self) -> int:
        """Bytes that its name says, by which people ask; it has up to an eighth less ("1g.18gb" of an H200: 16 GiB)."""
        return max(self.memory, nominal(self.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeSlices:
    """How many slices of one size can be had now. Each size is counted as if nobody took another."""

    #: Short type of the GPU: "h200".
    type: str
    profile: str
    #: Bytes that each has.
    memory: int
    free: int
    #: Slices of this size that somebody has.
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One part of a machine that can be given to one machine at a time."""

    #: Unique in the fabric.
    name: str
    kind: BlockKind
    #: Blocks of one zone can be in one machine.
    zone: str
    #: Short type as used in requests: "a100", "nvme".
    type: str = ""
    #: Bytes of a GPU, of memory and of storage; processors of a CPU; bits a second of a NIC.
    size: int = 0
    #: Bytes of memory that come with a CPU.
    memory: int = 0
    #: GPUs of one island reach each other by NVLink.
    island: str = ""
    rack: str = ""
    #: The account that put it in; "" for the lab's own.
    owner: str = ""
    #: Seconds for which others may have it while that account does not ask for it; 0: it is not lent.
    lent: int = 0
    #: True when it is built into its machine, and cannot leave it.
    fixed: bool = False
    #: The machine that it is in now; "" for none.
    machine: str = ""
    #: True when the machine's system sees it; false shortly after it came, and where something is wrong.
    seen: bool = True
    #: Why nothing may use it, in the fabric's words; "" when it is well.
    fault: str = ""
    #: Of a GPU or slice that is there as hardware: its name in CUDA_VISIBLE_DEVICES.
    uuid: str = ""
    #: Of a GPU: what it can be cut into, and how many compute and memory slices it has. Empty: it cannot be cut.
    profiles: tuple[SliceProfile, ...] = ()
    compute_slices: int = 0
    memory_slices: int = 0
    #: Of a GPU: False where programs can use its slices alone (MIG mode).
    whole: bool = True
    #: Of a slice: its GPU, its profile, and the memory slice at which it begins.
    of: str = ""
    profile: str = ""
    start: int = 0
    #: True when a composition has it, or is about to.
    used: bool = derived(default=False)
    #: Which one, for those who may see it.
    composition: int = derived(default=0)
    #: Subject of its owner.
    holder: str = private(default="")

    @property
    def title(self) -> str:
        """ "a100", "a100 1g.10gb", "nvme"."""
        return " ".join(part for part in (self.type or self.kind.value, self.profile) if part)

    def profile_named(self, name: str) -> SliceProfile | None:
        """The profile of that name, or None."""
        return next((one for one in self.profiles if one.name == name), None)


#: What one is called; several have an "s" more.
_SINGULAR = {
    BlockKind.CPU: "CPU block",
    BlockKind.GPU: "GPU",
    BlockKind.MEMORY: "memory block",
    BlockKind.STORAGE: "drive",
    BlockKind.NIC: "network card",
    BlockKind.FPGA: "FPGA",
}


class Together(StrEnum):
    """How blocks of one wish lie to each other."""

    ANYHOW = "anyhow"
    #: All in one NVLink island.
    ISLAND = "island"
    #: Over as many racks as there are.
    SPREAD = "spread"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Blocks of one kind that a machine is to have: so many, or these."""

    kind: BlockKind
    count: int = 1
    #: Short type; "" for any.
    type: str = ""
    #: What each has at least, as `Block.size` counts it; of a CPU also bytes of memory.
    size: int = 0
    memory: int = 0
    #: Names of blocks; then `count` is how many there are.
    names: tuple[str, ...] = ()
    #: True for slices of GPUs instead of whole ones: the smallest that has `size`, or those of this profile.
    sliced: bool = False
    profile: str = ""
    #: Of a slice: a name of tasks of one's own. It has the memory that they took before; `size` is then worked out.
    like: str = ""
    together: Together = Together.ANYHOW

    def __post_init__(self) -> None:
        if self.names and self.count != len(self.names):
            raise Invalid(
                f"{self.count} {self.kind.value} blocks are asked for, and {len(self.names)} named.",
                remedy="Say how many, or say which.",
            )
        words = (*self.names, *filter(None, (self.type, self.profile)))
        if wrong := next((word for word in words if not _WORD.fullmatch(word)), None):
            raise Invalid(
                f'"{visible(wrong[:80])}" names no block, type or profile.', remedy="`carrel compose blocks` lists all."
            )
        if self.size < 0 or self.memory < 0 or self.count > MOST:
            raise Invalid(
                f"{self.count} {self.kind.value} blocks of {self.size} are asked for.", remedy=f"Ask for at most {MOST}."
            )
        if self.count < 1:
            raise Invalid(f"{self.count} {self.kind.value} blocks are asked for.", remedy="Ask for at least one.")
        if self.sliced and self.kind is not BlockKind.GPU:
            raise Invalid(f"A {self.kind.value} block cannot be cut into slices.", remedy="Ask for slices of GPUs.")
        if len(self.like) > _LIKE or not self.like.isprintable():
            raise Invalid(f'"{visible(self.like[:_LIKE])}" is no name of tasks.', remedy="`carrel ps --all` shows names.")
        if self.sliced and not (self.profile or self.size or self.names or self.like):
            raise Invalid(
                "A slice of no size is asked for.", remedy='Say a profile, such as "1g.10gb", or a size, such as "10G".'
            )

    @property
    def title(self) -> str:
        """ "2 GPUs (a100, 40G at least)", "1 slice (1g.10gb)"."""
        like = f"as {self.like} took" if self.like else ""
        size = format_count(self.size, "processor") if self.kind is BlockKind.CPU else format_size(self.size)
        least = [size if self.size else "", f"{format_size(self.memory)} of memory" if self.memory else ""]
        about = [*self.names, self.type, self.profile, like, *(f"{one} at least" for one in least if one)]
        words = ", ".join(part for part in about if part)
        if self.together is not Together.ANYHOW:
            words = ", ".join(part for part in (words, "one island" if self.together is Together.ISLAND else "spread") if part)
        kind = "slice" if self.sliced else _SINGULAR[self.kind]
        kind += "" if self.count == 1 else "s"
        return f"{self.count} {kind}" + (f" ({words})" if words else "")


class Step(StrEnum):
    """What is done to one block."""

    ATTACH = "attach"
    DETACH = "detach"
    CREATE_SLICE = "create slice"
    DESTROY_SLICE = "destroy slice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One step of a plan. It is written down before it is done, and what is written down can be looked for after a crash."""

    step: Step
    #: The block; of a slice that is to be made, the name that it will have.
    block: str
    #: Of `ATTACH` and `DETACH`: the machine.
    machine: str = ""
    #: Of slices: the GPU, the profile, and the memory slice at which it begins.
    of: str = ""
    profile: str = ""
    start: int = 0

    @property
    def back(self) -> Change:
        """The change that takes this one back."""
        opposite = {
            Step.ATTACH: Step.DETACH,
            Step.DETACH: Step.ATTACH,
            Step.CREATE_SLICE: Step.DESTROY_SLICE,
            Step.DESTROY_SLICE: Step.CREATE_SLICE,
        }[self.step]
        return Change(step=opposite, block=self.block, machine=self.machine, of=self.of, profile=self.profile, start=self.start)

    def is_done(self, blocks: Mapping[str, Block]) -> bool:
        """True when the fabric looks as it does after this change."""
        block = blocks.get(self.block)
        if self.step is Step.ATTACH:
            return block is not None and block.machine == self.machine
        if self.step is Step.CREATE_SLICE:
            return block is not None
        if self.step is Step.DETACH:
            return block is not None and block.machine != self.machine
        return block is None

    @property
    def title(self) -> str:
        """ "attach gpu-3 to c12", "create slice 1g.10gb of gpu-3 at 4"."""
        if self.step is Step.ATTACH:
            return f"attach {self.block} to {self.machine}"
        if self.step is Step.DETACH:
            return f"detach {self.block} from {self.machine}"
        return f"{self.step.value} {self.profile} of {self.of} at {self.start}"


#: What stands in the name of a slice between its GPU and its profile; no other block has it in its name.
SLICE = "/"


def slice_name(gpu: str, profile: str, start: int) -> str:
    """Return the name of a slice: where it lies tells it from all others of its GPU."""
    return f"{gpu}{SLICE}{profile}@{start}"


def by_name(blocks: Sequence[Block]) -> Mapping[str, Block]:
    """Return the blocks by their names. Raises `Invalid` for a name that two have."""
    found = {block.name: block for block in blocks}
    if len(found) != len(blocks):
        twice = next(block.name for block in blocks if found[block.name] is not block)
        raise Invalid(f'Two blocks are called "{twice}".', remedy="Give each block of the fabric a name of its own.")
    return found
