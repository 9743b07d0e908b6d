"""Named environments, as one user sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal
from urllib.parse import quote

from carrel.client.problems import error_of_problem
from carrel.client.transport import Transport, read_lines
from carrel.core.domain.errors import Unavailable
from carrel.wire import v1


class EnvironmentCalls:
    """The part of a `carrel.Client` that is about named environments."""

    _http: Transport

    def environments(self) -> v1.NamedEnvironmentList:
        """Named environments: one's own, the site's, and those that others share."""
        return self._http.get(v1.NamedEnvironmentList, "/environments")

    def environment(self, name: str) -> v1.NamedEnvironmentView:
        """One environment, with the history of its locks."""
        return self._http.get(v1.NamedEnvironmentView, f"/environments/{quote(name)}")

    def create_environment(
        self, request: v1.EnvironmentRequest, *, report: Callable[[str], None] = lambda _message: None
    ) -> v1.NamedEnvironmentView:
        """Make an environment; `report` gets what is being done. A call that breaks off leaves nothing."""
        return self._build("/environments", request, report)

    def restore_environment(
        self, name: str, lock: str | None = None, *, report: Callable[[str], None] = lambda _message: None
    ) -> v1.NamedEnvironmentView:
        """Go back to the lock whose digest begins so, None meaning the last that differs from what is installed."""
        return self._build(f"/environments/{quote(name)}/restore", v1.EnvironmentRestoreRequest(lock=lock), report)

    def environment_lock(self, name: str, lock: str | None = None) -> v1.EnvironmentLockText:
        """What is installed in an environment, now or at the time of an earlier lock."""
        query = {} if lock is None else {"lock": lock}
        return self._http.get(v1.EnvironmentLockText, f"/environments/{quote(name)}/lock", params=query)

    def share_environment(self, name: str, subjects: Sequence[str] | Literal["all"]) -> v1.NamedEnvironmentView:
        """Let these users and no others use it, or "all"."""
        request = v1.EnvironmentShareRequest(subjects="all" if subjects == "all" else list(subjects))
        content = request.model_dump_json(by_alias=True)
        headers = {"Content-Type": "application/json"}
        answer = self._http.call("POST", f"/environments/{quote(name)}/share", content=content, headers=headers)
        return v1.NamedEnvironmentView.model_validate_json(answer.content)

    def remove_environment(self, name: str) -> None:
        """Remove an environment with its history."""
        self._http.call("DELETE", f"/environments/{quote(name)}")

    def _build(self, path: str, request: v1.Request, report: Callable[[str], None]) -> v1.NamedEnvironmentView:
        content, headers = request.model_dump_json(exclude_none=True), {"Content-Type": "application/json"}
        with self._http.stream(path, method="POST", content=content, headers=headers) as response:
            for line in read_lines(response):
                said = v1.EnvironmentProgress.model_validate_json(line)
                if said.problem is not None:
                    raise error_of_problem(said.problem)
                if said.environment is not None:
                    return said.environment
                report(said.message or "")
        raise Unavailable("The lab broke off before the environment was ready.", remedy="Ask again.")
