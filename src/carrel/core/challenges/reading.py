"""Reading `challenge.yaml`: every fault is told with its line and the nearest key."""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from itertools import pairwise
from typing import TypeVar, get_args
from zoneinfo import ZoneInfo

from carrel.core.domain.challenge import (
    FILE,
    PREDICTIONS,
    BoardRule,
    ChallengeSpec,
    Choice,
    Column,
    Final,
    Ladder,
    Limits,
    OwnLog,
    Phase,
    Split,
)
from carrel.core.domain.challenge_sample import Sampling
from carrel.core.domain.errors import Invalid
from carrel.core.domain.suggest import suggest
from carrel.core.domain.units import MIB, format_size, parse_size
from carrel.core.tasks.document import Value, read_yaml

T = TypeVar("T")

KEYS = (
    *("name", "title", "pages", "rules", "data", "ingestion", "scoring", "starter", "baselines", "phases", "board", "limits"),
    *("teams", "feedback", "zone", "organisers", "qos", "account"),
    *("ladder", "steps", "log"),
    *("asks", "intervals", "predictions"),
)
_LIMITS = ("per_day", "total", "at_once", "failures_per_day")
#: This one is no whole number.
_GPU_HOURS = "gpu_hours"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
#: What a split cannot be called: it is what participants see.
_TRAIN = "train"
#: How it is shown where it cannot be copied.
_SAMPLING = ("copy", "samples_per_day", "largest_sample")
#: The part of it on which teams try their code.
_TRY = "try"
#: Bytes of a line that a team is shown.
_MOST_FEEDBACK = 1000
#: Bytes of its own log that a team is shown.
_MOST_LOG = 64 * 1024
#: Submissions of a team that go on to a final.
_MOST_FINALS = 10
#: What no interval can be narrower than.
_LEAST_LEVEL = 0.5
#: Digits that a score can have: what a float has.
_MOST_DIGITS = 15
#: Bytes of a file of training data that a team is shown, where it cannot copy them.
_MOST_SAMPLE = 16 * MIB
#: Answers to choose from where people are asked something at joining, and characters of one.
_MOST_ANSWERS, _LONGEST_ANSWER = 30, 60


def read_challenge(text: str, paths: Collection[str] | None) -> ChallengeSpec:
    """Return what `challenge.yaml` says; `paths` are all files of the directory that it lies in. None: they were checked before.

    Raises `Invalid` for a key that there is not, for a value that cannot be, and for a file that is named and is not there.
    """
    top = read_yaml(text, FILE)
    said = top.mapping(KEYS)

    def needed(key: str) -> Value:
        if key not in said or said[key].empty:
            raise top.wrong(f'"{key}" is missing.', f"Write {key}: beside the other keys.")
        return said[key]

    def one(key: str, read: Callable[[Value], T], default: T) -> T:
        return read(said[key]) if key in said and not said[key].empty else default

    def directory(value: Value) -> str:
        return _there(value, paths, directory=True)

    def file(value: Value) -> str:
        return _there(value, paths, directory=False)

    data = needed("data").mapping()
    splits = {name: _split(value, directory) for name, value in data.items() if name not in (_TRAIN, _TRY)}
    if not splits:
        raise needed("data").wrong("no split has an input and a reference.", "Write public: {input: …, reference: …}.")
    limits = _limits(said["limits"], Limits()) if "limits" in said else Limits()
    phases = tuple(_phase(value, splits, limits, _zone(said.get("zone"))) for value in needed("phases").items())
    _check_phases(needed("phases"), phases)
    board = tuple(_column(value) for value in needed("board").items())
    if len({column.column for column in board}) != len(board) or not board:
        raise needed("board").wrong("each column is named once, and there is at least one.")
    teams = said["teams"].mapping(("largest", "merge_until")) if "teams" in said else {}
    spec = ChallengeSpec(
        name=_matching(needed("name"), _NAME, "lower-case letters, digits and -"),
        title=needed("title").text(),
        pages={title: file(value) for title, value in needed("pages").mapping().items()},
        rules=one("rules", file, ""),
        train=_train(data[_TRAIN], directory) if _TRAIN in data else "",
        splits=splits,
        ingestion=directory(needed("ingestion")),
        scoring=directory(needed("scoring")),
        starter=one("starter", directory, ""),
        baselines=one(
            "baselines", lambda value: {_matching_key(name, it): directory(it) for name, it in value.mapping().items()}, {}
        ),
        phases=phases,
        board=board,
        largest_team=_number(teams["largest"], least=1) if "largest" in teams else 5,
        feedback=one("feedback", lambda value: _number(value, most=_MOST_FEEDBACK), 0),
        zone=one("zone", Value.text, "UTC"),
        organisers=one("organisers", lambda value: tuple(item.text() for item in value.items()), ()),
        qos=one("qos", Value.text, ""),
        account=one("account", Value.text, ""),
        ladder=one("ladder", lambda value: _ladder(value, board[0], phases), None),
        log=one("log", lambda value: _log(value, splits), None),
        step=one("steps", lambda value: _steps(value)[0], 0),
        one_end=one("steps", lambda value: _steps(value)[1], False),
        merge_until=_moment(teams["merge_until"], _zone(said.get("zone"))) if "merge_until" in teams else None,
        asks=one("asks", _asks, {}),
        intervals=one("intervals", _level, 0.0),
        predictions=one("predictions", _size, PREDICTIONS),
        dry_run=_dry_run(data, directory) if _TRY in data else None,
        sampling=_sampling(data[_TRAIN]) if _TRAIN in data else None,
    )
    if spec.sampling and spec.dry_run:
        raise data[_TRY].wrong("a dry run shows teams its data, and these they may not copy.", "Leave try out, or copy: false.")
    _check_apart(spec, lambda key: said.get(key, top))
    if spec.one_end and spec.feedback:
        raise said["feedback"].wrong("with one_end teams are not told why the ingestion refuses code.", "Leave one of them out.")
    return spec


def _check_apart(spec: ChallengeSpec, where: Callable[[str], Value]) -> None:
    """Raise `Invalid` where what participants, or the programs that run their code, are shown holds inputs or references."""
    hidden = [path for split in spec.splits.values() for path in (split.input, split.reference)]
    shown = {
        "data": [spec.train],  # single files of them, where they cannot be copied
        "starter": [spec.starter],
        "ingestion": [spec.ingestion],
        "scoring": [spec.scoring],
        "baselines": [*spec.baselines.values()],
        "pages": [*spec.pages.values()],
        "rules": [spec.rules],
    }
    for key, paths in shown.items():
        for path in filter(None, paths):
            for secret in [*hidden, *([spec.train] if spec.sampling and key != "data" else [])]:
                if _inside(path, secret) or _inside(secret, path):
                    raise where(key).wrong(
                        f'"{path}" and "{secret}" lie in one another: what is shown must not hold what is hidden.',
                        "Put them into directories beside each other.",
                    )


def _split(value: Value, directory: Callable[[Value], str]) -> Split:
    said = value.mapping(("input", "reference"))
    for key in ("input", "reference"):
        if key not in said:
            raise value.wrong(
                f'the split has no "{key}".', "The ingestion program sees its input, the scoring program its reference."
            )
    split = Split(input=directory(said["input"]), reference=directory(said["reference"]))
    if _inside(split.reference, split.input) or _inside(split.input, split.reference):
        raise value.wrong(
            "one of its directories lies in the other.", "What the ingestion program sees must not hold the references."
        )
    return split


def _dry_run(data: Mapping[str, Value], directory: Callable[[Value], str]) -> Split:
    found = _split(data[_TRY], directory)
    train = _train(data[_TRAIN], directory) if _TRAIN in data else ""
    for path in (found.input, found.reference):
        if not train or not _inside(path, train):
            raise data[_TRY].wrong(
                f'"{path}" is not in the training data, and teams see all of it.', "Put it into the directory of train."
            )
    return found


def _train(value: Value, directory: Callable[[Value], str]) -> str:
    said = value.mapping(("path", *_SAMPLING))
    if "path" not in said:
        raise value.wrong('"path" is missing.', "Write train: {path: data/train}.")
    return directory(said["path"])


def _sampling(value: Value) -> Sampling | None:
    said, usual = value.mapping(("path", *_SAMPLING)), Sampling()
    if "copy" not in said or said["copy"].truth():
        for key in _SAMPLING[1:]:
            if key in said:
                raise said[key].wrong("single files are shown of data that cannot be copied.", "Write copy: false, too.")
        return None
    largest = _size(said["largest_sample"]) if "largest_sample" in said else usual.largest
    if not 0 < largest <= _MOST_SAMPLE:
        raise said["largest_sample"].wrong(
            f"largest_sample is {format_size(largest)}.", f"Write up to {format_size(_MOST_SAMPLE)}."
        )
    per_day = _number(said["samples_per_day"], most=10_000) if "samples_per_day" in said else usual.per_day
    return Sampling(per_day=per_day, largest=largest)


def _phase(value: Value, splits: Mapping[str, Split], limits: Limits, zone: ZoneInfo) -> Phase:
    said = value.mapping(("name", "begin", "end", "split", *_LIMITS, _GPU_HOURS, "final", "board"))
    for key in ("name", "begin", "end", "split"):
        if key not in said:
            raise value.wrong(f'the phase has no "{key}".')
    split = said["split"].text()
    if split not in splits:
        raise said["split"].wrong(f'there is no split "{split}".', suggest(split, tuple(splits), what="Splits"))
    phase = Phase(
        name=_matching(said["name"], _NAME, "lower-case letters, digits and -"),
        begin=_moment(said["begin"], zone),
        end=_moment(said["end"], zone),
        split=split,
        limits=_limits(value, limits, said),
        final=_final(said["final"]) if "final" in said else None,
        board=_board_rule(said["board"]) if "board" in said else "shown",
    )
    if phase.end <= phase.begin:
        raise said["end"].wrong(f'the phase "{phase.name}" ends before it begins.')
    return phase


def _check_phases(value: Value, phases: tuple[Phase, ...]) -> None:
    if not phases:
        raise value.wrong("there is no phase.", "Write at least one.")
    if len({phase.name for phase in phases}) != len(phases):
        raise value.wrong("two phases have the same name.")
    for before, after in pairwise(phases):
        if after.begin < before.end:
            raise value.wrong(f'the phase "{after.name}" begins before "{before.name}" ends.', "Write them in their order.")
    for number, (phase, where) in enumerate(zip(phases, value.items(), strict=True)):
        sources = [one.name for one in phases[:number] if one.final is None]
        if phase.final is not None and phase.final.source not in sources:
            wrong = where.mapping()["final"].mapping()["from"]
            raise wrong.wrong(
                f'"{phase.final.source}" is no earlier phase to which teams send.',
                suggest(phase.final.source, sources, what="Phases"),
            )


def _limits(value: Value, usual: Limits, said: Mapping[str, Value] | None = None) -> Limits:
    said = value.mapping((*_LIMITS, _GPU_HOURS)) if said is None else said
    asked = {key: _number(said[key], least=1) for key in _LIMITS if key in said}
    hours = _hours(said[_GPU_HOURS]) if _GPU_HOURS in said else usual.gpu_hours
    return Limits(**{key: asked.get(key, getattr(usual, key)) for key in _LIMITS}, gpu_hours=hours)


def _hours(value: Value) -> float:
    text = value.text()
    if not re.fullmatch(r"[0-9]{1,7}(\.[0-9]{1,2})?", text) or not float(text):
        raise value.wrong(f'{value.key} is "{text[:60]}".', "Write hours, as in 20 or 0.5.")
    return float(text)


def _final(value: Value) -> Final:
    said = value.mapping(("from", "choose", "number"))
    if "from" not in said:
        raise value.wrong('the final has no "from".', "Name the phase whose submissions go on: {from: development}.")
    choose, ways = said["choose"].text() if "choose" in said else Choice.BEST.value, tuple(Choice)
    if choose not in ways:
        raise said["choose"].wrong(f'choose is "{choose[:60]}".', suggest(choose, ways, what="Ways"))
    number = _number(said["number"], least=1, most=_MOST_FINALS) if "number" in said else 1
    return Final(source=said["from"].text(), choose=Choice(choose), number=number)


def _column(value: Value) -> Column:
    said = value.mapping(("column", "title", "better", "precision", "range"))
    if "column" not in said:
        raise value.wrong('it has no "column".', "Name the key that the scoring program writes.")
    name = _matching(said["column"], _COLUMN, "letters, digits and _")
    better = said["better"].text() if "better" in said else "larger"
    if better not in ("larger", "smaller"):
        raise said["better"].wrong(f'better is "{better}".', "Write larger or smaller.")
    return Column(
        column=name,
        title=said["title"].text() if "title" in said else name,
        larger=better == "larger",
        precision=_number(said["precision"], most=_MOST_DIGITS) if "precision" in said else 3,
        range=_range(said["range"]) if "range" in said else None,
    )


def _asks(value: Value) -> Mapping[str, tuple[str, ...]]:
    found = {_matching_key(name, it): tuple(one.text() for one in it.items()) for name, it in value.mapping().items()}
    for name, answers in found.items():
        if not 2 <= len(answers) <= _MOST_ANSWERS or any(len(one) > _LONGEST_ANSWER for one in answers):
            raise value.wrong(
                f'"{name}" has {len(answers)} answers to choose from.',
                f"Write 2 to {_MOST_ANSWERS}, of at most {_LONGEST_ANSWER} characters.",
            )
    return found


def _board_rule(value: Value) -> BoardRule:
    rules = get_args(BoardRule)
    found = next((rule for rule in rules if rule == value.text()), None)
    if found is None:
        raise value.wrong(f'board is "{value.text()[:60]}".', suggest(value.text(), rules, what="Rules"))
    return found  # type: ignore[no-any-return]


def _level(value: Value) -> float:
    try:
        level = float(value.text())
    except ValueError:
        level = 0.0
    if not _LEAST_LEVEL <= level < 1:
        raise value.wrong(f"intervals is {value.text()[:60]}.", f"Write a level from {_LEAST_LEVEL} to 0.999: 0.95.")
    return level


def _number(value: Value, *, least: int = 0, most: int = 1_000_000) -> int:
    number = value.integer()
    if not least <= number <= most:
        raise value.wrong(f"{value.key} is {number}.", f"Write {least} to {most}.")
    return number


def _zone(value: Value | None) -> ZoneInfo:
    name = "UTC" if value is None else value.text()
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        assert value is not None
        raise value.wrong(f'there is no zone "{name}".', 'Write one of the tz database: "Europe/Berlin".') from None


def _moment(value: Value, zone: ZoneInfo) -> float:
    text = value.text()
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise value.wrong(f'"{text}" is not a date.', "Write 2026-12-01, or 2026-12-01 18:00, in the challenge's zone.") from None
    return (found if found.tzinfo else found.replace(tzinfo=zone)).timestamp()


def _size(value: Value) -> int:
    try:
        return parse_size(value.text())
    except Invalid as error:
        raise value.wrong(error.message, error.remedy) from None


def _matching(value: Value, pattern: re.Pattern[str], allowed: str) -> str:
    return _matching_key(value.text(), value, pattern, allowed)


def _matching_key(
    text: str, value: Value, pattern: re.Pattern[str] = _NAME, allowed: str = "lower-case letters, digits and -"
) -> str:
    if not pattern.fullmatch(text):
        raise value.wrong(f'"{text[:60]}" cannot be a name here.', f"Use {allowed}.")
    return text


def _there(value: Value, paths: Collection[str] | None, *, directory: bool) -> str:
    """The path that is written here, if the directory that was sent has it."""
    text = value.text()
    path = posixpath.normpath(text)
    if path in (".", "..") or path.startswith(("/", "../")):
        raise value.wrong(f'"{text}" leads out of the directory, or is all of it.', "Name a part of it.")
    if paths is None:
        return path
    if directory and not any(_inside(one, path) for one in paths):
        raise value.wrong(f'there are no files in "{path}".', "Is it empty, or left out by a .gitignore?")
    if not directory and path not in paths:
        raise value.wrong(f'there is no file "{path}".', suggest(path, tuple(paths), what="Files") if len(paths) < 100 else "")
    return path


def _inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + "/")


def _range(value: Value) -> tuple[float, float]:
    found = [_decimal(item) for item in value.items()]
    if len(found) != 2 or found[0] >= found[1]:
        raise value.wrong("the range is not two numbers, the lower one first.", "Write [0, 1].")
    return found[0], found[1]


def _ladder(value: Value, first: Column, phases: tuple[Phase, ...]) -> Ladder:
    said = value.mapping(("step", "phases"))
    if "step" not in said:
        raise value.wrong('the ladder has no "step".', "Write ladder: {step: 0.01}.")
    step = _decimal(said["step"])
    digits = step * 10.0**first.precision
    if digits < 1 or abs(digits - round(digits)) > 1e-6 * digits:
        raise said["step"].wrong(
            f"the step is no multiple of {10.0**-first.precision:.{first.precision}f}, the last digit of {first.column}.",
            "Write a larger step, or a larger precision.",
        )
    return Ladder(step=step, phases=_known(said.get("phases"), tuple(phase.name for phase in phases), "phase"))


def _log(value: Value, splits: Mapping[str, Split]) -> OwnLog:
    said = value.mapping(("bytes", "splits"))
    if "bytes" not in said:
        raise value.wrong('the log has no "bytes".', "Write log: {bytes: 4000}.")
    return OwnLog(
        bytes=_number(said["bytes"], least=1, most=_MOST_LOG), splits=_known(said.get("splits"), tuple(splits), "split")
    )


def _steps(value: Value) -> tuple[int, bool]:
    said = value.mapping(("time", "one_end"))
    time = _number(said["time"], least=1, most=86_400) if "time" in said else 0
    return time, "one_end" in said and said["one_end"].truth()


def _known(value: Value | None, names: tuple[str, ...], what: str) -> tuple[str, ...]:
    for item in () if value is None else value.items():
        if item.text() not in names:
            raise item.wrong(f'there is no {what} "{item.text()}".', suggest(item.text(), names, what=f"{what.capitalize()}s"))
    return () if value is None else tuple(item.text() for item in value.items())


def _decimal(value: Value) -> float:
    try:
        found = float(value.text())
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise value.wrong(f'"{value.text()[:40]}" is not a number.')
    return found
