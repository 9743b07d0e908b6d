"""The typed client. It needs a lab's address and a token, and nothing of the server's packages.

What it stands on is loaded when `Client` is first asked for: finding a lab's home costs no HTTP library.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from carrel.client.client import Client

__all__ = ["Client"]


def __getattr__(name: str) -> Any:
    if name == "Client":
        from carrel.wire.needs import importing

        with importing("carrel.Client"):
            from carrel.client.client import Client

            return Client
    raise AttributeError(f"module 'carrel.client' has no attribute {name!r}")
