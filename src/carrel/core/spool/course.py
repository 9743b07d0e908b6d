"""An attempt's course, read from its journal: each step, and of its samples so many that a plot can be drawn."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

from carrel.core.domain.launch import Damaged, Journaled, Sampled
from carrel.core.spool.foreign import NOT_THERE, open_regular
from carrel.core.spool.journal import entry_from_plain
from carrel.core.spool.lines import read_lines

#: Samples that are kept: of more, every second one is left out until there are fewer.
MOST_SAMPLES = 240
#: Bytes of a journal that are looked at, those of one line, and other entries than samples.
_LONGEST, _LINE, _STEPS = 64 * 1024**2, 1024**2, 2000
#: How a line with a sample is known before it is parsed.
_SAMPLE = b'"type":"sampled"'


@dataclass(frozen=True, slots=True)
class Course:
    """The steps of an attempt, and samples of its use, in order."""

    steps: tuple[Journaled, ...] = ()
    samples: tuple[tuple[float, Sampled], ...] = ()


def read_course(journal: Path) -> Course:
    """Return what the journal says of the whole attempt until now; nothing where it is not kept any more."""
    steps: list[Journaled] = []
    kept: list[bytes] = []
    last, count, every = b"", 0, 1
    try:
        with io.BufferedReader(open_regular(journal)) as file:  # type: ignore[type-var]
            while file.tell() < _LONGEST and (line := file.readline(_LINE)).endswith(b"\n"):
                if _SAMPLE not in line[:80]:
                    if len(steps) < _STEPS and (entry := _entry(line)) is not None:
                        steps.append(entry)
                    continue
                last = line
                if count % every == 0:
                    kept.append(line)
                    if len(kept) > MOST_SAMPLES:
                        kept, every = kept[::2], every * 2
                count += 1
    except OSError as error:
        if error.errno not in NOT_THERE:
            raise
    if kept and kept[-1] is not last:
        kept.append(last)
    entries = [entry for line in kept if (entry := _entry(line)) is not None]
    return Course(tuple(steps), tuple((entry.at, entry.record) for entry in entries if isinstance(entry.record, Sampled)))


def _entry(line: bytes) -> Journaled | None:
    for one in read_lines(line):
        try:
            entry = entry_from_plain(json.loads(one.text)) if one.text is not None else None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            entry = None
        if entry is not None and not isinstance(entry.record, Damaged):
            return entry
    return None
