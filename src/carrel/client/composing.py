"""`carrel.compose`: a machine from parts for as long as a block of code runs."""

from __future__ import annotations

import re
import time as clock
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from carrel.core.domain.composition import Composition, CompositionState
from carrel.core.domain.errors import CarrelError, Conflict, Invalid, Unavailable
from carrel.core.domain.fabric import SLICE, BlockKind, Together, Wish
from carrel.core.domain.nouns import BLOCKS, COMPOSITIONS
from carrel.core.domain.units import parse_duration, parse_size

if TYPE_CHECKING:
    from carrel.client import Client

#: Seconds between two looks at a machine that is waited for.
LOOK_SECONDS = 1.0
#: What begins a slice that is as large as tasks of a name need it.
LIKE = "like:"
_PROFILE = re.compile(r"\d+g\.\d+gb(\+me)?")


def wishes_of(
    client: Client,
    *,
    gpus: int = 0,
    gpu_type: str = "",
    gpu_memory: str = "",
    slices: Sequence[str] = (),
    together: Together = Together.ANYHOW,
    cpus: int = 0,
    memory: str = "",
    nvme: int = 0,
    nics: int = 0,
    fpgas: int = 0,
    blocks: Sequence[str] = (),
) -> tuple[Wish, ...]:
    """Return the wishes that these options mean, as `carrel compose --help` explains them. Raises `Invalid`."""
    size = parse_size(gpu_memory) if gpu_memory else 0
    found = [
        *_counted(BlockKind.CPU, 1 if cpus else 0, size=cpus),
        *_counted(BlockKind.GPU, gpus, type=gpu_type, size=size, together=together),
        *(_slices(text, gpu_type, slices.count(text)) for text in dict.fromkeys(slices)),
        *_counted(BlockKind.MEMORY, 1 if memory else 0, size=parse_size(memory) if memory else 0),
        *_counted(BlockKind.STORAGE, nvme, type="nvme"),
        *_counted(BlockKind.NIC, nics),
        *_counted(BlockKind.FPGA, fpgas),
        *(_named(client, blocks) if blocks else ()),
    ]
    return tuple(found)


def together_of(*, island: bool, spread: bool) -> Together:
    """Return how GPUs are to lie to each other. Raises `Invalid` for both."""
    if island and spread:
        raise Invalid("island and spread are asked for.", remedy="Choose one.")
    return Together.ISLAND if island else Together.SPREAD if spread else Together.ANYHOW


def _counted(kind: BlockKind, count: int, **about: object) -> list[Wish]:
    return [Wish(kind=kind, count=count, **about)] if count else []  # type: ignore[arg-type]


def _slices(text: str, gpu_type: str, count: int) -> Wish:
    if _PROFILE.fullmatch(text):
        return Wish(kind=BlockKind.GPU, sliced=True, profile=text, type=gpu_type, count=count)
    if text.startswith(LIKE):
        return Wish(kind=BlockKind.GPU, sliced=True, like=text.removeprefix(LIKE), type=gpu_type, count=count)
    return Wish(kind=BlockKind.GPU, sliced=True, size=parse_size(text), type=gpu_type, count=count)


def very(client: Client, one: Composition) -> Composition:
    """Return what asks for the very blocks that a machine has or had; for its slices, by their size. Raises `Invalid`."""
    whole = [name for name in one.blocks if SLICE not in name]
    profiles = [name.partition(SLICE)[2].partition("@")[0] for name in one.blocks if SLICE in name]
    wishes = wishes_of(client, slices=profiles, blocks=whole)
    return Composition(name=one.name, time=one.time, linger=one.linger, wishes=wishes)


def _named(client: Client, names: Sequence[str]) -> Iterator[Wish]:
    there = {block.name: block for block in client.all_of(BLOCKS)}
    for name in names:
        if name not in there:
            raise Invalid(f'The fabric has no block "{name[:80]}".', remedy="`carrel compose blocks` lists all.")
    kinds = dict.fromkeys((there[name].kind, bool(there[name].of)) for name in names)
    for kind, sliced in kinds:
        mine = tuple(name for name in names if (there[name].kind, bool(there[name].of)) == (kind, sliced))
        yield Wish(kind=kind, sliced=sliced, names=mine, count=len(mine))


@contextmanager
def compose(
    *,
    gpus: int = 0,
    gpu_type: str = "",
    gpu_memory: str = "",
    slices: Sequence[str] = (),
    island: bool = False,
    spread: bool = False,
    cpus: int = 0,
    memory: str = "",
    nvme: int = 0,
    nics: int = 0,
    fpgas: int = 0,
    blocks: Sequence[str] = (),
    time: str = "1h",
    name: str = "",
    timeout: float | None = None,
) -> Iterator[Composition]:
    """Make a machine from parts, and give it back at the end of the `with` block; the words are those of `carrel compose`.

    The block begins when the machine is there; until then the reason why it waits is printed when it changes. Jobs that the
    user submits meanwhile may run on it, and those that run at the end keep it until they are over. `timeout` are the seconds
    that it waits at most; then `Unavailable` is raised. `Conflict` is raised when it cannot be made. Nothing is kept then.
    """
    from carrel.client import Client

    with Client() as client:
        wishes = wishes_of(
            client,
            gpus=gpus,
            gpu_type=gpu_type,
            gpu_memory=gpu_memory,
            slices=[slices] if isinstance(slices, str) else slices,
            together=together_of(island=island, spread=spread),
            cpus=cpus,
            memory=memory,
            nvme=nvme,
            nics=nics,
            fpgas=fpgas,
            blocks=[blocks] if isinstance(blocks, str) else blocks,
        )
        made = client.add(COMPOSITIONS, Composition(wishes=wishes, time=parse_duration(time), name=name))
        try:
            for one in waited(client, made, timeout=timeout):
                print(told(one), flush=True)
                made = one
            yield made
        finally:
            with suppress(CarrelError):  # it may be over already, and what the block raised matters more
                client.remove(COMPOSITIONS, made.id)


def waited(client: Client, made: Composition, *, timeout: float | None = None) -> Iterator[Composition]:
    """Yield a machine each time there is something new to say, until it is there.

    Raises `Conflict` when it cannot be made, and `Unavailable` when it is not there after `timeout` seconds.
    """
    said, until = "", None if timeout is None else clock.monotonic() + timeout
    while True:
        words = told(made)
        if words != said:
            yield made
        said = words
        if made.state is CompositionState.RUNNING:
            return
        if made.state.over:
            raise Conflict(f"{words}.", remedy="`carrel compose blocks` shows what there is.")
        if until is not None and clock.monotonic() >= until:
            raise Unavailable(f"{words}, after {timeout:g} s.", remedy="Wait longer, or ask for less.")
        clock.sleep(LOOK_SECONDS)
        made = client.one_of(COMPOSITIONS, made.id)


def told(one: Composition) -> str:
    """Return where a machine is, and why, in one line without its end."""
    if one.state is CompositionState.RUNNING:
        return f"Machine {one.id} is RUNNING: {', '.join(one.blocks)}"
    return f"Machine {one.id} is {one.state.value}: {one.reason or next(iter(one.steps), 'it is planned')}"
