"""Which account work is charged to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches

from carrel.core.domain.account import Account
from carrel.core.domain.errors import Denied, Invalid


def choose_account(
    name: str | None, user: str, usual: str, accounts: Mapping[str, Account], member_of: Collection[str] = ()
) -> str:
    """Return the account called `name`, or the one of a user who names none: the `usual` one, else the first that admits them.

    `member_of` are accounts that admit the user for the groups of their sign-in provider. A lab that has set up no accounts
    has the `usual` one alone, for each further name would be a fresh share of the lab. Raises `Invalid` for an account that does
    not exist, `Denied` for one that does not admit the user.
    """
    accounts = accounts or {usual: Account(name=usual)}
    open_to = [account.name for account in accounts.values() if account.admits(user) or account.name in member_of]
    remedy = f"Open to {user}: {', '.join(open_to)}." if open_to else "Ask an administrator to add them to an account."
    if name is None:
        if usual in open_to:
            return usual
        if not open_to:
            raise Denied(f"No account of this lab admits {user}.", remedy=remedy)
        return open_to[0]
    if name not in accounts:
        near = get_close_matches(name, accounts, n=1)
        meant = f'Did you mean "{near[0]}"? ' if near else ""
        raise Invalid(f'There is no account "{name}".', remedy=f"{meant}{remedy}", details={"accounts": open_to})
    if name not in open_to:
        raise Denied(f'{user} may not charge account "{name}".', remedy=remedy, details={"accounts": open_to})
    return name


def accounts_of(user: str, usual: str, accounts: Mapping[str, Account], member_of: Collection[str] = ()) -> frozenset[str]:
    """Return the accounts that a user is a member of: those that name them, and their `usual` one where it admits them.

    Also those of `member_of` that exist: what the groups of their sign-in provider stand for.

    An account that admits everybody has no members by that: who may charge it is one question, who belongs to it another.
    """
    if not accounts:
        return frozenset({usual})
    named = {account.name for account in accounts.values() if user in account.users or account.name in member_of}
    return frozenset(named | ({usual} if usual in accounts and accounts[usual].admits(user) else set()))
