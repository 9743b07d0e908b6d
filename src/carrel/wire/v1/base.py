"""What all models of ``/api/v1`` have in common, and the shape of errors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Request(BaseModel):
    """Base of what clients send: an unknown field is an error, never dropped."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Response(BaseModel):
    """Base of what the lab answers."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Problem(Response):
    """Every error, as RFC 9457 ``application/problem+json``."""

    #: "urn:carrel:problem:invalid" and so on; the last part is the error's code.
    type: str
    title: str
    status: int
    #: Fact and value.
    detail: str
    #: What the reader can do.
    remedy: str = ""
    details: dict[str, Any] = Field(default_factory=dict)
