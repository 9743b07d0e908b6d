"""HTTP with a lab: one connection pool, one way to sign in, problems as Carrel's own errors."""

from __future__ import annotations

import json
import os
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import httpx
from pydantic import BaseModel

from carrel.client.locate import Lab
from carrel.client.problems import error_of
from carrel.client.renewing import Fixed, Renewing
from carrel.core.domain import errors
from carrel.wire import v1

M = TypeVar("M")
#: How OpenSSL begins to say why a certificate is not believed.
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
_LOOPBACK = ("localhost", "127.", "::1")


class Transport:
    """Requests to one lab. Thread-safe, as httpx's client is."""

    def __init__(
        self, find: Callable[[], Lab], *, timeout: float = 60.0, notice: Callable[[str, str], None] | None = None
    ) -> None:
        """`find` says where the lab is; it is asked again when nobody listens there any more.

        `notice` is called with "low" or "full" and a sentence when the lab says that a disk of its own has no room.
        """
        self._find = find
        self._notice = notice
        lab = find()
        self.url = lab.url
        self.authority = lab.authority
        #: True when the lab has answered once.
        self.answered = False
        self._timeout = timeout
        self._http = self._open(lab)
        #: Of earlier addresses; other threads may still be using them.
        self._earlier: list[httpx.Client] = []
        self._guard = threading.Lock()

    def _open(self, lab: Lab) -> httpx.Client:
        http = open_http(lab.url, lab.authority, timeout=self._timeout)
        http.auth = self._auth = self._sign(lab)
        return http

    def _sign(self, lab: Lab) -> Fixed | Renewing:
        if lab.renewed is None:
            return Fixed(lab.token)

        def ask(path: str, form: Mapping[str, str], headers: Mapping[str, str]) -> httpx.Response:
            return self._http.request("POST", path, data=dict(form), headers=dict(headers), auth=None)

        return Renewing(lab.url, lab.renewed, os.environ, ask)

    def token(self) -> str:
        """The access token, which holds for some minutes at least where it is one that is renewed."""
        with self._explained():
            return self._auth.token()

    def close(self) -> None:
        """Close all connections."""
        for client in (*self._earlier, self._http):
            client.close()

    def look_again(self) -> bool:
        """Find the lab again: a restart may have changed its port and its token. True when it is elsewhere now."""
        try:
            lab = self._find()
        except errors.CarrelError:
            return False  # it may be starting, and then has no address yet: the old one may still be right
        with self._guard:
            moved = lab.url != self.url
            if moved:
                self._earlier.append(self._http)
                self.url, self.authority, self._http = lab.url, lab.authority, self._open(lab)
            else:
                self._http.auth = self._auth = self._sign(lab)
        return moved

    def call(self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **request: Any) -> httpx.Response:
        """One request under the API's prefix. Raises the error that the lab names, or `Unavailable` when it does not answer."""
        with self._explained():
            try:
                response = self._http.request(method, v1.API + path, headers=headers, **request)
            except httpx.ConnectError:
                # Nothing was sent, so the request may be sent to where the lab is now.
                if not self.look_again():
                    raise
                response = self._http.request(method, v1.API + path, headers=headers, **request)
            self.answered = True
            self._look_at(response)
        if response.status_code >= 400 and not (method == "HEAD" and response.status_code == 404):
            raise error_of(response)
        return response

    def get(self, model: type[M], path: str, **request: Any) -> M:
        """GET, as a model or a value of the domain."""
        return _read(model, self.call("GET", path, **request))

    def delete(self, model: type[M], path: str, **request: Any) -> M:
        """DELETE, as a model or a value of the domain."""
        return _read(model, self.call("DELETE", path, **request))

    def post(self, model: type[M], path: str, body: BaseModel | None = None, **request: Any) -> M:
        """POST, as a model or a value of the domain."""
        return self._send("POST", model, path, body, **request)

    def put(self, model: type[M], path: str, body: BaseModel | None = None, **request: Any) -> M:
        """PUT, as a model or a value of the domain."""
        return self._send("PUT", model, path, body, **request)

    def _send(self, method: str, model: type[M], path: str, body: BaseModel | None, **request: Any) -> M:
        content = None if body is None else body.model_dump_json(exclude_none=True)
        headers = {"Content-Type": "application/json", **request.pop("headers", {})}
        return _read(model, self.call(method, path, content=content, headers=headers, **request))

    @contextmanager
    def stream(
        self,
        path: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        silence: float = 50.0,
        **request: Any,
    ) -> Iterator[httpx.Response]:
        """A request whose answer is read as it comes; it fails when nothing comes for `silence` seconds.

        The lab sends a sign of life every 15 s on an event stream; what is silent for longer than three of them is gone.
        """
        with self._explained():
            timeout = httpx.Timeout(60.0, read=silence)
            with self._http.stream(method, v1.API + path, headers=headers, timeout=timeout, **request) as response:
                self.answered = True
                self._look_at(response)
                if response.status_code >= 400:
                    response.read()
                    raise error_of(response)
                yield response

    def _look_at(self, response: httpx.Response) -> None:
        room, _, message = response.headers.get(v1.STORAGE_HEADER, "").partition("; ")
        self.tell(room, unquote(message))

    def tell(self, room: str, message: str) -> None:
        """Pass on what the lab says of its disks; "" is no news."""
        if room and self._notice is not None:
            self._notice(room, message)

    def tunnel(self, path: str, read: int, write: int) -> None:
        """Carry bytes between two descriptors and a websocket of the lab's until either side ends."""
        from carrel.client.tunnel import carry

        with self._explained():
            carry(self.url + v1.API + path, self.token(), None if self.authority is None else _trust(self.authority), read, write)

    def health(self) -> v1.HealthView:
        """What the lab says without sign-in. Raises `Unavailable` when it does not answer."""
        with self._explained():
            return v1.HealthView.model_validate_json(self._http.get("/health", auth=None).content)

    def _explained(self) -> AbstractContextManager[None]:
        return explained(self.url)


def open_http(url: str, authority: Path | None, *, timeout: float) -> httpx.Client:
    """Connections to a lab, on which nobody is signed in. `authority`: file (PEM) of who signs its certificates."""
    address = urlsplit(url)
    return httpx.Client(
        base_url=url,
        timeout=timeout,
        # A proxy for the outside world has no business between a user and a lab on the same machine.
        trust_env=not (address.hostname or "").startswith(_LOOPBACK),
        # Reading the machine's certificates takes longer than most requests; without TLS there is nothing to verify.
        verify=_trust(authority) if address.scheme != "http" and authority else address.scheme != "http",
    )


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Raise `Unavailable`, in words for people, for what goes wrong on the way to the lab."""
    try:
        yield
    except (httpx.TransportError, httpx.RemoteProtocolError) as error:
        if _UNTRUSTED in str(error):
            raise Untrusted(
                f"Nobody that you trust vouches for the lab at {url}: {str(error).partition('failed: ')[2] or error}.",
                remedy=f"Ask its administrator for the fingerprint that `carrel up` shows: carrel login {url} --trust "
                "sha256:…; CARREL_CA_FILE names a file of certificates.",
            ) from error
        raise LabUnreachable(
            f"The lab at {url} does not answer: {errors.in_words(error)}.",
            remedy="Is it running? `carrel up` starts it; running tasks go on meanwhile.",
        ) from error


class Untrusted(errors.Unavailable):
    """Who answered could not show that it is the lab; nothing was sent to it."""


class LabUnreachable(errors.Unavailable):
    """No answer at all: the request may be sent again if it is safe to repeat."""


def read_lines(response: httpx.Response) -> Iterator[str]:
    """Each line of an answer that comes line by line, without those that are only signs of life."""
    yield from (line for line in _lines(response) if line)


def read_events(response: httpx.Response) -> Iterator[tuple[str, str]]:
    """(id, data) of each message of an event stream (WHATWG HTML, 9.2); a sign of life is ("", "").

    The id is "" for a message that has none of its own.
    """
    event_id, data = "", []
    for line in _lines(response):
        if line.startswith("id:"):
            event_id = line[3:].strip()
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif line.startswith(":"):
            yield "", ""
        elif not line and data:
            yield event_id, "\n".join(data)
            event_id, data = "", []


def _lines(response: httpx.Response) -> Iterator[str]:
    """Lines that end as the lab ends them. Text inside JSON may hold U+2028 and its like, which are no line ends here."""
    rest = b""
    for piece in response.iter_bytes():
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace").removesuffix("\r")


def _trust(authority: Path) -> ssl.SSLContext:
    """TLS that believes this authority alone. Raises `Invalid` for a file that is none."""
    try:
        return ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        raise errors.Invalid(
            f"The certificates in {authority} cannot be used: {errors.in_words(error)}.",
            remedy="CARREL_CA_FILE, or `carrel login URL --trust FINGERPRINT`, says whom to trust.",
        ) from None


def _read(model: type[M], response: httpx.Response) -> M:
    if issubclass(model, BaseModel):
        return model.model_validate_json(response.content)
    return v1.value_of(model, v1.shown_of(model).model_validate_json(response.content))


def plain(response: httpx.Response) -> Any:
    """The body as JSON."""
    return json.loads(response.content)
