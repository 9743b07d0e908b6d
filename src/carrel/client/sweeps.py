"""The part of a client that is about sweeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from carrel.client.transport import Transport
from carrel.wire import v1


class SweepCalls:
    """The part of a `carrel.Client` that is about sweeps."""

    _http: Transport
    submit_project: Callable[..., Any]
    _again: Callable[..., Any]

    def sweep_project(
        self, target: str | Path, *, distributions: Mapping[str, str] | None = None, options: Mapping[str, Any], **task: Any
    ) -> v1.SweepDetail:
        """Start a sweep of a task: `target` and `task` are those of `submit_project`, `options` those of a sweep (`trials`, …).

        `distributions` are what parameters are tried with (``{"lr": "loguniform(1e-5, 1e-2)"}``); `parameters` stay the same.
        """

        def deliver(request: v1.TaskRequest) -> v1.SweepDetail:
            return self.start_sweep(v1.SweepRequest(task=request, parameters=dict(distributions or {}), **options))

        found: v1.SweepDetail = self.submit_project(target, deliver=deliver, **task)
        return found

    def start_sweep(self, request: v1.SweepRequest) -> v1.SweepDetail:
        """Start a sweep of code that is uploaded already."""
        return self._http.post(v1.SweepDetail, "/sweeps", request)

    def sweeps(self, *, limit: int = 100) -> list[v1.SweepView]:
        """One's own sweeps, newest first."""
        return self.sweep_page(limit=limit).sweeps

    def sweep_page(self, *, limit: int = 100, before: int | None = None) -> v1.SweepList:
        """One's own sweeps, newest first, with numbers smaller than `before`; its `next` is the `before` of the page after it."""
        query = {"limit": limit} | ({} if before is None else {"before": before})
        return self._http.get(v1.SweepList, "/sweeps", params=query)

    def sweep(self, sweep_id: int) -> v1.SweepDetail:
        """One sweep with its trials."""
        found: v1.SweepDetail = self._again(lambda: self._http.get(v1.SweepDetail, f"/sweeps/{sweep_id}"))
        return found

    def stop_sweep(self, sweep_id: int) -> v1.SweepDetail:
        """Start no more trials, and end those that run."""
        return self._http.post(v1.SweepDetail, f"/sweeps/{sweep_id}/stop")

    def resume_sweep(self, sweep_id: int, *, trials: int | None = None) -> v1.SweepDetail:
        """Go on with a sweep that was stopped or failed, or have more `trials` altogether."""
        return self._http.post(v1.SweepDetail, f"/sweeps/{sweep_id}/resume", v1.ResumeRequest(trials=trials))
