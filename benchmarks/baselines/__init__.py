"""The field's reference policies, to compare with: FIFO, first fit, SRTF, SRSF, Tiresias.

Discrete-event simulations with the semantics of the simulators that their authors published: jobs go to equal nodes first fit by
index, what preempts packs all jobs again from empty at every arrival and end, and restarts cost nothing.
"""

from baselines.pieces import Piece
from baselines.simulation import BASELINES, Baseline, simulate_baseline

__all__ = ["BASELINES", "Baseline", "Piece", "simulate_baseline"]
