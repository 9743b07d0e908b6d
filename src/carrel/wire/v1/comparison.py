"""What differs between attempts of jobs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from carrel.core.domain.comparison import Agreement, Cause, Kind
from carrel.wire.v1.base import Request, Response


class ComparedJob(Response):
    """One attempt that is compared, or a run that no job of the lab has made."""

    #: What it is called in the answer: "12", "12_3" in an array, "12:1" for an attempt that was named, "run:" of a run.
    label: str
    #: Of the job; 0: it is a run.
    id: int
    #: 0: it has had none.
    attempt: int
    name: str
    owner: str
    #: Of the job; "" of a run.
    state: str


class ComparedValue(Response):
    """What one attempt had."""

    #: "absent": it is known that it had none.
    known: Literal["value", "absent", "unknown"]
    #: The value, or why it is not known.
    text: str


class ChangeView(Response):
    """How a file differs from that of the first job."""

    #: Label of the job that has the changed file.
    job: str
    #: Lines.
    added: int
    removed: int
    #: As `diff -u` has them.
    hunks: list[str]
    #: Why there are none, or "".
    note: str


class DifferenceView(Response):
    """One thing that is known to differ."""

    #: Place in the list, from 1: the most likely cause of other results first, results last.
    rank: int
    kind: Kind
    #: Which parameter, file, package and so on; "" for the code as a whole.
    path: str
    #: Both for people: "parameter lr".
    what: str
    #: In the order of the jobs.
    values: list[ComparedValue]
    cause: Cause
    #: Why it stands there.
    evidence: str
    changes: list[ChangeView]


class NotKnownView(Response):
    """What cannot be compared, because a record lacks it: it may be equal or not."""

    kinds: list[Kind]
    #: "": everything of these kinds.
    path: str
    #: Labels.
    jobs: list[str]
    why: str


class ComparisonView(Response):
    """What differs between attempts."""

    jobs: list[ComparedJob]
    #: Whether results are known to differ, and what to look at first.
    summary: list[str]
    differences: list[DifferenceView]
    not_known: list[NotKnownView]


class ResultDifferenceView(Response):
    """A result that a job has otherwise than the first one."""

    kind: Kind
    #: The path of an output, the name of a metric.
    path: str
    #: Label of the job.
    job: str
    #: Of a metric: the first step at which it is further away than allowed; None where steps are not known.
    step: int | None
    #: What the first job has there, and this one.
    expected: str
    found: str


class ResultsView(Response):
    """Whether jobs came to the same results."""

    jobs: list[ComparedJob]
    #: Of the worst: "unknown" where too little is known to say more.
    agreement: Agreement
    #: How many outputs and metrics were compared.
    outputs: int
    metrics: int
    #: The largest distance of a metric's value from that of the first job, by the larger of both.
    distance: float
    #: In the order of steps.
    differences: list[ResultDifferenceView]
    #: A sentence for each thing that is not known.
    not_known: list[str]


class VerificationRequest(Request):
    """Jobs whose results are compared with those of the job that they repeat."""

    repetitions: list[int] = Field(min_length=1, max_length=7)
    #: How far a metric may be away, by the larger of both.
    tolerance: float = Field(default=0, ge=0, le=1)
    #: Patterns (`*`, `?`) of outputs and metrics that do not count.
    ignore: list[str] = Field(default=[], max_length=20)


class ExplainRequest(Request):
    """Which results are to be explained."""

    #: The job that is run again, and the one whose results it did not come to: "12", "12_3" in an array, "12:1" for an attempt.
    first: str
    second: str
    #: How far a metric may be away, by the larger of both.
    tolerance: float = Field(default=0, ge=0, le=1)
    #: Patterns (`*`, `?`) of outputs and metrics that do not count.
    ignore: list[str] = Field(default=[], max_length=20)


class CandidateView(Response):
    """Something that can be changed in the first job to what the second had."""

    #: What it is called in `found`.
    key: str
    #: For people: "package numpy".
    what: str
    before: str
    after: str
    cause: Cause
    #: In how many parts it can be changed: runs of lines of a file, files of an input.
    parts: int


class VariantView(Response):
    """One run: the first job with these changes."""

    #: None: it has not been submitted.
    job: int | None
    #: In words; nothing: the first job as it was, or, with `second`, the second.
    changes: list[str]
    second: bool
    #: Of the job; "" before it is submitted.
    state: str
    #: Whose results it came to; "": not known yet.
    results: Literal["", "first", "second", "others", "none"]
    #: Why it did not end well.
    message: str


class WhyView(Response):
    """Where the search for the cause stands."""

    jobs: list[ComparedJob]
    #: The likeliest first.
    candidates: list[CandidateView]
    #: What differs and cannot be changed, and what is not known: a sentence each.
    left: list[str]
    #: In the order in which they were needed.
    variants: list[VariantView]
    #: How the search ended: "explained", "in part", "elsewhere", "not deterministic", "not repeated", "failed"; "": it has not.
    answer: str
    #: Keys of the changes, or of parts of them, that were found.
    found: list[str]
    #: What was found, in sentences.
    told: list[str]
    #: How many runs a single cause needs at most, of how many seconds each, with how many GPUs.
    most_runs: int
    seconds: float
    gpus: int


class MatrixRequest(Request):
    """In which ways a job is run again."""

    #: Under so many seeds, from that of the job on.
    seeds: int = Field(default=3, ge=1, le=10)
    #: "again", "device" (without its GPUs, or with one where it has none), "order" (that of the next seed), "cpus=N".
    cases: list[str] = Field(default=["again", "device", "order"], max_length=8)
    #: The metric whose value at the end is shown, or an output: "outputs/metrics.json#/loss", a JSON Pointer (RFC 6901) behind
    #: its path. "": the first metric by name.
    metric: str = Field(default="", max_length=500)
    #: Patterns (`*`, `?`) of outputs and metrics that do not count.
    ignore: list[str] = Field(default=[], max_length=20)


class MatrixRowView(Response):
    """What came of a case. Values are of the metric at its end."""

    #: "seed": what the others are compared with.
    case: str
    title: str
    #: Runs that are COMPLETED, and how many there are.
    done: int
    runs: int
    #: Of those that could be compared with the run of the same seed, how many have its results to the last bit.
    identical: int
    compared: int
    #: By seed; None: not known.
    values: list[float | None]
    mean: float | None
    #: Sample standard deviation over seeds; None with fewer than two values.
    deviation: float | None
    #: How far a value is from that of the same seed, by the larger of both, at the most; of seeds, the two farthest.
    farthest: float | None
    #: Why there is nothing to say, or "".
    message: str


class MatrixRunView(Response):
    """One run."""

    case: str
    seed: int
    #: None: it has not been submitted.
    job: int | None
    #: Of the job; "" before it is submitted.
    state: str
    #: Why it cannot be, or did not end well.
    message: str


class MatrixView(Response):
    """Where the runs of a matrix stand, and what came of them."""

    job: int
    metric: str
    seeds: list[int]
    rows: list[MatrixRowView]
    runs: list[MatrixRunView]
    #: Why there are no values of the metric, and which metrics there are; "": there are values, or will be.
    message: str
    #: True: nothing is left to run.
    done: bool
    #: What one run took, as the job did: seconds, and GPUs.
    seconds: float
    gpus: int


class MetricView(Response):
    """One metric of a run. Values are texts, because JSON has no infinite numbers: "0.5", "nan"."""

    last: str
    #: None: they are too many to be read, or the metric is one of too many.
    steps: list[int] | None = None
    #: In the order of the steps.
    values: list[str] = Field(default_factory=list)


class MetricsView(Response):
    """What the tracking server has of a job's run."""

    #: By name.
    metrics: dict[str, MetricView] = Field(default_factory=dict)
    #: What the program has logged as its parameters.
    parameters: dict[str, str] = Field(default_factory=dict)
    #: Why nothing is known of it; "": it is.
    missing: str = ""
