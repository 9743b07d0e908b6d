"""Who is who at the sign-in provider, on both databases."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from carrel.core.domain.identity import Identity
from carrel.core.domain.token import Token
from carrel.core.domain.user import Role, User, UserState
from carrel.lab.store import Database, Store

HERE, THERE = "https://id.example.org", "https://id.example.net"


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    store = Store(Database(database_url))
    for name, role in (("root", Role.ADMIN), ("ada", Role.USER), ("bob", Role.USER), ("mia", Role.MANAGER)):
        store.people.add(User(subject=name, name=name, role=role), now=1.0)
    yield store
    store.close()


def linked(store: Store, subject: str, sub: str) -> Identity:
    assert store.identities.link(subject, HERE, sub, now=2.0)
    found = store.identities.find(HERE, sub)
    assert found.subject == subject
    return found


def role(store: Store, subject: str) -> Role:
    user = store.people.get(subject)
    return user.role


@pytest.mark.slow
@pytest.mark.gate
def test_a_database_without_an_encoding_gives_names_back_as_they_were(postgresql: Any) -> None:
    database = f"ascii_{secrets.token_hex(4)}"
    admin = sa.create_engine(postgresql.url(), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {database} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"))
    admin.dispose()
    store = Store(Database(postgresql.url(database)))
    store.people.add(User(subject="zoë", name="Zoë Ångström", role=Role.USER), now=1.0)
    found = store.people.get("zoë")
    store.close()
    assert found.name == "Zoë Ångström"


@pytest.mark.gate
def test_one_person_there_is_one_user_here(store: Store) -> None:
    linked(store, "ada", "s1")
    for subject, sub in (("ada", "s2"), ("bob", "s1"), ("ada", "s1"), ("nobody", "s3")):
        assert not store.identities.link(subject, HERE, sub, now=3.0), (subject, sub)
    linked(store, "bob", "s2")
    found = store.identities.of("ada")
    assert (found.sub, found.linked_at) == ("s1", 2.0)
    # A lab has one provider: another one's people take the places of those of the one before.
    assert store.identities.link("ada", THERE, "s2", now=4.0)
    assert store.identities.find(HERE, "s1") is None


def test_who_is_suspended_or_gone_is_linked_to_nobody(store: Store) -> None:
    for state in (UserState.SUSPENDED, UserState.REMOVED):
        store.people.set_state("ada", state, reason="", by="root", now=2.0)
        assert not store.identities.link("ada", HERE, "s1", now=3.0)


@pytest.mark.parametrize("how", ["reset", "removed"])
def test_a_reset_and_a_removal_end_the_link_and_what_groups_gave(store: Store, how: str) -> None:
    given = store.identities.give(linked(store, "ada", "s1"), Role.OPERATOR, ["physics"], now=3.0)
    assert given.words == "role user -> operator, account +physics"
    user = store.people.get("ada")
    assert (user.role, user.member_of) == (Role.OPERATOR, frozenset({"physics"}))
    if how == "reset":
        store.tokens.replace(Token(digest="d", user="ada", name="n", scopes=("all",), created_by="root"), by="root", now=4.0)
    else:
        store.people.set_state("ada", UserState.REMOVED, reason="", by="root", now=4.0)
    user = store.people.get("ada")
    assert (user.role, user.member_of, store.identities.of("ada")) == (Role.USER, frozenset(), None)


def test_groups_give_and_take_a_role_and_leave_one_that_was_given_by_hand(store: Store) -> None:
    ada, mia = linked(store, "ada", "s1"), linked(store, "mia", "s2")
    store.identities.give(ada, Role.MANAGER, (), now=3.0)
    assert role(store, "ada") is Role.MANAGER
    given = store.identities.give(ada, Role.OPERATOR, (), now=4.0)
    assert given.words == "role manager -> operator"
    given = store.identities.give(ada, None, (), now=5.0)
    assert (given.words, role(store, "ada")) == ("role operator -> user", Role.USER)
    given = store.identities.give(ada, None, (), now=5.0)
    assert given.words == ""
    for wanted in (Role.ADMIN, Role.MANAGER, None):
        given = store.identities.give(mia, wanted, (), now=6.0)
        assert (given.words, role(store, "mia")) == ("", Role.MANAGER)
        assert ("by hand" in given.kept) == (wanted is not None)
    store.tokens.replace(Token(digest="d", user="mia", name="n", scopes=("all",), created_by="root"), by="root", now=7.0)
    assert role(store, "mia") is Role.MANAGER
    assert store.identities.give(mia, Role.ADMIN, (), now=8.0) is None  # the link is gone


def test_the_last_administrator_keeps_the_role(store: Store) -> None:
    ada = linked(store, "ada", "s1")
    store.identities.give(ada, Role.ADMIN, (), now=3.0)
    assert store.people.set_state("root", UserState.SUSPENDED, reason="", by="ada", now=4.0)
    given = store.identities.give(ada, None, (), now=5.0)
    assert ("only administrator" in given.kept, role(store, "ada")) == (True, Role.ADMIN)
    store.people.set_state("root", UserState.ACTIVE, reason="", by="ada", now=6.0)
    store.identities.give(ada, None, (), now=7.0)
    assert role(store, "ada") is Role.USER


def test_what_another_provider_gave_is_taken_back(store: Store) -> None:
    store.identities.give(linked(store, "ada", "s1"), Role.ADMIN, ["physics"], now=3.0)
    store.identities.give(linked(store, "bob", "s2"), None, ["physics"], now=3.0)
    assert list(store.identities.take_back(but=HERE)) == []
    assert sorted(store.identities.take_back(but=THERE)) == ["ada", "bob"]
    assert list(store.identities.take_back(but=None)) == []
    assert [(user.role, user.member_of) for user in store.people.list()][:2] == [(Role.USER, frozenset())] * 2
    assert store.identities.find(HERE, "s1") is not None
