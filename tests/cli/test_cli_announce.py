"""`carrel announce`: users are told above their jobs, programs are not."""

from __future__ import annotations

import pytest
from command_line import CommandLine


@pytest.mark.gate
def test_users_are_told_above_their_jobs_and_programs_are_not(carrel: CommandLine, other: CommandLine) -> None:
    made = carrel("announce", "The power is off \x1b[31mon Friday", "--until", "2h", "--level", "warning", "--json").json
    (one,) = made["announcements"]
    assert one["text"] == "The power is off ^[[31mon Friday"
    seen = other("ps")
    assert seen.err == "warning: The power is off ^[[31mon Friday\n"
    assert "power" not in seen.out
    quiet = other("ps", "--json")
    assert (quiet.err, quiet.json) == ("", {"jobs": []})
    assert "The power is off" in other("announcement", "list").out
    refused = other("announce", "mine", "--until", "2h")
    assert refused.code != 0
    assert "may not tell all users something" in refused.err
    assert carrel("announcement", "delete", str(one["id"]), "--json").json == {"deleted": one["id"]}
    assert other("ps").err == ""
    gone = carrel("announcement", "delete", str(one["id"]))
    assert (gone.code != 0, f'There is no announcement "{one["id"]}"' in gone.err) == (True, True)


def test_moments_are_written_as_people_write_them(carrel: CommandLine) -> None:
    wrong = carrel("announce", "x", "--until", "some day")
    assert (wrong.code, '--until "some day" is no moment' in wrong.err) == (2, True)
    over = carrel("announce", "x", "--until", "2001-01-01 09:00")
    assert "over before anybody sees it" in over.err
