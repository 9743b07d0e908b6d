"""Which files of the code a command reaches, as far as names in it tell: the scripts that it runs, and what these import or name.

Text is read with patterns, not parsed: the code is a stranger's, may be no valid Python, and a parser can be made to crash.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from carrel.core.comparison.facts import Code, Side

#: Files that are read for one attempt.
_MOST = 300
_IMPORT = re.compile(r"^[ \t]*import[ \t]+([\w., \t]+)", re.MULTILINE)
_FROM = re.compile(r"^[ \t]*from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+(\([^)]{0,4000}\)|[^\n]{0,4000})", re.MULTILINE)
_QUOTED = re.compile(r"""["']([\w][\w./-]{0,200})["']""")
_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9_]{1,99}\b")
_WORD = re.compile(r"[\w][\w./-]{0,200}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What a command reaches."""

    #: By path: why it is reached, as the end of a sentence ("the command runs it").
    runs: Mapping[str, str] = field(default_factory=dict)
    #: Files that are named as data, and by which file.
    named: Mapping[str, str] = field(default_factory=dict)
    #: Modules from elsewhere, and which file imports each.
    modules: Mapping[str, str] = field(default_factory=dict)
    #: Words in capitals, as variables have, and which file has each.
    variables: Mapping[str, str] = field(default_factory=dict)


def reach_of(side: Side) -> Reach:
    """Return what the attempt's command reaches; nothing where it names no file of the code, or the code is not known."""
    code, base = side.code, posixpath.normpath(side.directory)
    runs, named, modules, variables = (
        dict(_started(side.command, code, base)),
        dict[str, str](),
        dict[str, str](),
        dict[str, str](),
    )
    waiting = list(runs)
    for path in waiting:
        text = code.read(path) if len(waiting) <= _MOST else None
        if text is None:
            continue
        for name in _VARIABLE.findall(text):
            variables.setdefault(name, path)
        if path.endswith(".py"):
            for module in _imports(path, text):
                found = [at for place in _roots(path, base) if (at := _file_of(module, place, code))]
                top = module.partition(".")[0]
                if not top.startswith("/") and not any(_file_of(top, place, code) for place in _roots(path, base)):
                    modules.setdefault(top, path)
                for at in found[:1]:
                    if at not in runs:
                        runs[at] = f"{path} imports it"
                        waiting.append(at)
        for word in (_QUOTED if path.endswith(".py") else _WORD).findall(text):
            at = next((at for place in (base, posixpath.dirname(path)) if (at := _join(place, word)) in code.files), None)
            if at is None or at in runs:
                continue
            if path.endswith(".py"):
                named.setdefault(at, path)
            else:
                runs[at] = f"{path} names it"
                waiting.append(at)
    return Reach(runs=runs, named={at: by for at, by in named.items() if at not in runs}, modules=modules, variables=variables)


def _started(command: str, code: Code, base: str) -> Iterator[tuple[str, str]]:
    try:
        words = shlex.split(command.replace(";", " ; "))
    except ValueError:
        words = command.split()
    for before, word in zip(["", *words], words, strict=False):
        at = _join(base, word)
        if at in code.files:
            yield at, "the command names it"
        elif before == "-m":
            yield from (
                (file, "the command runs it") for file in _files(_join(base, word.replace(".", "/"))) if file in code.files
            )


def _imports(path: str, text: str) -> Iterator[str]:
    """Modules by their names; one that is relative to `path` has "/" before its place in the code."""
    for names in _IMPORT.findall(text):
        yield from (name.split()[0] for name in names.split(",") if name.split())
    for dots, module, names in _FROM.findall(text):
        parts = [name.split()[0] for name in names.partition("#")[0].strip("() \t").split(",") if name.split()]
        place = ""
        if dots:
            place = posixpath.dirname(path)
            for _ in dots[1:]:
                place = posixpath.dirname(place)
            place = "/" + place.replace("/", ".")
        whole = ".".join(part for part in (place, module) if part not in ("", "/")) or place
        yield whole
        yield from (f"{whole.rstrip('.')}.{part}" if whole != "/" else f"/{part}" for part in parts if part.isidentifier())


def _roots(path: str, base: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((posixpath.dirname(path), base, _join(base, "src"))))


def _file_of(module: str, place: str, code: Code) -> str | None:
    if module.startswith("/"):
        place, module = ".", module[1:]
    at = _join(place, module.replace(".", "/"))
    return next((file for file in _files(at) if file in code.files), None)


def _files(module: str) -> tuple[str, ...]:
    return f"{module}.py", f"{module}/__init__.py", f"{module}/__main__.py"


def _join(place: str, name: str) -> str:
    return posixpath.normpath(posixpath.join(place or ".", name))
