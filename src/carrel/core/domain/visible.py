"""Who may see a job."""

from __future__ import annotations

from enum import StrEnum


class Visible(StrEnum):
    """Who may read a job's log, outputs and record beside its owner; nobody else may ever change anything of it."""

    OWNER = "owner"
    #: The members of its account.
    ACCOUNT = "account"
