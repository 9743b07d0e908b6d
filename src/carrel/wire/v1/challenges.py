"""Requests about challenges; answers are nouns (`carrel.core.domain.challenge`)."""

from __future__ import annotations

from pydantic import Field

from carrel.core.domain.challenge_notice import LONGEST, MOST_MORE
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
    #: Answers by what the challenge asks (`asks`); they may be left out.
    answers: dict[str, str] = Field(default_factory=dict, max_length=30)


class StarterView(Response):
    """The place of the files that participants begin with."""

    #: Relative to the files of the user's sessions.
    directory: str


class MergeRequest(Request):
    """The team that another one asks to merge with it, or agrees with."""

    #: The code of the team that is asked.
    code: str = Field("", max_length=64)
    #: The name of a team that has asked.
    team: str = Field("", max_length=40)


class ChoiceRequest(Request):
    """Submissions that are to go on to a final."""

    submissions: list[int] = Field(max_length=100)


class PublishRequest(Request):
    """What is said about a draft that is published."""

    #: Needed where dates, limits, rules or boards of what was published change; those who take part read it.
    reason: str = Field("", max_length=LONGEST)
    #: True: what could not be scored again loses its place.
    without_failed: bool = False


class TextRequest(Request):
    """An announcement, or a question."""

    text: str = Field(min_length=1, max_length=LONGEST)


class AnswerRequest(TextRequest):
    """The answer to a question."""

    #: True: everybody reads the question and its answer; false: who asked.
    publish: bool = False


class QuotaRequest(Request):
    """Submissions that a team has more, or fewer."""

    team: str = Field(max_length=64)
    #: On this day of the challenge's zone, and in the phase of now.
    today: int = Field(0, ge=-MOST_MORE, le=MOST_MORE)
    total: int = Field(0, ge=-MOST_MORE, le=MOST_MORE)
    #: Its members read it.
    reason: str = Field(min_length=1, max_length=500)


class DryRunView(Response):
    """The jobs of a dry run."""

    ingestion: int
    #: It begins when the first one has ended well.
    scoring: int


class SampleRequest(Request):
    """A file of the training data that is shown one by one."""

    #: Its path in them, as it is listed.
    sample: str = Field(min_length=1, max_length=1024)
