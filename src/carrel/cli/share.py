"""`carrel share`: who has used how much of their share, and what giving back would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home, open_client
from carrel.cli.screen import print_json, print_table
from carrel.core.domain.units import format_duration

if TYPE_CHECKING:
    from carrel.wire.v1 import ShareView


def share_command(home: Home = None, as_json: AsJson = False) -> int:
    """Show where you stand in fair share, and where you would if you released what you hold.

    Administrators see everybody. Who has used less of their share goes first; use counts half after the half-life.
    """
    with open_client(home) as client:
        share = client.share()
    if as_json:
        return print_json(share.model_dump(mode="json"))
    _print(share)
    return OK


def _print(share: ShareView) -> None:
    rows = [
        (
            row.account,
            row.user,
            f"{row.share:.1%}",
            f"{row.used:.1%}",
            f"{row.hours:.1f}",
            f"{row.factor:.2f}",
            f"{row.place} of {share.of}",
        )
        for row in share.standings
    ]
    print_table(("ACCOUNT", "USER", "SHARE", "USED", "GPU-HOURS", "STANDING", "PLACE"), rows, right=(2, 3, 4, 5))
    if share.weight:
        print(f"\nStanding 1 is ahead of 0 by {format_duration(share.weight)} of waiting. ", end="")
    else:
        print("\nFair share does not count in this lab (priority.share_weight is 0). ", end="")
    print(f"Use counts half after {format_duration(share.half_life)}.")
    for account, kept in share.in_an_hour_kept.items():
        released = share.in_an_hour_released.get(account, kept)
        if share.held:
            print(f"In an hour, on {account}: {kept:.2f} if you keep what you hold, {released:.2f} if you release it now.")
