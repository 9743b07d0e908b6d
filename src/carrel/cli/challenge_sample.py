"""`carrel challenge sample`: training data that nobody may copy, one file at a time."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

from carrel.cli.challenge_organise import Name
from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home, argument, open_client, option
from carrel.cli.screen import clean, print_json
from carrel.cli.words import local
from carrel.core.domain.errors import Conflict

if TYPE_CHECKING:
    from carrel.core.domain.challenge_sample import SampleList


def sample(
    name: Name,
    file: Annotated[str | None, argument("SAMPLE", "Its name; without one, those that there are.")] = None,
    output: Annotated[Path | None, option("--output -o", "FILE", "Write it there.  [its own name]")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Get a file of training data that are shown one by one. It counts today, unless your team has seen it before."""
    from carrel.wire.v1 import show

    with open_client(home) as client:
        if file is None:
            found = client.challenge_samples(name)
            if as_json:
                print_json(show(found).model_dump(mode="json"))
            else:
                _print_samples(found)
            return OK
        place = output or Path(PurePosixPath(file).name)
        if place.exists():
            raise Conflict(f"{place} is there already.", remedy="Name another file: --output FILE.")
        content = client.challenge_sample(name, file)
        left = client.challenge_samples(name).left
    place.write_bytes(content)
    if as_json:
        return print_json({"file": str(place), "bytes": len(content), "left": left})
    print(f"Written to {place}. {left} more today.")
    return OK


def _print_samples(found: SampleList) -> None:
    for one in found.names:
        print(clean(one))
    if found.total > len(found.names):
        print(f"... of {found.total:,}")
    for seen in found.shown:
        print(f"shown {local(seen.made_at)} to {clean(seen.team)} ({clean(seen.by)}): {clean(seen.sample)}")
    if found.left is not None:
        print(f"Left to your team: {found.left} today. The next day begins at {local(found.next_day)}.")
