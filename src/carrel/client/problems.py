"""What a lab answers when something is wrong, as the errors of `carrel.core.domain.errors` (RFC 9457)."""

from __future__ import annotations

import httpx

from carrel.core.domain import errors
from carrel.wire.v1 import Problem


def error_of_problem(problem: Problem) -> errors.CarrelError:
    """The error that a problem describes."""
    cls = errors.class_of(problem.type.rpartition(":")[2])
    return cls(problem.detail, remedy=problem.remedy, details=dict(problem.details))


def error_of(response: httpx.Response) -> errors.CarrelError:
    """The error that a response describes (RFC 9457), or the nearest one when something else than a lab answered."""
    try:
        problem = Problem.model_validate_json(response.content)
    except ValueError:
        host = response.url.host
        if response.status_code == 401:  # a lab, too, has no words where only the head of something is asked for
            return errors.Unauthenticated(
                f"{host} answered 401: the token is not known there.",
                remedy="Are CARREL_TOKEN and CARREL_URL right? `carrel login` signs in.",
            )
        # A proxy before the lab, or another program: what refuses will refuse again.
        return {403: errors.Denied, 407: errors.Denied}.get(response.status_code, errors.Unavailable)(
            f"{host} answered {response.status_code} and not as a lab does.", remedy="Is CARREL_URL right?"
        )
    return error_of_problem(problem)
