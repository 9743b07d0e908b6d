"""Sign-ins of programs: what is one step is one, on each database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from carrel.core.domain.sign_in import AuthorizationRequest, Decision, Device, NewSignIn, Renewal
from carrel.lab.store import Store

ASKED = AuthorizationRequest(client="carrel-cli", scopes=("read", "submit"), host="the-laptop", address="10.0.0.7")
DEVICE = Device(asked=ASKED, created_at=100.0, expires_at=700.0, interval=5)


def new(number: int = 1) -> NewSignIn:
    return NewSignIn(
        subject="ada",
        name="carrel login on the-laptop",
        client="carrel-cli",
        scopes=ASKED.scopes,
        account="physics",
        family=f"family {number}",
        refresh=f"refresh {number}",
        access=f"access {number}",
        access_until=3700.0,
        idle_until=1000.0 * 86400,
        ends_at=2000.0 * 86400,
    )


def renewal(number: int) -> Renewal:
    return Renewal(
        refresh=f"renewed {number}",
        previous="refresh 1",
        retry=None,
        access=f"later access {number}",
        access_until=7300.0,
        idle_until=1001.0 * 86400,
    )


def approve(store: Store) -> None:
    assert store.sign_ins.add_device("device", "code", DEVICE, of_address=1, of_all=2)
    assert store.sign_ins.decide("code", Decision.APPROVED, subject="ada", account="physics", now=110.0)


@pytest.mark.gate
def test_a_device_is_as_it_was_and_decided_on_once(store: Store) -> None:
    approve(store)
    assert not store.sign_ins.add_device("another", "other", DEVICE, of_address=0, of_all=2)
    store.sign_ins.polled("device", now=105.0, interval=10)
    found = store.sign_ins.device("device")
    assert found == replace(DEVICE, interval=10, polled_at=105.0, decision=Decision.APPROVED, subject="ada", account="physics")
    assert store.sign_ins.device_of("code") == found
    assert not store.sign_ins.decide("code", Decision.DENIED, subject="ada", account=None, now=111.0)
    late = replace(DEVICE, created_at=90_000.0, expires_at=100_000.0)
    assert store.sign_ins.add_device("late", "late", late, of_address=1, of_all=1)
    assert store.sign_ins.device("device") is None


def test_of_many_that_ask_at_once_one_gets_the_tokens(store: Store) -> None:
    approve(store)
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda number: store.sign_ins.take_device("device", new(number), now=120.0), range(4)))
    (token,) = [one for one in made if one is not None]
    assert (token.scopes, token.account, token.created_by) == (("read", "submit"), "physics", "ada")
    assert store.sign_ins.is_sign_in(token.id)
    assert len(store.tokens.list("ada")) == 1


def test_a_refresh_token_is_replaced_once_and_access_that_ended_is_forgotten(store: Store) -> None:
    approve(store)
    made = store.sign_ins.take_device("device", new(), now=120.0)
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda n: store.sign_ins.renew(made.id, "refresh 1", renewal(n), now=3800.0), range(4)))
    assert sorted(done) == [False, False, False, True]
    number = done.index(True)
    found = store.sign_ins.sign_in("family 1")
    assert (found.refresh, found.previous, found.token.expires_at) == (f"renewed {number}", "refresh 1", 1001.0 * 86400)
    assert store.tokens.find("access 1") is None
    opened = store.tokens.find(f"later access {number}")
    assert (opened[0].id, opened[0].expires_at, opened[1].subject) == (made.id, 7300.0, "ada")
    store.tokens.revoke(by="root", now=3900.0, token_id=made.id)
    assert not store.sign_ins.renew(made.id, f"renewed {number}", renewal(9), now=3901.0)


def test_what_a_person_approved_goes_with_all_of_their_tokens(store: Store) -> None:
    approve(store)
    store.tokens.revoke(by="root", now=115.0, subject="ada")
    assert store.sign_ins.take_device("device", new(), now=120.0) is None
