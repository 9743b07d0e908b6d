"""`%%remote` and `%remote` of a notebook."""

from __future__ import annotations

import sys
from concurrent.futures.process import BrokenProcessPool
from types import ModuleType
from typing import Any

from carrel.client.remote import names
from carrel.client.remote.failures import plain
from carrel.client.remote.options import Options, parse
from carrel.client.remote.packing import anchored
from carrel.client.remote.pools import POOLS
from carrel.client.remote.running import run_cell
from carrel.core.domain.errors import CarrelError, Conflict, Invalid

#: What a notebook has and a remote cell has of its own.
_NOT_SENT = frozenset({"In", "Out", "get_ipython", "exit", "quit", "display", "open", "_ih", "_oh", "_dh"})


class RemoteMagic:
    """The magic of one shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._defaults = Options()

    def cell(self, line: str, source: str) -> None:
        """`%%remote [gpus=1] [as=result] …`: run the cell on a machine of the lab."""
        try:
            self._cell(line, source)
        except SyntaxError as error:
            raise plain(error, self._shell.SyntaxTB.structured_traceback(type(error), error, [])) from None
        except (CarrelError, BrokenProcessPool) as error:
            raise plain(error) from None
        except BaseException as error:  # noqa: BLE001 - whatever the cell raises
            raise error.with_traceback(None)  # noqa: B904 - the same one, without frames that hold what has travelled

    def line(self, line: str) -> None:
        """`%remote` says which pools are open; `%remote gpus=1` holds for the remote cells that follow; `%remote close`."""
        if line.strip() == "close":
            print(f"{POOLS.close()} closed.")
            return
        try:
            self._defaults = parse(line).over(self._defaults)
        except Invalid as error:
            raise plain(error) from None
        said = [f"{name}={value}" for name, value in sorted(self._defaults.pool.items())]
        open_ = [f"pool {one.pool_id}" for one in POOLS.list()]
        print(f"Remote cells take {', '.join(said) or 'what the lab gives'}; open: {', '.join(open_) or 'none'}.")

    def _cell(self, line: str, source: str) -> None:
        options = parse(line).over(self._defaults)
        number = len(self._shell.history_manager.input_hist_parsed) - 1
        # The first line is the magic's own, so that lines have the numbers that the notebook shows. IPython drops empty ones.
        empty = source[: len(source) - len(source.lstrip())].count("\n")
        code = f"# %%remote {line}\n" + "\n" * empty + self._shell.transform_cell(source)
        filename = self._shell.compile.cache(code, number)
        _check_back(options, code, filename)
        space = self._shell.user_ns
        variables = {name: space[name] for name in names.needed(code, filename) if self._travels(name, space)}
        order = {
            "source": code,
            "filename": filename,
            "modules": names.submodules(code, [one for one in variables.values() if isinstance(one, ModuleType)], sys.modules),
            "back": list(options.back),
            "shows": not source.rstrip().endswith(";"),
            "limit": options.limit,
            **self._looks(number),
        }
        executor = POOLS.get(options.pool)
        try:
            outcome = run_cell(executor, order, variables, anchored(space, variables), f"In [{number}]")
        except Conflict:  # the pool was closed meanwhile, by hand or with the lab
            POOLS.drop(executor)
            outcome = run_cell(POOLS.get(options.pool), order, variables, anchored(space, variables), f"In [{number}]")
        self._shell.push(outcome["back"])

    def _looks(self, number: int) -> dict[str, Any]:
        """What the other shell has of this one."""
        shell = self._shell
        parent: dict[str, Any] = getattr(shell, "get_parent", dict)()
        return {
            "number": number,
            "flags": shell.compile.flags,
            "interactivity": shell.ast_node_interactivity,
            "colors": shell.colors,
            "mode": shell.InteractiveTB.mode,
            "message": parent.get("header", {}).get("msg_id", ""),
        }

    def _travels(self, name: str, space: dict[str, Any]) -> bool:
        return name in space and name not in _NOT_SENT and not name.startswith("__")


def _check_back(options: Options, code: str, filename: str) -> None:
    """Raise `Invalid` before anything runs when a name can never come back."""
    made = names.made(code, filename)
    missing = [name for name in options.back if made is not None and name not in made]
    needed = set(names.needed(code, filename)) if missing else set()
    missing = [name for name in missing if name not in needed]
    if missing and not (len(options.back) == 1 and names.has_value(code)):
        raise Invalid(
            f"as={','.join(options.back)}: the cell makes no variable {', '.join(missing)}.",
            remedy="Assign it in the cell, or let the last line be an expression and name one variable.",
        )


def register(shell: Any) -> RemoteMagic:
    """Give the shell `%%remote` and `%remote`; return what carries them out."""
    magic = RemoteMagic(shell)
    shell.register_magic_function(magic.cell, "cell", "remote")
    shell.register_magic_function(magic.line, "line", "remote")
    return magic
