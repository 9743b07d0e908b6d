"""What the lab knows about this session: asked over its API with the job's own token, and remembered for a moment."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from tornado.httpclient import AsyncHTTPClient, HTTPError, HTTPRequest

from carrel.core.domain.session import shown_name
from carrel.notebooks.jupyter.context import SessionContext

#: Seconds for which an answer is used again, and that the lab has to answer.
_REMEMBERED, _PATIENCE = 15.0, 5.0


class SessionFacts:
    """What a page shows about its session. Belongs to one event loop."""

    def __init__(self, session: SessionContext, clock: Callable[[], float]) -> None:
        self._session = session
        self._clock = clock
        self._until = 0.0
        self._asked: tuple[Mapping[str, Any], ...] = ({}, {}, {})

    async def get(self) -> Mapping[str, Any]:
        """Name, times and addresses; what only the lab knows is null while it does not answer."""
        session = self._session
        asked, told, others = await self._ask()
        job = asked.get("job") or {}
        return {
            "job": session.job_id,
            "attempt": session.attempt,
            "kind": session.kind.value,
            "name": job.get("name") or session.kind.value,
            "environment": session.image_name or session.environment_name,
            "gpus": session.gpus,
            "reserved": session.reserved,
            "devices": [part for part in session.visible.split(",") if part],
            "lab": session.url,
            "page": f"{session.url}/jobs/{session.job_id}" if session.url else "",
            "ends_at": _end(job),
            "idle_end": asked.get("idle_end"),
            # By number, for kernels of other sessions.
            "sessions": {
                one["job"]["id"]: shown_name(one["job"]["id"], one["job"]["name"]) for one in others.get("sessions", ())
            },
            "announcements": [{"text": one.get("text"), "level": one.get("level")} for one in told.get("announcements", ())],
        }

    async def _ask(self) -> tuple[Mapping[str, Any], ...]:
        """What the lab says of the session, tells all users, and which sessions their owner has."""
        now = self._clock()
        if now >= self._until and self._session.url:
            self._until = now + _REMEMBERED
            # An old answer could say that a session ends which has got more time since.
            parts = (f"sessions/{self._session.job_id}", "announcements", "sessions")
            self._asked = tuple([await self._fetch(part) for part in parts])
        return self._asked

    async def _fetch(self, path: str) -> Mapping[str, Any]:
        request = HTTPRequest(
            f"{self._session.url}/api/v1/{path}",
            headers={"Authorization": f"Bearer {self._session.token}"},
            connect_timeout=_PATIENCE,
            request_timeout=_PATIENCE,
            follow_redirects=False,
            ca_certs=self._session.authority,
        )
        try:
            return dict(json.loads((await AsyncHTTPClient().fetch(request)).body))
        except (HTTPError, OSError, ValueError):
            return {}


def _end(job: Mapping[str, Any]) -> str | None:
    """When its walltime is over, or None while nobody knows."""
    try:
        return (datetime.fromisoformat(job["started_at"]) + timedelta(seconds=job["resources"]["time"])).isoformat()
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
