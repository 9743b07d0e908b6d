"""The typed client. It needs a lab's address and a token, and nothing of the server's packages."""

from carrel.client.client import Client

__all__ = ["Client"]
