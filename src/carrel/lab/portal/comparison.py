"""The pages of what differs between jobs, how far the results of one move, and the jobs of a project beside its baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from carrel.core.comparison import Cause
from carrel.core.comparison.matrix import USUAL
from carrel.core.domain.comparison import Agreement
from carrel.core.domain.errors import Invalid
from carrel.lab.gateway.baselines import baseline_table, baseline_views
from carrel.lab.gateway.context import Gateway
from carrel.lab.portal.requests import caller_of, number_in
from carrel.lab.portal.templating import Templates
from carrel.wire.v1 import ExplainRequest, MatrixRequest, MatrixRowView, MatrixView, VariantView, WhyView

#: Each kind of cause as the page calls it, with what that means.
_CAUSES = {
    Cause.LIKELY: ("Likely to change results", "What was asked for, the code that the command reaches, its data and seeds."),
    Cause.POSSIBLE: ("May change results", "Often only in the last digits."),
    Cause.UNLIKELY: ("Unlikely to change results", ""),
    Cause.RESULT: ("Results", "What came out, and how the attempts ended."),
}


class ComparisonPage:
    """``/jobs/compare?job=12&job=13``, ``/jobs/why?first=12&second=13`` and ``/jobs/12/matrix``."""

    def __init__(self, gateway: Gateway, look: Templates) -> None:
        self._gateway = gateway
        self._look = look

    def routes(self) -> list[BaseRoute]:
        """The routes of these pages; they go before that of single jobs."""
        return [
            Route("/jobs/compare", self.page, methods=["GET"]),
            Route("/jobs/why", self.why, methods=["GET"]),
            Route("/jobs/{job_id:int}/matrix", self.matrix, methods=["GET"]),
        ]

    def page(self, request: Request) -> Response:
        """What differs; without two jobs only the form that asks for them."""
        names = [name for part in request.query_params.getlist("job") for name in part.replace(",", " ").split()]
        found = self._gateway.comparing.compare(caller_of(request), names) if len(names) > 1 else None
        groups = [
            (title, about, shown)
            for cause, (title, about) in _CAUSES.items()
            if found is not None and (shown := [one for one in found.differences if one.cause is cause])
        ]
        return self._look.page(
            request,
            "comparison.html",
            names=names,
            found=found,
            groups=groups,
        )

    def why(self, request: Request) -> Response:
        """Where the search for the cause stands, with its runs as a tree. Nothing is submitted."""
        query = request.query_params
        asked = ExplainRequest(
            first=query.get("first", ""),
            second=query.get("second", ""),
            tolerance=_tolerance(query.get("tolerance") or "0"),
            ignore=query.getlist("ignore")[:20],
        )
        found = self._gateway.explaining.look(caller_of(request), asked)
        return self._look.page(request, "why.html", found=found, runs=_tree(found), asked=asked)

    def matrix(self, request: Request) -> Response:
        """How far the results of a job move, as far as it was run for that."""
        query, job_id = request.query_params, request.path_params["job_id"]
        asked = MatrixRequest(
            seeds=min(10, max(1, number_in(query.get("seeds")) or 3)),
            cases=query.getlist("case")[:8] or [*USUAL],
            metric=query.get("metric", "")[:500],
        )
        found = self._gateway.matrices.look(caller_of(request), job_id, asked)
        return self._look.page(request, "matrix.html", found=found, strips=_strips(found), asked=asked)


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 1:
        raise Invalid(f'The tolerance is "{text[:40]}".', remedy="Give a number from 0 to 1.")
    return value


#: Runs are indented no further than this.
_DEEPEST = 6


def _tree(found: WhyView) -> Sequence[tuple[VariantView, int]]:
    """Each run with its depth: below the run whose changes it has some of."""
    runs: list[tuple[VariantView, int]] = []
    for run in found.variants:
        # Lines of a file have other names than the file: they are below the last run that came to the second job's results.
        above = [depth for other, depth in runs if set(run.changes) < set(other.changes)]
        narrowed = [depth for other, depth in runs if other.changes and other.results == "second"]
        whole = not run.changes or not any(other.changes for other, _ in runs)
        depth = 0 if whole else 1 + max(above, default=max(narrowed, default=0))
        runs.append((run, min(depth, _DEEPEST)))
    return runs


@dataclass(frozen=True, slots=True)
class Strip:
    """The values of one case, drawn from 0 to 1000; `mean` is where their mean is."""

    row: MatrixRowView
    places: tuple[float, ...]
    mean: float | None


def _strips(found: MatrixView) -> Sequence[Strip]:
    known = [value for row in found.rows for value in row.values if value is not None and isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)

    def place(value: float) -> float:
        return 500.0 if high == low else round(20 + 960 * (value - low) / (high - low), 1)

    return [
        Strip(
            row,
            tuple(place(value) for value in row.values if value is not None and isfinite(value)),
            None if row.mean is None or not isfinite(row.mean) else place(row.mean),
        )
        for row in found.rows
    ]


#: Sign and tone of an agreement, as states have them.
_AGREEMENTS = {
    Agreement.IDENTICAL: ("✓", "good"),
    Agreement.WITHIN_TOLERANCE: ("✓", "good"),
    Agreement.DIFFERENT: ("✕", "bad"),
    Agreement.UNKNOWN: ("?", "wait"),
}
#: The same of what a calibration came to.
_OUTCOMES = {"same": ("✓", "good"), "moved": ("✕", "bad"), "not known": ("?", "wait")}


class BaselinePage:
    """``/baselines``, with the table of one project: ``/baselines?of=3``."""

    def __init__(self, gateway: Gateway, look: Templates) -> None:
        self._gateway = gateway
        self._look = look

    def routes(self) -> list[BaseRoute]:
        """The route of the page."""
        return [Route("/baselines", self.page, methods=["GET"])]

    def page(self, request: Request) -> Response:
        """One's own baselines, or with ``owner=all`` everybody's."""
        caller, drifts = caller_of(request), self._gateway.drifts
        everybody = request.query_params.get("owner") == "all"
        found = baseline_views(drifts, caller, drifts.baselines.list(caller, everybody=everybody))
        of = number_in(request.query_params.get("of"))
        shown = None if of is None else baseline_table(drifts, caller, drifts.baselines.get(caller, of))
        return self._look.page(
            request,
            "baselines.html",
            found=found,
            everybody=everybody,
            shown=shown,
            agreements=_AGREEMENTS,
            outcomes=_OUTCOMES,
        )
