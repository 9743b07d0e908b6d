"""The pages of who runs the lab: users, machines, reservations, announcements, disks and the audit log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from carrel.core.domain.announcement import Announcement, Level
from carrel.core.domain.errors import CarrelError, Conflict, Denied, Invalid, NotFound
from carrel.core.domain.nouns import ANNOUNCEMENTS, RESERVATIONS
from carrel.core.domain.reservation import Reservation
from carrel.core.domain.units import LATEST, parse_duration
from carrel.core.domain.user import Caller, Role
from carrel.core.policy.access import Action, allowed
from carrel.lab.audit import AuditFilter
from carrel.lab.gateway.auditing import tell_audit
from carrel.lab.gateway.children import Child
from carrel.lab.gateway.context import Gateway
from carrel.lab.gateway.errors import problem_of
from carrel.lab.portal.entrance import checked_form
from carrel.lab.portal.requests import caller_of, number_in
from carrel.lab.portal.templating import Templates

PATH = "/administration"
#: Lines of the audit log on the page; `carrel audit` has all.
_LINES = 50
#: Users on a page of the list.
_USERS = 50
#: Seconds that the check of the machine may take.
_PATIENCE = 60
#: What the address says of lists: a part of a user's name, and the page; who did it, with what, and the result.
_SHOWN = ("user", "from", "who", "with", "result")
#: What somebody who is not an administrator may still do here; who may do none of it has no such page.
_ANY = (Action.MANAGE_USERS, Action.DRAIN, Action.RESERVE, Action.ANNOUNCE, Action.READ_AUDIT, Action.CHANGE_RULES)
#: Fields of forms that name what is changed.
_OBJECTS = ("subject", "node", "name", "key")
#: Carries out one button; what it returns is shown on the page, once.
_Act = Callable[[Caller, dict[str, str]], Mapping[str, Any] | None]


def may_administer(caller: Caller) -> bool:
    """True for who may do anything on the page."""
    return any(allowed(caller, action) for action in _ANY)


class AdministrationPage:
    """``/administration``."""

    def __init__(self, gateway: Gateway, look: Templates) -> None:
        self._gateway = gateway
        self._lab = gateway.lab
        self._look = look
        home = gateway.settings.home
        told = ("doctor", "--json", "--home", str(home))
        # It ends with 1 when it has found something.
        self._doctor = (
            None if home is None else Child("check", "carrel.cli.main", *told, time_limit=_PATIENCE, ends=frozenset({0, 1}))
        )

    def routes(self) -> list[BaseRoute]:
        """The routes of the page."""
        acts: dict[str, _Act] = {
            "invite": self._invite,
            "suspend": self._suspend,
            "resume": self._resume,
            "remove": self._remove,
            "drain": self._drain,
            "undrain": self._undrain,
            "announce": self._announce,
            "withdraw": self._withdraw,
            "reserve": self._reserve,
            "release": self._release,
        }
        buttons = [Route(f"{PATH}/{name}", self._button(act), methods=["POST"]) for name, act in acts.items()]
        return [Route(PATH, self.page, methods=["GET"]), Route(f"{PATH}/health", self.health, methods=["POST"]), *buttons]

    def page(self, request: Request) -> Response:
        """All that the caller may look after."""
        if not may_administer(caller_of(request)):
            raise Denied("You do not run this lab.", remedy="Ask an administrator.")
        return self._page(request)

    async def health(self, request: Request) -> Response:
        """The words of `carrel doctor` about this machine and the lab."""
        await checked_form(request, self._look)
        allowed(caller_of(request), Action.CHANGE_RULES).check()
        if self._doctor is None:
            raise NotFound("This lab has no home to look at.")
        found = await self._doctor.ask()
        return self._look.page(request, "health.html", checks=found["checks"])

    # ---- buttons

    def _invite(self, caller: Caller, fields: dict[str, str]) -> Mapping[str, Any]:
        role = Role.ADMIN if fields.get("admin") == "yes" else Role.USER
        without = fields.get("trusted") == "yes"
        user, made, code = self._lab.users.invite(caller, fields.get("name", "").strip(), role, without_isolation=without)
        about = self._lab.users.about_isolation()
        return {"invited": {"user": user, "code": code, "ends": made.expires_at, "isolation": about}}

    def _suspend(self, caller: Caller, fields: dict[str, str]) -> None:
        reason = fields.get("reason", "").strip()
        if not reason:
            raise Invalid("There is no reason.", remedy="Say why: the user reads it.")
        self._lab.users.suspend(caller, fields.get("subject", ""), reason, cancel_running=fields.get("cancel") == "yes")

    def _resume(self, caller: Caller, fields: dict[str, str]) -> None:
        self._lab.users.resume(caller, fields.get("subject", ""))

    def _remove(self, caller: Caller, fields: dict[str, str]) -> None:
        self._lab.users.remove(caller, fields.get("subject", ""))

    def _drain(self, caller: Caller, fields: dict[str, str]) -> None:
        self._lab.administration.drain(caller, fields.get("node", ""), fields.get("reason", ""))

    def _undrain(self, caller: Caller, fields: dict[str, str]) -> None:
        self._lab.administration.undrain(caller, fields.get("node", ""))

    def _announce(self, caller: Caller, fields: dict[str, str]) -> None:
        allowed(caller, Action.ANNOUNCE).check()
        until = self._lab.clock() + parse_duration(fields.get("for", "").strip() or "1d")
        level = Level.WARNING if fields.get("warning") == "yes" else Level.INFO
        self._lab.keeper(ANNOUNCEMENTS).put(caller, Announcement(text=fields.get("text", ""), until=until, level=level))

    def _withdraw(self, caller: Caller, fields: dict[str, str]) -> None:
        allowed(caller, Action.ANNOUNCE).check()
        self._lab.keeper(ANNOUNCEMENTS).remove(caller, number_in(fields.get("key", "0")) or 0)

    def _reserve(self, caller: Caller, fields: dict[str, str]) -> None:
        allowed(caller, Action.RESERVE).check()
        begin = _moment(fields.get("begin", "")) or self._lab.clock()
        asked = Reservation(
            name=fields.get("name", "").strip(),
            begin=begin,
            end=begin + parse_duration(fields.get("for", "").strip() or "2h"),
            nodes=tuple(_words(fields.get("nodes", ""))) or ("*",),
            users=frozenset(_words(fields.get("users", ""))),
            accounts=frozenset(_words(fields.get("accounts", ""))),
            reason=fields.get("reason", ""),
        )
        self._lab.keeper(RESERVATIONS).put(caller, asked)

    def _release(self, caller: Caller, fields: dict[str, str]) -> None:
        allowed(caller, Action.RELEASE).check()
        self._lab.keeper(RESERVATIONS).remove(caller, fields.get("key", ""))

    # ---- parts

    def _button(self, act: _Act) -> Callable[[Request], Any]:
        async def press(request: Request) -> Response:
            fields = await checked_form(request, self._look)
            # The address says what was done, and not with whom or what.
            tell_audit(request.scope, changed={name: fields[name][:200] for name in _OBJECTS if fields.get(name)})

            def answer() -> Response:
                try:
                    shown = act(caller_of(request), fields)
                except (Invalid, Denied, Conflict, NotFound) as error:
                    if not may_administer(caller_of(request)):
                        raise
                    return self._page(request, problem=error, fields=fields)
                return RedirectResponse(PATH, 303) if shown is None else self._page(request, **shown)

            return await to_thread.run_sync(answer)

        return press

    def _page(self, request: Request, *, problem: CarrelError | None = None, **more: Any) -> Response:
        caller, lab, audit = caller_of(request), self._lab, self._gateway.audit
        may = {action.name: bool(allowed(caller, action)) for action in _ANY}
        shown = {name: request.query_params.get(name, "").strip()[:200] for name in _SHOWN}
        wanted = AuditFilter(who=shown["who"] or None, resource=shown["with"] or None, result=shown["result"] or None)
        lines = audit.read(wanted, limit=_LINES, newest=True) if audit is not None and may["READ_AUDIT"] else []
        users = lab.administration.users(caller) if may["MANAGE_USERS"] else []
        users = [one for one in users if shown["user"].lower() in f"{one.subject} {one.name}".lower()]
        first = min(_USERS * (number_in(shown["from"] or "0") or 0), len(users) // _USERS * _USERS)
        values: dict[str, Any] = {
            "may": may,
            "users": users[first : first + _USERS],
            "first": first,
            "of": len(users),
            "pages": {
                label: f"{PATH}?{urlencode({'user': shown['user'], 'from': page})}#users"
                for label, page in (("Before", first // _USERS - 1), ("More", first // _USERS + 1))
                if 0 <= page * _USERS < len(users)
            },
            "shown": shown,
            "has_health": self._doctor is not None and may["CHANGE_RULES"],
            "nodes": [one.node for one in lab.machines.devices(caller)],
            "unknown": lab.unknown_devices(),
            "announcements": lab.keeper(ANNOUNCEMENTS).list(caller),
            "reservations": lab.keeper(RESERVATIONS).list(caller),
            "disks": lab.storage.disks(),
            "lines": list(reversed(lines)),
            "fields": {},
            "invited": None,
        }
        status = problem_of(problem)[0].status if problem is not None else 200
        return self._look.page(request, "administration.html", status=status, problem=problem, **{**values, **more})


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _moment(text: str) -> float | None:
    """A moment as it is written on the page: a date with a time, by the clock on the wall where the lab is; None: now."""
    if not text.strip():
        return None
    try:
        moment = datetime.fromisoformat(text.strip()).timestamp()
        if moment > LATEST:  # no page could show its end
            raise ValueError(text)
        return moment
    except (ValueError, OverflowError):
        raise Invalid(
            f'"{text[:40]}" is no moment.', remedy='Write it like "2026-12-01 14:00", or leave it empty for now.'
        ) from None
