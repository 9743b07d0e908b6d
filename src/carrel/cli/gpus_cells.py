"""`carrel gpus --cells`: when cells had GPUs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from carrel.cli.endings import OK
from carrel.cli.options import open_client
from carrel.core.domain.errors import Invalid
from carrel.core.domain.units import parse_duration


def print_cells(home: Path | None, *, cells: bool, names: bool, as_json: bool, last: str | None, now: Sequence[str]) -> int:
    """Write them: as a file of cells, or with all that the lab knows of each. `now`: options that are about what is so now."""
    from carrel.cli.recorded_cells import read_cells_of
    from carrel.cli.screen import print_json
    from carrel.simulate.notebooks.cells import file_of, lab_cells
    from carrel.wire.v1 import show

    if not cells:
        raise Invalid(f"{'--last' if names else '--no-names'} is about recorded cells.", remedy="Add --cells.")
    if now:
        raise Invalid(
            f"{now[0]} is about what GPUs do now, and --cells is about what is over.", remedy="Leave out one of the two."
        )
    if as_json and not names:
        raise Invalid("--json has all that the lab knows of cells, names too.", remedy="Leave out --json or --no-names.")
    with open_client(home) as client:
        found = read_cells_of(client, last=None if last is None else parse_duration(last))
    if as_json:
        print_json({"cells": [show(view).model_dump(mode="json") for view in found.views], "missing": found.missing})
        return OK
    for line in file_of(lab_cells(found.views, names=names)):
        print(line)
    if found.missing:
        print(f"The lab did not hear of {found.missing:,} more.", file=sys.stderr)
    return OK
