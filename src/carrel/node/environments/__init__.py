"""Environments: from a recipe to a locked, content-addressed virtual environment that every job with the same lock shares.

A runner calls `EnvironmentStore.prepare`; a second call with the same recipe starts no process. See docs/environments.md.
"""

from carrel.node.environments.activation import activate
from carrel.node.environments.confinement import Builds
from carrel.node.environments.errors import EnvironmentFailed, EnvironmentStopped, EnvironmentTimeout
from carrel.node.environments.guards import OpenGuard
from carrel.node.environments.inventory import EnvironmentInfo
from carrel.node.environments.launches import is_built, store_of
from carrel.node.environments.store import Environment, EnvironmentSettings, EnvironmentStore
