"""Sign-in by the accounts of the lab's machine, on the sign-in page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from carrel.core.domain.errors import Unauthenticated
from carrel.lab.credentials.pam import PamSignIn
from carrel.lab.portal.local import address_of, own_form
from carrel.lab.portal.sign_in_methods import Admits, local_path


class PamPage:
    """Implements `carrel.lab.portal.sign_in_methods.SignInMethod`."""

    template = "sign_in_pam.html"
    public = frozenset({"/sign-in/pam"})
    changing: frozenset[str] = frozenset()
    known: Mapping[str, Any] = {}

    def __init__(self, pam: PamSignIn) -> None:
        self._pam = pam

    def routes(self, door: Admits) -> list[BaseRoute]:
        """Its route."""

        async def sign_in(request: Request) -> Response:
            fields = await own_form(request)
            after = request.state.after = local_path(fields.get("after"))
            name, password = fields.get("name", "").strip(), fields.get("password", "")
            request.state.typed_name = name
            if not name or not password:
                raise Unauthenticated("The name or the password is missing.")

            def answer() -> Response:
                if self._pam.people.get(name) is not None:
                    request.state.tried = name
                subject = self._pam.by_password(name, password, address_of(request))
                return door.admit(request, subject, how="by the machine's account", after=after)

            return await to_thread.run_sync(answer)

        return [Route("/sign-in/pam", sign_in, methods=["POST"])]
