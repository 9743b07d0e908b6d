"""A backend of matplotlib that saves what it is to show, as outputs/figure-1.png and so on. `carrel promote` put this here.

It is chosen with ``matplotlib.use("module://notebook_figures")`` (matplotlib's documentation, "Backends").
"""

from __future__ import annotations

from typing import Any

from matplotlib import _pylab_helpers
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from notebook_support import next_figure

FigureManager = FigureManagerBase
FigureCanvas = FigureCanvasAgg


def show(*_arguments: Any, **_options: Any) -> None:
    """Save every open figure and close it: what `plt.show()` and the end of a cell do in a notebook."""
    for manager in _pylab_helpers.Gcf.get_all_fig_managers():
        _save(manager.canvas.figure)
    _pylab_helpers.Gcf.destroy_all()


def save(figure: Any) -> None:
    """Save one figure, and close it when it is open."""
    _save(figure)
    _pylab_helpers.Gcf.destroy_fig(figure)


def _save(figure: Any) -> None:
    path = next_figure()
    # As the inline backend does it: what lies outside the figure's frame is kept.
    figure.savefig(path, bbox_inches="tight")
    print(f"[{path.name}]", flush=True)
