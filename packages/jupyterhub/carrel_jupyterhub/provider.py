"""Who asks: the hub says it (OAuth), and the lab itself may ask how busy a session is."""

from __future__ import annotations

import os
import time
from typing import Any

from jupyter_server.auth.identity import User
from jupyterhub.singleuser.extension import JupyterHubIdentityProvider  # type: ignore[import-untyped]

from carrel.notebooks.identity import HEADER, read_identity
from carrel.notebooks.jupyter.context import SessionContext

#: The one thing that the lab asks; in everything else a session of a hub's is the hub's.
_ACTIVITY = "/carrel/activity"


class HubIdentityProvider(JupyterHubIdentityProvider):  # type: ignore[misc]
    """JupyterHub's own, beside the lab's question about activity."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._session = SessionContext.read(os.environ)

    @property
    def token(self) -> str:
        """None: JupyterHub's own gives the hub's API token here, and Jupyter would write it into a file."""
        return ""

    @property
    def auth_enabled(self) -> bool:
        """Always, with any `token`."""
        return True

    async def get_user(self, handler: Any) -> User | None:
        """Whom the hub knows by this request's cookie or token, or None."""
        if handler.request.path == _ACTIVITY:
            session = self._session
            text = handler.request.headers.get(HEADER, "")
            found = read_identity(text, session.token, job_id=session.job_id, attempt=session.attempt, now=time.time())
            return None if found is None else User(username=found[0], name=found[1], display_name=found[1])
        user: User | None = await super().get_user(handler)
        return user
