"""Figures of matplotlib in remote cells: `plt.show()`, and the end of a cell, show those that are open."""

from __future__ import annotations

import sys
from typing import Any

from carrel_worker import display

BACKEND = "module://carrel_worker.figures_backend"


def show(*_arguments: Any, **_options: Any) -> None:
    """Show all open figures, and close them."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return
    try:
        for number in pyplot.get_fignums():
            display.display(pyplot.figure(number))
    finally:
        pyplot.close("all")
