"""The pages that show what differs between jobs, and how the jobs of a project are beside its baseline."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from carrel.core.comparison import Cause
from carrel.core.domain.comparison import Agreement
from carrel.lab.gateway.baselines import baseline_table, baseline_views
from carrel.lab.gateway.context import Gateway
from carrel.lab.portal.requests import caller_of, number_in
from carrel.lab.portal.templating import Templates

#: Each kind of cause as the page calls it, with what that means.
_CAUSES = {
    Cause.LIKELY: ("Likely to change results", "What was asked for, the code that the command reaches, its data and seeds."),
    Cause.POSSIBLE: ("May change results", "Often only in the last digits."),
    Cause.UNLIKELY: ("Unlikely to change results", ""),
    Cause.RESULT: ("Results", "What came out, and how the attempts ended."),
}


class ComparisonPage:
    """``/jobs/compare?job=12&job=13``."""

    def __init__(self, gateway: Gateway, look: Templates) -> None:
        self._gateway = gateway
        self._look = look

    def routes(self) -> list[BaseRoute]:
        """The route of the page; it goes before that of single jobs."""
        return [Route("/jobs/compare", self.page, methods=["GET"])]

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
