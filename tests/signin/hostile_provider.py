"""A provider that does what a test says: it lies, it is slow, it sends too much. Its keys are its own, or somebody else's."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
from joserfc import jws
from joserfc.jwk import ECKey, OKPKey, RSAKey
from oidc_site import OidcSite

from carrel.lab.portal.oidc import BACK

Answer = tuple[int, Mapping[str, str], bytes]
ALL = ["none", "HS256", "RS256", "PS256", "ES256", "Ed25519", "EdDSA", "RS384"]


def of_json(value: Any, status: int = 200) -> Answer:
    return status, {"Content-Type": "application/json"}, json.dumps(value).encode()


def encode(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def sign(header: Mapping[str, Any], claims: Any, key: Any) -> str:
    body = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    if header["alg"] == "none":
        return f"{encode(json.dumps(header).encode())}.{encode(body)}."
    return jws.serialize_compact(dict(header), body, key, algorithms=ALL)


def public(key: Any, **more: Any) -> dict[str, Any]:
    return {**key.as_dict(private=False), "kid": "k1", "use": "sig", **more}


@dataclass
class Hostile:
    issuer: str
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048))
    #: How the next ones are told apart from those of a good one: paths, claims, the header of the token.
    answers: dict[str, Callable[[dict[str, str]], Answer]] = field(default_factory=dict)
    claims: dict[str, Any] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    #: What it was asked, by path.
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    #: The nonce of the sign-in that is under way, and the lab's time.
    nonce: str = ""
    now: float = 0.0
    #: Set when the test is over: those that wait are let go.
    over: threading.Event = field(default_factory=threading.Event)

    def token(self, key: Any = None, **change: Any) -> str:
        claims = {
            "iss": self.issuer, "aud": "carrel", "sub": "s1", "nonce": self.nonce, "preferred_username": "ada",
            "iat": int(self.now), "exp": int(self.now) + 300,
        } | self.claims | change  # fmt: skip
        claims = {name: value for name, value in claims.items() if value is not None}
        header = {"alg": "RS256", "kid": "k1"} | self.header
        return sign({name: value for name, value in header.items() if value is not None}, claims, key or self.key)

    def answer(self, path: str, form: dict[str, str]) -> Answer:
        self.asked.append((path, form))
        if path in self.answers:
            return self.answers[path](form)
        if path == "/.well-known/openid-configuration":
            places = {"authorization_endpoint": "auth", "token_endpoint": "token", "jwks_uri": "jwks", "userinfo_endpoint": "me"}
            found: dict[str, Any] = {name: f"{self.issuer}/{place}" for name, place in places.items()}
            found |= {"issuer": self.issuer, "authorization_response_iss_parameter_supported": True} | self.metadata
            return of_json({name: value for name, value in found.items() if value is not None})
        if path == "/jwks":
            return of_json({"keys": [public(self.key)]})
        if path == "/token":
            return of_json({"id_token": self.token(), "access_token": "an-access-token", "token_type": "Bearer"})
        return of_json({"error": "not_found"}, 404)

    def come_back(self, site: OidcSite, http: httpx.Client, **change: str | None) -> httpx.Response:
        """Begin a sign-in, and bring the answer that a good provider would give, with `change`."""
        begun = site.begin(http)
        self.nonce, self.now = begun["nonce"], site.clock()
        said: dict[str, str | None] = {"code": "a-code", "state": begun["state"], "iss": self.issuer} | change
        return http.get(f"{site.url}{BACK}", params={name: value for name, value in said.items() if value is not None})


@contextmanager
def a_hostile_provider() -> Iterator[Hostile]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
            self._answer({name: values[0] for name, values in parse_qs(text).items()})

        def _answer(self, form: dict[str, str]) -> None:
            authorization = self.headers.get("Authorization")
            if authorization:
                form["authorization"] = authorization
            status, headers, body = hostile.answer(urlsplit(self.path).path, form)
            try:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if "Content-Length" not in headers:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hostile = Hostile(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hostile
    finally:
        hostile.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


@cache
def other_keys() -> Mapping[str, Any]:
    """Keys of nobody whom the lab knows."""
    return {
        "RS256": RSAKey.generate_key(2048),
        "ES256": ECKey.generate_key("P-256"),
        "EdDSA": OKPKey.generate_key("Ed25519"),
        "one in the header": RSAKey.generate_key(2048),
    }
