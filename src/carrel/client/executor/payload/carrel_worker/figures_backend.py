"""matplotlib's backend of remote cells (its page "Writing a backend"); matplotlib alone imports it."""

from __future__ import annotations

from carrel_worker.figures import show
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

__all__ = ["FigureCanvas", "FigureManager", "show"]

FigureCanvas = FigureCanvasAgg
FigureManager = FigureManagerBase
