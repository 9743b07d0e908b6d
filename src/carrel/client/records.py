"""What explains jobs: their records and runs, what differs between them, and baselines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from carrel.client.replays import ReplayCalls
from carrel.client.transport import plain
from carrel.wire import v1

if TYPE_CHECKING:
    from carrel.client.transport import Transport


class RecordCalls(ReplayCalls):
    """The part of `Client` that asks why, runs records again, and compares with baselines."""

    _http: Transport

    def record(self, job_id: int) -> dict[str, Any]:
        """Everything needed to explain the job and to repeat it."""
        found: dict[str, Any] = plain(self._http.call("GET", f"/jobs/{job_id}/record"))
        return found

    def compare(self, *jobs: int | str) -> v1.ComparisonView:
        """What differs between the last attempts of two jobs or more, the most likely cause of other results first.

        "12:1" is the first attempt of job 12.
        """
        answer = self._http.call("GET", "/comparison", params={"job": [str(job) for job in jobs]})
        return v1.ComparisonView.model_validate(plain(answer))

    def compare_results(self, *jobs: int | str, tolerance: float = 0.0, ignore: Sequence[str] = ()) -> v1.ResultsView:
        """Whether the other jobs came to the results of the first: outputs by digest, metrics at all steps.

        `tolerance`: how far a metric's value may be from the first job's, by the larger of both. `ignore`: patterns of outputs
        and metrics that do not count.
        """
        asked = {"job": [str(job) for job in jobs], "tolerance": tolerance, "ignore": list(ignore)}
        return v1.ResultsView.model_validate(plain(self._http.call("GET", "/comparison/results", params=asked)))

    def verify(self, job_id: int, *repetitions: int, tolerance: float = 0.0, ignore: Sequence[str] = ()) -> v1.ResultsView:
        """Whether jobs that repeat a job of yours came to its results, as `compare_results`; the answer is kept with the job."""
        asked = v1.VerificationRequest(repetitions=list(repetitions), tolerance=tolerance, ignore=list(ignore))
        return self._http.post(v1.ResultsView, f"/jobs/{job_id}/verification", asked)

    def why(
        self, first: int | str, second: int | str, *, tolerance: float = 0.0, ignore: Sequence[str] = (), submit: bool = False
    ) -> v1.WhyView:
        """Where the search for the cause of different results stands: which facts of `second` bring its results to `first`.

        With `submit` the runs that are needed next are submitted as jobs of the caller's; asking twice submits nothing twice. The
        search is over when `answer` is not "".
        """
        asked = v1.ExplainRequest(first=str(first), second=str(second), tolerance=tolerance, ignore=list(ignore))
        path = "/comparison/why/runs" if submit else "/comparison/why"
        return v1.WhyView.model_validate(plain(self._http.call("POST", path, json=asked.model_dump())))

    def matrix(
        self,
        job_id: int,
        *,
        seeds: int = 3,
        cases: Sequence[str] = ("again", "device", "order"),
        metric: str = "",
        ignore: Sequence[str] = (),
        submit: bool = False,
    ) -> v1.MatrixView:
        """How far the results of a job move: under so many seeds, each run again in the ways of `cases` (`MatrixRequest`).

        With `submit` those runs are submitted that can be now, as jobs of the caller's; asking twice submits nothing twice. All
        are there when `done`.
        """
        asked = v1.MatrixRequest(seeds=seeds, cases=list(cases), metric=metric, ignore=list(ignore))
        path = f"/jobs/{job_id}/matrix" + ("/runs" if submit else "")
        return v1.MatrixView.model_validate(plain(self._http.call("POST", path, json=asked.model_dump())))

    def run_of(self, job_id: int, *, wait: int = 0) -> v1.RunView | None:
        """The run of a job; None while there is none, after `wait` seconds (30 at most)."""
        answer = self._http.call("GET", f"/jobs/{job_id}/run", params={"wait": wait})
        return None if answer.status_code == 202 else v1.RunView.model_validate_json(answer.content)

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
