"""What each address of the API is for, so that a token which is less than its person is stopped at the gate.

Whether the person may do it with this very thing, the lab decides (`carrel.core.policy.access`). An address that is missing here
answers only to tokens that are good for everything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from carrel.core.policy.access import Action
from carrel.wire.v1 import API

#: Method and path, as in the OpenAPI document -> what it is for.
ENDPOINTS: Mapping[tuple[str, str], Action] = {
    ("GET", "/lab"): Action.LOOK,
    ("POST", "/lab/reload"): Action.RELOAD,
    ("POST", "/lab/rules"): Action.CHANGE_RULES,
    ("POST", "/lab/rules/preview"): Action.CHANGE_RULES,
    ("GET", "/share"): Action.LOOK,
    ("GET", "/report/use"): Action.SEE_USE,
    ("GET", "/report/starts"): Action.SEE_USE,
    ("GET", "/report/sessions"): Action.SEE_USE,
    ("GET", "/report/jobs"): Action.SEE_USE,
    ("GET", "/metrics"): Action.SEE_USE,
    ("GET", "/nodes"): Action.LOOK,
    ("POST", "/nodes/{name}/drain"): Action.DRAIN,
    ("POST", "/nodes/{name}/undrain"): Action.DRAIN,
    ("GET", "/reservations"): Action.LOOK,
    ("PUT", "/reservations/{name}"): Action.RESERVE,
    ("DELETE", "/reservations/{name}"): Action.RELEASE,
    ("GET", "/blocks"): Action.LOOK,
    ("GET", "/compositions"): Action.LOOK,
    ("POST", "/compositions"): Action.COMPOSE,
    ("GET", "/compositions/{id}"): Action.LOOK,
    ("DELETE", "/compositions/{id}"): Action.COMPOSE,
    ("GET", "/announcements"): Action.LOOK,
    ("POST", "/announcements"): Action.ANNOUNCE,
    ("GET", "/announcements/{id}"): Action.LOOK,
    ("DELETE", "/announcements/{id}"): Action.ANNOUNCE,
    ("GET", "/secrets"): Action.LOOK,
    ("PUT", "/secrets/{name}"): Action.CHANGE_SECRETS,
    ("DELETE", "/secrets/{name}"): Action.CHANGE_SECRETS,
    ("GET", "/jobs/{job_id}/secrets"): Action.READ_SECRETS,
    ("GET", "/storage"): Action.LOOK,
    ("POST", "/storage/collect"): Action.COLLECT,
    ("GET", "/audit"): Action.READ_AUDIT,
    ("GET", "/users"): Action.MANAGE_USERS,
    ("POST", "/users"): Action.MANAGE_USERS,
    ("POST", "/users/{subject}/revoke"): Action.MANAGE_USERS,
    ("POST", "/users/{subject}/reset"): Action.MANAGE_USERS,
    ("POST", "/users/{subject}/suspend"): Action.MANAGE_USERS,
    ("POST", "/users/{subject}/resume"): Action.MANAGE_USERS,
    ("DELETE", "/users/{subject}"): Action.MANAGE_USERS,
    ("POST", "/invitations"): Action.MANAGE_USERS,
    ("POST", "/invitations/current/redeem"): Action.ENTER,
    ("GET", "/tokens"): Action.MANAGE_TOKENS,
    ("POST", "/tokens"): Action.MANAGE_TOKENS,
    ("DELETE", "/tokens/current"): Action.SIGN_OUT,
    ("POST", "/tokens/current/link"): Action.BROWSE,
    ("DELETE", "/tokens/{token_id}"): Action.MANAGE_TOKENS,
    ("HEAD", "/snapshots/{digest}"): Action.LOOK,
    ("GET", "/snapshots/{digest}"): Action.LOOK,
    ("PUT", "/snapshots/{digest}"): Action.UPLOAD_CODE,
    ("POST", "/jobs"): Action.SUBMIT,
    ("POST", "/jobs/preview"): Action.LOOK,
    ("GET", "/jobs"): Action.LOOK,
    ("GET", "/jobs/{job_id}"): Action.SEE_JOB,
    ("POST", "/jobs/{job_id}/cancel"): Action.CANCEL_JOB,
    ("POST", "/jobs/{job_id}/rerun"): Action.REPEAT_JOB,
    ("GET", "/jobs/{job_id}/record"): Action.READ_JOB,
    ("POST", "/jobs/{job_id}/verification"): Action.CHANGE_JOB,
    ("GET", "/challenges"): Action.LOOK,
    ("POST", "/challenges"): Action.ORGANISE,
    ("GET", "/challenges/{name}"): Action.LOOK,
    ("GET", "/challenges/{name}/checks"): Action.ORGANISE,
    ("POST", "/challenges/{name}/publish"): Action.ORGANISE,
    ("POST", "/challenges/{name}/freeze"): Action.ORGANISE,
    ("POST", "/challenges/{name}/join"): Action.TAKE_PART,
    ("POST", "/challenges/{name}/invite"): Action.TAKE_PART,
    ("POST", "/challenges/{name}/leave"): Action.TAKE_PART,
    ("POST", "/challenges/{name}/merge"): Action.TAKE_PART,
    ("POST", "/challenges/{name}/choose"): Action.TAKE_PART,
    ("POST", "/challenges/{name}/start"): Action.TAKE_PART,
    ("GET", "/challenges/{name}/board"): Action.LOOK,
    ("GET", "/challenges/{name}/starter"): Action.TAKE_PART,
    ("GET", "/challenges/{name}/submissions"): Action.SEE_SUBMISSIONS,
    ("POST", "/challenges/{name}/submissions"): Action.TAKE_PART,
    ("GET", "/challenges/{name}/submissions/{number}"): Action.SEE_SUBMISSIONS,
    ("GET", "/challenges/{name}/submissions/{number}/log"): Action.ORGANISE,
    ("GET", "/challenges/{name}/notices"): Action.LOOK,
    ("POST", "/challenges/{name}/notices"): Action.ORGANISE,
    ("POST", "/challenges/{name}/quotas"): Action.ORGANISE,
    ("POST", "/challenges/{name}/questions"): Action.TAKE_PART,
    ("POST", "/challenges/{name}/questions/{number}/answer"): Action.ORGANISE,
    ("GET", "/challenges/{name}/report"): Action.ORGANISE,
    ("GET", "/challenges/{name}/likeness"): Action.ORGANISE,
    ("GET", "/challenges/{name}/submissions/{number}/record"): Action.SEE_SUBMISSIONS,
    ("POST", "/challenges/{name}/rescore"): Action.ORGANISE,
    ("GET", "/challenges/{name}/rescore"): Action.ORGANISE,
    ("POST", "/challenges/{name}/try"): Action.TAKE_PART,
    ("GET", "/challenges/{name}/samples"): Action.LOOK,
    ("POST", "/challenges/{name}/samples"): Action.TAKE_PART,
    ("GET", "/baselines"): Action.SEE_BASELINE,
    ("POST", "/baselines"): Action.CHANGE_BASELINE,
    ("GET", "/baselines/{baseline_id}"): Action.SEE_BASELINE,
    ("DELETE", "/baselines/{baseline_id}"): Action.CHANGE_BASELINE,
    ("POST", "/baselines/{baseline_id}/calibrations"): Action.CALIBRATE,
    ("GET", "/baselines/{baseline_id}/calibrations/{job_id}"): Action.SEE_BASELINE,
    ("GET", "/comparison"): Action.READ_JOB,
    ("GET", "/comparison/results"): Action.READ_JOB,
    ("POST", "/comparison/why"): Action.REPEAT_JOB,
    ("POST", "/comparison/why/runs"): Action.REPEAT_JOB,
    ("POST", "/jobs/{job_id}/matrix"): Action.REPEAT_JOB,
    ("POST", "/jobs/{job_id}/matrix/runs"): Action.REPEAT_JOB,
    ("GET", "/jobs/{job_id}/metrics"): Action.READ_JOB,
    ("GET", "/jobs/{job_id}/run"): Action.SEE_JOB,
    ("GET", "/jobs/{job_id}/log"): Action.READ_JOB,
    ("GET", "/jobs/{job_id}/outputs"): Action.READ_JOB,
    ("POST", "/jobs/{job_id}/outputs"): Action.CHANGE_JOB,
    ("DELETE", "/jobs/{job_id}/outputs"): Action.CHANGE_JOB,
    ("GET", "/jobs/{job_id}/outputs/{path}"): Action.READ_JOB,
    ("GET", "/jobs/{job_id}/events"): Action.SEE_JOB,
    ("POST", "/jobs/{job_id}/ssh"): Action.ENTER_JOB,
    ("GET", "/jobs/{job_id}/ssh/stream"): Action.ENTER_JOB,
    ("GET", "/arrays/{array_id}"): Action.SEE_JOB,
    ("POST", "/arrays/{array_id}/cancel"): Action.CANCEL_JOB,
    ("GET", "/pools"): Action.LOOK,
    ("POST", "/pools"): Action.SUBMIT,
    ("GET", "/pools/{pool_id}"): Action.USE_POOL,
    ("DELETE", "/pools/{pool_id}"): Action.USE_POOL,
    ("POST", "/pools/{pool_id}/close"): Action.USE_POOL,
    ("PUT", "/pools/{pool_id}/functions/{digest}"): Action.USE_POOL,
    ("GET", "/pools/{pool_id}/functions/{digest}"): Action.USE_POOL,
    ("POST", "/pools/{pool_id}/files"): Action.USE_POOL,
    ("POST", "/pools/{pool_id}/calls"): Action.USE_POOL,
    ("GET", "/pools/{pool_id}/calls"): Action.USE_POOL,
    ("GET", "/pools/{pool_id}/results"): Action.USE_POOL,
    ("POST", "/pools/{pool_id}/work"): Action.WORK,
    ("POST", "/pools/{pool_id}/output"): Action.WORK,
    ("DELETE", "/cached-results"): Action.SUBMIT,
    ("POST", "/pools/{pool_id}/interrupts"): Action.WORK,
    ("GET", "/calls/{call_id}"): Action.USE_POOL,
    ("GET", "/calls/{call_id}/log"): Action.USE_POOL,
    ("POST", "/pools/{pool_id}/calls/cancel"): Action.USE_POOL,
    ("POST", "/pools/{pool_id}/calls/fetched"): Action.USE_POOL,
    ("POST", "/calls/{call_id}/cancel"): Action.USE_POOL,
    ("POST", "/calls/{call_id}/interrupt"): Action.USE_POOL,
    ("GET", "/calls/{call_id}/result"): Action.USE_POOL,
    ("GET", "/sweeps"): Action.LOOK,
    ("POST", "/sweeps"): Action.SUBMIT,
    ("GET", "/sweeps/{sweep_id}"): Action.SEE_SWEEP,
    ("POST", "/sweeps/{sweep_id}/stop"): Action.CHANGE_SWEEP,
    ("POST", "/sweeps/{sweep_id}/resume"): Action.CHANGE_SWEEP,
    ("POST", "/sweeps/{sweep_id}/trials/{number}/values"): Action.REPORT,
    ("GET", "/events"): Action.LOOK,
    ("GET", "/sessions"): Action.LOOK,
    ("POST", "/sessions"): Action.START_SESSION,
    ("GET", "/sessions/{job_id}"): Action.SEE_JOB,
    ("POST", "/sessions/{job_id}/open"): Action.ENTER_SESSION,
    ("PUT", "/sessions/{job_id}/hub"): Action.ENTER_SESSION,
    ("GET", "/gpus"): Action.LOOK,
    ("GET", "/cells"): Action.LOOK,
    ("GET", "/environments"): Action.LOOK,
    ("POST", "/environments"): Action.CHANGE_ENVIRONMENT,
    ("GET", "/environments/{name}"): Action.USE_ENVIRONMENT,
    ("DELETE", "/environments/{name}"): Action.CHANGE_ENVIRONMENT,
    ("GET", "/environments/{name}/lock"): Action.USE_ENVIRONMENT,
    ("POST", "/environments/{name}/share"): Action.CHANGE_ENVIRONMENT,
    ("POST", "/environments/{name}/restore"): Action.CHANGE_ENVIRONMENT,
}
#: Names that may hold slashes of their own (`ada/torch`, `outputs/a/b`).
_LONG = ("name", "path", "subject")


def action_of(method: str, path: str) -> Action | None:
    """What a request is for, or None where nobody has said."""
    method = "GET" if method == "HEAD" and not path.startswith(f"{API}/snapshots/") else method
    known = _BY_METHOD.get(method)
    if known is None:
        return None
    pattern, actions = known
    found = pattern.fullmatch(path)
    return None if found is None or found.lastindex is None else actions[found.lastindex - 1]


def _pattern(path: str) -> str:
    parts = re.split(r"{(\w+)}", path)
    # The last letters decide: `/environments/a/lock` is a lock, and nobody's environment is called that.
    written = [(".+" if part in _LONG else "[^/]+") if number % 2 else re.escape(part) for number, part in enumerate(parts)]
    return re.escape(API) + "".join(written)


def _by_method() -> dict[str, tuple[re.Pattern[str], Sequence[Action]]]:
    """For each method a pattern with a group for each address, and what the groups are for."""
    found: dict[str, list[tuple[str, Action]]] = {}
    # The longer ones first, then those without a name.
    for (method, path), action in sorted(ENDPOINTS.items(), key=lambda row: (-row[0][1].count("/"), "{" in row[0][1])):
        found.setdefault(method, []).append((_pattern(path), action))
    return {
        method: (re.compile("|".join(f"({pattern})" for pattern, _ in rows)), [action for _, action in rows])
        for method, rows in found.items()
    }


_BY_METHOD = _by_method()
