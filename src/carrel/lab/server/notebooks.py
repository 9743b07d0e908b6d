"""Everything about sessions of a running lab, wired: the proxy in front, the desk behind the API, the idle timer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.types import ASGIApp

from carrel.core.control.conversations import Conversations
from carrel.core.control.lab import Lab
from carrel.core.control.sessions import Lender, NodeReport, Sessions
from carrel.core.domain.job import Job
from carrel.core.spool import Spool
from carrel.lab.server.addresses import SessionAddresses
from carrel.lab.server.sessions import RunningSessions
from carrel.notebooks.proxy import SessionHosts


class Notebooks:
    """Sessions of one lab."""

    def __init__(
        self,
        *,
        lab: Lab,
        spool: Spool,
        files: Path,
        secret: bytes,
        pattern: str,
        public_url: str | None,
        check_environment: Callable[[str, str], None],
        default_environment: str,
        lender: Lender,
        nodes: Callable[[], Sequence[NodeReport]],
        look_time: float,
        found_idle: Callable[[frozenset[int]], None],
        read_address: Callable[[Job], bytes | None],
    ) -> None:
        self._secret = secret
        self._pattern = pattern
        self._running = RunningSessions(
            lab=lab,
            addresses=SessionAddresses(spool=spool, read=read_address, monotonic=time.monotonic),
            secret=secret,
            pattern=pattern,
            public_url=public_url,
            clock=time.time,
            lender=lender.status,
            look_time=look_time,
            found_idle=found_idle,
        )
        self._front: SessionHosts | None = None
        #: What the API asks.
        self.sessions = Sessions(
            lab,
            files=files,
            door=self._running,
            lender=lender,
            check_environment=check_environment,
            default_environment=default_environment,
            nodes=nodes,
        )

    def in_front_of(self, app: ASGIApp, conversations: Conversations) -> ASGIApp:
        """`app`, with the sessions' host names in front."""
        self._front = SessionHosts(
            app,
            sessions=self._running,
            door=self._running.door,
            pattern=self._pattern,
            secret=self._secret,
            clock=time.time,
            conversations=conversations,
        )
        return self._front

    def start(self) -> None:
        """Begin to look for idle sessions."""
        self._running.start()

    async def aclose(self) -> None:
        """Close the connections to all sessions."""
        if self._front is not None:
            await self._front.aclose()

    def close(self) -> None:
        """Stop; sessions go on."""
        self._running.close()
