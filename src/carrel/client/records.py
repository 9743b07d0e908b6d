"""What explains jobs: their records, and what differs between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from carrel.client.baselines import BaselineCalls
from carrel.client.replays import ReplayCalls
from carrel.client.transport import plain
from carrel.wire import v1

if TYPE_CHECKING:
    from carrel.client.transport import Transport


class RecordCalls(ReplayCalls, BaselineCalls):
    """The part of `Client` that asks why, and runs records again."""

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
