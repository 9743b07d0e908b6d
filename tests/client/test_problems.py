"""What goes wrong in a lab reaches its client as what it is."""

from __future__ import annotations

import inspect

import pytest

from carrel.client.problems import error_of_problem
from carrel.core.domain import errors
from carrel.wire.v1 import Problem

pytestmark = pytest.mark.quick

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, errors.CarrelError)]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.code)
def test_every_class_of_errors_comes_back_as_itself(cls: type[errors.CarrelError]) -> None:
    problem = Problem(type=f"urn:carrel:problem:{cls.code}", title="", status=400, detail="It is too large.", remedy="Send less.")
    error = error_of_problem(problem)
    assert type(error) is cls
    assert (error.message, error.remedy) == ("It is too large.", "Send less.")


def test_a_code_of_a_later_version_is_an_error_all_the_same() -> None:
    assert (
        type(error_of_problem(Problem(type="urn:carrel:problem:new", title="", status=400, detail="New."))) is errors.CarrelError
    )
