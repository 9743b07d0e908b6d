"""How many jobs a session may have, and what it reads where it may not have more."""

from __future__ import annotations

import pytest

from carrel.core.control.session_limit import check_session_jobs
from carrel.core.domain.errors import Denied, TooMany


def test_a_session_has_as_many_as_it_may_and_not_one_more() -> None:
    check_session_jobs(7, 2, 1, most=3)
    check_session_jobs(7, 0, 3, most=3)
    for has, more in ((3, 1), (2, 2), (0, 4)):
        with pytest.raises(TooMany, match=f"Session 7 has {has} jobs that wait or run, .* have 3 at once") as refused:
            check_session_jobs(7, has, more, most=3)
        assert "Wait until some have ended, cancel some with `carrel cancel`" in refused.value.remedy


def test_where_sessions_may_have_none_the_remedy_is_another_token() -> None:
    with pytest.raises(Denied, match="Session 7 cannot submit jobs: the lab lets sessions have none") as refused:
        check_session_jobs(7, 0, 0, most=0)
    assert "Submit with your own token" in refused.value.remedy
