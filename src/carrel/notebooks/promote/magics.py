"""What each magic becomes in a script.

Source: IPython 9's documentation, "Built-in magic commands". A magic that is not here is an error, never dropped.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from carrel.notebooks.promote.findings import Findings, Severity, Written
from carrel.notebooks.promote.installs import read_install
from carrel.notebooks.promote.lines import Piece

#: The support module's name in a script.
SUPPORT = "_notebook"
#: Magics that only change what a notebook shows, or how it feels.
_DROPPED = (
    "load_ext", "reload_ext", "unload_ext", "autoreload", "config", "gui", "colors", "xmode", "pdb", "precision", "logstart",
    "logstop", "logon", "logoff", "who", "whos", "who_ls", "history", "hist", "lsmagic", "magic", "quickref", "pinfo", "pinfo2",
    "pdoc", "psource", "pfile", "pdef", "psearch", "pprint", "doctest_mode", "automagic", "tensorboard", "page", "clear", "cls",
    "notebook", "connect_info", "aimport", "killbgscripts",
)  # fmt: skip
#: Cell magics whose cell only shows something.
_DROPPED_CELLS = ("html", "HTML", "javascript", "js", "latex", "markdown", "svg", "SVG")
#: Aliases of commands of the shell.
_COMMANDS = (
    "ls",
    "ll",
    "lf",
    "lk",
    "ldir",
    "lx",
    "cat",
    "mkdir",
    "rmdir",
    "cp",
    "mv",
    "rm",
    "less",
    "more",
    "man",
    "head",
    "tail",
)
_SPELT = {
    "ll": "ls -lF",
    "lf": "ls -lF | grep ^-",
    "lk": "ls -lF | grep ^l",
    "ldir": "ls -lF | grep /$",
    "lx": "ls -lF | grep ^-..x",
}
_SCRIPTS = {"bash": "bash", "sh": "sh", "perl": "perl", "ruby": "ruby", "python": "python", "python3": "python3"}
#: Words behind ``%gpu`` that ask for none.
_NO_WISH = ("status", "off", "auto", "0", "simulate")
_SECRET = re.compile(r"(?i)key|token|secret|passw|credential")
_UNKNOWN = "is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What a piece becomes."""

    #: Lines of Python. None of them is indented; the caller does that.
    lines: tuple[str, ...] = ()
    #: An expression with the value of the piece, when it has one.
    value: str | None = None
    #: A block of Python that is to be taken apart like a cell, with lines before and behind it.
    block: str | None = None
    behind: tuple[str, ...] = ()


@dataclass(slots=True)
class Context:
    """Where a piece stands, and where to say what was found in it."""

    cell: int
    findings: Findings
    #: Line of the cell at which the piece begins.
    line: int = 1
    #: Names of `capture` objects that other cells use.
    used: frozenset[str] = frozenset()

    def note(self, weight: Severity, text: str) -> None:
        """Say what was found here."""
        self.findings.note(weight, text, self.cell, self.line)

    def fault(self, text: str) -> Code:
        """Say that this cannot be promoted."""
        self.findings.fault(self.cell, self.line, text)
        return Code()


def line_magic(name: str, rest: str, context: Context) -> Code:
    """Return what ``%name rest`` becomes."""
    if name in _DROPPED:
        weight = Severity.CHECK if name == "load_ext" and rest not in ("autoreload", "tensorboard") else Severity.CHANGED
        context.note(weight, f"%{name} {rest}".strip() + " is left out: it has a meaning in notebooks only")
        return Code()
    if name in _COMMANDS:
        return shell(f"{_SPELT.get(name, name)} {rest}".strip(), context)
    made = _LINES.get(name)
    return made(rest, context) if made else context.fault(f"%{name} {_UNKNOWN}")


def cell_magic(piece: Piece, context: Context) -> Code:
    """Return what a cell with ``%%name`` at its top becomes."""
    if piece.name in _DROPPED_CELLS:
        context.note(Severity.CHANGED, f"%%{piece.name} is left out: it only shows something")
        return Code()
    if piece.name in _SCRIPTS or piece.name == "script":
        return _script(piece, context)
    made = _CELLS.get(piece.name)
    return made(piece, context) if made else context.fault(f"%%{piece.name} {_UNKNOWN}")


def known(name: str) -> bool:
    """Tell whether a word alone on a line may be a magic without its ``%`` ("automagic")."""
    return name in _LINES or name in _COMMANDS or name in ("config", "who", "whos", "autoreload", "load_ext")


# --- the shell and its packages


def shell(command: str, context: Context, *, value: bool = False) -> Code:
    """Return what ``!command`` becomes: an installation goes into the environment, all else stays a command."""
    code = _installed(command, context)
    if code is not None:
        return code
    if not command:
        return Code()
    context.findings.commands.append((command, context.cell, context.line))
    if re.match(r"(?:sudo\s+)?(?:apt|apt-get|yum|dnf|brew)\s", command):
        context.note(Severity.CHECK, f"`{command}` changes the machine; where the task runs, the program must be there already")
    if value:
        return Code(value=f"{SUPPORT}.output({command!r})")
    return Code(lines=(f"{SUPPORT}.shell({command!r})",))


def _installed(command: str, context: Context) -> Code | None:
    install = read_install(command)
    if install is None:
        return None
    findings = context.findings
    if install.other:
        context.note(Severity.CHANGED, f"`{command}` is left out: a task's environment does not change while it runs")
    findings.requirements += [line for line in install.requirements if line not in findings.requirements]
    findings.requirement_files += [file for file in install.files if file not in findings.requirement_files]
    if install.conda:
        context.note(
            Severity.GUESSED, f"`{command}`: packages of conda are taken from the Python package index by the same names"
        )
    for word in install.local:
        context.note(Severity.CHECK, f"{word} is installed from this machine and does not travel")
    for word in (*install.unknown, *install.constraints):
        context.note(Severity.CHECK, f"{word} in `{command}` is known only while the cell runs: write it into requirements.txt")
    return shell(install.after, context) if install.after else Code()


def _pip(rest: str, context: Context) -> Code:
    return _installed(f"pip {rest}", context) or context.fault(f"%pip {rest} cannot be read")


def _conda(rest: str, context: Context) -> Code:
    return _installed(f"conda {rest}", context) or context.fault(f"%conda {rest} cannot be read")


def _script(piece: Piece, context: Context) -> Code:
    try:
        words = shlex.split(piece.rest)
    except ValueError:
        return context.fault(f"%%{piece.name} {piece.rest} cannot be read")
    check = "--no-raise-error" not in words
    words = [word for word in words if word not in ("--no-raise-error", "--raise-error")]
    for option in ("--bg", "--out", "--err", "--proc"):
        if any(word.split("=")[0] == option for word in words):
            return context.fault(f"%%{piece.name} {option} {_UNKNOWN}")
    program = [] if piece.name == "script" else [_SCRIPTS[piece.name]]
    if not (program or words):
        return context.fault("%%script names no program")
    for number, line in enumerate(piece.body.splitlines(), start=1):
        if read_install(line.strip()) is not None:
            context.findings.commands.append((line, context.cell, context.line + number))
            context.note(
                Severity.CHECK, f"`{line.strip()}` runs in %%{piece.name}, and a task's environment does not change: use %pip"
            )
    arguments = shlex.join([*program, *words])
    context.findings.commands.append((f"{arguments}\n{piece.body}", context.cell, context.line))
    call = f"{SUPPORT}.script({arguments!r}, {long_text(piece.body)}{'' if check else ', check=False'})"
    return Code(lines=(call,))


# --- the rest, in the order of the table


def _matplotlib(rest: str, context: Context) -> Code:
    context.findings.plots = True
    if rest.split() and rest.split()[0] not in ("inline", "agg", "--list", "-l"):
        context.note(Severity.CHANGED, f"%matplotlib {rest}: figures are saved in outputs instead")
    return Code()


def _time(rest: str, context: Context) -> Code:  # noqa: ARG001
    return Code(lines=(f"_timer = {SUPPORT}.Timer()",), block=rest, behind=("_timer.stop()",)) if rest else Code()


def _timeit_options(rest: str) -> tuple[str, str, bool]:
    """Return arguments for the support module, the statement, and whether the options are understood."""
    options, names = "", {"n": "number", "r": "repeat"}
    while match := re.match(r"-(?:([nr])\s*(\d+)|([qp]\s*\d*|[tco]))\s*", rest):
        if match[1]:
            options += f", {names[match[1]]}={int(match[2])}"
        elif match[3][0] not in "qptc":
            return "", rest, False
        rest = rest[match.end() :]
    return options, rest, True


def _timeit(rest: str, context: Context) -> Code:
    options, statement, understood = _timeit_options(rest)
    if not understood or not statement:
        return context.fault(f"%timeit {rest} {_UNKNOWN}")
    return Code(lines=(f"{SUPPORT}.timeit({statement!r}{options})",))


def _timeit_cell(piece: Piece, context: Context) -> Code:
    options, setup, understood = _timeit_options(piece.rest)
    if not understood:
        return context.fault(f"%%timeit {piece.rest} {_UNKNOWN}")
    first = f", {setup!r}" if setup else ""
    return Code(lines=(f"{SUPPORT}.timeit({long_text(piece.body)}{first}{options})",))


def _time_cell(piece: Piece, context: Context) -> Code:  # noqa: ARG001
    # %time may be in the cell too: it has a clock of its own.
    return Code(lines=(f"_cell_timer = {SUPPORT}.Timer()",), block=piece.body, behind=("_cell_timer.stop()",))


def _capture(piece: Piece, context: Context) -> Code:
    names = [word for word in piece.rest.split() if not word.startswith("-")]
    if any(name in context.used for name in names):
        return context.fault(f"%%capture {piece.rest}: what it captures is used in another cell")
    context.note(Severity.CHANGED, "%%capture is left out: what the cell writes is in the task's log")
    return Code(block=piece.body)


def file_written(piece: Piece, context: Context) -> str:
    """Return the path that ``%%writefile`` names ("" for none), and take note of what is written."""
    path = re.sub(r"^(-a|--append)\s+", "", piece.rest).strip()
    if path:
        context.findings.written.append(Written(path=path, text=piece.body, cell=context.cell, line=context.line + 1))
    return path


def _write_file(piece: Piece, context: Context) -> Code:
    append = bool(re.match(r"(-a|--append)\s", piece.rest))
    path = file_written(piece, context)
    if not path:
        return context.fault(f"%%{piece.name} names no file")
    body = piece.body if piece.body.endswith("\n") or not piece.body else piece.body + "\n"
    return Code(lines=(f"{SUPPORT}.write_file({path!r}, {long_text(body)}{', append=True' if append else ''})",))


def _env(rest: str, context: Context) -> Code:
    if not rest:
        context.note(Severity.CHANGED, "%env without a name is left out: it would show all variables in the log")
        return Code()
    name = re.split(r"[=\s]", rest, maxsplit=1)[0]
    if name == "CUDA_VISIBLE_DEVICES":
        context.note(Severity.CHECK, "%env CUDA_VISIBLE_DEVICES: the lab chooses the devices of a task; this line hides them")
    elif name != rest and _SECRET.search(name):
        context.note(Severity.CHECK, f"%env {name}: if this is a secret, it is now in the script; take it out")
    return Code(lines=(f"{SUPPORT}.set_env({rest!r})",))


def _cd(rest: str, context: Context) -> Code:  # noqa: ARG001 - all handlers are called alike
    return Code(lines=(f"{SUPPORT}.cd({rest!r})",))


def _pwd(rest: str, context: Context) -> Code:  # noqa: ARG001
    return Code(lines=("import os",), value="os.getcwd()")


def _run(rest: str, context: Context) -> Code:
    shared = bool(re.match(r"-i\s", rest))
    arguments = re.sub(r"^-i\s+", "", rest)
    try:
        words = shlex.split(arguments)
    except ValueError:
        words = []
    if not words or words[0].startswith("-"):
        return context.fault(f"%run {rest} cannot be read")
    if words[0].endswith(".ipynb"):
        return context.fault(f"%run {words[0]} runs another notebook: promote that one, or put its code into a module")
    if not words[0].endswith(".py"):
        words[0], arguments = words[0] + ".py", re.sub(r"^(\S+)", r"\1.py", arguments)
    context.findings.commands.append((shlex.join(words), context.cell, context.line))
    return Code(lines=(f"{SUPPORT}.run({arguments!r}{', shared=True' if shared else ''})",))


def _gpu(rest: str, context: Context) -> Code:
    words = rest.partition("#")[0].lower().split()
    word = words[0] if words else "status"
    if word in _NO_WISH or words == ["hold", "off"]:
        return Code()
    if word.isascii() and word.isdigit() and len(word) < 5:
        context.findings.want_gpus(int(word))
    elif word in ("hold", "on"):
        context.findings.want_gpus(1)
    else:
        return context.fault(f"%gpu {rest} {_UNKNOWN}")
    return Code()


def _gpu_cell(piece: Piece, context: Context) -> Code:
    _gpu(piece.rest, context)
    return Code(block=piece.body)


def _system(rest: str, context: Context) -> Code:
    return shell(rest, context, value=True)


_LINES: Mapping[str, Callable[[str, Context], Code]] = {
    "matplotlib": _matplotlib,
    "time": _time,
    "timeit": _timeit,
    "pip": _pip,
    "conda": _conda,
    "mamba": _conda,
    "env": _env,
    "set_env": _env,
    "cd": _cd,
    "pwd": _pwd,
    "run": _run,
    "gpu": _gpu,
    "system": _system,
    "sx": _system,
}
_CELLS: Mapping[str, Callable[[Piece, Context], Code]] = {
    "time": _time_cell,
    "timeit": _timeit_cell,
    "capture": _capture,
    "writefile": _write_file,
    "file": _write_file,
    "gpu": _gpu_cell,
}


def long_text(text: str) -> str:
    """Return a literal of Python for `text`, over several lines where that can be read more easily."""
    plain = '"""\\\n' + text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"') + '"""'
    return plain if text.endswith("\n") and ast.literal_eval(plain) == text else repr(text)
