"""What is found while a notebook is read: what was guessed, and what its owner should look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from carrel.core.domain.errors import Invalid

#: Faults that one error lists.
_SHOWN = 12


class Severity(StrEnum):
    """How much a note matters."""

    #: Left out or changed, with the same effect.
    CHANGED = "changed"
    #: Decided without being told.
    GUESSED = "guessed"
    #: May be wrong, or missing where the task runs.
    CHECK = "check"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One thing that was found."""

    weight: Severity
    text: str
    #: Number of the cell, and the line in it; None where it is about the whole notebook.
    cell: int | None = None
    line: int | None = None

    @property
    def where(self) -> str:
        """ "cell 3, line 2", or "" ."""
        return place(self.cell, self.line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that cannot be promoted."""

    cell: int
    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A file that a cell writes while it runs, with its text (``%%writefile``)."""

    path: str
    text: str
    cell: int
    #: Line of the cell at which the text begins.
    line: int


@dataclass(slots=True)
class Findings:
    """Collects what is found in all cells."""

    notes: list[Note] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    #: Requirement lines that ``pip install`` lines named, in their order.
    requirements: list[str] = field(default_factory=list)
    #: Requirements files that such lines named, as they are written.
    requirement_files: list[str] = field(default_factory=list)
    #: Most GPUs that a cell asks for; None where none says anything.
    gpus: int | None = None
    #: Whether figures may be drawn.
    plots: bool = False
    #: Commands for the shell, and files for ``%run``, with the cell and the line.
    commands: list[tuple[str, int, int]] = field(default_factory=list)
    #: Files that cells write with ``%%writefile``.
    written: list[Written] = field(default_factory=list)

    def note(self, weight: Severity, text: str, cell: int | None = None, line: int | None = None) -> None:
        """Add a note, once."""
        note = Note(weight=weight, text=text, cell=cell, line=line)
        if note not in self.notes:
            self.notes.append(note)

    def fault(self, cell: int, line: int, text: str) -> None:
        """Add something that cannot be promoted."""
        self.faults.append(Fault(cell=cell, line=line, text=text))

    def want_gpus(self, count: int) -> None:
        """A cell asks for so many."""
        self.gpus = max(count, self.gpus or 0)

    def raise_faults(self) -> None:
        """Raise one `Invalid` with all faults, when there are any."""
        if not self.faults:
            return
        lines = [f"{place(fault.cell, fault.line)}: {fault.text}" for fault in self.faults[:_SHOWN]]
        if len(self.faults) > _SHOWN:
            lines.append(f"and {len(self.faults) - _SHOWN} more")
        cells = sorted({fault.cell for fault in self.faults})
        raise Invalid(
            "These lines cannot become part of a script:\n" + "\n".join(lines),
            remedy='Leave their cells out with --cells or with the tag "skip", or say it in Python; '
            "--keep-notebook runs the notebook itself, with all that IPython understands.",
            details={"cells": cells, "faults": [f"{place(fault.cell, fault.line)}: {fault.text}" for fault in self.faults]},
        )


def place(cell: int | None, line: int | None) -> str:
    """Return "cell 3, line 2"."""
    if cell is None:
        return ""
    return f"cell {cell}" if line is None else f"cell {cell}, line {line}"
