"""From a notebook to a task: `promote` makes a directory in which the notebook itself is the task; `payload` runs it there.

No Jupyter is needed to make it.
"""

from carrel.notebooks.promote.environment import Environment, installed, locked
from carrel.notebooks.promote.promotion import Promoted, promote

__all__ = ["Environment", "Promoted", "installed", "locked", "promote"]
