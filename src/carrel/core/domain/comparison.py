"""Words of comparisons between attempts (`carrel.core.comparison`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a fact is about, in the order in which equally likely causes are listed."""

    PARAMETER = "parameter"
    LOGGED_PARAMETER = "logged parameter"
    COMMAND = "command"
    CODE = "code"
    INPUT = "input"
    VARIABLE = "variable"
    #: What decides how libraries compute: seeds, numbers of threads, switches.
    SETTING = "setting"
    RESOURCE = "resource"
    PACKAGE = "package"
    ENVIRONMENT = "environment"
    GPU = "gpu"
    MACHINE = "machine"
    INPUT_ADDRESS = "input address"
    ATTEMPT = "attempt"
    LIMIT = "limit"
    GIT = "git"
    PLACEMENT = "placement"
    LABEL = "label"
    METRIC = "metric"
    OUTPUT = "output"


class Cause(StrEnum):
    """How likely results differ by it."""

    LIKELY = "likely"
    POSSIBLE = "possible"
    UNLIKELY = "unlikely"
    #: It is a result itself.
    RESULT = "result"


class Agreement(StrEnum):
    """How far results agree."""

    #: All outputs by their digests, and all metrics at all steps.
    IDENTICAL = "identical"
    #: All outputs by their digests; metrics differ by no more than was allowed.
    WITHIN_TOLERANCE = "within tolerance"
    DIFFERENT = "different"
    #: Too little is known to say more: no result, or not of all of them.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What came of repeating a job, as its owner asked for it last."""

    #: Unix seconds, and the subject of who asked.
    at: float
    by: str
    #: The jobs that repeat it.
    repetitions: tuple[int, ...]
    agreement: Agreement
    outputs: int
    metrics: int
    tolerance: float
    ignored: tuple[str, ...] = ()
    #: The first step at which a metric is further away than allowed; None: there is none, or steps are not known.
    step: int | None = None

    @property
    def words(self) -> str:
        """In a few words: "bit-identical in 3 repetitions"."""
        count = f"{len(self.repetitions)} repetition{'' if len(self.repetitions) == 1 else 's'}"
        where = f", {', '.join(self.ignored)} apart" if self.ignored else ""
        match self.agreement:
            case Agreement.IDENTICAL:
                return f"bit-identical in {count}{where}"
            case Agreement.WITHIN_TOLERANCE:
                return f"equal within {self.tolerance:g} in {count}{where}"
            case Agreement.DIFFERENT:
                return f"different{'' if self.step is None else f' from step {self.step} on'} in {count}{where}"
        return f"not known, after {count}"
