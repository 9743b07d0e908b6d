"""Named environments."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import ConfigDict, Field

from carrel.wire.v1.base import Problem, Request, Response


class EnvironmentRequest(Request):
    """Body of ``POST /api/v1/environments``: one of `requirements`, `project`, `path` and `source`, or none of them.

    ipykernel and pip are added to what the lab makes.
    """

    #: "torch", or "site/torch" (administrators): for everybody.
    name: str
    #: "3.11" or ">=3.10"; None: what the project says, else the lab's own.
    python: str | None = None
    #: Lines of a requirements file, which name no other files but constraints in `files`.
    requirements: list[str] | None = None
    #: Texts of constraint files, by the path that `requirements` have for them.
    files: dict[str, str] = Field(default_factory=dict)
    #: Texts of "pyproject.toml" and, where there is one, "uv.lock".
    project: dict[str, str] | None = None
    #: Absolute path of a virtual environment or conda prefix on the lab's machine, to be used where it is (administrators).
    path: str | None = None
    #: Another environment, whose present lock is installed.
    source: str | None = None


class EnvironmentShareRequest(Request):
    """Body of ``POST /api/v1/environments/{name}/share``: users who are not named may not use it any more."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    #: "all", or subjects; empty: nobody.
    subjects: Literal["all"] | list[str] = Field(alias="with")


class EnvironmentRestoreRequest(Request):
    """Body of ``POST /api/v1/environments/{name}/restore``."""

    #: The beginning of a lock's digest; None: the last that differs from what is installed now.
    lock: str | None = None


class EnvironmentLockView(Response):
    """One lock in the history of an environment."""

    digest: str
    at: datetime
    #: "made", "installed" (in a session), "restored" or "taken" (anew, from the shared one).
    how: str
    packages: int


class NamedEnvironmentView(Response):
    """A named environment, as the caller writes its name."""

    name: str
    owner: str
    #: "own", "reference" (a prefix elsewhere, used where it is) or "overlay" (on top of one).
    kind: str
    #: Implementation and exact version ("cpython-3.11.7").
    python: str
    #: What it was made from, in words.
    source: str
    path: str
    created_at: datetime
    used_at: datetime
    #: Bytes on disk; what it shares with one that comes before it in a list is not counted again.
    size: int
    packages: int
    in_use: bool
    #: "all", or subjects; shown to its owner alone.
    shared_with: list[str] = Field(default_factory=list)
    #: Of a copy: what it is a copy of.
    copy_of: str | None = None
    #: Oldest first.
    locks: list[EnvironmentLockView] = Field(default_factory=list)


class NamedEnvironmentList(Response):
    """One's own environments, then the site's, then what others share."""

    environments: list[NamedEnvironmentView]
    #: Bytes of one's own together, each file once, and how many they may be.
    used: int
    quota: int | None = None


class EnvironmentLockText(Response):
    """A lock: requirement lines with exact versions, and hashes where they are known."""

    environment: str
    digest: str
    at: datetime
    python: str
    text: str


class EnvironmentProgress(Response):
    """One line of the answer to a request that builds an environment; the last line has `environment` or `problem`."""

    message: str | None = None
    environment: NamedEnvironmentView | None = None
    problem: Problem | None = None
