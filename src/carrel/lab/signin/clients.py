"""Programs that may ask the issuer for tokens of people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from carrel.lab.signin.refused import Refused

#: Where a program on the person's own machine may wait for its code (RFC 8252, 7.3): by address, not by a name that
#: something else could answer to.
_LOOPBACK = ("127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One of them. It keeps no secret (RFC 6749, 2.1, "public"): anybody can call themselves so."""

    id: str
    #: What people read.
    name: str
    #: Path of its redirect address on the loopback, whose port is its own choice.
    path: str


#: `carrel login`.
COMMAND_LINE = Client(id="carrel-cli", name="carrel login", path="/signed-in")
CLIENTS: Mapping[str, Client] = {client.id: client for client in (COMMAND_LINE,)}


def find_client(client_id: str | None) -> Client:
    """The client of this id. Raises `Refused`."""
    found = CLIENTS.get(client_id or "")
    if found is None:
        raise Refused("invalid_client", "This lab does not know the program that asks (client_id).")
    return found


def is_redirect_of(client: Client, address: str) -> bool:
    """True when the client may have a code sent to this address: http on the loopback, any port, its own path, nothing else."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        return False
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
    exact = f"http://{host}:{port}{client.path}"
    return bool(port) and parts.hostname in _LOOPBACK and address == exact
