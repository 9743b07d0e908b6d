"""From a notebook to a task: `promote` makes a task directory that runs without edits.

Read, find and write apart: `notebook`, `lines`, `magics` and `cells` take cells to plain Python; `mentions`, `packages` and
`gather` find what travels; `script`, `kept`, `project` and `writing` make the directory. No Jupyter is needed.
"""

from carrel.notebooks.promote.findings import Note, Severity
from carrel.notebooks.promote.promotion import Promoted, promote

__all__ = ["Note", "Promoted", "Severity", "promote"]
