"""`carrel baseline`: the job with whose results later jobs of a project are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home, JobId, argument, find_job, flag, open_client, option
from carrel.cli.screen import clean, cut, print_csv, print_json, print_table
from carrel.cli.words import local, short_digest
from carrel.core.domain.errors import Denied, Invalid, NotFound

if TYPE_CHECKING:
    from carrel.client import Client
    from carrel.core.domain.baseline import Moved
    from carrel.wire.v1 import BaselineRow, BaselineTable, BaselineView, CalibrationView, DriftView

baseline_command = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Compare later jobs of a project with one that is its baseline.",
)
Name = Annotated[str, argument("NAME", 'Name of the project; "USER/NAME" for that of another user.')]
_STYLES = {"moved": "red", "same": "green", "not known": "yellow"}
_AGREEMENTS = {"identical": "green", "within tolerance": "green", "different": "red", "unknown": "yellow"}
#: Things of a kind that a cell of the table names.
_SHOWN = 2
_HEADS = ("job", "owner", "submitted_at", "ended_at", "state", "calibration", "agreement", "step", "metrics", "outputs",
          "python", "packages", "machine", "others")  # fmt: skip


@baseline_command.command("set")
def set_baseline(
    job_id: JobId,
    project: Annotated[
        str | None, option("--project", "NAME", "Name of the jobs that are compared with it.  [the job's name]")
    ] = None,
    tolerance: Annotated[
        float, typer.Option("--tolerance", metavar="X", min=0.0, max=1.0, help="How far a metric may be away, such as 1e-6.")
    ] = 0.0,
    ignore: Annotated[
        list[str] | None, option("--ignore", "PATTERN", "What does not count, such as '*.log'; may be repeated.")
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Make a job of yours the baseline of its project: of your jobs of the same name.

    Each later one is compared with it: `carrel baseline show`. An earlier baseline of the project is replaced.
    """
    with open_client(home) as client:
        number = find_job(client, job_id)
        made = client.set_baseline(number, project=project, tolerance=tolerance, ignore=ignore or ())
        verified = client.job(number).verified
    if as_json:
        return print_json(made)
    print(clean(f"Job {made.job} is the baseline of {made.project}."))
    if not verified:
        print(f"Whether it repeats itself is not known, and then what moves says little. Find out: carrel verify {number}")
    return OK


@baseline_command.command("list")
def list_baselines(
    everybody: Annotated[bool, flag("--all", "Everybody's (administrators).")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """List your baselines, and what came of running them again last."""
    with open_client(home) as client:
        found = client.baselines(everybody=everybody)
    if as_json:
        return print_json({"baselines": [one.model_dump(mode="json") for one in found]})
    rows = [(name_of(one, everybody), str(one.job), local(one.set_at), _allowed(one), last_of(one)) for one in found]
    print_table(("NAME", "JOB", "SET", "ALLOWED", "LAST CALIBRATION"), rows, right=(1,))
    return OK


@baseline_command.command("show")
def show(
    name: Name,
    as_csv: Annotated[bool, flag("--csv", "Print comma-separated values.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Show how the last 50 jobs of the project are beside its baseline, newest last: results, and what they ran with."""
    if as_csv and as_json:
        raise Invalid("--csv and --json are two forms.", remedy="Say one of them.")
    with open_client(home) as client:
        found = client.baseline(find_baseline(client, name).id)
    if as_json:
        return print_json(found)
    if as_csv:
        print_csv(_HEADS, map(_csv_row, found.rows))
    else:
        _print(found)
    return OK


@baseline_command.command("remove")
def remove(name: Name, home: Home = None, as_json: AsJson = False) -> int:
    """Forget a baseline of yours. Jobs stay as they are."""
    with open_client(home) as client:
        found = find_baseline(client, name)
        client.remove_baseline(found.id)
    if as_json:
        return print_json({"removed": found.project})
    print(clean(f"{found.project} has no baseline any more."))
    return OK


def find_baseline(client: Client, name: str) -> BaselineView:
    """The baseline of a project of one's own, or of another user's ("USER/NAME")."""
    for one in client.baselines():
        if one.project == name:
            return one
    try:
        theirs = client.baselines(everybody=True)
    except Denied:
        theirs = []  # whose they are is nobody else's business
    for one in theirs:
        if name_of(one, everybody=True) == name:
            return one
    alike = [name_of(one, everybody=True) for one in theirs if one.project == name]
    lists = "`carrel baseline list` lists yours" + (", --all everybody's." if theirs else ".")
    raise NotFound(f'There is no baseline "{name}".', remedy=f"Say {' or '.join(alike)}." if alike else lists)


def name_of(one: BaselineView, everybody: bool) -> str:
    """What people call it."""
    return f"{one.owner}/{one.project}" if everybody else one.project


def last_of(one: BaselineView) -> str:
    """What came of its last calibration: "moved on 27 November: different; loss +2.3 %"."""
    return "" if one.calibration is None else sentence(one.calibration)


def sentence(found: CalibrationView) -> str:
    """What came of a calibration, with the day."""
    at = (found.known_at or found.begun_at).astimezone()
    anew = ", resolved anew" if found.fresh else ""
    return f"{found.outcome} on {at.day} {at:%B %Y}{anew}: {found.told}"


def _allowed(one: BaselineView) -> str:
    return ", ".join([*([f"{one.tolerance:g}"] if one.tolerance else []), *(f"without {pattern}" for pattern in one.ignore)])


def _print(found: BaselineTable) -> None:
    one = found.baseline
    with_what = ", ".join(text for text in (found.python, found.machine) if text)
    print(clean(f"Baseline of {one.project}: job {one.job}" + (f" ({with_what})" if with_what else "")))
    if one.calibration is not None:
        print(clean(f"Run again by {one.calibration.by} (job {one.calibration.job}): {sentence(one.calibration)}"))
    print()
    if not found.rows:
        print("No later job of this name is there yet.")
        return
    heads = ("JOB", "ENDED", "RESULTS", "MOVED", "PYTHON", "PACKAGES", "MACHINE", "ELSE")
    print_table(heads, [_cells(row) for row in found.rows], styles={2: _styles(found.rows)}, right=(0,))


def _styles(rows: Sequence[BaselineRow]) -> dict[str, str]:
    return {_results(row): _AGREEMENTS[row.drift.agreement.value] for row in rows if row.drift is not None}


def _cells(row: BaselineRow) -> tuple[str, ...]:
    ended = "" if row.ended_at is None else f"{row.ended_at.astimezone():%Y-%m-%d %H:%M}"
    drift = row.drift
    if drift is None:
        return str(row.job), ended, _results(row), "", "", "", "", ""
    moved = _few([moved_text(one) for one in drift.moved_metrics] or drift.moved_outputs)
    return (str(row.job), ended, _results(row), moved, drift.python, _few([moved_text(one) for one in drift.packages]),
            drift.machine, _few([moved_text(one) for one in drift.others]))  # fmt: skip


def _results(row: BaselineRow) -> str:
    how = row.drift.words if row.drift is not None and row.state == "COMPLETED" else row.state
    how += ", not compared yet" if row.drift is None and row.state == "COMPLETED" else ""
    return how + {"": "", "same lock": " (calibration)", "fresh": " (calibration, resolved anew)"}[row.calibration]


def moved_text(one: Moved) -> str:
    """ "loss +2.3 %", "numpy 1.26.4 -> 2.0.1"."""
    if one.relative is not None:
        return f"{one.what} {one.relative * 100:+.2g} %"
    return f"{one.what} {cut(short_digest(one.before), 30)} -> {cut(short_digest(one.after), 30)}"


def _few(found: Sequence[str]) -> str:
    return ", ".join(found[:_SHOWN]) + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")


def _csv_row(row: BaselineRow) -> tuple[object, ...]:
    ended = "" if row.ended_at is None else row.ended_at.isoformat()
    about = (row.job, row.owner, row.submitted_at.isoformat(), ended, row.state, row.calibration)
    return *about, *(("",) * 8 if row.drift is None else _fields(row.drift))


def _fields(drift: DriftView) -> tuple[object, ...]:
    moved = ("; ".join(f"{one.what}: {one.before} -> {one.after}" for one in kind)
             for kind in (drift.moved_metrics, drift.packages, drift.others))  # fmt: skip
    metrics, packages, others = moved
    step = "" if drift.step is None else drift.step
    outputs = "; ".join(drift.moved_outputs)
    return drift.agreement.value, step, metrics, outputs, drift.python, packages, drift.machine, others
