"""`carrel pool`: the workers and calls behind `carrel.Executor`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home, argument, flag, open_client, option
from carrel.cli.screen import print_fields, print_json, print_table
from carrel.cli.words import gpu, local
from carrel.core.domain.call import CallState
from carrel.core.domain.units import format_count

if TYPE_CHECKING:
    from datetime import datetime

    from carrel.core.domain.call import PoolWorker, WorkerPool
    from carrel.wire import v1

pool_command = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Look after the workers that carry out calls of `carrel.Executor`.",
)
Number = Annotated[int, argument("POOL", "Number of the pool.")]
_STATES = ("PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED")


@pool_command.command("list")
def list_pools(
    closed: Annotated[bool, flag("--all", "Those that are closed, too.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """List one's own pools, newest first, with their workers and calls."""
    from carrel.cli.nouns import print_records

    with open_client(home) as client:
        found = client.pools(closed=closed)
    if as_json:
        print_records("pools", found)
        return OK
    rows = [
        (
            str(pool.id),
            pool.name,
            _workers(pool),
            *(str(pool.calls.get(state, 0)) for state in _STATES[:4]),
            local(pool.created_at),
            local(pool.unfollowed_since) if pool.unfollowed_since is not None else "",
        )
        for pool in found
    ]
    print_table(("POOL", "NAME", "WORKERS", "WAIT", "RUN", "DONE", "FAILED", "SINCE", "NO CLIENT SINCE"), rows)
    return OK


@pool_command.command("show")
def show(
    number: Number,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Calls to show, newest first.")] = 20,
    state: Annotated[
        CallState | None,
        typer.Option("--state", "-s", case_sensitive=False, help="Only calls in this state.", show_default=False),
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Show a pool's workers, what keeps them waiting, and its last calls."""
    from carrel.wire import v1

    with open_client(home) as client:
        pool, calls = client.pool(number), list(client.calls(number, limit, state=state))
    if as_json:
        return print_json(
            {"pool": v1.show(pool).model_dump(mode="json"), "calls": [call.model_dump(mode="json") for call in calls]}
        )
    print_fields(
        [
            ("pool", f"{pool.id}: {pool.name}{', closed' if pool.closed_at else ''}"),
            ("workers", f"{_workers(pool)}; {pool.min_workers} are kept, others end after {pool.idle_time:g} s without a call"),
            ("calls", ", ".join(f"{pool.calls[state]} {state}" for state in _STATES if pool.calls.get(state)) or "none"),
            *([("GPUs", f"each call borrows {pool.borrows}; a worker without a call holds none")] if pool.borrows else []),
            *([("client", f"none since {local(pool.unfollowed_since)}")] if pool.unfollowed_since is not None else []),
            *([("trouble", pool.trouble)] if pool.trouble else []),
        ]
    )
    for worker in pool.workers:
        print(f"  worker: job {worker.job_id} {worker.state}{_has(worker, pool)}")
    if calls:
        rows = [(str(one.id), one.state, local(_since(one)), one.label, str(one.job_id or ""), _about(one)) for one in calls]
        print_table(("CALL", "STATE", "SINCE", "FUNCTION", "JOB", "MESSAGE"), rows)
    return OK


@pool_command.command("log")
def log(
    number: Annotated[int, argument("CALL", "Number of the call.")],
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Print what a call has printed, also while it runs: its standard output, then its standard error."""
    with open_client(home) as client:
        found = client.call_log(number)
    if as_json:
        return print_json(found)
    for text, size, stream in ((found.stdout, found.stdout_size, sys.stdout), (found.stderr, found.stderr_size, sys.stderr)):
        missing = size - len(text.encode())
        print(f"[carrel: {missing} bytes before this are not kept]\n{text}" if missing > 0 else text, end="", file=stream)
    return OK


@pool_command.command("close")
def close(
    number: Number,
    cancel: Annotated[bool, flag("--cancel", "Calls that wait do not begin.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Let a pool take no more calls. What runs is finished, and its workers end."""
    from carrel.wire import v1

    with open_client(home) as client:
        pool = client.close_pool(number, cancel=cancel)
    if as_json:
        return print_json(v1.show(pool))
    left = sum(pool.calls.get(state, 0) for state in ("PENDING", "RUNNING"))
    rest = f"; still to be carried out: {format_count(left, 'call')}" if left else ""
    print(f"Pool {number} is closed{rest}.")
    return OK


@pool_command.command("remove")
def remove(number: Number, home: Home = None, as_json: AsJson = False) -> int:
    """Forget a pool that is over, with its calls and what they returned: their files are gone from the lab's disk."""
    with open_client(home) as client:
        client.remove_pool(number)
    if as_json:
        return print_json({"pool": number})
    print(f"Pool {number} is removed.")
    return OK


@pool_command.command("forget")
def forget(
    function: Annotated[
        str | None, option("--function -f", "NAME", "Only of this function, as `carrel pool show` names it.")
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Forget the results that are kept for equal calls (`cache=True`), so that they are carried out again."""
    with open_client(home) as client:
        number = client.forget_results(function)
    if as_json:
        return print_json({"results": number})
    print(f"{format_count(number, 'result')} forgotten.")
    return OK


def _since(call: v1.CallView) -> datetime:
    """When it came into the state in which it is."""
    return call.ended_at or call.started_at or call.created_at


def _about(call: v1.CallView) -> str:
    if call.waits_for:
        shown = ", ".join(str(one) for one in call.waits_for[:3])
        more = f" and {len(call.waits_for) - 3} more" if len(call.waits_for) > 3 else ""
        return f"waits for call{'s' if len(call.waits_for) > 1 else ''} {shown}{more}"
    if call.cached_from is not None:
        return f"result of call {call.cached_from}"
    return call.message.partition("\n")[0]


def _has(worker: PoolWorker, pool: WorkerPool) -> str:
    """Why a worker waits, and what it has of GPUs that are lent."""
    if worker.message:
        return f": {worker.message}"
    if worker.borrowed:
        return f", {', '.join(gpu(uuid) for uuid in worker.borrowed)}"
    return ", no GPU" if pool.borrows and worker.state == "RUNNING" else ""


def _workers(pool: WorkerPool) -> str:
    running = sum(worker.state == "RUNNING" for worker in pool.workers)
    waiting = len(pool.workers) - running
    return f"{running}{f' (+{waiting})' if waiting else ''} of {pool.max_workers}"
