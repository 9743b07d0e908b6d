"""Sessions for users of a JupyterHub.

`CarrelSpawner` runs in the hub's own Python, which needs nothing of the lab's server. What is loaded here is loaded when it is
asked for: the other half of this package runs in sessions, and must not wait for the hub's packages.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from carrel_jupyterhub.spawner import CarrelSpawner

__all__ = ["CarrelSpawner"]


def __getattr__(name: str) -> Any:
    if name == "CarrelSpawner":
        from carrel_jupyterhub.spawner import CarrelSpawner

        return CarrelSpawner
    raise AttributeError(f"module 'carrel_jupyterhub' has no attribute {name!r}")
