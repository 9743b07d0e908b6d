"""Making a challenge from a table: its splits, its programs, what participants begin with, and its pages. Pure."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from carrel.core.challenges.reading import read_challenge
from carrel.core.challenges.schema import challenge_schema
from carrel.core.challenges.table import MISSING, Table, decimal_comma, numbers, remarks
from carrel.core.domain.challenge import FILE
from carrel.core.domain.errors import Invalid
from carrel.core.domain.suggest import suggest

#: Names a row, without a word of where it stood.
ROW = "row"
#: The parts of the rows that splits get.
SHARES = {"train": 0.6, "public": 0.2, "private": 0.2}
#: Rows that a table has at least, different answers of a classification at most, and rows of the dry run.
_LEAST, _CLASSES, _TRIED = 30, 100, 50
#: Divisions into groups that are tried; the one whose answers are spread best is taken.
_DRAWS = 50
_KEYS = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A measure by which a challenge can be decided."""

    title: str
    classes: bool
    larger: bool = True
    #: True: a submission says how probable each class is.
    probabilities: bool = False
    #: It is from 0 to 1.
    bounded: bool = False


METRICS: Mapping[str, Metric] = {
    "accuracy": Metric(title="Accuracy", classes=True, bounded=True),
    "balanced_accuracy": Metric(title="Balanced accuracy", classes=True, bounded=True),
    "f1_macro": Metric(title="F1 (macro)", classes=True, bounded=True),
    "roc_auc": Metric(title="ROC AUC", classes=True, probabilities=True, bounded=True),
    "log_loss": Metric(title="Log loss", classes=True, larger=False, probabilities=True),
    "rmse": Metric(title="RMSE", classes=False, larger=False),
    "mae": Metric(title="MAE", classes=False, larger=False),
    "r2": Metric(title="R²", classes=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What its organiser says of a challenge."""

    answer: str
    metric: str
    #: Rows of one value of this column stay in one split; "": there is none.
    group: str = ""
    title: str
    #: "": made of the title.
    name: str = ""
    #: As challenge.yaml has it.
    begin: str
    end: str
    final_end: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A challenge that was made."""

    name: str
    #: Text by path.
    files: Mapping[str, str]
    #: What a person should look at.
    remarks: Sequence[str]
    #: Rows of each split.
    rows: Mapping[str, int]


def make(table: Table, wanted: Wanted, draw: random.Random) -> Made:
    """Return the challenge. Raises `Invalid` for what cannot be a challenge."""
    classes = _check(table, wanted)
    name = wanted.name or (_KEYS.sub("-", wanted.title.lower()).strip("-")[:40].strip("-") or "challenge")
    where = _divide(table, wanted, classes, draw)
    order = list(range(len(table.rows)))
    draw.shuffle(order)
    split = {part: [row for row in order if where[row] == part] for part in SHARES}
    ids = {row: f"r{number:06}" for number, row in enumerate(order)}
    made = {**_data(table, wanted, split, ids), **_programs(wanted, classes, name), **_texts(table, wanted, split, name)}
    read_challenge(made[FILE], made)
    said = remarks(table, wanted.answer, wanted.group)
    return Made(name=name, files=made, remarks=said, rows={part: len(rows) for part, rows in split.items()})


def _check(table: Table, wanted: Wanted) -> list[str]:
    """Return the classes of the answer, none for numbers. Raises `Invalid` for a table that gives no challenge."""
    for what, name in (("answer", wanted.answer), ("group", wanted.group)):
        if name not in table.header and (name or what == "answer"):
            raise Invalid(f'There is no column "{name}".', remedy=suggest(name, table.header, what="Columns"))
    if wanted.metric not in METRICS:
        raise Invalid(f'There is no metric "{wanted.metric}".', remedy=suggest(wanted.metric, tuple(METRICS), what="Metrics"))
    if ROW in (*table.header, *table.column(wanted.answer)):
        raise Invalid(
            f'A column or an answer is called "{ROW}", as the numbers of the challenge are.', remedy="Give it another name."
        )
    if len(table.header) - bool(wanted.group) < 2:
        raise Invalid("There is no column beside the answer to learn from.", remedy="Look at the separator: , ; or tab.")
    if len(table.rows) < _LEAST:
        raise Invalid(f"There are {len(table.rows)} rows.", remedy=f"Three splits need {_LEAST} at least.")
    answers = table.column(wanted.answer)
    if lost := [number for number, value in enumerate(answers, start=1) if value.lower() in MISSING]:
        raise Invalid(f'{len(lost)} rows have no "{wanted.answer}", the first is row {lost[0]}.', remedy="Leave these rows out.")
    if METRICS[wanted.metric].classes:
        return _classes(table, wanted, answers)
    if numbers(answers) is None:
        other = next(value for value in answers if numbers([value]) is None)
        remedy = "Write it with a point." if decimal_comma([other]) else "Choose accuracy or f1_macro."
        raise Invalid(f'"{other[:40]}" is no number, and {wanted.metric} needs numbers.', remedy=remedy)
    if len(set(answers)) < 2:
        raise Invalid(f'All rows have the same "{wanted.answer}".', remedy="Choose another column.")
    return []


def _classes(table: Table, wanted: Wanted, answers: Sequence[str]) -> list[str]:
    if len({*answers}) < 2:
        raise Invalid(f'All rows have the same "{wanted.answer}".', remedy="Choose another column.")
    if len({*answers}) > _CLASSES:
        raise Invalid(
            f'"{wanted.answer}" has {len({*answers})} different values, and {wanted.metric} is of classes.',
            remedy="Choose rmse, mae or r2.",
        )
    units: Sequence[object] = table.column(wanted.group) if wanted.group else range(len(answers))
    found = Counter(answer for _, answer in {*zip(units, answers, strict=True)})
    if rare := sorted(value for value, count in found.items() if count < len(SHARES)):
        what = f'values of "{wanted.group}"' if wanted.group else "rows"
        raise Invalid(
            f'"{rare[0][:40]}" is in fewer than {len(SHARES)} {what}.', remedy="Each split needs one: leave it out, or join it."
        )
    return sorted(found)


# ---- splits


def _divide(table: Table, wanted: Wanted, classes: Sequence[str], draw: random.Random) -> list[str]:
    """Return the split of each row."""
    answers = table.column(wanted.answer)
    if not wanted.group:
        where = [""] * len(answers)
        for value in classes or [""]:
            rows = [row for row, answer in enumerate(answers) if not classes or answer == value]
            draw.shuffle(rows)
            for row, part in zip(rows, _shares(len(rows)), strict=True):
                where[row] = part
        return where
    groups = table.column(wanted.group)
    sizes = Counter(groups)
    if len(sizes) < len(SHARES):
        raise Invalid(
            f'"{wanted.group}" has {len(sizes)} different values.', remedy=f"{len(SHARES)} splits need one each at least."
        )
    drawn = [[part[group] for group in groups] for part in (_by_group(sizes, draw) for _ in range(_DRAWS))]
    best = min(drawn, key=lambda where: _uneven(where, answers, classes))
    if classes and any(
        len({*answers} - {answer for answer, part in zip(answers, best, strict=True) if part == one}) for one in SHARES
    ):
        raise Invalid("The groups cannot be divided so that each split has each answer.", remedy="Leave rare answers out.")
    return best


def _shares(count: int) -> Iterator[str]:
    """So many names of splits, by their shares; each is there once at least where there are three."""
    public = max(1, round(count * SHARES["public"])) if count >= len(SHARES) else 0
    private = max(1, round(count * SHARES["private"])) if count >= len(SHARES) else 0
    yield from ["public"] * public + ["private"] * private + ["train"] * (count - public - private)


def _by_group(sizes: Mapping[str, int], draw: random.Random) -> dict[str, str]:
    """Put each group, the large ones first, where most is missing."""
    names = sorted(sizes)
    draw.shuffle(names)
    missing = {part: share * sum(sizes.values()) for part, share in SHARES.items()}
    found = {}
    for name in sorted(names, key=lambda name: -sizes[name]):
        part = max(missing, key=lambda part: missing[part] / SHARES[part])
        missing[part] -= sizes[name]
        found[name] = part
    return found


def _uneven(where: Sequence[str], answers: Sequence[str], classes: Sequence[str]) -> float:
    """The largest distance of a part of the answers in a split from its share; 2 more for each that is not there."""
    both, all_of, away = Counter(zip(where, answers, strict=True)), Counter(answers), 0.0
    for value in classes:
        for part, share in SHARES.items():
            away += 2 * (both[part, value] == 0)
            away = max(away, abs(both[part, value] / all_of[value] - share))
    return away


# ---- files


def _data(table: Table, wanted: Wanted, split: Mapping[str, Sequence[int]], ids: Mapping[int, str]) -> dict[str, str]:
    hidden = [at for at, name in enumerate(table.header) if name in (wanted.answer, wanted.group)]
    answer = table.header.index(wanted.answer)
    shown = [at for at in range(len(table.header)) if at not in hidden]

    def text(columns: Sequence[int], rows: Sequence[int]) -> str:
        made = io.StringIO()
        writer = csv.writer(made, lineterminator="\n")
        writer.writerow([ROW, *(table.header[at] for at in columns)])
        writer.writerows([ids[row], *(table.rows[row][at] for at in columns)] for row in rows)
        return made.getvalue()

    train = text(range(len(table.header)), split["train"])
    found = {"data/train/train.csv": train}
    parts = {
        "data/public": split["public"],
        "data/private": split["private"],
        "data/train/try": _tried(split["train"], table.column(wanted.answer)),
    }
    for place, rows in parts.items():
        found[f"{place}/input/train.csv"] = train
        found[f"{place}/input/rows.csv"] = text(shown, rows)
        found[f"{place}/reference/answers.csv"] = text([answer], rows)
    return found


def _tried(rows: Sequence[int], answers: Sequence[str]) -> Sequence[int]:
    """The first rows, and one of each answer where these are few."""
    first = {answers[row]: row for row in reversed(rows)}
    few = first.values() if len(first) <= _CLASSES else ()
    return sorted({*rows[:_TRIED], *few}, key=rows.index)


def _programs(wanted: Wanted, classes: Sequence[str], name: str) -> dict[str, str]:
    probabilities = METRICS[wanted.metric].probabilities
    task = {"answer": wanted.answer, "group": wanted.group, "metric": wanted.metric, "classes": [*classes]}
    shared = {
        "measure.py": _template("measure.py"),
        "task.json": json.dumps({**task, "probabilities": probabilities}, indent=2) + "\n",
    }
    found: dict[str, str] = {}
    for part, place in _PLACES.items():
        for one in sorted(path.name for path in (_MADE / part).iterdir() if path.is_file()):
            text = _template(f"{part}/{one}")
            if probabilities:
                text = text.replace('METHOD = "predict"', 'METHOD = "predict_proba"')
                text = text.replace(r"METHOD = \"predict\"", r"METHOD = \"predict_proba\"")  # in a notebook
            if one.endswith(".ipynb"):
                text = text.replace("TITLE", json.dumps(wanted.title, ensure_ascii=False)[1:-1]).replace("NAME", name)
                found |= {f"{place}/{file}": written for file, written in _written(text)}
            found[f"{place}/{one}"] = text
        if part in _MEASURING:
            found |= {f"{place}/{file}": text for file, text in shared.items()}
    return found


def _written(notebook: str) -> Iterator[tuple[str, str]]:
    """The files that cells write, so that who works without the notebook begins with them."""
    for cell in json.loads(notebook)["cells"]:
        first, _, text = "".join(cell["source"]).partition("\n")
        if first.startswith("%%writefile "):
            yield first.split()[1], text + "\n"


_MADE = files("carrel.core.challenges") / "made"
_MEASURING = ("ingestion", "scoring", "starter")
#: Where the parts of what is made go.
_PLACES = {
    "ingestion": "programs/ingestion",
    "scoring": "programs/scoring",
    "starter": "starter",
    "constant": "baselines/constant",
    "linear": "baselines/linear",
}


def _template(path: str) -> str:
    return (_MADE / path).read_text(encoding="utf-8")


def _texts(table: Table, wanted: Wanted, split: Mapping[str, Sequence[int]], name: str) -> dict[str, str]:
    metric = METRICS[wanted.metric]
    better = "larger" if metric.larger else "smaller"
    wording = (
        "the probabilities of the classes (a column each, in the order of the alphabet)"
        if metric.probabilities
        else "a label for each row"
        if metric.classes
        else "a number for each row"
    )
    values = {
        "NAME": name,
        "TITLE": json.dumps(wanted.title, ensure_ascii=False),
        "METRIC_TITLE": metric.title,
        "METRIC": wanted.metric,
        "BETTER": better,
        "PRECISION": "4, range: [0, 1]" if metric.bounded else "4",
        "BEGIN": wanted.begin,
        "FINAL_END": wanted.final_end,
        "END": wanted.end,
        "ANSWER": wanted.answer,
        "PREDICTS": wording,
        "GROUPED": f"No `{wanted.group}` is in two of them." if wanted.group else "Rows were drawn by chance.",
        "ROWS": ", ".join(f"{len(rows)} in `{part}`" for part, rows in split.items()),
        "COLUMNS": "\n".join(_columns(table, wanted, split["train"])),
    }
    word = re.compile(r"\b(" + "|".join(sorted(values, key=len, reverse=True)) + r")\b")
    found = {
        path: word.sub(lambda one: values[one[1]], _template(f"pages/{path.rpartition('/')[2]}"))
        for path in (FILE, "pages/overview.md", "pages/data.md", "pages/rules.md")
    }
    return {**found, "challenge.schema.json": json.dumps(challenge_schema(), indent=2) + "\n"}


def _columns(table: Table, wanted: Wanted, rows: Sequence[int]) -> Iterator[str]:
    """Lines of a table of the columns, of training data alone."""
    for at, name in enumerate(table.header):
        values = [table.rows[row][at] for row in rows]
        there = [value for value in values if value.lower() not in MISSING]
        found = numbers(there)
        if name == wanted.answer and METRICS[wanted.metric].classes:
            said = ", ".join(f"{value}: {count}" for value, count in Counter(there).most_common(20))
        elif found:
            said = f"{min(found):g} to {max(found):g}"
        else:
            said = f"{len(set(there))} different texts"
        what = (
            "the answer"
            if name == wanted.answer
            else "groups rows; not in test data"
            if name == wanted.group
            else "number"
            if found
            else "text"
        )
        yield f"| {_cell(name)} | {what} | {len(values) - len(there)} | {_cell(said)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
