"""From which hosts repositories are fetched that users name on a page: the lab's host asks, and it reaches more than they do.

A name is resolved once, and git is told the address (`http.curloptResolve`, git 2.37 and newer): a name that leads elsewhere a
moment later leads nowhere. What only a proxy of the lab's knows, the proxy may refuse.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlsplit

from carrel.core.domain.errors import Invalid

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
#: Networks whose addresses stand for others, of IPv4 (RFC 6052, RFC 3056, RFC 4380).
_TRANSLATED = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")))

#: Variables by which git goes through a proxy (curl(1)).
_PROXIES = {
    "http": ("http_proxy", "all_proxy", "ALL_PROXY"),
    "https": ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"),
}


class GitHosts:
    """Hosts of the internet, and what the setting `git_hosts` names beside them."""

    def __init__(self, setting: str = "", *, resolve: Callable[..., Sequence[Any]] = socket.getaddrinfo) -> None:
        """`setting`: names, patterns of names (*.lab.example.org), addresses and networks (10.2.0.0/16). Raises `Invalid`."""
        self._resolve = resolve
        self._names, self._networks = [], []
        for word in setting.replace(",", " ").split():
            try:
                self._networks.append(ipaddress.ip_network(word))
            except ValueError as error:
                if "/" in word or ":" in word:
                    remedy = "Write names, *.names, addresses and networks: gitlab.lab.example.org 10.2.0.0/16."
                    raise Invalid(f'git_hosts has "{word}", which is neither: {error}.', remedy=remedy) from error
                self._names.append(word.lower())

    def pin(self, address: str) -> str:
        """Return where the host of `address` is, as `http.curloptResolve` has it; "" if only a proxy knows. Raises `Invalid`."""
        parts = urlsplit(address)
        host = (parts.hostname or "").lower()
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            found = self._resolve(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            if any(name in os.environ for name in _PROXIES[parts.scheme]):
                return ""  # the proxy may know it
            raise Invalid(f'There is no host "{host[:200]}".', remedy="Is the address right?") from error
        known = [ipaddress.ip_address(one[4][0].partition("%")[0]) for one in found]
        named = any(fnmatchcase(host, name) for name in self._names)
        open_ones = [str(one) if one.version == 4 else f"[{one}]" for one in known if named or self._may(one)]
        # A trailing dot is another name for git than for who resolves it.
        if not open_ones or host.endswith("."):
            raise Invalid(
                f"{host[:200]} is in the lab's own network, and the lab fetches nothing from there.",
                remedy="An administrator can name it in the setting git_hosts; or upload the code as a .zip.",
            )
        return f"{host}:{port}:{','.join(dict.fromkeys(open_ones))}"

    def _may(self, address: _Address) -> bool:
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if any(address in network for network in self._networks):
            return True
        # `is_global` is false of what is private, loopback, link-local, shared (RFC 6598) or kept for documents.
        return address.is_global and not address.is_multicast and not any(address in network for network in _TRANSLATED)
