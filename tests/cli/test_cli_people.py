"""`carrel token` and `carrel user`, as the people meet them."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import httpx
import pytest
from command_line import CARREL, CommandLine, script

from support.lab_process import LabProcess


def as_holder_of(token: str, lab: LabProcess) -> CommandLine:
    return CommandLine({"CARREL_URL": lab.url, "CARREL_TOKEN": token, "CARREL_HOME": "/nonexistent"})


@pytest.mark.gate
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


def test_an_invitation_becomes_a_token_that_the_command_line_keeps(lab: LabProcess, carrel: CommandLine, tmp_path: Path) -> None:
    invited = carrel("user", "invite", "newcomer")
    # What an administrator has to know: this lab listens on the loopback, and its jobs are not kept apart.
    assert "Other machines cannot reach this address." in invited.out
    assert "Nothing keeps jobs apart" in invited.out
    # The lab has that from its variables, which this command has not.
    assert "CARREL_ISOLATION" not in carrel.variables
    (isolation,) = [one for one in carrel("doctor", "--json").json["checks"] if one["name"] == "isolation"]
    assert (isolation["status"], "can read the files" in isolation["message"]) == ("warn", True)
    (line,) = [line.split() for line in invited.out.splitlines() if "carrel login" in line]
    newcomer = CommandLine({"XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_DATA_HOME": str(tmp_path / "data")})
    done = newcomer(*line[1:])
    assert (done.code, "as newcomer" in done.out) == (0, True), done.err
    (file,) = (tmp_path / "config/carrel/tokens").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    token = file.read_text().strip()
    assert token not in invited.out + done.out + done.err
    # Nothing else is said: the lab that was signed in to.
    assert newcomer("lab", "--json").json["caller"]["subject"] == "newcomer"
    again = newcomer(*line[1:])
    assert (again.code, "used or taken back" in again.err, "carrel user invite newcomer" in again.err) == (4, True, True)
    opened = as_holder_of(line[-1], lab)("ps")
    assert (opened.code, "used or taken back" in opened.err) == (4, True)
    assert newcomer("logout").out == f"Signed out of {lab.url}.\n"
    assert not file.exists()
    assert newcomer("ps").code == 6
    assert "was revoked" in as_holder_of(token, lab)("ps").err


def test_a_token_is_piped_in_and_others_must_not_read_it(lab: LabProcess, tmp_path: Path) -> None:
    mine = CommandLine({"XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_DATA_HOME": str(tmp_path / "data")})
    words = [*CARREL, "login", lab.url, "--token"]
    piped = subprocess.run(words, input=lab.token, capture_output=True, text=True, env=mine.environment(), check=False)
    assert piped.returncode == 0, piped.stderr
    (file,) = (tmp_path / "config/carrel/tokens").iterdir()
    assert file.read_text().strip() == lab.token
    file.chmod(0o644)
    assert "Others may read" in mine("ps").err


def test_a_suspended_user_reads_why_and_goes_on_later(lab: LabProcess, carrel: CommandLine) -> None:
    mine = as_holder_of(carrel("user", "add", "paused", "--json").json["token"], lab)
    said = carrel("user", "suspend", "paused", "--reason", "The course is over.").out
    assert ("what they had open ends now" in said, "Jobs that run go on" in said) == (True, True)
    refused = mine("ps")
    assert (refused.code, "paused is suspended since" in refused.err, "The course is over." in refused.err) == (4, True, True)
    listed = carrel("user", "list").out
    assert ("suspended" in listed, "PROVIDER" in listed) == (True, False), "nobody is linked to a provider here"
    assert "may go on" in carrel("user", "resume", "paused").out
    assert mine("ps").code == 0
    assert "is removed, and 0 jobs" in carrel("user", "remove", "paused").out
    assert mine("ps").code == 4
    reused = carrel("user", "add", "paused")
    assert (reused.code, "kept under this name" in reused.err) == (5, True)
    me = carrel("lab", "--json").json["caller"]["subject"]
    for what in ("suspend", "remove"):
        last = carrel("user", what, me)
        assert (last.code, "only administrator" in last.err) == (5, True)


LOOKS_FOR_ITS_TOKEN = """\
import os, pathlib
token = os.environ["CARREL_TOKEN"]
print("plain", token)
words = [path.read_bytes() for path in pathlib.Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)]
print("arguments with it:", sum(token.encode() in said for said in words))
print("reversed", token[::-1])
"""


def test_no_token_is_in_anything_that_the_lab_wrote(lab: LabProcess, lab_home: Path, carrel: CommandLine, tmp_path: Path) -> None:
    task = script(tmp_path / "code", LOOKS_FOR_ITS_TOKEN, name="look.py")
    planted = {}
    for case, options in (("task", ()), ("group", ("--tasks-per-node", "2"))):
        done = carrel("run", task, *options)
        assert done.code == 0, done.err
        assert "arguments with it: 0" in done.out
        # What a task prints of it is not shown, nor kept.
        (backwards,) = {line.split()[-1] for line in done.out.splitlines() if "reversed" in line}
        planted[f"of the {case}"] = backwards[::-1]
        assert backwards[::-1] not in done.out
    planted["of a user"] = carrel("user", "add", "planted", "--json").json["token"]
    planted["invitation"] = carrel("user", "invite", "planted", "--json").json["code"]
    holder = as_holder_of(planted["of a user"], lab)
    planted["made by them"] = holder("token", "create").out.strip()
    assert as_holder_of(planted["made by them"], lab)("ps").code == 0
    assert as_holder_of(planted["invitation"], lab)("ps").code == 4
    assert holder("token", "revoke", "999999").code == 3
    files = [path for path in lab_home.rglob("*") if path.is_file() and not path.is_symlink()]
    assert any(path.name == "server.log" for path in files)
    found = [(case, path) for path in files for case, token in planted.items() if token.encode() in path.read_bytes()]
    assert found == []


def test_the_pages_are_opened_by_a_new_link_each_time(lab: LabProcess, carrel: CommandLine) -> None:
    links = [carrel("open", "--no-browser").out.splitlines()[0], carrel("open", "--json").json["url"]]
    assert len(set(links)) == 2
    for link in links:
        assert link.startswith(f"{lab.url}/login?ticket=")
        with httpx.Client(follow_redirects=True, headers={"Accept": "text/html"}) as browser:
            assert "Sign out" in browser.get(link).text
            assert browser.get(link).status_code == 401
