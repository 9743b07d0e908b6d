"""Making the shell command of an entry point: every value arrives in the program exactly as it was given.

The template is MLflow's: a Python format string whose ``{name}`` stands for a parameter, quoted for the shell. A
placeholder that the author put between quotes himself is escaped for those quotes, so that the quotes do not become part
of the value.
"""

from __future__ import annotations

import shlex
import string
from collections.abc import Collection, Mapping, Sequence

from carrel.core.domain.suggest import suggest
from carrel.core.tasks.document import Value

_IN_DOUBLE = str.maketrans({"\\": "\\\\", '"': '\\"', "$": "\\$", "`": "\\`"})


def placeholders(template: Value, declared: Collection[str]) -> list[tuple[str, str | None]]:
    """Return the template as (literal text, placeholder after it); raise `Invalid` for one that is not a declared ``{name}``."""
    parts: list[tuple[str, str | None]] = []
    braces = "Write {{ and }} for braces that the shell shall see."
    try:
        for literal, field, spec, conversion in string.Formatter().parse(template.text()):
            if spec or conversion:
                raise template.wrong(
                    f"{{{field}}} in the command has a format.", "Only {name} is understood; format in the program."
                )
            if field is not None and field not in declared:
                if field == "" or field.isdigit():
                    raise template.wrong("the command has {} without a name.", f"Write {{name}}. {braces}")
                raise template.wrong(
                    f"the command uses {{{field}}}, which is not among the entry point's parameters.",
                    f"{suggest(field, declared, what='Parameters')} {braces}",
                )
            parts.append((literal, field))
    except ValueError as error:
        raise template.wrong(f"the command is not a format string: {error}.", braces) from None
    return parts


def fill(template: Value, values: Mapping[str, str]) -> str:
    """Return the command with `values` in their places."""
    command = ""
    for literal, field in placeholders(template, values):
        command += literal
        if field is not None:
            command += _placed(template, field, values[field], command)
    return command.strip()


def append(command: str, extras: Mapping[str, str], arguments: Sequence[str]) -> str:
    """Return `command` followed by ``--name value`` for each extra, as MLflow does, and by the arguments."""
    words = [command]
    for name, value in extras.items():
        words += [shlex.quote(f"--{name}"), shlex.quote(value)]
    words += [shlex.quote(argument) for argument in arguments]
    return " ".join(words)


def script_command(path: str, options: Sequence[str] = ()) -> str | None:
    """Return the command that runs a ``.py`` or ``.sh`` file, its program with these options, or None for another one."""
    programs = {".py": "python", ".sh": "bash"}
    program = next((program for suffix, program in programs.items() if path.endswith(suffix)), None)
    if program is None:
        return None
    return shlex.join([program, *options, path if not path.startswith("-") else "./" + path])


def _placed(template: Value, field: str, value: str, before: str) -> str:
    quoted = shlex.quote(value)
    if quoted == value:
        return value
    context = _quoting(before)
    if context == "":
        return quoted
    if context == "'":
        return value.replace("'", "'\\''")
    if context == '"':
        return value.translate(_IN_DOUBLE)
    raise template.wrong(
        f'"{value}" cannot be put safely in the place of {{{field}}} in this command.',
        "Write {name} outside quotes, backquotes, here-documents and comments: it is quoted where it stands.",
    )


def _quoting(text: str) -> str:
    """Return which quotes are open at the end of a piece of shell: "", ``'``, ``"``, or "?" where that is not simple.

    Not simple are substitutions inside double quotes, backquotes, ``$'...'``, here-documents and comments (POSIX.1-2017,
    Shell Command Language, 2.2 and 2.3).
    """
    open_quote = ""
    position = 0
    while position < len(text):
        character = text[position]
        if open_quote == "'":
            open_quote = "" if character == "'" else "'"
        elif character == "\\":
            position += 1
        elif (
            character == "`"
            or text.startswith(("$'", "<<"), position)
            or (open_quote and text.startswith(("$(", "${"), position))
        ):
            return "?"
        elif character == '"':
            open_quote = "" if open_quote else '"'
        elif open_quote:
            pass
        elif character == "'":
            open_quote = "'"
        elif character == "#" and (position == 0 or text[position - 1].isspace()):
            end = text.find("\n", position)
            if end < 0:
                return "?"
            position = end
        position += 1
    return open_quote
