"""Environments: from a recipe to a locked, content-addressed virtual environment that every job with the same lock shares.

A runner calls `EnvironmentStore.prepare`; a second call with the same recipe starts no process. See docs/environments.md.
"""

from carrel.environments.activation import activate
from carrel.environments.confinement import Builds
from carrel.environments.errors import EnvironmentFailed, EnvironmentStopped, EnvironmentTimeout
from carrel.environments.guards import OpenGuard
from carrel.environments.inventory import EnvironmentInfo
from carrel.environments.launches import is_built, store_of
from carrel.environments.store import Environment, EnvironmentSettings, EnvironmentStore

__all__ = [
    "Builds",
    "Environment",
    "EnvironmentFailed",
    "EnvironmentInfo",
    "EnvironmentSettings",
    "EnvironmentStopped",
    "EnvironmentStore",
    "EnvironmentTimeout",
    "OpenGuard",
    "activate",
    "is_built",
    "store_of",
]
