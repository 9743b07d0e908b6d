"""How many small updates become few calls. Pure.

MLflow takes about 90 single calls a second but thousands of values in batches, so what waits for one run goes together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from carrel.lab.tracking.rest import BATCH_LIMIT, METRICS_LIMIT, PARAMS_LIMIT, TAGS_LIMIT

_LIMITS = {"metrics": METRICS_LIMIT, "params": PARAMS_LIMIT, "tags": TAGS_LIMIT}


@dataclass(frozen=True, slots=True)
class Entry:
    """One metric, parameter or tag, and the item of the outbox that brought it."""

    item_id: int
    #: "metrics", "params" or "tags".
    group: str
    key: str
    value: Any


def entries_of(item_id: int, payload: Mapping[str, Any]) -> list[Entry]:
    """The entries in the payload of an item."""
    entries = [Entry(item_id, "params", key, str(value)) for key, value in (payload.get("params") or {}).items()]
    entries += [Entry(item_id, "tags", key, str(value)) for key, value in (payload.get("tags") or {}).items()]
    entries += [Entry(item_id, "metrics", metric["key"], metric) for metric in payload.get("metrics") or ()]
    return entries


def batches(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Split entries, in their order, into what MLflow takes at once.

    Of a tag that comes again only the last value is sent; a parameter that comes again goes into a later batch, because
    MLflow has something to say about it.
    """
    last = {entry.key: index for index, entry in enumerate(entries) if entry.group == "tags"}
    batch: list[Entry] = []
    counts = dict.fromkeys(_LIMITS, 0)
    params: set[str] = set()
    for index, entry in enumerate(entries):
        if entry.group == "tags" and last[entry.key] != index:
            continue
        again = entry.group == "params" and entry.key in params
        if again or counts[entry.group] == _LIMITS[entry.group] or len(batch) == BATCH_LIMIT:
            yield batch
            batch, counts, params = [], dict.fromkeys(_LIMITS, 0), set()
        batch.append(entry)
        counts[entry.group] += 1
        if entry.group == "params":
            params.add(entry.key)
    if batch:
        yield batch


def call_arguments(batch: Sequence[Entry]) -> dict[str, Any]:
    """The batch as keyword arguments of `MlflowRest.log_batch`."""
    return {
        "metrics": [entry.value for entry in batch if entry.group == "metrics"],
        "params": {entry.key: entry.value for entry in batch if entry.group == "params"},
        "tags": {entry.key: entry.value for entry in batch if entry.group == "tags"},
    }
