"""The runs of jobs on the tracking server."""

from __future__ import annotations

from carrel.client.transport import Transport
from carrel.wire import v1


class RunCalls:
    """The part of a `carrel.Client` that is about runs."""

    _http: Transport

    def run_of(self, job_id: int, *, wait: int = 0) -> v1.RunView | None:
        """The run of a job; None while there is none, after `wait` seconds (30 at most)."""
        answer = self._http.call("GET", f"/jobs/{job_id}/run", params={"wait": wait})
        return None if answer.status_code == 202 else v1.RunView.model_validate_json(answer.content)
