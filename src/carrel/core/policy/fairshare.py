"""Who has had less than their share: a tree of accounts and users, in the order of Slurm's Fair Tree.

Source: https://slurm.schedmd.com/fair_tree.html (the idea; R. Cox and L. Morrison). Of two accounts beside each other the one
that has used less of its share goes first with all its users, independent of what these have used themselves; inside an account
the same holds of its users. How far one user of an account is ahead of another follows from what both have used, as in Slurm's
classic fair share (https://slurm.schedmd.com/classic_fair_share.html): each share that was used halves the factor. So users who
have used little are alike, and one who has used much is far behind them all. Use fades away with a half-life, so nobody pays for
ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import exp2, inf, log

from carrel.core.domain.account import Account, AccountUsage, Standing


def faded(seconds: float, age: float, half_life: float) -> float:
    """Return what is left, after `age` seconds, of a charge that was made at one moment; all of it where that is yet to come."""
    return seconds * exp2(-max(0.0, age) / half_life)


def accrued(rate: float, since: float, now: float, half_life: float) -> float:
    """Return the charge, as of `now`, of what was held from `since` on at `rate` charged seconds a second."""
    if now <= since:
        return 0.0
    return rate * half_life / log(2) * (1.0 - exp2((since - now) / half_life))


def standings(accounts: Mapping[str, Account], usage: Iterable[AccountUsage]) -> Sequence[Standing]:
    """Return where everybody in `usage` stands, first those who go first.

    Users who have used nothing have to be in `usage` too, with 0, to be counted. An account that is not in `accounts` has one
    share of the lab. Users who stand alike have the same factor, and when nobody has used anything all have 1.
    """
    root = _grow(accounts, usage)
    found = [leaf.standing(factor, root.seconds) for factor, leaf in _placed([root], 0.0, 1.0)]
    return tuple(sorted(found, key=lambda one: -one.factor))


@dataclass(slots=True, eq=False)
class _Branch:
    """The lab, an account, or a user of an account (who has no children)."""

    account: str
    user: str = ""
    shares: int = 1
    seconds: float = 0.0
    #: Part of the lab by shares.
    share: float = 1.0
    #: Share over use among the branches beside it; more is better.
    level: float = inf
    children: list[_Branch] = field(default_factory=list)

    @property
    def users(self) -> int:
        """How many users are below, or 1 for a user."""
        return 1 if self.user else sum(child.users for child in self.children)

    @property
    def only_user(self) -> _Branch:
        """The user below, where there is one."""
        return self if self.user else next(child.only_user for child in self.children if child.users)

    @property
    def had_less(self) -> float:
        """1 where nothing was used, and half of that for each share that was."""
        return exp2(-1 / self.level) if self.level else 0.0

    def standing(self, factor: float, total: float) -> Standing:
        used = self.seconds / total if total > 0 else 0.0
        return Standing(account=self.account, user=self.user, factor=factor, share=self.share, used=used, seconds=self.seconds)


def _grow(accounts: Mapping[str, Account], usage: Iterable[AccountUsage]) -> _Branch:
    root = _Branch("")
    known = {"": root}

    def branch(name: str) -> _Branch:
        if name not in known:
            account = accounts.get(name, Account(name=name))
            made = known[name] = _Branch(name, shares=account.shares)
            branch(account.parent).children.append(made)
        return known[name]

    for name in sorted(accounts):  # also those that nobody has used yet: their shares are shares of the lab
        branch(name)
    for item in sorted(usage, key=lambda item: (item.account, item.user)):
        account = accounts.get(item.account)
        shares = account.users.get(item.user, 1) if account is not None else 1
        branch(item.account).children.append(_Branch(item.account, item.user, shares=shares, seconds=item.seconds))
    _weigh(root)
    return root


def _weigh(branch: _Branch) -> None:
    """Add up what was used, and compare the branches beside each other."""
    shares = sum(child.shares for child in branch.children)
    for child in branch.children:
        child.share = branch.share * child.shares / (shares or 1)
        if not child.user:
            _weigh(child)
    if branch.children:
        branch.seconds = sum(child.seconds for child in branch.children)
    for child in branch.children:
        if child.shares == 0:
            child.level = 0.0
        elif child.seconds > 0:
            child.level = (child.shares / shares) / (child.seconds / branch.seconds)


def _placed(branches: Sequence[_Branch], low: float, high: float) -> Iterator[tuple[float, _Branch]]:
    """Yield the users below, each with its factor, which is between `low` and `high`.

    Each account has as much of what is between the two as it has of the users; one with one user stands as a user does. Accounts
    that stand alike are looked into together, as if their children were beside each other.
    """
    present = sorted((branch for branch in branches if branch.users), key=lambda branch: -branch.level)
    users = left = sum(branch.users for branch in present)
    crowded = {branch.level for branch in present if branch.users > 1}
    for level, group in groupby(present, key=lambda branch: branch.level if branch.level in crowded else None):
        alike = list(group)
        before, left = left, left - sum(branch.users for branch in alike)
        bottom, top = low + (high - low) * left / users, low + (high - low) * before / users
        if level is None:
            yield from ((bottom + (top - bottom) * branch.had_less, branch.only_user) for branch in alike)
        else:
            yield from _placed([child for branch in alike for child in branch.children or [branch]], bottom, top)
