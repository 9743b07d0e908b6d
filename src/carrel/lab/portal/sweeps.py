"""The pages of sweeps: a list, and one sweep with its trials."""

from __future__ import annotations

import shlex

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from carrel.core.domain.errors import NotFound
from carrel.core.policy.access import Action, Resource, allowed
from carrel.lab.gateway.context import Gateway
from carrel.lab.gateway.routes.sweeps import sweep_detail, sweep_page
from carrel.lab.portal.entrance import checked_form
from carrel.lab.portal.parallel_coordinates import BOTTOM, HEIGHT, TOP, WIDTH, picture_of
from carrel.lab.portal.requests import caller_of, number_in
from carrel.lab.portal.templating import Templates
from carrel.wire.v1 import SweepDetail, TrialView

_LISTED = 100
#: Trials in the table.
_SHOWN = 200


class SweepPages:
    """``/sweeps`` and ``/sweeps/{id}``, with their buttons."""

    def __init__(self, gateway: Gateway, look: Templates) -> None:
        self._gateway = gateway
        self._look = look

    def routes(self) -> list[BaseRoute]:
        """The routes of these pages."""
        sweep = "/sweeps/{sweep_id}"
        return [
            Route("/sweeps", self.all, methods=["GET"]),
            Route(sweep, self.one, methods=["GET"]),
            Route(f"{sweep}/stop", self.stop, methods=["POST"]),
            Route(f"{sweep}/resume", self.resume, methods=["POST"]),
        ]

    def all(self, request: Request) -> Response:
        """One's own sweeps. With ``part=live`` only what changes."""
        last_event = self._gateway.lab.last_event_id()  # first, so that no change falls between the page and its stream
        before = number_in(request.query_params.get("before"))
        page = sweep_page(self._gateway.sweeps.list(caller_of(request), limit=_LISTED + 1, before=before), _LISTED)
        part = request.query_params.get("part") == "live"
        return self._look.page(
            request,
            "sweeps_live.html" if part else "sweeps.html",
            sweeps=page.sweeps,
            older=page.next,
            before=before,
            last_event=last_event,
        )

    def one(self, request: Request) -> Response:
        """One sweep: its trials, a picture of them, the best. With ``part=live`` only what changes."""
        caller, last_event = caller_of(request), self._gateway.lab.last_event_id()
        sweep = sweep_detail(self._gateway.sweeps.status(caller, _sweep_id_of(request)))
        part = request.query_params.get("part") == "live"
        return self._look.page(
            request,
            "sweep_live.html" if part else "sweep.html",
            sweep=sweep,
            trials=_best_first(sweep)[:_SHOWN],
            left_out=max(0, len(sweep.all_trials) - _SHOWN),
            picture=picture_of(sweep),
            size=(WIDTH, HEIGHT, TOP, BOTTOM),
            best=next((one for one in sweep.all_trials if one.number == sweep.best), None),
            command=shlex.join(sweep.best_arguments),
            going_on=sweep.state == "RUNNING" or any(one.ended_at is None for one in sweep.all_trials),
            may_change=bool(allowed(caller, Action.CHANGE_SWEEP, Resource(owner=sweep.owner))),
            own=sweep.owner == caller.user.subject,
            last_event=last_event,
        )

    async def stop(self, request: Request) -> Response:
        """Start no more trials, and end those that run."""
        return await self._change(request, stop=True)

    async def resume(self, request: Request) -> Response:
        """Go on."""
        return await self._change(request, stop=False)

    async def _change(self, request: Request, *, stop: bool) -> Response:
        await checked_form(request, self._look)
        sweeps = self._gateway.sweeps
        sweep = await to_thread.run_sync(sweeps.stop if stop else sweeps.resume, caller_of(request), _sweep_id_of(request))
        return RedirectResponse(f"/sweeps/{sweep.id}", 303)


def _sweep_id_of(request: Request) -> int:
    number = number_in(request.path_params["sweep_id"])
    if not number:
        raise NotFound("There is no sweep 0.")
    return number


def _best_first(sweep: SweepDetail) -> list[TrialView]:
    """Those that run, then the others from the best on, then those without a value."""
    sign = 1 if sweep.direction == "minimize" else -1

    def key(one: TrialView) -> tuple[bool, bool, bool, float, int]:
        running, valued = one.ended_at is None, one.value is not None
        return not running, not valued, one.state != "COMPLETED", 0.0 if running else sign * (one.value or 0.0), one.number

    return sorted(sweep.all_trials, key=key)
