"""The part of a client that is about baselines of projects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from carrel.wire import v1

if TYPE_CHECKING:
    from carrel.client.transport import Transport


class BaselineCalls:
    """The part of a `carrel.Client` that is about baselines."""

    _http: Transport

    def baselines(self, *, everybody: bool = False) -> list[v1.BaselineView]:
        """One's own baselines, or everybody's (administrators), each with what its last calibration came to."""
        return self._http.get(v1.BaselineList, "/baselines", params={"owner": "all" if everybody else "me"}).baselines

    def set_baseline(
        self, job_id: int, *, project: str | None = None, tolerance: float = 0.0, ignore: Sequence[str] = ()
    ) -> v1.BaselineView:
        """Make a job of one's own the baseline of a project: of one's jobs of that name, by default of the job's own name.

        `tolerance` and `ignore` are those of `compare_results`. An earlier baseline of the project is replaced.
        """
        asked = v1.BaselineRequest(job=job_id, project=project, tolerance=tolerance, ignore=list(ignore))
        return self._http.post(v1.BaselineView, "/baselines", asked)

    def baseline(self, baseline_id: int) -> v1.BaselineTable:
        """How the last 50 later jobs of the project are beside its baseline, newest last."""
        return self._http.get(v1.BaselineTable, f"/baselines/{baseline_id}")

    def remove_baseline(self, baseline_id: int) -> None:
        """Forget a baseline of one's own. Jobs stay as they are."""
        self._http.call("DELETE", f"/baselines/{baseline_id}")

    def calibrate(self, baseline_id: int, *, fresh: bool = False) -> v1.CalibrationView:
        """Run a baseline again, as a job of one's own: with its lock, or with its environment resolved anew.

        Until one has asked what came of it (`calibration`), it gives the same job again.
        """
        asked = v1.CalibrationRequest(fresh=fresh)
        return self._http.post(v1.CalibrationView, f"/baselines/{baseline_id}/calibrations", asked)

    def calibration(self, baseline_id: int, job_id: int) -> v1.CalibrationView:
        """What came of it; its `outcome` is empty until the job has ended."""
        return self._http.get(v1.CalibrationView, f"/baselines/{baseline_id}/calibrations/{job_id}")
