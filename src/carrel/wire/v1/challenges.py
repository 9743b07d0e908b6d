"""Requests about challenges; answers are nouns (`carrel.core.domain.challenge`)."""

from __future__ import annotations

from pydantic import Field

from carrel.wire.v1.base import Request, Response


class CodeRequest(Request):
    """Code that was uploaded."""

    #: "sha256:…" of a snapshot that this user has uploaded.
    snapshot: str = Field(pattern="^sha256:[0-9a-f]{64}$")


class TeamRequest(Request):
    """The way in which a user takes part."""

    #: Name of a new team; "": the user's own.
    team: str = Field("", max_length=40)
    #: The code of a team that is there; "": a new one is made.
    code: str = Field("", max_length=64)
    accept_rules: bool = False


class StarterView(Response):
    """The place of the files that participants begin with."""

    #: Relative to the files of the user's sessions.
    directory: str


class DryRunView(Response):
    """The jobs of a dry run."""

    ingestion: int
    #: It begins when the first one has ended well.
    scoring: int
