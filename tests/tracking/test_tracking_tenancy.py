"""The rules of who may ask MLflow what, without MLflow."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.errors import Invalid
from carrel.lab.tracking.tenancy import Kind, kind_of, understand_body, understand_query, workspace_of

pytestmark = pytest.mark.quick


@given(st.text(max_size=300))
def test_every_subject_has_a_workspace_that_mlflow_accepts(subject: str) -> None:
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", workspace_of(subject))
    assert 2 <= len(workspace_of(subject)) <= 63


@given(st.text(max_size=50), st.text(max_size=50))
def test_two_subjects_never_share_a_workspace(one: str, other: str) -> None:
    assert (workspace_of(one) == workspace_of(other)) == (one == other)


def test_subjects_that_look_alike_have_different_workspaces() -> None:
    assert len({workspace_of(name) for name in ("Ann", "ann", "ann ", "a.nn", "a-nn")}) == 5


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/ajax-api/3.0/mlflow/workspaces/alice"),
        ("POST", "/ajax-api/2.0/mlflow/gateway-proxy"),
        ("GET", "/ajax-api/2.0/mlflow/get-trace-artifact"),
        ("GET", "/ajax-api/3.0/mlflow/get-trace-artifact"),
        ("POST", "/v1/traces"),
        ("POST", "/ajax-api/3.0/mlflow/jobs"),
        ("POST", "/ajax-api/3.0/mlflow/assistant/chat"),
        ("GET", "/api/3.0/mlflow/mcp-servers"),
        ("POST", "/api/2.0/mlflow/users/create"),
        ("POST", "/api/2.0/mlflow-artifacts/mpu/create/x"),
        ("POST", "/ajax-api/2.0/mlflow/runs/create-promptlab-run"),
        ("POST", "/ajax-api/3.0/mlflow/ui-telemetry"),
        ("GET", "/api/2.0/mlflow-artifacts/artifacts/../../etc/passwd"),
        ("GET", "/api/2.0/mlflow-artifacts/artifacts//etc/passwd"),
        ("GET", "/static-files/../../x"),
        ("GET", "/static-files/..\\x"),
        ("POST", "/"),
        ("GET", "/API/2.0/mlflow/runs/get"),
        ("GET", "/api/2.0/mlflow/runs/get/"),
        ("GET", "/health"),
        ("CONNECT", "/api/2.0/mlflow/runs/get"),
    ],
)
def test_what_is_not_listed_is_refused(method: str, path: str) -> None:
    assert kind_of(method, path) is Kind.REFUSED


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("GET", "/", Kind.STATIC),
        ("GET", "/static-files/static/js/main.js", Kind.STATIC),
        ("POST", "/api/2.0/mlflow/runs/create", Kind.API),
        ("POST", "/graphql", Kind.API),
        ("PUT", "/api/2.0/mlflow-artifacts/artifacts/1/run/artifacts/model.pt", Kind.CONTENT),
        ("GET", "/ajax-api/3.0/mlflow/server-info", Kind.SERVER_INFO),
    ],
)
def test_what_clients_and_pages_need_is_let_through(method: str, path: str, kind: Kind) -> None:
    assert kind_of(method, path) is kind


def test_experiment_zero_becomes_the_users_own() -> None:
    assert json.loads(understand_body(b'{"experiment_id": "0", "x": 1}', "17").body) == {"experiment_id": "17", "x": 1}
    assert json.loads(understand_body(b'{"experimentIds": ["0", "5"]}', "17").body) == {"experimentIds": ["17", "5"]}
    assert understand_query(b"experiment_id=0&a=b%20c", "17") == b"experiment_id=17&a=b+c"
    assert understand_query(b"run_id=0", "17") == b"run_id=0"


@pytest.mark.parametrize(
    "body",
    [
        b'{"model_id": "m-1"}',
        b'{"modelId": "m-1"}',
        b'{"metrics": [{"key": "a"}, {"key": "b", "model_id": "m-1"}]}',
        b'{"metrics": [{"\\u006dodelId": "m-1"}]}',
        b'"{\\"model_id\\": \\"m-1\\"}"',
        '{"model_id": "m-1"}'.encode("utf-16"),
        b'{"models": [{"model_id": "m-1", "step": 0}]}',
    ],
)
def test_no_spelling_hides_the_model_that_is_written_to(body: bytes) -> None:
    understood = understand_body(body, "1")
    assert understood.models == {"m-1"}
    assert isinstance(json.loads(understood.body), dict)


@pytest.mark.parametrize("body", [b"run_id=1", b"[1]", b'"x"', b"\xff\xfe\x00", pytest.param(b"[" * 100_000, id="deep")])
def test_a_body_that_is_not_an_object_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid):
        understand_body(body, "1")
