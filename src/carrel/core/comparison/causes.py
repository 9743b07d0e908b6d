"""Why a difference stands where it stands: how likely it is that results differ by it, and the evidence for that, in words.

The words say what is known ("the command runs it") and never that something is the cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from carrel.core.comparison.facts import Change, Known, Side, Value
from carrel.core.comparison.packages import normalised
from carrel.core.comparison.reach import Reach
from carrel.core.comparison.settings import setting_of
from carrel.core.domain.comparison import Cause, Kind
from carrel.core.domain.packages import INSTALLED_AS

#: Packages that compute numbers for others, and the beginnings of names of such.
_NUMERIC = frozenset(
    {"numpy", "scipy", "torch", "torchvision", "jax", "jaxlib", "tensorflow", "keras", "triton", "cupy", "numba", "mkl", "blas"}
    | {"openblas", "pandas", "xgboost", "lightgbm", "scikit-learn", "intel-openmp"}
)
_NUMERIC_BEGIN = ("nvidia-", "cuda", "cudnn", "cupy-", "libblas", "liblapack", "libopenblas", "mkl-", "jax-cuda", "pytorch")
_PROSE = (".md", ".rst", ".txt", ".gitignore", "LICENSE", "NOTICE", "CITATION.cff")
#: Facts of the machine by which libraries choose what they compute with.
_CHOSEN_BY = frozenset({"architecture", "cpu", "cpu_flags", "gpu_driver", "cuda", "blas", "libc"})

#: Variables of POSIX (Base Definitions, 8) that change what programs read and write.
_LOCALE = frozenset({"LANG", "LANGUAGE", "TZ", "PATH"})

_SAME_CODE, _OTHER_CODE = "The code itself is the same, by its digest.", "The files are compared by themselves."


@dataclass(frozen=True, slots=True)
class Judgement:
    """Where a difference stands."""

    cause: Cause
    evidence: str
    #: Among equally likely ones of a kind, lower ones first.
    order: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the judgement of one difference may look at."""

    sides: Sequence[Side]
    reaches: Sequence[Reach]
    #: Paths that differ, by kind.
    differ: Mapping[Kind, frozenset[str]]
    changes: Mapping[str, Sequence[Change]]

    def equal(self, kind: Kind, path: str) -> bool:
        """True when it is known of all attempts, and the same."""
        values = {side.value(kind, path) for side in self.sides}
        return len(values) == 1 and next(iter(values)).known is Known.VALUE


def judge(kind: Kind, path: str, values: Sequence[Value], context: Context) -> Judgement:
    """Return where the difference stands, and why."""
    match kind:
        case Kind.CODE:
            return _code(path, context)
        case Kind.PACKAGE:
            return _package(path, context)
        case Kind.SETTING:
            setting = setting_of(path)
            return Judgement(setting.cause, setting.evidence)
        case Kind.VARIABLE:
            return _variable(path, context)
        case Kind.INPUT if path.endswith((*_PROSE, "README")):
            return replace(_PLAIN[kind], order=1)
        case Kind.RESOURCE:
            return _resource(path)
        case Kind.MACHINE if path in _CHOSEN_BY:
            return Judgement(Cause.POSSIBLE, "Numeric libraries choose by it how they compute; the last digits may differ.")
        case Kind.ATTEMPT:
            return _course(path, values)
        case Kind.LIMIT:
            return _limit(path, context)
        case Kind.GIT:
            return Judgement(
                Cause.UNLIKELY, _SAME_CODE if context.equal(Kind.CODE, "") else "The files are compared by themselves."
            )
        case Kind.INPUT_ADDRESS:
            return _address(path, context)
        case Kind.PLACEMENT:
            return _placement(path, context)
        case Kind.ENVIRONMENT:
            return _environment(path, context)
    if kind in (Kind.LOGGED_PARAMETER, Kind.METRIC, Kind.OUTPUT) and any(value.known is Known.ABSENT for value in values):
        # What only some programs log or write follows from other code, or from an early end.
        return Judgement(Cause.POSSIBLE if kind is Kind.LOGGED_PARAMETER else Cause.RESULT, "Not all of them have it.", 1)
    return _PLAIN[kind]


_PLAIN: Mapping[Kind, Judgement] = {
    Kind.PARAMETER: Judgement(Cause.LIKELY, "The command was given another value."),
    Kind.LOGGED_PARAMETER: Judgement(Cause.LIKELY, "The program logged it as a parameter of its run."),
    Kind.COMMAND: Judgement(Cause.LIKELY, "Something else was run, or elsewhere in the code."),
    Kind.INPUT: Judgement(Cause.LIKELY, "The content of an input differs, by its digest."),
    Kind.GPU: Judgement(Cause.POSSIBLE, "On another type of GPU libraries choose other algorithms, and add in another order."),
    Kind.MACHINE: Judgement(Cause.UNLIKELY, "Programs seldom compute something else by it."),
    Kind.LABEL: Judgement(Cause.UNLIKELY, "A name for people; only a program that reads it would do something else."),
    Kind.METRIC: Judgement(Cause.RESULT, "The last values differ."),
    Kind.OUTPUT: Judgement(Cause.RESULT, "The contents differ, by their digests."),
}


def _code(path: str, context: Context) -> Judgement:
    if path == "":
        return Judgement(Cause.LIKELY, "The code differs; in which files is not known.")
    runs = [reach.runs[path] for reach in context.reaches if path in reach.runs]
    changes = context.changes.get(path, ())
    if changes and all(not change.note and _only_remarks(change.hunks) for change in changes) and path.endswith(".py"):
        return Judgement(Cause.UNLIKELY, "Only lines that are empty or begin with # differ.", 1)
    if runs:
        why = min(runs, key=lambda why: (not why.startswith("the command"), why))
        direct = why.startswith("the command")
        return Judgement(Cause.LIKELY, (why.capitalize() if direct else why) + ".", 0 if direct else 1)
    named = sorted(reach.named[path] for reach in context.reaches if path in reach.named)
    if named:
        return Judgement(Cause.LIKELY, f"{named[0]}, which the command reaches, names it.", 2)
    if not any(reach.runs for reach in context.reaches):
        return Judgement(Cause.POSSIBLE, "The command names no file of the code, so what it runs is not known.")
    prose = path.endswith(_PROSE)
    return Judgement(Cause.UNLIKELY, "Neither the command nor what it imports names this file.", 2 if prose else 0)


def _only_remarks(hunks: Sequence[str]) -> bool:
    lines = [line[1:].strip() for hunk in hunks for line in hunk.splitlines()[1:] if line[:1] in "+-"]
    return all(not line or line.startswith("#") for line in lines)


def _package(path: str, context: Context) -> Judgement:
    imported = sorted(by for reach in context.reaches for module, by in reach.modules.items() if _distribution(module) == path)
    if imported:
        return Judgement(Cause.LIKELY, f"{imported[0]} imports it.")
    if path in _NUMERIC or path.startswith(_NUMERIC_BEGIN):
        return Judgement(Cause.POSSIBLE, "Other packages compute with it.")
    return Judgement(Cause.POSSIBLE, "No file that the command reaches imports it by this name; other packages may.", 1)


def _distribution(module: str) -> str:
    return normalised(INSTALLED_AS.get(module, module))


def _environment(path: str, context: Context) -> Judgement:
    if path == "python":
        return Judgement(Cause.POSSIBLE, "Another Python runs the program.")
    if path == "image":
        return Judgement(Cause.LIKELY, "It runs in another image; what is in it is not compared.")
    if context.differ.get(Kind.PACKAGE):
        return Judgement(Cause.UNLIKELY, "The packages are compared by themselves.")
    return Judgement(Cause.POSSIBLE, "No version differs that is known: builds, sources or hashes do.", 1)


def _variable(path: str, context: Context) -> Judgement:
    files = sorted(reach.variables[path] for reach in context.reaches if path in reach.variables)
    if files:
        return Judgement(Cause.LIKELY, f"The task sets this environment variable, and {files[0]} names it.")
    if path in _LOCALE or path.startswith(("LC_", "PYTHON")):
        return Judgement(Cause.LIKELY, "Python and the system's libraries read this environment variable.", 1)
    return Judgement(Cause.LIKELY, "The task sets this environment variable.", 2)


def _resource(path: str) -> Judgement:
    if path in ("nodes", "gpus", "processes on each node", "launcher"):
        return Judgement(Cause.POSSIBLE, "Programs divide their work by it.")
    if path in ("cpus", "gpu_type", "network"):
        return Judgement(Cause.POSSIBLE, "Programs may do something else by it.", 1)
    return Judgement(Cause.UNLIKELY, "It limits what fits; programs seldom compute something else by it.")


def _course(path: str, values: Sequence[Value]) -> Judgement:
    if path == "number":
        return Judgement(Cause.POSSIBLE, "A later attempt may go on from what an earlier one left.")
    if path == "suspended":
        return Judgement(Cause.UNLIKELY, "It stood still for a while, and went on with the same state.")
    if path == "state" and any(value.text == "COMPLETED" for value in values):
        return Judgement(Cause.RESULT, "What did not complete may lack results.")
    if path == "run time":
        return Judgement(Cause.RESULT, "It differs between any two runs.", 2)
    return Judgement(Cause.RESULT, "How it ended.", 1)


def _limit(path: str, context: Context) -> Judgement:
    reached = [side.label for side in context.sides if side.value(Kind.ATTEMPT, "state").text == "TIMEOUT"]
    if path == "walltime" and reached:
        return Judgement(Cause.LIKELY, f"{', '.join(sorted(reached))} reached it.")
    return Judgement(Cause.UNLIKELY, "None of them is known to have been ended by it.")


def _address(path: str, context: Context) -> Judgement:
    if context.equal(Kind.INPUT, path):
        return Judgement(Cause.UNLIKELY, "The content is the same, by its digest.")
    below = any(at == path or at.startswith(f"{path}/") for at in context.differ.get(Kind.INPUT, ()))
    return Judgement(Cause.UNLIKELY if below else Cause.POSSIBLE, "Its content is compared by itself.")


def _placement(path: str, context: Context) -> Judgement:
    if path in ("node", "slurm_nodes"):
        if context.differ.get(Kind.GPU) or context.differ.get(Kind.MACHINE, frozenset()) & _CHOSEN_BY:
            return Judgement(Cause.UNLIKELY, "What differs between the nodes is listed by itself.")
        return Judgement(Cause.UNLIKELY, "Another node; what is known of its GPUs and processors does not differ.")
    if path.startswith("gpu_"):
        if context.equal(Kind.GPU, path):
            return Judgement(Cause.UNLIKELY, "Another GPU of the same type.")
        return Judgement(Cause.UNLIKELY, "The type of the GPU is compared by itself.")
    return Judgement(Cause.UNLIKELY, "Where it ran; the machines are compared by themselves.")
