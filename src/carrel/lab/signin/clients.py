"""Programs that may ask the issuer for tokens of people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from carrel.lab.signin.refused import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One of them. It keeps no secret (RFC 6749, 2.1, "public"): anybody can call themselves so."""

    id: str
    #: What people read.
    name: str


#: `carrel login`.
COMMAND_LINE = Client(id="carrel-cli", name="carrel login")
CLIENTS: Mapping[str, Client] = {client.id: client for client in (COMMAND_LINE,)}


def find_client(client_id: str | None) -> Client:
    """The client of this id. Raises `Refused`."""
    found = CLIENTS.get(client_id or "")
    if found is None:
        raise Refused("invalid_client", "This lab does not know the program that asks (client_id).")
    return found
