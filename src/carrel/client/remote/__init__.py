"""Cells and functions of a notebook that run on the lab's machines: `%%remote` and `@carrel.remote`."""

from carrel.client.remote.decorator import remote

__all__ = ["remote"]
