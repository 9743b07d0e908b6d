"""Carrel lets a research lab share its GPUs.

``import carrel`` costs next to nothing: the client and what it stands on are loaded when first used.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Client", "Executor", "__version__"]

if TYPE_CHECKING:
    from carrel.client import Client
    from carrel.client.executor import Executor


def __getattr__(name: str) -> Any:
    if name == "Client":
        from carrel.client import Client

        return Client
    if name == "Executor":
        from carrel.client.executor import Executor

        return Executor
    raise AttributeError(f"module 'carrel' has no attribute {name!r}")
