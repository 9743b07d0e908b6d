"""The patterns of one .gitignore file, matched as git matches them (gitignore(5); git's wildmatch with WM_PATHNAME)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_WILD = re.compile(r"[*?\[\\]")
_CLASSES = {
    "alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "blank": " \\t", "digit": "0-9", "lower": "a-z", "upper": "A-Z",
    "space": "\\s", "xdigit": "0-9a-fA-F", "punct": "!-/:-@\\[-`{-~", "cntrl": "\\x00-\\x1f\\x7f", "graph": "!-~", "print": " -~",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One line of the file."""

    #: False for a line with ``!``.
    ignores: bool
    directories_only: bool
    #: Matched against the path below the file's directory; else against the last part of the path.
    anchored: bool
    #: The whole text, for most lines, which have nothing wild in them.
    literal: str | None = None
    #: What follows a leading ``*``, for most of the others ("*.log").
    suffix: str | None = None
    wild: re.Pattern[str] | None = None

    def matches(self, path: str, *, is_directory: bool) -> bool:
        """Tell whether the line speaks of `path`, which is relative to the file's directory."""
        if self.directories_only and not is_directory:
            return False
        subject = path if self.anchored else path.rpartition("/")[2]
        if self.literal is not None:
            return subject == self.literal
        if self.suffix is not None:
            return subject.endswith(self.suffix)
        return self.wild is not None and self.wild.fullmatch(subject) is not None


@dataclass(frozen=True, slots=True)
class GitIgnore:
    """All lines of a file, the last first."""

    patterns: tuple[Pattern, ...]

    def verdict(self, path: str, *, is_directory: bool) -> bool | None:
        """Return whether the file says to ignore `path`; None when it says nothing. The last line that matches decides."""
        for pattern in self.patterns:
            if pattern.matches(path, is_directory=is_directory):
                return pattern.ignores
        return None


def parse_gitignore(text: str) -> GitIgnore:
    """Read a file. No line is ever an error: git passes over what means nothing."""
    lines = (_parse_line(line.removesuffix("\r")) for line in text.removeprefix("\ufeff").split("\n"))
    return GitIgnore(tuple(pattern for pattern in lines if pattern is not None)[::-1])


def _parse_line(line: str) -> Pattern | None:
    if line.startswith("#"):
        return None
    line = _without_trailing_blanks(line)
    ignores = not line.startswith("!")
    line = line.removeprefix("!")
    directories_only = line.endswith("/")
    line = line.removesuffix("/")
    anchored = "/" in line
    line = line.removeprefix("/")
    if not line:
        return None
    literal = suffix = wild = None
    if not _WILD.search(line):
        literal = line
    elif line[0] == "*" and not anchored and not _WILD.search(line, 1):
        suffix = line[1:]
    else:
        expression = _translate(line)
        if expression is None:
            return None
        wild = re.compile(expression, re.DOTALL)
    return Pattern(
        ignores=ignores, directories_only=directories_only, anchored=anchored, literal=literal, suffix=suffix, wild=wild
    )


def _without_trailing_blanks(line: str) -> str:
    stripped = line.rstrip(" ")
    backslashes = len(stripped) - len(stripped.rstrip("\\"))
    return stripped + " " if backslashes % 2 and len(stripped) < len(line) else stripped


def _translate(pattern: str) -> str | None:
    """Return the regular expression for a pattern; None for one that can match nothing.

    What stands before a wildcard is matched at the first place where it fits, and never again at another (an atomic group): the
    wildcard behind it takes what lies between. So no pattern takes longer than the square of a path's length.
    """
    spans: list[list[str]] = [[""]]  # between one `**/` and the next; of each what lies between one `*` and the next
    position = 0
    while position < len(pattern):
        character = pattern[position]
        if character == "*":
            end = position
            while end < len(pattern) and pattern[end] == "*":
                end += 1
            bounded = (position == 0 or pattern[position - 1] == "/") and (end == len(pattern) or pattern[end] == "/")
            if end - position == 1 or not bounded:
                spans[-1].append("")
            elif end == len(pattern):
                spans[-1][-1] += ".*"
            else:
                spans.append([""])
                end += 1
            position = end
        elif character == "?":
            spans[-1][-1] += "[^/]"
            position += 1
        elif character == "[":
            translated = _translate_class(pattern, position + 1)
            if translated is None:
                return None
            expression, position = translated
            spans[-1][-1] += expression
        else:
            if character == "\\":
                position += 1
                if position == len(pattern):
                    return None
            spans[-1][-1] += re.escape(pattern[position])
            position += 1
    return _joined(spans)


def _joined(spans: list[list[str]]) -> str:
    result = ""
    for number, (first, *others) in enumerate(spans):
        last = number == len(spans) - 1
        text = first + "".join(f"(?>[^/]*?{piece})" for piece in others[:-1])
        if others:
            text += f"[^/]*{others[-1]}" if last else f"(?>[^/]*?{others[-1]})"
        result += text if number == 0 else f"(?:.*/)?{text}" if last else f"(?>(?:.*?/)??{text})"
    return result


def _translate_class(pattern: str, position: int) -> tuple[str, int] | None:
    """Return the expression for the bracket whose inside starts at `position`, and the place behind it."""
    negated = pattern[position : position + 1] in ("!", "^")
    position += negated
    items, first = "", True
    while True:
        if position >= len(pattern):
            return None
        if pattern[position] == "]" and not first:
            break
        first = False
        if pattern.startswith("[:", position) and (end := pattern.find(":]", position)) > 0:
            if pattern[position + 2 : end] not in _CLASSES:
                return None
            items += _CLASSES[pattern[position + 2 : end]]
            position = end + 2
            continue
        if pattern[position] == "\\":
            position += 1
        low = high = pattern[position : position + 1]
        position += 1
        if pattern[position : position + 1] == "-" and pattern[position + 1 : position + 2] not in ("]", ""):
            position += 1 + (pattern[position + 1] == "\\")
            high = pattern[position : position + 1]
            position += 1
        if low <= high:
            items += re.escape(low) + ("" if low == high else "-" + re.escape(high))
    if not items:
        return ("[^/]" if negated else "(?!)"), position + 1
    return f"(?!/)[{'^' if negated else ''}{items}]", position + 1
