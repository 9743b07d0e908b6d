from __future__ import annotations

import pytest

from carrel.core.domain import errors
from carrel.lab.gateway.errors import problem_of

pytestmark = pytest.mark.quick

STATUS = {
    "too_large": 413,
    "invalid": 422,
    "impossible": 422,
    "unauthenticated": 401,
    "denied": 403,
    "not_found": 404,
    "conflict": 409,
    "unavailable": 503,
    "storage_full": 507,
    "misdirected": 421,
    "too_many": 429,
    "error": 500,
}


def every_error(cls: type[errors.CarrelError] = errors.CarrelError) -> list[type[errors.CarrelError]]:
    return [
        cls,
        *(found for child in cls.__subclasses__() if child.__module__ == errors.__name__ for found in every_error(child)),
    ]


@pytest.mark.parametrize("cls", every_error())
def test_every_error_of_the_domain_has_its_status(cls: type[errors.CarrelError]) -> None:
    problem, headers = problem_of(cls("Fact.", remedy="Cure.", details={"n": 1}))
    assert (problem.status, problem.type) == (STATUS[cls.code], f"urn:carrel:problem:{cls.code}")
    assert (problem.detail, problem.remedy, problem.details) == ("Fact.", "Cure.", {"n": 1})
    assert ("WWW-Authenticate" in headers) == (problem.status == 401)
    assert ("Retry-After" in headers) == (problem.status in (429, 503))
