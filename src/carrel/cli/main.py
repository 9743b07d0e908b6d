"""`carrel`: finds the command, runs it, and turns every ending into an exit code and words a person can use."""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from carrel.cli.endings import INTERRUPTED, OK, OTHER, USAGE, report, report_bug, report_usage, wants_json
from carrel.cli.terminal import careful_terminals
from carrel.core.domain.errors import CarrelError, Invalid, StorageFull

#: Command -> module under `carrel.cli`, in the order in which the help shows them. Each has `<command>` or `<command>_` in it.
COMMANDS: dict[str, str] = {
    "up": "up",
    "run": "run",
    "submit": "run",
    "notebook": "notebook",
    "terminal": "notebook",
    "vscode": "notebook",
    "sessions": "notebook",
    "ssh": "ssh",
    "open": "notebook",
    "gpus": "gpus",
    "promote": "promote",
    "ps": "jobs",
    "show": "jobs",
    "logs": "logs",
    "cancel": "jobs",
    "outputs": "outputs",
    "rerun": "jobs",
    "record": "record",
    "compare": "compare",
    "verify": "verify",
    "why": "why",
    "matrix": "matrix",
    "export": "export",
    "replay": "replay",
    "cite": "cite",
    "baseline": "baseline",
    "calibrate": "calibrate",
    "nodes": "lab",
    "share": "share",
    "usage": "report",
    "report": "report",
    "lab": "lab",
    "rules": "rules",
    "reload": "lab",
    "drain": "lab",
    "undrain": "lab",
    "reservation": "reservation",
    "announce": "announce",
    "announcement": "announce",
    "gc": "gc",
    "audit": "audit",
    "simulate": "simulate",
    "env": "env",
    "pool": "pool",
    "compose": "compose",
    "sweep": "sweep",
    "challenge": "challenge",
    "secret": "secret",
    "login": "login",
    "logout": "login",
    "user": "user",
    "token": "token",
    "broker": "broker",
    "signing-key": "signing_key",
    "doctor": "doctor",
    "schema": "schema",
    "completion": "completion",
    "version": "lab",
}
#: The ancestor of all that typer raises for wrong usage; where it lives differs between versions.
_UsageProblem: type[Exception] = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")
HELP = {"help_option_names": ["-h", "--help"]}


class LazyGroup(TyperGroup):
    """A group that imports a command's module when the command is needed."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer names the parameters
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, built now if it was not needed before."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            self.commands[cmd_name] = load(cmd_name)
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As typer does it, which looks for similar names in `commands` when there is none of this name."""
        if args and args[0] not in COMMANDS:
            from carrel.cli.synonyms import refuse_synonym

            refuse_synonym(args[0])
            for name in COMMANDS:
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)


def load(name: str) -> Any:
    """Build one command."""
    module = import_module(f"carrel.cli.{COMMANDS[name]}")
    made = getattr(module, f"{name.replace('-', '_')}_command")
    if not isinstance(made, typer.Typer):
        alone = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=HELP)
        alone.command(name, context_settings=HELP)(made)
        made = alone
    command = typer.main.get_command(made)
    command.name = name
    return command


app = typer.Typer(
    cls=LazyGroup,
    name="carrel",
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=False,
    invoke_without_command=True,
    context_settings=HELP,
)


def _version(asked: bool) -> None:
    if asked:
        from carrel import __version__

        typer.echo(f"carrel {__version__}")
        raise typer.Exit(OK)


@app.callback()
def carrel(
    ctx: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback has acted already
        bool, typer.Option("--version", "-V", help="Print the version and leave.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Carrel lets a research lab share its GPUs: describe a task, run it, get its results, lose nothing."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit(OK)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code (docs/commands.md)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        _hasten()
    _settle_output()
    with careful_terminals():
        return _run(words, as_json=wants_json(words))


def _run(words: Sequence[str], *, as_json: bool) -> int:
    try:
        _refuse_what_is_no_text(words)
        code = typer.main.get_command(app).main(args=list(words), prog_name="carrel", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else OK
    except CarrelError as error:
        return report(error, as_json=as_json)
    except _UsageProblem as error:
        return report_usage(error, words, as_json=as_json) if getattr(error, "exit_code", USAGE) == USAGE else OTHER
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return _unheard()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return report_bug(error, words, as_json=as_json)
        _forget_output()
        where = error.filename or "standard output or the directory for temporary files"
        return report(StorageFull(f"{where} cannot be written: {error.strerror}.", remedy="Free some space."), as_json=as_json)
    except SystemExit as stop:
        # typer ends so when it finds the pipe broken before we do, and after shell completion.
        return _unheard() if isinstance(stop.__context__, BrokenPipeError) else stop.code if isinstance(stop.code, int) else OK
    except Exception as error:  # noqa: BLE001 - a bug is reported in one line, with its details in a file
        return report_bug(error, words, as_json=as_json)


def _hasten() -> None:
    """Start sooner: a short command's time is that of its imports."""
    # What is imported stays; looking through it for garbage after each 700 objects is wasted.
    gc.set_threshold(20_000)
    # httpx has a command line of its own, with click, rich and pygments, and does without it where it cannot be imported.
    sys.modules.setdefault("httpx._main", cast(ModuleType, None))


def _settle_output() -> None:
    """A character that the terminal's encoding lacks becomes "?", instead of the end of the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="replace")


def _refuse_what_is_no_text(words: Sequence[str]) -> None:
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise Invalid(
                f"The argument {os.fsencode(word)!r} is no text in this encoding ({sys.getfilesystemencoding()}).",
                remedy="Write it in UTF-8; LC_ALL=C.UTF-8 says that all is.",
            ) from None


def _unheard() -> int:
    """The reader of our output has gone: there is nobody to report it to."""
    _forget_output()
    return OK


def _forget_output() -> None:
    """What could not be written must not be tried again by Python at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    sys.exit(main())
