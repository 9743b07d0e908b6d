"""Makes the report and writes it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

from carrel.cli.endings import OK
from carrel.cli.options import open_client
from carrel.cli.roi.gathering import CostFile, measure, period_of, read_cost_file
from carrel.core.domain.errors import Invalid
from carrel.core.worth import Assessment, assess, show

_SUFFIXES = (".html", ".csv")
#: What the summary on the screen has.
_SHOWN: Mapping[str, str] = MappingProxyType(
    {
        "cost": "cost",
        "hours.offered": "GPU-hours offered",
        "hours.used": "GPU-hours used",
        "utilisation": "utilisation",
        "hour.offered": "a GPU-hour offered",
        "hour.used": "a GPU-hour used",
        "hour.completed": "a GPU-hour completed",
    }
)


def report_roi(year: int, costs: Path, output: Path | None, home: Path | None, *, as_json: bool) -> int:
    """What `carrel report roi` does."""
    from carrel.cli.screen import print_json

    if output is not None:
        _check_output(output, costs)
    file = read_cost_file(costs)
    period = period_of(year, file.model.lab.since, datetime.now(UTC).date())
    with open_client(home) as client:
        simulated = client.lab().simulated
        found = assess(file.model, period, measure(client, period, file.model))
    if output is not None:
        _write(output, _text(output.suffix.lower(), found, file, simulated=simulated))
    if as_json:
        from carrel.cli.roi.sheets import as_json as document

        written = None if output is None else str(output)
        print_json(document(found, sha256=file.sha256, simulated=simulated) | {"report": written})
    elif output is not None:
        print(f"The report: {output}")
    else:
        _print_summary(found, simulated=simulated)
    return OK


def _check_output(output: Path, costs: Path) -> None:
    """Before the lab is asked."""
    suffix = output.suffix.lower()
    if suffix == ".pdf":
        raise Invalid(
            f"{output}: Carrel writes no PDF by itself.",
            remedy=f"Write {output.with_suffix('.html')}, open it in a browser, and print it into a file: it is made for paper.",
        )
    if suffix not in _SUFFIXES:
        raise Invalid(f"{output} has no ending that says what to write.", remedy=f"Valid are {' and '.join(_SUFFIXES)}.")
    if output.is_dir() or not output.parent.is_dir():
        why = "is a directory" if output.is_dir() else "no such file or directory"
        raise Invalid(f"{output} cannot be written: {why}.", remedy="Name a file in a directory that you may write to.")
    if output.exists() and costs.exists() and output.samefile(costs):
        raise Invalid(f"{output} is the cost file.", remedy="Name another file for the report.")


def _text(suffix: str, found: Assessment, file: CostFile, *, simulated: bool) -> str:
    if suffix == ".csv":
        from carrel.cli.roi.sheets import as_csv

        return as_csv(found)
    from carrel.cli.roi.page import page

    return page(found, costs=file.path.name, sha256=file.sha256, simulated=simulated)


def _write(output: Path, text: str) -> None:
    try:
        output.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise Invalid(
            f"{output} cannot be written: {error.strerror}.", remedy="Name a file in a directory that you may write to."
        ) from error


def _print_summary(found: Assessment, *, simulated: bool) -> None:
    from carrel.cli.screen import clean, print_fields

    print(
        f"{clean(found.model.lab.name)}, {found.period.begin} to {found.period.last}{' (simulated GPUs)' if simulated else ''}\n"
    )
    shown = [(name, show(figure.quantity)) for id, name in _SHOWN.items() if (figure := found.sheet.get(id)) is not None]
    for cloud in found.clouds:
        figures = (cloud.on_demand_difference, cloud.reserved_difference, cloud.break_even)
        shown += [(clean(one.name), show(one.quantity)) for one in figures if one is not None]
    print_fields(shown)
    for note in found.notes:
        print(f"\nnote: {clean(note)}")
    print("\n-o report.html writes the whole report, with the formula and the source of each figure.")
