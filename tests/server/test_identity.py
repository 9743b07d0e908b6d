"""Who a user of the lab is on the cluster."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carrel.core.domain.errors import Denied, Invalid, Unavailable
from carrel.core.submission.own_name import own_name
from carrel.lab.server.identity import UnixUsers, deputy_command, read_identity

pytestmark = pytest.mark.quick


def users(text: str, **options: float) -> UnixUsers:
    return UnixUsers(read_identity(text), monotonic=lambda: options.get("now", 0.0))


def test_only_the_owner_of_the_lab_is_somebody_if_nothing_else_is_said() -> None:
    assert users("owner").of(own_name()) == ""
    with pytest.raises(Denied, match="alice has no user on the cluster: only the person who runs this lab has one"):
        users("owner").of("alice")
    assert users("lab").of("alice") == ""


@pytest.mark.parametrize(
    "subject", ["nobody-of-that-name", "-u", "--user=root", "root", "0", "games\n", "gaMes", "", "../games", "a" * 99]
)
def test_names_that_are_nobodys_or_roots_are_refused(subject: str) -> None:
    with pytest.raises(Denied):
        users("same").of(subject)


def test_the_same_name_is_the_same_user() -> None:
    assert users("same").of("games") == "games"


def test_a_map_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "people.toml"
    who = users(f"map:{file}")
    with pytest.raises(Unavailable, match=r"people\.toml cannot be read"):
        who.of("alice")
    file.write_text('"alice@example.org" = "games"\neve = "root"\n')
    assert who.of("alice@example.org") == "games"
    for subject in ("bob", "eve"):
        with pytest.raises(Denied):
            who.of(subject)
    file.write_text('bob = "news"')
    os.utime(file, (1, 1))
    assert who.of("bob") == "news"
    file.write_text("bob = 7")
    os.utime(file, (2, 2))
    with pytest.raises(Unavailable, match="a value is not a text"):
        who.of("bob")
    file.write_text("bob =")
    os.utime(file, (3, 3))
    with pytest.raises(Unavailable, match="cannot be read"):
        who.of("bob")


def test_a_map_that_others_could_write_is_not_believed(tmp_path: Path) -> None:
    file = tmp_path / "people.toml"
    file.write_text('alice = "games"\n')
    who = users(f"map:{file}")
    assert who.of("alice") == "games"
    file.chmod(0o666)
    with pytest.raises(
        Unavailable, match=r"The mapping of users to the cluster.s is not trusted: .*people\.toml may be written by everybody"
    ):
        who.of("alice")
    tmp_path.chmod(0o777)
    program = tmp_path / "who"
    program.write_text("#!/bin/sh\necho games\n")
    program.chmod(0o755)
    with pytest.raises(Unavailable, match="may be written by everybody, who could put another who there"):
        users(f"command:{program}").of("alice")


def test_a_command_is_asked(tmp_path: Path) -> None:
    program = tmp_path / "who"
    program.write_text(
        f"#!/bin/sh\necho asked >> {tmp_path}/asked\n"
        'case "$2" in alice) echo games;; bob) exit 1;; eve) echo two words;; carol) echo oh >&2; exit 3;; *) echo "$2";; esac\n'
    )
    program.chmod(0o755)
    who = users(f"command:{program}")
    assert [who.of("alice"), who.of("alice"), who.of("news")] == ["games", "games", "news"]
    assert (tmp_path / "asked").read_text() == "asked\n" * 2
    with pytest.raises(Denied, match="bob has no user on the cluster"):
        who.of("bob")
    with pytest.raises(Denied, match="root"):
        who.of("root")
    with pytest.raises(Unavailable, match="ended with 0 and said: two words"):
        who.of("eve")
    with pytest.raises(Unavailable, match="ended with 3 and said: oh"):
        who.of("carol")
    with pytest.raises(Unavailable, match="does not say who alice is"):
        users(f"command:{tmp_path}/gone").of("alice")


def test_how_deputies_are_started() -> None:
    assert deputy_command(None, "alice")[:4] == ["sudo", "-n", "-u", "alice"]
    assert deputy_command("doas -u {user} 'a b'", "alice") == ["doas", "-u", "alice", "a b"]
    with pytest.raises(Invalid, match="has to name"):
        deputy_command("doas", "alice")


@pytest.mark.parametrize("text", ["", "everybody", "map:", "map:here.toml", "command:who", "same:x"])
def test_what_is_no_identity_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="slurm_identity is"):
        read_identity(text)
