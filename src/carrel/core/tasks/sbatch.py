"""Reads the ``#SBATCH`` lines of a batch script: what they ask for, in the words of a backend config (sbatch(1))."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from carrel.core.domain.errors import Invalid
from carrel.core.tasks.backend_config import SLURM_KEYS

#: Longest line that is read; `shlex` takes the square of the length of a word.
_LONGEST = 4096
_LINE = re.compile(r"#SBATCH(?=\s)(.*)")
#: One-letter options of sbatch that have a long name here or are kept under theirs.
_LETTERS = {
    **{"A": "account", "a": "array", "C": "constraint", "c": "cpus-per-task", "d": "dependency", "e": "error", "G": "gpus"},
    **{"J": "job-name", "N": "nodes", "n": "ntasks", "o": "output", "p": "partition", "q": "qos", "t": "time", "D": "chdir"},
    **{"b": "begin", "F": "nodefile", "i": "input", "k": "no-kill", "L": "licenses", "M": "clusters", "m": "distribution"},
    **{
        "O": "overcommit",
        "s": "oversubscribe",
        "S": "core-spec",
        "w": "nodelist",
        "x": "exclude",
        "H": "hold",
        "B": "extra-node-info",
    },
}
#: Options that stand alone, or may: what follows them is no value of theirs.
_ALONE = frozenset(
    {"exclusive", "requeue", "no-requeue", "no-kill", "overcommit", "oversubscribe", "hold", "contiguous", "verbose"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Directives:
    """What the lines of a script ask for."""

    #: By the keys of a backend config (`carrel.core.tasks.backend_config`).
    config: dict[str, str | bool | list[str]] = field(default_factory=dict)
    #: The others, each as sbatch takes it: "--nice=100".
    others: tuple[str, ...] = ()


def read_directives(script: str) -> Directives:
    """Return the directives of `script`. As for sbatch, they end at the first line that is neither empty nor a comment.

    Raises `Invalid` for a line that is too long to be read.
    """
    config: dict[str, str | bool | list[str]] = {}
    others: list[str] = []
    for name, value in _options(script):
        key = name.replace("-", "_")
        if name in ("requeue", "no-requeue"):  # Slurm's is about failed nodes, after which the lab starts a job again anyway
            others.append(f"--{name}")
        elif key in SLURM_KEYS:
            config[key] = value.split(",") if key == "mail_type" else value or True
        else:
            others.append(f"--{name}={value}" if value else f"--{name}")
    return Directives(config=config, others=tuple(others))


def _options(script: str) -> Iterator[tuple[str, str]]:
    """Yield each option's long name and its value, "" where it has none."""
    for number, line in enumerate(script.splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            return
        match = _LINE.match(line)
        if match is not None:
            if len(line) > _LONGEST:
                raise Invalid(
                    f"Line {number}, #SBATCH, has more than {_LONGEST:,} characters.", remedy="Put options on several lines."
                )
            yield from _words(match[1])


def _words(line: str) -> Iterator[tuple[str, str]]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # a quotation mark that is never closed
        words = line.split()
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
        elif word.startswith("-") and len(word) > 1:
            name, value = _LETTERS.get(word[1], word[1]), word[2:]
            equals = value
        else:
            continue  # sbatch refuses it; here it says nothing
        if not equals and name not in _ALONE and words and not words[0].startswith("-"):
            value = words.pop(0)
        yield name, value
