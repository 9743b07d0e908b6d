"""``from carrel import submitit``: what is written for submitit runs as jobs of the lab (docs/functions.md).

Modules here have submitit's names, so that replacing the import is enough. The code is in `carrel.client.submitit`.
"""

from typing import TYPE_CHECKING, Any

from carrel.submitit import helpers as helpers

if TYPE_CHECKING:
    from carrel.client.submitit import *  # noqa: F403


def __getattr__(name: str) -> Any:
    from carrel.client import submitit

    return getattr(submitit, name)
