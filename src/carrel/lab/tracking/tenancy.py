"""Who may ask MLflow what: one workspace per user, and a list of what may be asked at all. Pure.

MLflow keeps workspaces apart in its queries, but trusts the caller to name the workspace. So the proxy names it, and lets
through only what has been found to respect it; what is not listed here is refused. Findings with MLflow 3.17.2:

* a metric may carry the id of any logged model, and is then written to that model, whosever it is: checked here;
* a trace's artifact location is a tag that its writer can set, and the server reads from there without looking at the
  workspace: traces are not written and their artifacts not read;
* presigned and multipart uploads address the artifact store directly: not offered;
* webhooks, the model gateway, jobs, the assistant and users are the server's own, not a tenant's: not offered.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import parse_qsl, urlencode

from carrel.core.domain.errors import Invalid

WORKSPACE_HEADER = "X-MLFLOW-WORKSPACE"
#: What MLflow's client calls the experiment of those who name none. In a workspace it has another id; see `Defaults`.
DEFAULT_EXPERIMENT_ID = "0"
DEFAULT_EXPERIMENT_NAME = "Default"


class Kind(Enum):
    """How a request is treated."""

    #: Not let through.
    REFUSED = "refused"
    #: Pages, scripts and pictures of the user interface.
    STATIC = "static"
    #: Small, JSON both ways: read, checked, passed on as it was understood.
    API = "api"
    #: Content of artifacts: streamed.
    CONTENT = "content"
    #: What the server says of itself.
    SERVER_INFO = "server_info"


_STATIC = re.compile(r"/(|static-files/.+|version|favicon\.ico)")
_API_ROUTES: tuple[tuple[str, str], ...] = (
    ("GET|POST", r"2\.0/mlflow/experiments/(get|get-by-name|search)"),
    ("POST", r"2\.0/mlflow/experiments/(create|update|delete|restore|set-experiment-tag|delete-experiment-tag|search-datasets)"),
    ("GET", r"2\.0/mlflow/runs/get"),
    (
        "POST",
        r"2\.0/mlflow/runs/(create|update|delete|restore|search|log-metric|log-parameter|log-batch|log-model|log-inputs|outputs"
        r"|set-tag|delete-tag)",
    ),
    ("GET", r"2\.0/mlflow/metrics/(get-history|get-history-bulk|get-history-bulk-interval)"),
    ("GET", r"2\.0/mlflow/artifacts/list"),
    ("POST", r"2\.0/mlflow/logged-models(|/search|/[^/]+/params)"),
    ("GET|PATCH|DELETE", r"2\.0/mlflow/logged-models/[^/]+"),
    ("PATCH", r"2\.0/mlflow/logged-models/[^/]+/tags"),
    ("DELETE", r"2\.0/mlflow/logged-models/[^/]+/tags/[^/]+"),
    ("GET", r"2\.0/mlflow/logged-models/[^/]+/artifacts/directories"),
    ("GET|POST|PATCH|DELETE", r"2\.0/mlflow/registered-models/[a-z-]+"),
    ("GET|POST|PATCH|DELETE", r"2\.0/mlflow/model-versions/[a-z-]+"),
    ("GET", r"2\.0/mlflow-artifacts/artifacts"),
    ("DELETE", r"2\.0/mlflow-artifacts/artifacts/.+"),
    # Nobody can write traces or evaluation data sets here; the pages ask for them all the same, and find none.
    ("POST", r"3\.0/mlflow/(traces|datasets)/search"),
    ("GET", r"2\.0/mlflow/traces"),
)
_CONTENT_ROUTES: tuple[tuple[str, str], ...] = (
    ("GET|PUT", r"(?:/api|/ajax-api)/2\.0/mlflow-artifacts/artifacts/.+"),
    ("GET", r"/get-artifact"),
    ("GET", r"/model-versions/get-artifact"),
    ("GET", r"/ajax-api/2\.0/mlflow/logged-models/[^/]+/artifacts/files"),
    ("POST", r"/ajax-api/2\.0/mlflow/upload-artifact"),
)
_API = [(frozenset(methods.split("|")), re.compile(rf"/(?:api|ajax-api)/{path}")) for methods, path in _API_ROUTES]
_API.append((frozenset({"POST"}), re.compile("/graphql")))
_CONTENT = [(frozenset(methods.split("|")), re.compile(path)) for methods, path in _CONTENT_ROUTES]
_SERVER_INFO = re.compile(r"/(?:api|ajax-api)/3\.0/mlflow/server-info")


def workspace_of(subject: str) -> str:
    """The name of a user's workspace: readable, valid for MLflow (2 to 63 of [a-z0-9-]), and no two subjects share one.

    The digest tells subjects apart, by 128 bits: whoever may choose a name finds another one with the same 48.
    """
    readable = re.sub(r"[^a-z0-9]+", "-", subject.lower()).strip("-")[:30].strip("-") or "user"
    return f"{readable}-{hashlib.sha256(subject.encode()).hexdigest()[:32]}"


def kind_of(method: str, path: str) -> Kind:
    """What to do with a request for `path`, decoded once and without a query."""
    if any(part in (".", "..") for part in path.split("/")) or "\\" in path or "\0" in path or "//" in path:
        return Kind.REFUSED
    method = "GET" if method == "HEAD" else method
    if method == "GET" and _STATIC.fullmatch(path):
        return Kind.STATIC
    if method == "GET" and _SERVER_INFO.fullmatch(path):
        return Kind.SERVER_INFO
    if any(method in methods and pattern.fullmatch(path) for methods, pattern in _CONTENT):
        return Kind.CONTENT
    if any(method in methods and pattern.fullmatch(path) for methods, pattern in _API):
        return Kind.API
    return Kind.REFUSED


@dataclass(frozen=True, slots=True)
class Understood:
    """A request's body as it was understood, and passed on; and the logged models that it writes metrics to."""

    body: bytes
    models: frozenset[str] = frozenset()


def understand_body(body: bytes, default_experiment: str) -> Understood:
    """Read a JSON body as MLflow will read it; write it down again, so that MLflow cannot read anything else.

    Experiment "0" becomes the workspace's own default experiment. Raises `Invalid` for what is not JSON.
    """
    if not body.strip():
        return Understood(body)
    try:
        value = json.loads(body)
        if isinstance(value, str):  # old clients encode twice, and MLflow understands it
            value = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"The body is not JSON: {error}.", remedy="Use an MLflow client, or send JSON.") from None
    if not isinstance(value, dict):
        raise Invalid("The body is not a JSON object.", remedy="Use an MLflow client, or send a JSON object.")
    for key in ("experiment_id", "experimentId"):
        if str(value.get(key)) == DEFAULT_EXPERIMENT_ID:
            value[key] = default_experiment
    for key in ("experiment_ids", "experimentIds"):
        if isinstance(value.get(key), list):
            value[key] = [default_experiment if str(item) == DEFAULT_EXPERIMENT_ID else item for item in value[key]]
    return Understood(json.dumps(value).encode(), frozenset(_models(value)))


def _models(value: Mapping[str, Any]) -> Iterator[str]:
    # Both spellings of a field are good protobuf JSON.
    inner = [item for key in ("metrics", "models") for item in value.get(key) or () if isinstance(item, dict)]
    for holder in (value, *inner):
        for key in ("model_id", "modelId"):
            if holder.get(key):
                yield str(holder[key])


def understand_query(query: bytes, default_experiment: str) -> bytes:
    """The query with experiment "0" as the workspace's own default experiment."""
    if b"experiment" not in query:
        return query
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    names = {"experiment_id", "experiment_ids"}
    return urlencode([(k, default_experiment if k in names and v == DEFAULT_EXPERIMENT_ID else v) for k, v in pairs]).encode()


def server_info(body: bytes) -> bytes:
    """What the server says of itself, as one user sees it: no workspaces to choose from, nothing that is not offered here."""
    info = json.loads(body)
    info["workspaces_enabled"] = False
    info["multipart_uploads_enabled"] = info["multipart_downloads_enabled"] = False
    info["presigned_upload_run_id_supported"] = info["presigned_upload_model_id_supported"] = False
    info["features_enabled"] = dict.fromkeys(info.get("features_enabled") or {}, False)
    return json.dumps(info).encode()
