"""How a command ends: exit codes, and errors as a fact and a remedy, for people or for programs."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from carrel.core.domain.errors import CarrelError, Conflict, Denied, Invalid, NotFound, Unauthenticated, Unavailable

OK = 0
OTHER = 1
USAGE = 2
NOT_FOUND = 3
DENIED = 4
CONFLICT = 5
UNAVAILABLE = 6
#: `carrel run`: as timeout(1) and as a shell after SIGINT.
TIMED_OUT = 124
INTERRUPTED = 130

_CODES: tuple[tuple[type[CarrelError], int], ...] = (
    (Invalid, USAGE),
    (NotFound, NOT_FOUND),
    (Denied, DENIED),
    (Unauthenticated, DENIED),
    (Conflict, CONFLICT),
    (Unavailable, UNAVAILABLE),
)


#: Title and HTTP status of each code, as the lab itself has them: errors look the same wherever they were found.
_TITLES: Mapping[str, tuple[str, int]] = {
    "invalid": ("The request is not right", 422),
    "impossible": ("This lab can never do that", 422),
    "unauthenticated": ("Not signed in", 401),
    "denied": ("Not allowed", 403),
    "not_found": ("Not found", 404),
    "conflict": ("Not possible in the present state", 409),
    "storage_full": ("No room left", 507),
    "unavailable": ("Not possible right now", 503),
    "error": ("The command failed", 500),
    "internal": ("Carrel failed", 500),
}


def exit_code(error: CarrelError) -> int:
    """The exit code of an error."""
    return next((code for cls, code in _CODES if isinstance(error, cls)), OTHER)


def wants_json(words: Sequence[str]) -> bool:
    """True when the command line asks for JSON; looked up by hand, because it also counts where the rest is wrong."""
    own = words[: words.index("--")] if "--" in words else words
    return "--json" in own


def report(error: CarrelError, *, as_json: bool) -> int:
    """Tell of an error on stderr; return the exit code."""
    _tell(error.code, error.message, error.remedy, as_json=as_json, details=error.details)
    return exit_code(error)


def report_usage(error: Any, words: Sequence[str], *, as_json: bool) -> int:
    """Tell what is wrong with the command line that `words` are; return the exit code."""
    message = str(error.format_message()).strip()
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "carrel"
    if type(error).__name__ == "NoArgsIsHelpError":  # a group alone; the message is its help
        print(message)
        return USAGE
    message, remedy = _bad_value(error) or _split_hint(message)
    if "No such option" in message and command in ("carrel run", "carrel submit"):
        own = f"Arguments for a script come after --: {_separated(words, str(getattr(error, 'option_name', '')))}"
        remedy = f"{remedy.rstrip('.')}. {own}" if remedy else own
    _tell("invalid", message, remedy or f"Look it up: {command} --help", as_json=as_json)
    return USAGE


def _separated(words: Sequence[str], option: str) -> str:
    """The same command line with -- where the options of the script begin."""
    at = next((n for n, word in enumerate(words) if option and word.partition("=")[0] == option), None)
    if at is None or not any(word.endswith((".py", ".sh")) for word in words[:at]):
        return "carrel run train.py -- --lr 0.1"
    return f"carrel {shlex.join([*words[:at], '--', *words[at:]])}"


def report_bug(error: Exception, words: Sequence[str], *, as_json: bool) -> int:
    """Tell of a failure of our own in one line; the details go to a file that only the user may read."""
    message = f"carrel failed: {type(error).__name__}: {error}".splitlines()[0]
    # Only the command's name: values may hold what is not for others.
    details = f"carrel {next(iter(words), '')}\n\n{''.join(traceback.format_exception(error))}"
    try:
        descriptor, path = tempfile.mkstemp(prefix="carrel-failure-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(details)
        remedy = f"This is a fault of Carrel's. Please report it with {path}"
    except OSError as failure:
        remedy = f"This is a fault of Carrel's. Its details could not be saved: {failure.strerror}."
    _tell("internal", message, remedy, as_json=as_json)
    return OTHER


def _bad_value(error: Any) -> tuple[str, str] | None:
    """Fact and remedy of a value that typer has pydantic read; None for another error, and for a fault without a remedy here."""
    faults = error.__cause__.errors() if hasattr(error.__cause__, "errors") else []
    fault: dict[str, Any] = faults[0] if faults else {"type": ""}
    bounds = fault.get("ctx", {})
    remedies = {
        "greater_than_equal": f"Say {bounds.get('ge')} or more.",
        "less_than_equal": f"Say {bounds.get('le')} or less.",
        "int_from_float": "Say a whole number.",
        "float_parsing": "Say a number.",
    }
    remedy = "Say a whole number." if fault["type"].startswith("int_parsing") else remedies.get(fault["type"])
    if remedy is None:
        return None
    name = error.param.opts[0] if error.param.opts[0].startswith("-") else error.param.metavar or error.param.name
    return f'{name} is "{fault["input"]}".', remedy


def _split_hint(message: str) -> tuple[str, str]:
    """Click's own "Did you mean" apart from its fact."""
    for mark in ("Did you mean", "(Possible options:"):
        fact, found, hint = message.partition(mark)
        if found:
            return fact.strip(), (found + hint).strip("() ") if mark.startswith("(") else (found + hint).strip()
    return message, ""


def _tell(code: str, message: str, remedy: str, *, as_json: bool, details: Mapping[str, object] | None = None) -> None:
    if as_json:
        title, status = _TITLES.get(code, _TITLES["error"])
        problem = {"type": f"urn:carrel:problem:{code}", "title": title, "status": status, "detail": message, "remedy": remedy}
        print(json.dumps({**problem, "details": dict(details or {})}, default=str), file=sys.stderr)
        return
    colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    start, end = ("\x1b[31m", "\x1b[0m") if colours else ("", "")
    # Names and messages come from others, and a terminal obeys control characters.
    print(f"{start}error:{end} {_visible(message)}", file=sys.stderr)
    if remedy:
        print(f"       {_visible(remedy)}", file=sys.stderr)


def _visible(text: str) -> str:
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text)
