"""The commands of any noun: `list` and `delete`, under whatever names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home, argument, open_client
from carrel.cli.screen import print_json, print_table

if TYPE_CHECKING:
    from carrel.core.domain.noun import Noun

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """The command that forgets a record."""

    help: str
    #: What is said when it is done; `{}` stands for the key.
    done: str
    name: str = "delete"
    #: The key of the answer for programs.
    word: str = "deleted"


def noun_command(
    noun: Noun[T], *, about: str, listed: str, key: str, columns: Mapping[str, Callable[[T], str]], removal: Removal
) -> typer.Typer:
    """Return a command with `list`, which prints `columns`, and `removal`; `about`, `listed` and `key` are their helps."""
    command = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        help=about,
    )

    @command.command("list", help=listed)
    def list_all(home: Home = None, as_json: AsJson = False) -> int:
        with open_client(home) as client:
            found = client.all_of(noun)
        if as_json:
            print_records(noun.plural, found)
        else:
            print_table(tuple(columns), [tuple(text(one) for text in columns.values()) for one in found])
        return OK

    def remove(one: Any, home: Home = None, as_json: AsJson = False) -> int:
        with open_client(home) as client:
            client.remove(noun, one)
        if as_json:
            return print_json({removal.word: one})
        print(removal.done.format(one))
        return OK

    remove.__annotations__["one"] = Annotated[get_type_hints(noun.type)[noun.key], argument(noun.key.upper(), key)]
    command.command(removal.name, help=removal.help)(remove)
    return command


def print_records(name: str, found: Iterable[Any]) -> None:
    """Print records for programs, as the API has them."""
    from carrel.wire.v1 import show

    print_json({name: [show(one).model_dump(mode="json") for one in found]})
