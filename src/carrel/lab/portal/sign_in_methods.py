"""Ways of signing in with a browser, beside the one-time link and the access token that are always there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute


class Admits(Protocol):
    """The lab's door, for a way that knows who somebody is."""

    def admit(
        self, request: Request, subject: str, *, how: str, after: str = "/", confirm: Callable[[], None] = lambda: None
    ) -> Response:
        """Sign the browser in as `subject` and send it to `after`, a path of the lab's.

        `how` completes the name of its token ("browser, by password"). `confirm` is called once that token is made, and raises
        if what proved who they are was taken back meanwhile: either it sees that, or who takes it back sees the token. Raises
        `Unauthenticated` or `Denied` for somebody who may not come in. Blocks: call it in a thread.
        """


class SignInMethod(Protocol):
    """One of them."""

    #: Part of the sign-in page, by its name among the templates. It may use `after`, the path to go to afterwards.
    template: str
    #: Paths of its own that need no sign-in.
    public: frozenset[str]
    #: Those of them at which a GET request may change something: a sign-in that ends with a redirect.
    changing: frozenset[str]
    #: What its template knows beside `after`.
    known: Mapping[str, Any]

    def routes(self, door: Admits) -> Sequence[BaseRoute]:
        """Its routes."""


def local_path(text: str | None) -> str:
    """`text` if it is a path of the lab's own, which a browser cannot take for an address elsewhere; else "/"."""
    if not text or len(text) > 2000 or not text.startswith("/") or text.startswith("//"):
        return "/"
    return text if text.isascii() and text.isprintable() and "\\" not in text else "/"
