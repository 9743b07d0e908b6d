"""Writes down who asked for what, where from, and by which rule it was allowed or refused."""

from __future__ import annotations

import re
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.ports import Clock
from carrel.core.domain.user import Caller
from carrel.core.policy.access import HEARD, Action, Verdict
from carrel.lab.audit import AuditLog
from carrel.lab.gateway.actions import action_of
from carrel.lab.gateway.gate import Zone, Zones, method_of
from carrel.wire.v1 import API

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
#: What begins an answer, and its status where the message itself has none.
_ANSWERS = {"http.response.start": 0, "websocket.http.response.start": 0, "websocket.accept": 101, "websocket.close": 403}
#: What a refusal without a verdict was about.
_BY_STATUS = {401: "signed in", 403: "same site", 413: "size", 421: "host", 429: "rate limit"}
_REFUSED = frozenset({401, 403, 421, 429})
#: What gives room back, or ends what takes it: may be done with the last room of the log.
_FREES = frozenset({Action.COLLECT, Action.CANCEL_JOB, Action.SIGN_OUT})
#: What a run says of itself again and again, and searches that are no changes: MLflow's own to keep.
_OF_RUNS = re.compile(r".*/(runs/(log-[a-z]+|set-tag|update|outputs)|[a-z-]+/search(-versions)?|[a-z/-]+/(get|list)[a-z-]*)")
#: Rules by which one reads what is another user's.
_OTHERS = frozenset({"shared with its account", "shared with them", "account manager", "operator", "administrator"})
#: Refusals a minute that have a line each; the others are counted. Of one who is signed in, and of an address.
_MANY, _FEW = 100, 10
_MINUTE = 60.0
#: Who is counted apart; all others together.
_COUNTED = 1000
_LONGEST = 500
#: Where `tell_audit` leaves its facts, in the request's state.
_TOLD = "audit"


def tell_audit(scope: Scope, **told: Any) -> None:
    """For addresses that the layer cannot judge by themselves: what stands in the request's line.

    `action` is a name of what was done, `rule` why it was refused, `client` the program that asked, `caller` who it was about
    (a `Caller`), `changed` what else is different now; ``line=False``: nothing happened that were worth one, ``line=True``:
    something did, although a GET is no change by itself.
    """
    scope.setdefault("state", {}).setdefault(_TOLD, {}).update(told)


@dataclass(slots=True)
class _Count:
    since: float
    lines: int = 0
    more: int = 0


class Refusals:
    """Counts refusals, so that who asks without end fills no disk. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._counts: dict[str, _Count] = {}

    def take(self, name: str, most: int) -> tuple[bool, int]:
        """Return whether this one has a line, and how many before it had none."""
        now = self._clock()
        with self._guard:
            if name not in self._counts and len(self._counts) >= _COUNTED:
                self._counts = {key: one for key, one in self._counts.items() if one.more or now - one.since < _MINUTE}
                name = name if len(self._counts) < _COUNTED else ""
            count = self._counts.setdefault(name, _Count(now))
            if now - count.since >= _MINUTE:
                count.since, count.lines = now, 0
            if count.lines >= most:
                count.more += 1
                return False, 0
            count.lines += 1
            more, count.more = count.more, 0
            return True, more


class Auditing:
    """The outermost ASGI middleware: it sees what was asked and how it was answered."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        log: AuditLog,
        zones: Zones,
        reads: str,
        refuse: Callable[[Request, CarrelError], Awaitable[Response]],
        clock: Clock,
    ) -> None:
        """`reads`: which reads have a line (`carrel.lab.audit.READS`)."""
        self._app = app
        self._log = log
        self._zones = zones
        self._reads = reads
        self._refuse = refuse
        self._refusals = Refusals(clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and write down."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        zone, path = self._zones.of(scope["path"]), scope["path"]
        changes = method_of(scope) not in _SAFE and not (zone is Zone.TRACKING and _OF_RUNS.fullmatch(path))
        changes = changes or (method_of(scope) == "GET" and path in self._zones.changing)
        heard: dict[Action | None, Verdict] = {}
        scope.setdefault("state", {})  # the same for all layers inside
        token = HEARD.set(heard)
        answered = False

        async def tell(message: Message) -> None:
            nonlocal answered
            if message["type"] in _ANSWERS and not answered:
                answered = True  # before the answer goes out: after the answer, its line is here
                self._note(scope, zone, heard, {"status": _ANSWERS[message["type"]], **message}, changes=changes)
            await send(message)

        try:
            if changes:
                try:
                    self._log.make_room(frees=_action(scope, zone) in _FREES or method_of(scope) == "DELETE")
                except CarrelError as error:
                    response = await self._refuse(Request(scope), error)
                    await response(scope, receive, send)
                    return
            await self._app(scope, receive, tell)
        finally:
            HEARD.reset(token)
            if changes and not answered:  # it broke off: what was done is not known
                self._note(scope, zone, heard, {"status": 0}, changes=True)

    def _note(
        self,
        scope: Scope,
        zone: Zone,
        heard: dict[Action | None, Verdict],
        answer: Message,
        *,
        changes: bool,
    ) -> None:
        status: int = answer["status"]
        hidden = [one for one in heard.values() if not one and one.hidden]
        state = scope.get("state", {})
        told: Mapping[str, Any] = state.get(_TOLD, {})
        refused = status in _REFUSED or (status == 404 and bool(hidden)) or "rule" in told
        caller: Caller | None = told.get("caller") or state.get("caller")
        if not told.get("line", True):
            return
        if not (
            refused
            or told.get("line", False)
            or (changes and (caller is not None or zone is Zone.PUBLIC))
            or self._reads_too(heard, status)
        ):
            return
        more = 0
        address = scope["client"][0][:64] if scope.get("client") else ""
        if refused:
            name = address if caller is None else f"\0{caller.user.subject}"
            has_line, more = self._refusals.take(name, _FEW if caller is None else _MANY)
            if not has_line:
                return
        action = _action(scope, zone)
        verdict = _decisive(action, heard, refused=refused)
        entry: dict[str, Any] = {
            "who": None if caller is None else caller.user.subject,
            "from": address,
            "method": method_of(scope),
            "resource": _resource(scope["path"]),
            "action": told.get("action") or _name(action, zone),
            "result": "refused" if refused else "allowed" if 0 < status < 400 else "failed",
            "rule": told.get("rule") or (verdict.rule if verdict is not None else _BY_STATUS.get(status, "token")),
            "status": status,
            "client": told.get("client"),
            "changed": told.get("changed"),
        }
        if caller is not None:
            entry |= {"role": caller.user.role.value, "token": caller.token_id, "job": caller.job_id}
        elif state.get("tried"):
            entry["tried"] = state["tried"]  # a user whom somebody said to be, and did not show to be
        if more:
            entry["more"] = more
        if made := _made(answer):
            entry["made"] = made
        self._log.add({key: value for key, value in entry.items() if value is not None})

    def _reads_too(self, heard: Mapping[Action | None, Verdict], status: int) -> bool:
        if self._reads == "none" or not 0 < status < 400:
            return False
        return self._reads == "all" or any(one and one.rule in _OTHERS for one in heard.values())


def _decisive(action: Action | None, heard: dict[Action | None, Verdict], *, refused: bool) -> Verdict | None:
    """Return the verdict that made the answer: the last refusal, or what allowed the action itself."""
    if refused:
        return next((one for one in reversed(heard.values()) if not one), None)
    if heard.get(action):
        return heard[action]
    return next((one for one in reversed(heard.values()) if one), None)


def _action(scope: Scope, zone: Zone) -> Action | None:
    return action_of(method_of(scope), scope["path"]) if zone is Zone.API else None


def _name(action: Action | None, zone: Zone) -> str:
    if action is not None:
        return action.value
    return {Zone.TRACKING: Action.TRACK.value, Zone.PUBLIC: "sign in", Zone.API: "other"}.get(zone, Action.BROWSE.value)


def _resource(path: str) -> str:
    return path.removeprefix(API)[:_LONGEST]


def _made(answer: Message) -> str:
    """What was made, where the answer names its address."""
    place = Headers(raw=answer.get("headers", [])).get("location", "") if answer["status"] == 201 else ""
    return _resource(urlsplit(place).path) if place.startswith(API) else ""
