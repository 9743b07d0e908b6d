"""What the main threads of a job's Python processes did when they were asked. Text in, value out.

The text is the job's own, and may say anything: a line that is not understood counts nothing, and words are short and visible.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from enum import StrEnum

from carrel.core.domain.control_characters import visible

#: What stands between the process and its frames, and between the parts of a frame, in an answer (`carrel_stacks`).
_FRAME, _PART = "\x1e", "\x1f"
#: Frames of an answer that are looked at, and characters of a name.
_DEEPEST, _LONGEST = 60, 60
#: Files that are no code of the job's own: of Python, of installed packages, of the lab.
_FOREIGN = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3|^<|/carrel_\w+\.py$")
#: Functions that bring input, and functions that wait for another machine: by name, or by the file that has them.
_INPUT = re.compile(
    r"DataLoader|Loader\.|__next__$|\b__getitem__$|\bcollate|/torch/utils/data/|/tensorflow/python/data/|/webdataset/|/datasets/"
)
_NETWORK = re.compile(r"/(socket|ssl)\.py$|/http/client\.py$|/(urllib3|httpcore|aiohttp|botocore|huggingface_hub)/")


class WaitsFor(StrEnum):
    """What a main thread was about."""

    INPUT = "input"
    NETWORK = "network"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Where a program was most often."""

    #: Of the job's own code ("train.py:48"), and the function that it had called there; "": none that Python knows of.
    line: str
    function: str
    waits_for: WaitsFor
    #: Of all answers, and how many there were.
    percent: int
    answers: int

    @property
    def words(self) -> str:
        """Where it was, in words: "`DataLoader.__next__` (train.py:48)"."""
        return f"`{self.function}` ({self.line})" if self.function else self.line


def read_stacks(said: str, directory: str) -> Stack | None:
    """Return where the process was most often that answered most often; None where no code of the job's own was seen.

    `directory` is the job's working directory, below which its code is.
    """
    places: defaultdict[str, Counter[tuple[str, str, WaitsFor]]] = defaultdict(Counter)
    for line in said.split("\n"):
        process, *frames = line.split(_FRAME)
        if (place := _place([frame.split(_PART) for frame in frames[:_DEEPEST]], directory)) is not None:
            places[process][place] += 1
    if not places:
        return None
    counts = max(places.values(), key=lambda one: one.total())
    (line, function, waits_for), number = counts.most_common(1)[0]
    total = counts.total()
    return Stack(line=line, function=function, waits_for=waits_for, percent=round(100 * number / total), answers=total)


def _place(frames: list[list[str]], directory: str) -> tuple[str, str, WaitsFor] | None:
    """The line of the job's own code, and what it had called there; `frames` are (function, file, line), the innermost first."""
    if not frames or any(len(frame) != 3 for frame in frames):
        return None
    own = [number for number, (_, file, _) in enumerate(frames) if not _FOREIGN.search(file)]
    if not own:
        return None
    # What fetches input may be the job's own code, too: then the line that asked for it is the one that waits.
    brings = [number for number, (function, file, _) in enumerate(frames) if _INPUT.search(function) or _INPUT.search(file)]
    network = any(_NETWORK.search(file) for _, file, _ in frames[: own[0]])
    at = next((number for number in own if brings and number > brings[-1]), own[0])
    inner = frames[at - 1][0] if at else ""
    waits_for = WaitsFor.NETWORK if network else WaitsFor.INPUT if brings else WaitsFor.OTHER
    file = frames[at][1].removeprefix(directory.rstrip("/") + "/")
    return f"{_short(file)}:{_short(frames[at][2])}", _short(inner), waits_for


def _short(text: str) -> str:
    text = visible(text, kept="(?!)").replace("`", "'")
    return text if len(text) <= _LONGEST else "…" + text[1 - _LONGEST :]
