"""What the lab's settings and its sign-in both know of a provider of OpenID Connect."""

from __future__ import annotations

from urllib.parse import urlsplit

from carrel.core.domain.user import Role

#: Roles that groups can stand for, the weakest first: of several the last one counts.
GROUP_ROLES = (Role.MANAGER, Role.OPERATOR, Role.ADMIN)


def is_provider_address(text: str) -> bool:
    """Whether it is an https address, or one of http on the loopback, without a fragment and a password."""
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018 - raises for one that is none
    except ValueError:
        return False
    if not text.isascii() or not text.isprintable() or " " in text or not parts.hostname or parts.fragment or "@" in parts.netloc:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost"))
