"""What is known of one attempt, in a form in which two can be compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from carrel.core.domain.comparison import Kind


class Known(StrEnum):
    """Whether something is known of an attempt."""

    VALUE = "value"
    #: It is known that there was none.
    ABSENT = "absent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Value:
    """What one attempt had."""

    known: Known
    #: The value, or why it is not known.
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """All that is known of one kind."""

    values: Mapping[str, str] = field(default_factory=dict)
    #: Why single things are not known, by their paths.
    unknown: Mapping[str, str] = field(default_factory=dict)
    #: Why nothing is known of what is in neither; "": the attempt had none of it.
    missing: str = ""

    def value(self, path: str) -> Value:
        """What is known of `path`."""
        if path in self.values:
            return Value(Known.VALUE, self.values[path])
        why = self.unknown.get(path) or self.missing
        return Value(Known.UNKNOWN, why) if why else Value(Known.ABSENT)


#: Why nothing is known of metrics where nobody has any: that is no lack.
UNTRACKED = "This lab has no tracking server."

#: A metric's values by step; where a step has several, the last one.
Curve = Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What the tracking server has of an attempt's run."""

    last: Mapping[str, float] = field(default_factory=dict)
    #: Of those whose steps were read.
    curves: Mapping[str, Curve] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    #: What clients say of the run itself: name, user, source, commit.
    tags: Mapping[str, str] = field(default_factory=dict)
    #: Why nothing is known of it; "": it is.
    missing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """The files of a snapshot."""

    #: What each is, by path: equal texts are equal files.
    files: Mapping[str, str] = field(default_factory=dict)
    #: The text of a file, or None: it is none, or too long to be read.
    read: Callable[[str], str | None] = lambda _path: None
    #: Why the files are not known; "": they are.
    missing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How a file differs from that of the first attempt."""

    #: The attempt that has the changed one.
    label: str
    added: int
    removed: int
    #: Hunks as `diff -u` has them.
    hunks: tuple[str, ...]
    #: Why there are none; "": there are.
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One attempt, as it is compared."""

    #: What people call it: "12", or "12:1" for an attempt that is not the last.
    label: str
    sections: Mapping[Kind, Section]
    #: The command line, and the directory of the code in which it runs.
    command: str = ""
    directory: str = "."
    code: Code = field(default_factory=Code)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    #: Digests of the files from which each package may come, by its name.
    package_files: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def value(self, kind: Kind, path: str) -> Value:
        """What is known of it."""
        return self.section(kind).value(path)

    def section(self, kind: Kind) -> Section:
        """All that is known of a kind."""
        return self.sections.get(kind) or Section(missing="The record does not say.")
