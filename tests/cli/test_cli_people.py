"""`carrel token` and `carrel user`, as the people meet them."""

from __future__ import annotations

from command_line import CommandLine

from carrel.testing.lab_process import LabProcess


def as_holder_of(token: str, lab: LabProcess) -> CommandLine:
    return CommandLine({"CARREL_URL": lab.url, "CARREL_TOKEN": token, "CARREL_HOME": "/nonexistent"})


def test_a_token_is_made_used_listed_and_revoked(lab: LabProcess, carrel: CommandLine, other: CommandLine) -> None:
    made = other("token", "create", "ci", "--scope", "read", "--expires", "2h")
    assert "(read), until" in made.err
    assert "not shown again" in made.err
    mine = as_holder_of(made.out.strip(), lab)
    assert mine("ps").code == 0
    refused = mine("env", "create", "x")
    assert (refused.code, "This token is for read only." in refused.err) == (4, True)
    assert "carrel token create --scope" in refused.err
    (listed,) = [one for one in other("token", "list", "--json").json["tokens"] if one["name"] == "ci"]
    table = other("token", "list").out
    assert "LAST USE" in table
    assert made.out.strip() not in table
    assert other("token", "revoke", str(listed["id"])).out == f"Token {listed['id']} is not valid any more.\n"
    assert "ci" not in other("token", "list").out
    assert "revoked" in other("token", "list", "--all").out
    gone = mine("ps")
    assert (gone.code, "was revoked on" in gone.err, "carrel user reset" in gone.err) == (4, True, True)
    assert listed["id"] in [one["id"] for one in carrel("token", "list", "--users", "--all", "--json").json["tokens"]]


def test_a_lost_token_is_replaced(lab: LabProcess, carrel: CommandLine) -> None:
    first = carrel("user", "add", "forgetful", "--expires", "1d", "--json").json
    assert first["expires_at"] is not None
    again = carrel("user", "add", "forgetful")
    assert (again.code, "carrel user reset forgetful" in again.err) == (5, True)
    reset = carrel("user", "reset", "forgetful", "--expires", "never")
    assert "without an end" in reset.out
    token = reset.out.rpartition("CARREL_TOKEN=")[2].strip()
    assert as_holder_of(token, lab)("ps").code == 0
    assert as_holder_of(first["token"], lab)("ps").code == 4


def test_a_lab_without_tracking_has_nothing_to_export(other: CommandLine) -> None:
    refused = other("token", "--env")
    assert (refused.code, "without tracking" in refused.err) == (5, True)
    given = dict(word.split("=", 1) for word in other("token", "--env", "--scope", "submit").out.split())
    assert sorted(given) == ["CARREL_TOKEN", "CARREL_URL"]
