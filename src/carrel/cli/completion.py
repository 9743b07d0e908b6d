"""`carrel completion`: what a shell needs to complete commands and options when Tab is pressed."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, argument
from carrel.core.domain.errors import Invalid

#: By shell: each asks `carrel completion words` for what may follow, and falls back to names of files.
_SCRIPTS = {
    "bash": """\
_carrel() {
    local IFS=$'\\n'
    COMPREPLY=($(carrel completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o bashdefault -o default -F _carrel carrel
""",
    "zsh": """\
#compdef carrel
_carrel() {
    local found
    found="$(carrel completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)"
    if [[ -n "$found" ]]; then compadd -- "${(@f)found}"; else _files; fi
}
compdef _carrel carrel
""",
    "fish": """\
complete -c carrel -a '(carrel completion words -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
""",
}


def completion_command(
    shell: Annotated[str | None, argument("SHELL", "bash, zsh or fish.  [that of SHELL]")] = None,
    words: Annotated[list[str] | None, argument("-- WORDS", 'With "words": the command line so far.')] = None,
    as_json: AsJson = False,
) -> int:
    """Print what makes a shell complete commands and options: eval "$(carrel completion bash)".

    `carrel completion words -- WORDS` prints what the last of the words may become, for other shells.
    """
    chosen = shell or os.path.basename(os.environ.get("SHELL", ""))  # noqa: PTH119 - a text, not a place
    if chosen == "words":
        found = completions(words or [""])
        print(json.dumps({"words": found}) if as_json else "\n".join(found))
        return OK
    if chosen not in _SCRIPTS:
        raise Invalid(f'There is no completion for "{chosen}".', remedy=f"Name one of {', '.join(_SCRIPTS)}.")
    print(json.dumps({"shell": chosen, "script": _SCRIPTS[chosen]}) if as_json else _SCRIPTS[chosen].rstrip())
    return OK


def completions(words: list[str]) -> list[str]:
    """Return what the last word may become; nothing where that is no command and no option."""
    from carrel.cli.main import COMMANDS, load

    *before, last = words
    if "--" in before:
        return []
    path = [word for word in before if not word.startswith("-")]
    if not path:
        return _beginning([*COMMANDS, "--version", "--help"], last)
    if path[0] not in COMMANDS:
        return []
    command: Any = load(path[0])
    below = getattr(command, "commands", {})
    if below and len(path) == 1 and not last.startswith("-"):
        return _beginning(below, last)
    if below and len(path) > 1:
        command = below.get(path[1], command)
    if not last.startswith("-"):
        return []
    options = [name for one in command.params if not getattr(one, "hidden", False) for name in one.opts if name.startswith("-")]
    return _beginning([*sorted(options, key=lambda name: name.lstrip("-")), "--help"], last)


def _beginning(names: Any, last: str) -> list[str]:
    return [name for name in names if name.startswith(last) and (last or not name.startswith("-"))]
