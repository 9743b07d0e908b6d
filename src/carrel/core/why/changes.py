"""From differences between two attempts to changes that can be made to the first one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from carrel.core.comparison import Cause, Difference, Kind
from carrel.core.comparison.compare import what_of
from carrel.core.comparison.facts import Known
from carrel.core.comparison.line_diff import LineChange
from carrel.core.comparison.settings import DETERMINISTIC, is_thread_count
from carrel.core.why.search import Weighted

#: Changes of which there is one at most.
COMMAND, ENVIRONMENT, PYTHON, GPU, WALLTIME = "command", "environment", "environment:python", "gpu", "limit:walltime"
#: Between the key of a file and the number of a run of lines in it.
LINES = "#"
#: How much more likely one is than another. Only their proportions matter: they decide how halves are cut.
_WEIGHTS = {Cause.LIKELY: 100.0, Cause.POSSIBLE: 10.0, Cause.UNLIKELY: 1.0}
#: Files of an input that are tried one by one, and runs of lines of a file.
MOST_PARTS = 500
_IN_WORDS = {COMMAND: "the command", ENVIRONMENT: "the environment", GPU: "the type of GPU"}
#: What follows from something else in the list, or is a name that changes nothing by itself.
_FOLLOWS = frozenset({Kind.LOGGED_PARAMETER, Kind.GIT, Kind.LABEL, Kind.ATTEMPT})
_CANNOT: Mapping[Kind, str] = {
    Kind.MACHINE: "A run cannot be told which machine it gets.",
    Kind.PLACEMENT: "A run cannot be told where it is placed.",
    Kind.LIMIT: "A run cannot be told to have it.",
}
_CODE_UNKNOWN = "The code of both has to be yours, and kept."


@dataclass(frozen=True, slots=True)
class Part:
    """A change in parts: some lines of a file, one file of an input."""

    key: str
    #: For people: "line 12 of train.py".
    what: str
    path: str
    #: What both have there, where that is short.
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that can be changed in the first attempt to what the second had."""

    key: str
    kind: Kind
    path: str
    what: str
    #: What both had, in words.
    before: str
    after: str
    cause: Cause
    parts: tuple[Part, ...] = ()
    #: Further paths of the kind that change with it.
    also: tuple[str, ...] = ()

    @property
    def weighted(self) -> Weighted:
        """As the search takes it."""
        return Weighted(self.key, _WEIGHTS[self.cause], tuple(part.key for part in self.parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What is known of how both attempts can be put together."""

    #: The code of both can be read by whoever asks.
    code: bool
    #: Packages can be changed one by one.
    packages: bool
    #: Places of inputs: an input's own, of both tasks.
    inputs: Sequence[str]
    #: Of those that are directories with files of their own in both, at addresses that can name one of them.
    directories: Sequence[str]
    #: Lines of a file that differ; None: it has no lines, or too many.
    lines: Callable[[str], Sequence[LineChange] | None]
    #: Variables that the tasks themselves set.
    variables: frozenset[str]
    #: Something in the commands differs that no parameter explains.
    command: bool
    #: Why a run cannot be told to have the other's type of GPU, where both had GPUs; "": it can.
    gpu: str = ""


def changes_of(
    differences: Sequence[Difference], material: Material
) -> tuple[tuple[Change, ...], tuple[tuple[Difference, str], ...]]:
    """Return what can be changed, the likeliest first, and what cannot, with the reason."""
    found: dict[str, Change] = {}
    left: list[tuple[Difference, str]] = []
    parameters = {one.path for one in differences if one.kind is Kind.PARAMETER}
    switched = any(one.kind is Kind.SETTING and one.path == DETERMINISTIC for one in differences)
    for one in differences:
        if one.cause is Cause.RESULT or one.kind in _FOLLOWS:
            continue
        key, path, why = _changed(one, material, parameters, switched)
        if key is None:
            if why:
                left.append((one, why))
            continue
        known = found.get(key)
        if known is not None:
            found[key] = _joined(known, one)
            continue
        # Of several things that change together, those of the one that names them are shown, or none.
        before, after = _texts(one) if path in (one.path, "") else ("", "")
        what = one.what if path == one.path else what_of(one.kind, path)
        found[key] = Change(
            key=key, kind=one.kind, path=path, what=_IN_WORDS.get(key, what), before=before, after=after,
            cause=one.cause, parts=_parts(key, one.kind, path, differences, material),
            also=(one.path,) if one.kind is Kind.SETTING and path != one.path else (),
        )  # fmt: skip
    return tuple(found.values()), tuple(left)


def key_of(kind: Kind, path: str) -> str:
    """The key of a change that is one of several of a kind."""
    return f"{kind.value}:{path}"


def parameter_place(place: str) -> str:
    """The parameter to which the place of a path belongs (``inputs/<parameter>/…``), or ""."""
    parts = place.split("/")
    return parts[1] if len(parts) > 2 and parts[0] == "inputs" else ""


def _joined(known: Change, one: Difference) -> Change:
    """A change with one more thing that changes with it."""
    likelier = min(known.cause, one.cause, key=list(Cause).index)
    if one.kind is known.kind and one.path == known.path:
        before, after = _texts(one)
        return replace(known, cause=likelier, what=one.what, before=before, after=after)
    return replace(known, cause=likelier, also=(*known.also, one.path) if one.kind is Kind.SETTING else known.also)


def _texts(one: Difference) -> tuple[str, str]:
    before, after = (value.text if value.known is Known.VALUE else value.known.value for value in one.values)
    return before, after


def _changed(one: Difference, material: Material, parameters: set[str], switched: bool) -> tuple[str | None, str, str]:
    """The change's key and path; or None, and why it cannot be made, or "" where it says nothing by itself."""
    kind, path = one.kind, one.path
    match kind:
        case Kind.COMMAND:
            return (None, path, "") if path == "entry point" or not material.command else (COMMAND, "", "")
        case Kind.CODE:
            known = bool(path) and material.code
            return (key_of(kind, path), path, "") if known else (None, path, _CODE_UNKNOWN)
        case Kind.INPUT | Kind.INPUT_ADDRESS:
            return _input(path, material, parameters)
        case Kind.SETTING if switched and path not in material.variables and not is_thread_count(path):
            return key_of(kind, DETERMINISTIC), DETERMINISTIC, ""  # the mode sets it
        case Kind.PARAMETER | Kind.VARIABLE | Kind.SETTING | Kind.RESOURCE:
            return key_of(kind, path), path, ""
        case Kind.PACKAGE if material.packages:
            return key_of(kind, path), path, ""
        case Kind.ENVIRONMENT if path == "python" and material.packages:
            return PYTHON, path, ""
        case Kind.PACKAGE | Kind.ENVIRONMENT:
            return ENVIRONMENT, "", ""
        case Kind.GPU if any(value.known is Known.ABSENT for value in one.values):
            return None, path, ""  # it follows from their number
        case Kind.GPU:
            return (None, path, material.gpu) if material.gpu else (GPU, "", "")
        case Kind.LIMIT if path == "walltime":
            return WALLTIME, path, ""
    return None, path, _CANNOT.get(kind, "A run cannot be told to have it.")


def _input(path: str, material: Material, parameters: set[str]) -> tuple[str | None, str, str]:
    place = max((at for at in material.inputs if path == at or path.startswith(f"{at}/")), key=len, default="")
    if parameter_place(place or path) in parameters:
        return key_of(Kind.PARAMETER, parameter_place(place or path)), parameter_place(place or path), ""
    if not place:
        return None, path, "Its address cannot be given to a run."
    return key_of(Kind.INPUT, place), place, ""


def _parts(key: str, kind: Kind, path: str, differences: Sequence[Difference], material: Material) -> tuple[Part, ...]:
    if kind is Kind.CODE:
        lines = material.lines(path) or ()
        parts = [_of_lines(f"{key}{LINES}{number}", path, change) for number, change in enumerate(lines, start=1)]
    elif kind is Kind.INPUT and path in material.directories:
        inside = [one.path for one in differences if one.kind is Kind.INPUT and one.path.startswith(f"{path}/")]
        parts = [Part(key_of(Kind.INPUT, place), f"input {place}", place) for place in inside]
    else:
        parts = []
    return tuple(parts) if len(parts) <= MOST_PARTS else ()


def _of_lines(key: str, path: str, change: LineChange) -> Part:
    last = change.at + max(1, len(change.new)) - 1
    what = f"line {change.at} of {path}" if last == change.at else f"lines {change.at} to {last} of {path}"
    if len(change.old) > 1 or len(change.new) > 1:
        return Part(key, what, path)
    before, after = ("".join(lines).strip() or "nothing" for lines in (change.old, change.new))
    return Part(key, what, path, before, after)
