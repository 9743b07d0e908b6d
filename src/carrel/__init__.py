"""Carrel lets a research lab share its GPUs.

``import carrel`` costs next to nothing: the client and what it stands on are loaded when first used.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Client", "Executor", "__version__", "compose", "order", "remote", "report", "submitit"]

if TYPE_CHECKING:
    from carrel import submitit
    from carrel.client import Client
    from carrel.client.composing import compose
    from carrel.client.executor import Executor
    from carrel.client.ordering import order
    from carrel.client.remote import remote
    from carrel.client.reporting import report


def __getattr__(name: str) -> Any:
    if name == "Client":
        from carrel.client import Client

        return Client
    if name == "Executor":
        from carrel.wire.needs import importing

        with importing("carrel.Executor"):
            from carrel.client.executor import Executor

            return Executor
    if name == "submitit":
        import importlib

        return importlib.import_module("carrel.submitit")
    if name == "compose":
        from carrel.client.composing import compose

        return compose
    if name == "order":
        from carrel.client.ordering import order

        return order
    if name == "report":
        from carrel.client.reporting import report

        return report
    if name == "remote":
        from carrel.wire.needs import importing

        with importing("carrel.remote"):
            from carrel.client.remote import remote

            return remote
    raise AttributeError(f"module 'carrel' has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext carrel``: give a notebook `%%remote`."""
    from carrel.wire.needs import importing

    with importing("%%remote"):
        from carrel.client.remote.magic import register

    register(shell)
