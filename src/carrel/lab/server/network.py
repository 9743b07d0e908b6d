"""How the lab faces the network: its address, TLS, names, and what people are warned of."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from carrel.core.domain.errors import Invalid


def check_network(values: Mapping[str, Any]) -> None:
    """Raise `Invalid` for settings that do not go together."""
    if bool(values["tls_certificate"]) != bool(values["tls_key"]):
        raise Invalid("tls_certificate and tls_key go together.", remedy="Give both files, or none.")
    if values["tls_own"] and values["tls_certificate"]:
        raise Invalid(
            "tls_own and tls_certificate are two ways of TLS.", remedy="Keep one: the certificate, if others vouch for it."
        )
    address = values["public_url"]
    if address is not None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment:
            raise Invalid(f'public_url is "{address}".', remedy='Write it like "https://gpus.example.org".')
    if values["tls_certificate"] and (address is None or not address.startswith("https://")):
        raise Invalid(
            "A lab with tls_certificate wants a public_url that begins with https://.",
            remedy="Say by which name people reach it: the one in its certificate.",
        )
    for name in ("public_url", "slurm_url"):
        if values["tls_own"] and (values[name] or "").startswith("http://"):
            raise Invalid(f'{name} is "{values[name]}", and the lab offers TLS (tls_own).', remedy="Begin it with https://.")
    for one in proxies(values["trusted_proxies"]):
        try:
            ipaddress.ip_network(one)
        except ValueError:
            raise Invalid(f'trusted_proxies has "{one}".', remedy="List addresses and networks: 10.0.0.7, 10.1.0.0/16.") from None


def proxies(text: str) -> list[str]:
    """The addresses and networks in a list of them."""
    return [one.strip() for one in text.split(",") if one.strip()]


def certified(public_url: str | None, session_host: str, *others: str | None) -> list[str]:
    """The names for the lab's certificate: those that its settings tell people, sessions' own among them (RFC 6125, 6.4.3)."""
    hosts = [urlsplit(address).hostname for address in (public_url, *others) if address]
    parent = session_host.partition(".")[2]
    return [host for host in (*hosts, f"*.{parent}" if parent else None) if host and host not in ("0.0.0.0", "::")]


def names(public_url: str | None, *others: str | None) -> frozenset[str]:
    """By which names the lab answers: none in particular where its `public_url` is not known."""
    if public_url is None:
        return frozenset()
    hosts = [urlsplit(address).hostname for address in (public_url, *others) if address]
    return frozenset(host for host in hosts if host)


def loopback(host: str) -> bool:
    """True when nobody on another machine reaches what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def warnings(host: str, *, tls: bool) -> list[str]:
    """Warnings about the lab's address, for the person who starts it."""
    if tls or loopback(host):
        return []
    return [
        f"It listens on {host} without TLS: others on the network can read tokens, code and results, and use them.",
        "Set tls_own, or tls_certificate, tls_key and public_url (docs/settings.md), or listen on 127.0.0.1 behind a TLS proxy.",
    ]
