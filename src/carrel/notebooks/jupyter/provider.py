"""Who asks: the proxy says it, with a token that is good for this session and for a minute.

jupyter_server, "Security", IdentityProvider: https://jupyter-server.readthedocs.io/en/latest/operators/security.html
"""

from __future__ import annotations

import os
import time
from typing import Any

from jupyter_server.auth.identity import IdentityProvider, User

from carrel.notebooks.identity import HEADER, read_identity
from carrel.notebooks.jupyter.context import SessionContext


class SessionIdentityProvider(IdentityProvider):
    """Lets in what the lab's proxy vouches for, and nothing else; the socket's own mode keeps other users away."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._session = SessionContext.read(os.environ)

    async def get_user(self, handler: Any) -> User | None:
        """The owner, or None."""
        text = handler.request.headers.get(HEADER, "")
        session = self._session
        found = read_identity(text, session.token, job_id=session.job_id, attempt=session.attempt, now=time.time())
        if found is None:
            return None
        # The proxy has compared origins; like every request with a token, this one needs no further cookie against forgery.
        handler._token_authenticated = True
        return User(username=found[0], name=found[1], display_name=found[1])

    @property
    def auth_enabled(self) -> bool:
        """There is no session without it."""
        return True
