"""What differs between attempts: from their records to a list of differences, the most likely cause of other results first. Pure.

A record that does not say something is not equal to one that does: what is unknown is told apart from what is equal, and
from what a job had not. Nothing here claims that a difference is the cause; each has the evidence for its place in the list.
"""

from carrel.core.comparison.compare import Comparison, Difference, NotKnown, compare
from carrel.core.comparison.drift import drift_of
from carrel.core.comparison.facts import UNTRACKED, Change, Code, Curve, Metrics, Side, Value
from carrel.core.comparison.records import side_of, side_of_run
from carrel.core.comparison.results import ResultDifference, Results, agree
from carrel.core.domain.comparison import Agreement, Cause, Kind
