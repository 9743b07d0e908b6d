"""`carrel challenge new` and `carrel challenge try`: a challenge from a CSV, and a run of one's code that does not count."""

from __future__ import annotations

import random
import secrets
import sys
from collections.abc import Callable, Collection
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli.challenge_organise import Name
from carrel.cli.endings import INTERRUPTED, OK, OTHER
from carrel.cli.options import AsJson, Home, argument, open_client, option
from carrel.cli.screen import clean, paint, print_json
from carrel.core.domain.errors import Conflict, Invalid
from carrel.core.domain.suggest import suggest

if TYPE_CHECKING:
    from carrel.core.challenges.making import Made
    from carrel.core.challenges.table import Table

#: Days that a challenge lasts where its maker names no end, and days of its final phase.
_LASTS, _FINAL = 90, 7
#: Names that a question lists.
_LISTED = 12
_GROUPS = "Which column names groups that stay together, such as a patient? Enter: none."


def new_challenge(
    csv: Annotated[Path | None, argument("CSV", "The data: a table with a header.")] = None,
    answer: Annotated[str, option("--answer", "COLUMN", "What is to be predicted.")] = "",
    metric: Annotated[
        str,
        option(
            "--metric",
            "METRIC",
            "accuracy, balanced_accuracy, f1_macro, roc_auc or log_loss of classes; rmse, mae or r2 of numbers.",
        ),
    ] = "",
    group: Annotated[str, option("--group", "COLUMN", "Rows of one value stay in one split: the patient, the site.")] = "",
    title: Annotated[str, option("--title", "TEXT", "What people read.")] = "",
    end: Annotated[str | None, option("--end", "DATE", "When the final week begins.  [90 days from now]")] = None,
    name: Annotated[str, option("--name", "NAME", "Its name.  [from the title]")] = "",
    drop: Annotated[list[str] | None, option("--drop", "COLUMN", "Leave a column out; can be repeated.")] = None,
    seed: Annotated[int | None, option("--seed", "N", "What the splits are drawn by.  [a new one]")] = None,
    out: Annotated[Path | None, option("--out", "DIRECTORY", "Where it is written.  [its name]")] = None,
    as_json: AsJson = False,
) -> int:
    """Make a challenge from a CSV and a metric. What is not said is asked, on a terminal.

    Its directory has splits, programs, a starter notebook, two baselines and pages to fill in; `carrel challenge check` takes it.
    """
    from carrel.core.challenges.making import METRICS, Wanted, make
    from carrel.core.challenges.table import read_table, without

    asks = sys.stdin.isatty() and not as_json
    given = csv or Path(_asked(asks, "Which CSV has the data?", "CSV"))
    table = without(_read(given, read_table), drop or ())
    today = datetime.now(UTC).date()
    begin, last = _dates(today, end)
    wanted = Wanted(
        answer=answer or _asked(asks, "Which column is the answer?", "--answer", table.header),
        metric=metric or _asked(asks, "By which metric?", "--metric", METRICS),
        group=group or (_asked(asks, _GROUPS, "", table.header) if asks else ""),
        title=title or _asked(asks, "What is its title?", "--title"),
        name=name,
        begin=begin,
        end=last.isoformat(),
        final_end=(last + timedelta(days=_FINAL)).isoformat(),
    )
    drawn = secrets.randbits(32) if seed is None else seed
    made = make(table, wanted, random.Random(drawn))
    place = out or Path(made.name)
    _write(place, made)
    return _say(place, made, drawn, as_json=as_json)


def _asked(asks: bool, question: str, option: str, among: Collection[str] = ()) -> str:
    """Ask until the answer is one of `among`, where there are some; an option that is "" need not be answered."""
    if not asks:
        raise Invalid(f"{option} is missing.", remedy="carrel challenge new --help says what there is.")

    def one_of(text: str) -> str:
        if among and text.strip() not in (*among, *(() if option else ("",))):
            raise typer.BadParameter(suggest(text.strip(), among, what="There are"))
        return text.strip()

    asked = f"{question}{_listed(among)}"
    return str(
        typer.prompt(asked, default=None if option else "", show_default=False, err=True, value_proc=one_of, prompt_suffix=" ")
    )


def _listed(names: Collection[str]) -> str:
    """The first and the last of these: the answer is mostly the last column."""
    some = [*names] if len(names) <= _LISTED else [*[*names][: _LISTED - 3], "…", *[*names][-2:]]
    return f" ({clean(', '.join(some))})" if some else ""


def _read(file: Path, read: Callable[[bytes, str], Table]) -> Table:
    try:
        return read(file.read_bytes(), str(file))
    except OSError as error:
        raise Invalid(f"{file} cannot be read: {error.strerror}.", remedy="Name a CSV file.") from None


def _dates(today: date, end: str | None) -> tuple[str, date]:
    try:
        last = today + timedelta(days=_LASTS) if end is None else date.fromisoformat(end)
    except ValueError:
        raise Invalid(f'--end "{end}" is no date.', remedy="Write 2027-03-01.") from None
    if last <= today:
        raise Invalid(f"--end {last} is not after today, {today}.", remedy="Name a later day.")
    return today.isoformat(), last


def _write(place: Path, made: Made) -> None:
    if place.exists():
        raise Conflict(f"{place} is there already.", remedy="Remove it, or name another directory with --out.")
    try:
        for path, text in made.files.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Invalid(f"{place} cannot be written: {error.strerror}.", remedy="Remove what is there, and name another.") from None


def _say(place: Path, made: Made, seed: int, *, as_json: bool) -> int:
    if as_json:
        return print_json(
            {"name": made.name, "directory": str(place), "rows": dict(made.rows), "remarks": [*made.remarks], "seed": seed}
        )
    for remark in made.remarks:
        print(f"{paint('look:', 'yellow', sys.stderr)} {clean(remark)}", file=sys.stderr)
    rows = ", ".join(f"{count} rows in {part}" for part, count in made.rows.items())
    print(f"The challenge {made.name} is in {place}: {rows} (seed {seed}; keep it to yourself).")
    print(f"Fill in the places marked with a pencil in {place}/pages, then: carrel challenge check {place}")
    return OK


def try_code(
    name: Name,
    directory: Annotated[Path, argument("DIRECTORY", "The code.")],
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Run code as a submission would be run, on training data, and show its whole log. It counts for no limit."""
    from carrel.cli.follow import Follower

    with open_client(home) as client:
        made = client.try_challenge(name, directory)
        if as_json:
            ended, scored = client.wait(made.ingestion), client.wait(made.scoring)
            logs = [b"".join(client.log(number)).decode(errors="replace") for number in (made.ingestion, made.scoring)]
            states = [ended.state, scored.state]
            print_json({"ingestion": made.ingestion, "scoring": made.scoring, "states": states, "logs": logs})
            return OK if scored.state == "COMPLETED" else OTHER
        for number in (made.ingestion, made.scoring):
            follower = Follower(client, number, as_json=False, cancels=True)
            job = follower.follow()
            if job is None:
                return INTERRUPTED
            follower.say_end(job)
            if job.state != "COMPLETED":
                return OTHER
    print("The score says that the code runs, and not how good it is: it may have learned from these rows.")
    print(clean(f"A submission of {directory} would be run like this. Send it: carrel challenge submit {name} {directory}"))
    return OK
