"""Names of users: one directory for each, and no two that look alike."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.control.users import Users
from carrel.core.domain.errors import CarrelError, Conflict, Invalid
from carrel.core.domain.user import User, check_name, directory_name
from carrel.lab.tracking.tenancy import workspace_of
from carrel.node.environments.named.records import Layout, owner_directory

LONG = "a" * 64
#: Names that shared a directory or a workspace, or could be made to.
RIVALS = [
    ("ada@example.org", "x616461406578616d706c652e6f7267"),
    ("ada@example.org", "~616461406578616d706c652e6f7267"),
    ("ada@example.org", directory_name("ada@example.org")),
    (f"{LONG}b", f"{LONG}c"),
    ("é" * 80, "é" * 81),
    ("@site", "site"),
    ("", "@site"),
]


@pytest.mark.parametrize(("one", "other"), RIVALS)
def test_no_name_leads_to_another_users_own(one: str, other: str) -> None:
    assert owner_directory(one) != owner_directory(other)
    assert workspace_of(one) != workspace_of(other)
    if one:
        assert directory_name(one) != directory_name(other)


@given(st.lists(st.text(min_size=1, max_size=80), min_size=2, max_size=2, unique=True))
def test_every_user_has_a_directory_of_their_own(names: list[str]) -> None:
    assert directory_name(names[0]) != directory_name(names[1])
    assert directory_name(directory_name(names[0])) != directory_name(names[1]) or directory_name(names[0]) == names[1]
    for name in map(directory_name, names):
        assert len(name) <= 255
        assert not name.startswith((".", "@"))
        assert "/" not in name


def test_a_plain_name_is_its_own_directory() -> None:
    for name in ("ada", "Ada.L-1_x", "x616461", LONG):
        assert directory_name(name) == name


def test_names_of_workspaces_that_look_alike_are_told_apart_by_a_digest_that_nobody_finds_twice() -> None:
    for name in ("ada", "ada.", "Ada", "ada-", "a" * 41):
        assert len(workspace_of(name).rpartition("-")[2]) == 32


def test_no_owner_takes_the_place_of_what_a_store_keeps_beside_their_directories(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    for name in ("quota.json", ".quota.json"):
        assert layout.place(name, "torch").directory.parent != layout.quota


@pytest.mark.parametrize(
    "name",
    [
        "Alice",
        "ALICE",
        "ａlice",
        "a1ice",
        "aIice",
        "alıce",
        "аӏісе",
    ],
)
def test_a_name_that_looks_like_another_users_is_refused(name: str) -> None:
    with pytest.raises(Conflict, match=f'"{name}" looks like "alice", the name of another user') as refused:
        check_name(name, ["bob", "alice"])
    assert 'use "alice"' in refused.value.remedy


@pytest.mark.parametrize(
    "name",
    [
        "alice ",
        " alice",
        "",
        "al\nice",
        "al\u202eice",
        "a" * 256,
        "аlice",
        "alice\ufe0f",
        "alice\u2800",
        "all",
        "site",
        ".",
        "..",
    ],
)
def test_a_name_that_hides_something_or_has_a_meaning_is_refused(name: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_name(name, [])
    assert refused.value.remedy


def test_one_may_see_that_letters_differ_only_with_blanks_passed_over() -> None:
    with pytest.raises(Conflict):
        check_name("ada  lovelace", ["ada lovelace"])
    with pytest.raises(Conflict):
        check_name("vic tim", ["victim"])
    with pytest.raises(Conflict):
        check_name("victirn", ["victim"])
    with pytest.raises(Conflict):
        check_name("lan", ["Ian"])


def test_names_of_people_are_taken() -> None:
    taken: list[str] = []
    plain = ("ada", "mei", "mel", "ann.lee", "annlee", "o'brien", "bob@x.org")
    for name in (*plain, "Müller", "muller", "李明", "さくら山", "Αλίκη", "Анна"):
        check_name(name, taken)
        taken.append(name)
    check_name("ada", taken)  # whose name it is, is for others to say


def test_of_two_names_that_look_alike_one_comes_first() -> None:
    class Table:
        def __init__(self) -> None:
            self.users: list[User] = []
            self.meeting = threading.Barrier(2)

        def list(self) -> list[User]:
            found = list(self.users)
            # Both have looked before one of them writes, unless they are kept in line.
            with suppress(threading.BrokenBarrierError):
                self.meeting.wait(0.2)
            return found

        def get(self, subject: str) -> User | None:
            return next((user for user in self.users if user.subject == subject), None)

        def add(self, user: User, *, now: float) -> None:
            self.users.append(user)

    table = Table()
    users = Users(people=table, tokens=None, jobs=None, held=None, changed=print, clock=lambda: 0.0)  # type: ignore[arg-type]
    refused: list[CarrelError] = []

    def enroll(name: str) -> None:
        try:
            users.enroll(name)
        except CarrelError as error:
            refused.append(error)

    threads = [threading.Thread(target=enroll, args=(name,)) for name in ("alice", "Alice")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(table.users), len(refused)) == (1, 1)
