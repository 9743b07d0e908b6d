"""A machine that is made from parts for one job: what `compose` of a task says, and what the machine is to have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from carrel.core.domain.errors import Invalid
from carrel.core.domain.fabric import BlockKind, Together, Wish
from carrel.core.domain.resources import Resources
from carrel.core.domain.suggest import suggest

#: Nothing but what the job asks for in any case.
MACHINE = "machine"
_COUNTED = {"nvme": BlockKind.STORAGE, "nics": BlockKind.NIC, "fpgas": BlockKind.FPGA}
_WORDS = (MACHINE, "island", "spread", "slice", *_COUNTED)


def read_compose(text: str) -> dict[str, str]:
    """Return the words of "nvme=2, island" with their values. Raises `Invalid`."""
    found = {}
    for part in text.replace(",", " ").split():
        word, _, value = part.partition("=")
        if word not in _WORDS:
            raise Invalid(f'compose: there is no "{part[:40]}".', remedy=suggest(word, _WORDS, what="There are"))
        if word in _COUNTED and not (value.isascii() and value.isdigit() and 0 < int(value[:6]) == int(value)):
            raise Invalid(f'compose: "{part[:40]}" does not say how many.', remedy=f"Write {word}=1.")
        if value and word not in _COUNTED and word != "slice":
            raise Invalid(f'compose: "{word}" has no value.', remedy=f"Write {word} alone.")
        found[word] = value
    if not found:
        raise Invalid("compose is empty.", remedy=f'Write "{MACHINE}", or what the machine has beside: {", ".join(_WORDS[1:])}.')
    if "island" in found and "spread" in found:
        raise Invalid("compose: island and spread are asked for.", remedy="Choose one.")
    return found


def compose_of(wishes: Sequence[Wish]) -> str:
    """Return what a task says to have such a machine beside its processors, memory and GPUs; `MACHINE` for nothing."""
    found: dict[str, str] = {}
    for wish in wishes:
        if wish.kind is BlockKind.GPU:
            found |= {"slice": wish.profile} if wish.sliced else {}
            found |= {} if wish.together is Together.ANYHOW else {wish.together.value: ""}
        word = next((word for word, kind in _COUNTED.items() if kind is wish.kind), "")
        if word:
            found[word] = str(int(found.get(word) or 0) + wish.count)
    return write_compose(found or {MACHINE: ""})


def write_compose(found: Mapping[str, str]) -> str:
    """Return these words with their values as `read_compose` reads them."""
    return ", ".join(f"{word}={value}" if value else word for word, value in found.items())


def without_parts(asked: Resources) -> Resources:
    """Return what a job asks for of its node. The GPUs of a machine that is made for it are those, whatever they are called."""
    return replace(asked, gpu_type=None, gpu_memory=0, compose="") if asked.compose else asked


def wishes_of(asked: Resources) -> tuple[Wish, ...]:
    """Return what the machine of a job is to have. Raises `Invalid` for what no machine of parts is."""
    said = read_compose(asked.compose)
    sliced, together = "slice" in said, Together.ISLAND if "island" in said else Together.SPREAD if "spread" in said else None
    if asked.nodes > 1:
        raise Invalid(f"A machine is made for a job on {asked.nodes} nodes.", remedy="Ask for one node, or leave compose out.")
    if not asked.gpus and (sliced or together):
        raise Invalid(f'compose is "{asked.compose}" but gpus is 0.', remedy="Ask for gpus too.")
    # Slices are cut from GPUs of a machine that stands: its processors come with them.
    wishes = [] if sliced else [Wish(kind=BlockKind.CPU, size=asked.cpus, memory=asked.memory)]
    if asked.gpus:
        wishes.append(
            Wish(
                kind=BlockKind.GPU,
                count=asked.gpus,
                type=asked.gpu_type or "",
                size=asked.gpu_memory,
                sliced=sliced,
                profile=said.get("slice", ""),
                together=together or Together.ANYHOW,
            )
        )
    for word, kind in _COUNTED.items():
        if word in said:
            wishes.append(Wish(kind=kind, count=int(said[word]), type="nvme" if word == "nvme" else ""))
    return tuple(wishes)
