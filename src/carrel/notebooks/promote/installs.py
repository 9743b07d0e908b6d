"""Reading ``pip install`` lines of cells: what they ask for belongs into the task's environment.

Source: pip's documentation, "pip install" and "Requirement Specifiers".
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

#: Programs that install, as a cell calls them; what follows is the subcommand.
_CALLS = re.compile(
    r"(?:sudo\s+)?(?:(?:\{\s*sys\.executable\s*\}|\"\{\s*sys\.executable\s*\}\"|python[\d.]*|\$\(which python[\d.]*\))\s+-m\s+)?"
    r"(?P<tool>(?:uv\s+)?pip[\d.]*|conda|mamba|micromamba)(?:\s+|$)(?P<rest>.*)",
    re.DOTALL,
)
_WITH_VALUE = {
    "-c": "--constraint", "--constraint": "--constraint", "-t": "", "--target": "", "--timeout": "", "--retries": "",
    "--proxy": "", "--cert": "", "--client-cert": "", "--cache-dir": "", "--python": "", "--root": "", "--prefix": "",
    "--progress-bar": "", "--trusted-host": "", "--log": "", "--exists-action": "", "-p": "", "--upgrade-strategy": "",
    "--platform": "", "--python-version": "", "-n": "", "--name": "", "--channel": "", "--torch-backend": "",
}  # fmt: skip
#: Options of pip that a requirements file may have too.
_KEPT = {
    "-i": "--index-url", "--index-url": "--index-url", "--extra-index-url": "--extra-index-url",
    "-f": "--find-links", "--find-links": "--find-links", "--no-binary": "--no-binary", "--only-binary": "--only-binary",
}  # fmt: skip
_KEPT_FLAGS = ("--pre", "--no-index")
_REDIRECTION = re.compile(r"\s+(?:[12&]?>>?\s*(?:&\d|\S+)|\|.*)$", re.DOTALL)
_OPERATOR = re.compile(r"\s*(?:&&|;)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """What one line installs."""

    requirements: tuple[str, ...] = ()
    #: Requirements files (``-r``).
    files: tuple[str, ...] = ()
    #: Places on this machine (``-e .``, ``./package``), which do not travel.
    local: tuple[str, ...] = ()
    #: Words whose meaning only a running cell knows (``{version}``, ``$NAME``).
    unknown: tuple[str, ...] = ()
    #: Constraints files, which are not read.
    constraints: tuple[str, ...] = ()
    conda: bool = False
    #: True when the line does something else with the packages: list, uninstall …
    other: bool = False
    #: What follows it on the line, for the shell.
    after: str = ""


def read_install(command: str) -> Install | None:
    """Return what a line (``pip install …``, without its escape) installs, or None when it is no such line."""
    match = _CALLS.fullmatch(command.strip())
    if match is None:
        return None
    rest, after = _apart(match["rest"])
    try:
        words = shlex.split(rest)
    except ValueError:
        return None
    conda = "pip" not in match["tool"]
    if not words or words[0] != "install":
        return Install(other=True, after=after)
    return _read(words[1:], conda=conda, after=after)


def _apart(text: str) -> tuple[str, str]:
    """Return the call and what is called after it; redirections of its output are dropped."""
    parts = _OPERATOR.split(_outside_quotes(text), maxsplit=1)
    call, after = text[: len(parts[0])], ""
    if len(parts) > 1:
        after = text[len(text) - len(parts[1]) :].strip()
    while (shorter := _REDIRECTION.sub("", call)) != call:
        call = shorter
    return call, after


def _outside_quotes(text: str) -> str:
    """Return `text` with what is quoted made harmless, at the same length."""
    return re.sub(r"\"[^\"]*\"|'[^']*'", lambda match: "x" * len(match[0]), text)


def _read(words: list[str], *, conda: bool, after: str) -> Install:
    found: dict[str, list[str]] = {"requirements": [], "files": [], "local": [], "unknown": [], "constraints": []}
    queue = list(words)
    while queue:
        word = queue.pop(0)
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if name in ("-r", "--requirement", "--file"):
            found["files"].append(value or (queue.pop(0) if queue else ""))
        elif name in ("-e", "--editable"):
            found["local"].append(value or (queue.pop(0) if queue else "."))
        elif name in _KEPT:
            value = value or (queue.pop(0) if queue else "")
            found["unknown" if _unknown(value) else "requirements"].append(f"{_KEPT[name]} {value}")
        elif name in _KEPT_FLAGS and not conda:
            found["requirements"].append(name)
        elif name in _WITH_VALUE or (conda and name == "-c"):
            value = value if equals else (queue.pop(0) if queue else "")
            if _WITH_VALUE.get(name) == "--constraint" and not conda:
                found["constraints"].append(value)
        elif word.startswith("-"):
            continue  # how to install (-q, -U, --user), not what
        elif _unknown(word):
            found["unknown"].append(word)
        elif not conda and (
            word.startswith((".", "/", "~", "file:")) or (word.endswith((".whl", ".tar.gz", ".zip")) and "://" not in word)
        ):
            found["local"].append(word)
        else:
            found["requirements"].append(_conda_spec(word) if conda else word)
    return Install(
        requirements=tuple(found["requirements"]),
        files=tuple(found["files"]),
        local=tuple(found["local"]),
        unknown=tuple(found["unknown"]),
        constraints=tuple(found["constraints"]),
        conda=conda,
        after=after,
    )


def _unknown(word: str) -> bool:
    return "{" in word or "$" in word or "`" in word


def _conda_spec(word: str) -> str:
    """``numpy=2.1`` is pip's ``numpy==2.1.*``; a channel in front goes."""
    word = word.rpartition("::")[2]
    match = re.fullmatch(r"([\w.-]+)=([\w.]+)(?:=\S+)?", word)
    return f"{match[1]}=={match[2]}.*" if match else word
