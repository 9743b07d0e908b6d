"""Dates as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from carrel.core.domain.errors import Invalid


def read_as_of(text: str) -> str:
    """Return the moment that ``resolve_as_of`` names, in UTC; the end of a day that is named alone. Raises `Invalid`."""
    try:
        if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            moment = datetime.fromisoformat(text).replace(tzinfo=UTC) + timedelta(days=1)
        else:
            moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        moment = None
    if moment is None or moment.tzinfo is None:
        raise Invalid(
            f'resolve_as_of is "{text}", which is no date.', remedy="Write it like 2023-12-01, or 2023-12-01T09:00:00Z."
        )
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
