"""What makes two tasks the same: a task whose key an earlier job had may take that job's result."""

from __future__ import annotations

import hashlib
import json
import re

from carrel.core.domain.serial import to_plain
from carrel.core.domain.task import InputSpec, TaskSpec

#: Digits of a key that say what is done, beside the code.
HALF = 32
#: What decides what a task does, with its code. Resources and names do not.
_FIELDS = (
    "command",
    "directory",
    "parameters",
    "environment",
    "inputs",
    "path_parameters",
    "outputs",
    "launcher",
    "tasks_per_node",
    "variables",
    "secrets",
)
#: Addresses that always name the same content: outputs of a job, artifacts of a run, a version of a model by its number.
_LASTING = re.compile(
    r"(?:job:|runs:/|mlflow-artifacts:/(?:[^?#]+/)?[0-9a-f]{32}/artifacts(?:/|$)|models:/{1,3}[^/@]+/[0-9]+(?:/|$))"
)


def cache_key(task: TaskSpec) -> str:
    """Return 64 hexadecimal digits, the same for tasks that do the same, and the first half also where only the code differs.

    "" is for a task whose result may not be taken again.
    """
    if task.session is not None or task.pool is not None or changing_inputs(task):
        return ""
    plain = to_plain(task)
    # Only where it is so: what was done before there was such a mode keeps its key.
    decides = (*_FIELDS, *(name for name in ("deterministic_seed", "order") if name in plain))
    text = json.dumps({name: plain[name] for name in decides}, sort_keys=True, separators=(",", ":"))
    return "".join(hashlib.sha256(part.encode()).hexdigest()[:HALF] for part in (text, task.snapshot))


def changing_inputs(task: TaskSpec) -> tuple[InputSpec, ...]:
    """Return the inputs whose address may name something else tomorrow, and whose digest the task does not say."""
    return tuple(item for item in task.all_inputs if item.digest is None and not _LASTING.match(item.uri))
