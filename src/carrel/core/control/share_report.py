"""Where somebody stands with their fair share, and how that would change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from carrel.core.control.lab_policy import LabPolicy
from carrel.core.control.usage import UsageBook
from carrel.core.control.views import ShareReport
from carrel.core.domain.account import Standing
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, Resource, allowed

#: How far ahead the lab says what keeping and releasing would do to one's standing, in seconds.
AN_HOUR = 3600.0


def share_report(caller: Caller, policy: LabPolicy, use: UsageBook, now: float) -> ShareReport:
    """Return where the caller stands on each of their accounts, and others as far as the caller may see them."""
    rules = policy.rules.current
    me = caller.user.subject
    others = [(policy.account(None, caller.user), me)]
    found = use.standings(now, others)
    seen = [row for row in found if allowed(caller, Action.SEE_SHARES, Resource(owner=row.user, account=row.account))]
    return ShareReport(
        standings=seen,
        places={(standing.account, standing.user): place for place, standing in enumerate(found, start=1)},
        of=len(found),
        half_life=rules.half_life,
        weight=rules.share_weight,
        held=use.held_by(me),
        kept=_factors(use.standings(now, others, ahead=AN_HOUR), me),
        released=_factors(use.standings(now, others, ahead=AN_HOUR, released=me), me),
    )


def _factors(standings: Sequence[Standing], user: str) -> Mapping[str, float]:
    return {standing.account: standing.factor for standing in standings if standing.user == user}
