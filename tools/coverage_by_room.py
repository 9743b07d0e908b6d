"""`make coverage`: how much of each room the tests ran, lines and branches together.

Reads the JSON report of coverage.py on standard input.

    coverage json -q -o - | python tools/coverage_by_room.py [--files ROOM]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import PurePosixPath
from typing import Any

COUNTS = ("num_statements", "covered_lines", "num_branches", "covered_branches")


def room_of(path: str) -> str:
    """Return the room that a file of the package is in."""
    parts = PurePosixPath(path).parts
    inside = parts[len(parts) - 1 - parts[::-1].index("carrel") + 1 :]
    return inside[0] if len(inside) > 1 else "carrel"


def share(counts: dict[str, int]) -> float:
    """Return the share of lines and branches that ran, in percent."""
    there = counts["num_statements"] + counts["num_branches"]
    return 100.0 if there == 0 else 100.0 * (counts["covered_lines"] + counts["covered_branches"]) / there


def table(files: dict[str, dict[str, Any]], named: str) -> list[tuple[str, dict[str, int]]]:
    """Return rows of counts: of each room, or of each file of the room `named`; the least covered first."""
    rows: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(COUNTS, 0))
    for path, file in files.items():
        room = room_of(path)
        if named and room != named:
            continue
        row = rows[path if named else room]
        for count in COUNTS:
            row[count] += file["summary"][count]
    return sorted(rows.items(), key=lambda row: share(row[1]))


def main() -> None:
    """Print the table, and what all of it comes to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", metavar="ROOM", default="", help="the files of this room instead")
    named = parser.parse_args().files
    rows = table(json.load(sys.stdin)["files"], named)
    if not rows:
        sys.exit(f"Nothing was measured{f' of a room {named}' if named else ''}. Run: make coverage")
    total = {count: sum(row[count] for _, row in rows) for count in COUNTS}
    width = max(len(name) for name, _ in rows)
    print(f"{'':{width}}  covered   lines  branches")
    for name, row in [*rows, ("all", total)]:
        print(f"{name:{width}}  {share(row):6.1f}%  {row['num_statements']:6}  {row['num_branches']:8}")


if __name__ == "__main__":
    main()
