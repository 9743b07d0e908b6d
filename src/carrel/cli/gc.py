"""`carrel gc`: remove what the lab need not keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from carrel.cli.endings import OK, OTHER
from carrel.cli.options import AsJson, Home, flag, open_client, option
from carrel.cli.screen import clean, paint, print_json, print_table
from carrel.cli.words import size
from carrel.core.domain.errors import Invalid

if TYPE_CHECKING:
    from carrel.core.domain.retention import Collection, StorageReport

#: What there is, with what it is for people.
_KINDS = {
    "work": "working directories",
    "logs": "logs",
    "code": "code",
    "outputs": "outputs",
    "artifacts": "MLflow artifacts",
    "audit": "the audit log",
    "cells": "when cells had GPUs",
    "calls": "calls of functions",
}


def gc_command(
    kinds: Annotated[
        list[str] | None,
        option("--kind", "KIND", "Only this: work, logs, code, outputs, artifacts, audit, cells or calls; may be repeated."),
    ] = None,
    dry_run: Annotated[bool, flag("--dry-run -n", "Say what would go, remove nothing.")] = False,
    usage: Annotated[bool, flag("--usage", "Show who has how much on the lab's disk, remove nothing.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Remove what the lab's rules do not keep, and say what it freed.

    For administrators. Nothing goes that a record names, unless a rule says so (keep_work, keep_logs, keep_outputs …). Everybody
    may see their own --usage.
    """
    from carrel.wire.v1 import show

    for kind in kinds or ():
        if kind not in _KINDS:
            raise Invalid(f'"{kind}" is not kept by a lab.', remedy=f"There are: {', '.join(_KINDS)}.")
    with open_client(home) as client:
        if usage:
            storage = client.storage()
            if as_json:
                print_json(show(storage).model_dump(mode="json"))
            else:
                _print_usage(storage)
            return OK
        found = client.collect(kinds or (), dry_run=dry_run)
    if as_json:
        print_json(show(found).model_dump(mode="json"))
    else:
        _print(found)
    return OTHER if any(one.trouble for one in found.collected) else OK


def _print(found: Collection) -> None:
    rows = [(_KINDS[one.kind], str(one.count), size(one.size)) for one in found.collected if one.count]
    if rows:
        print_table(("WHAT", "COUNT", "SIZE"), rows, right=(1, 2))
    for one in found.collected:
        for example in one.examples if found.dry_run else ():
            print(paint(f"  {clean(example)}", "dim"))
        if found.dry_run and one.examples and one.count > len(one.examples):
            print(paint(f"  and more: {one.count} in all", "dim"))
    for one in found.collected:
        if one.trouble:
            print(f"{_KINDS[one.kind]}: {clean(one.trouble)}")
    print(f"{'Would free' if found.dry_run else 'Freed'} {size(found.size)}.")


def _print_usage(storage: StorageReport) -> None:
    users = storage.users or {"you": storage.mine}
    rows = [
        (clean(name), size(stored.outputs), size(stored.logs), size(stored.code), size(stored.calls), size(stored.total))
        for name, stored in sorted(users.items(), key=lambda item: -item[1].total)
    ]
    print_table(("USER", "OUTPUTS", "LOGS", "CODE", "CALLS", "ALL"), rows, right=(1, 2, 3, 4, 5))
    if storage.quota is not None:
        print(f"Each user may have {size(storage.quota)}.")
