"""The page on which administrators change classes of service, accounts and priorities, and first ask what that would do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from carrel.core.control.rules import RuleChanges
from carrel.core.domain.errors import CarrelError, Conflict, Denied, Invalid, NotFound, Unavailable
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, allowed
from carrel.lab.gateway.auditing import tell_audit
from carrel.lab.gateway.context import Gateway
from carrel.lab.gateway.errors import problem_of
from carrel.lab.portal.entrance import checked_form
from carrel.lab.portal.requests import caller_of
from carrel.lab.portal.templating import Templates
from carrel.wire.v1 import RulesPreview

PATH = "/administration/rules"
#: What a change is tried on: jobs of so many days.
_DAYS = (7, 30)


class RulesPage:
    """``/administration/rules``."""

    def __init__(self, gateway: Gateway, look: Templates) -> None:
        self._gateway = gateway
        self._administration = gateway.lab.administration
        self._look = look

    def routes(self) -> list[BaseRoute]:
        """The routes of the page."""
        return [
            Route(PATH, self.page, methods=["GET"]),
            Route(f"{PATH}/preview", self.preview, methods=["POST"]),
            Route(f"{PATH}/apply", self.apply, methods=["POST"]),
        ]

    def page(self, request: Request) -> Response:
        """The rules as they are written, in forms."""
        allowed(caller_of(request), Action.CHANGE_RULES).check()
        return self._page(request, {})

    async def preview(self, request: Request) -> Response:
        """The effect of the changes of one form."""
        fields = await checked_form(request, self._look)
        caller = caller_of(request)
        allowed(caller, Action.CHANGE_RULES).check()
        days = next((one for one in _DAYS if fields.get("days") == str(one)), _DAYS[0])
        problem: CarrelError | None = None
        found = None
        try:
            changes = await to_thread.run_sync(self._changes, fields)
            found = await self._gateway.rule_previews.of(caller, changes, days)
        except (Invalid, Unavailable) as error:
            problem = error
        return await to_thread.run_sync(partial(self._page, request, fields, problem=problem, found=found))

    async def apply(self, request: Request) -> Response:
        """Write the changes of one form, and put them in force."""
        fields = await checked_form(request, self._look)
        allowed(caller_of(request), Action.CHANGE_RULES).check()

        def change(caller: Caller) -> Response:
            try:
                told = self._administration.change_rules(caller, self._changes(fields), seen=fields.get("seen", ""))
            except (Invalid, Conflict, Denied) as error:
                return self._page(request, fields, problem=error)
            tell_audit(request.scope, changed=told)
            return RedirectResponse(f"{PATH}?changed=yes", 303)

        return await to_thread.run_sync(change, caller_of(request))

    def _changes(self, fields: Mapping[str, str]) -> RuleChanges:
        """The changes of a form. That of a new account has its name in a field of its own."""
        table = fields.get("table", "")
        named = table + fields.get("name", "").strip() if table == "accounts." else table
        texts = {path.replace(table, named, 1): text for path, text in fields.items()}
        return self._administration.rules.written.changes(named, texts)

    def _page(
        self,
        request: Request,
        fields: Mapping[str, str],
        *,
        problem: CarrelError | None = None,
        found: RulesPreview | None = None,
    ) -> Response:
        """`fields` are those of the form that was sent; what is wrong is said at the field that it names."""
        book = self._administration.rules
        wrong: CarrelError | None = problem
        values: dict[str, Any] = {"sections": [], "seen": "", "pending": False}
        try:
            written = book.written.changed({})
            values = {
                "sections": book.written.sections(written.rules),
                "seen": written.digest,
                "pending": written.rules != book.current,
            }
        except (Invalid, NotFound) as error:  # the file has a mistake
            wrong = wrong or error
        return self._look.page(
            request,
            "rules.html",
            status=problem_of(problem)[0].status if problem is not None else 200,
            problem=wrong,
            about="" if problem is None else _about(fields, problem.message),
            fields=fields,
            found=found,
            days=_DAYS,
            done=request.query_params.get("changed") == "yes",
            **values,
        )


def _about(fields: Mapping[str, str], message: str) -> str:
    """The field of a form that a message names as it stands in carrel.toml; "" where it names none."""
    message = message.replace(f"accounts.{fields.get('name', '').strip()}.", "accounts..") if fields.get("name") else message
    found = (place for path in fields if "." in path and (place := re.search(rf"{re.escape(path)}(?![\w.])", message)))
    return max((place[0] for place in found), key=len, default="")
