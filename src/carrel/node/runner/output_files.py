"""The files that patterns name in a working directory: found and opened by descriptor.

Only regular files in the directory count. A link to a file or a directory in it stands for that, and nothing outside can get in:
where a link leads is asked of the kernel, of what it has opened (proc(5), fd).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from carrel.core.spool.trees import Entry, entries_below

#: Characters of the path of an output that the lab's database takes. What lies below a longer one has no name there.
LONGEST = 4096

#: A path, and a descriptor of the regular file there, which the taker closes; None where there is none in the directory.
Named = tuple[str, int | None]


def named_files(directory: Path, patterns: Sequence[str], check: Callable[[], object]) -> Iterator[Named]:
    """Yield what is below `directory` and the patterns name, each path once; `check` is called before each look.

    Patterns are relative globs: ``*`` and ``?`` stay within a name, ``**`` stands for any directories, and a pattern that names a
    directory means everything below it. What lies in a directory comes before what lies below it, both by name. What is closed to
    its owner is opened.
    """
    starts: dict[str, list[re.Pattern[str]]] = {}
    for pattern in patterns:
        parts = [part for part in pattern.split("/") if part not in ("", ".")]
        if ".." in parts or pattern.startswith("/"):
            continue  # refused when the task was read; here it must only do no harm
        fixed = 0
        while fixed < len(parts) and not re.search(r"[*?\[]", parts[fixed]):
            fixed += 1
        starts.setdefault("/".join(parts[:fixed]), []).append(pattern_expression(parts))
    named: set[str] = set()
    root = os.open(os.path.realpath(directory), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for start, expressions in sorted(starts.items()):

            def is_new(path: str, expressions: Sequence[re.Pattern[str]] = expressions) -> bool:
                if path in named or not any(expression.fullmatch(path) for expression in expressions):
                    return False
                if len(starts) > 1:
                    named.add(path)
                return True

            yield from _Walk(root, is_new, check).below(start)
    finally:
        os.close(root)


class _Walk:
    """One way through the working directory, from one place in it."""

    def __init__(self, root: int, matches: Callable[[str], bool], check: Callable[[], object]) -> None:
        self._root = root
        self._inside = _place(root)
        self._matches = matches
        self._check = check
        self._entered: set[tuple[int, int]] = set()
        self._links: list[str] = []

    def below(self, start: str) -> Iterator[Named]:
        """Yield everything below `start` that matches and is no directory; `start` itself when it is none.

        A link to a directory is entered, unless that is found anyway. One that leads out, or to a directory that the link itself
        lies in, is yielded.
        """
        links = self._links = [start]
        for number, here in enumerate(links):  # more are found on the way
            self._check()
            with _followed(here or ".", self._root) as found:
                if found is not None and _is_directory(found) and self._holds(found) and not self._lies_in(here, found):
                    if _identity(os.fstat(found)) not in self._entered:
                        yield from self._directory(here, found)
                # A file in the place of the directory that is meant stands for it; a link that leads elsewhere is said.
                elif self._matches(here) if number else self._is_there(here):
                    yield here, self._readable(found)

    def _directory(self, here: str, top: int) -> Iterator[Named]:
        beginning = f"{here}/" if here else ""

        def enter(entry: Entry) -> bool:
            key = _identity(entry.about)
            if key in self._entered or len(beginning) + len(entry.path) > LONGEST:
                return False
            self._entered.add(key)
            return True

        self._entered.add(_identity(os.fstat(top)))
        _open_up(top, stat.S_IRWXU)
        closed: list[str] = []
        for entry in entries_below(".", within=top, open_up=True, ordered=True, enter=enter, closed=closed.append):
            self._check()
            path = beginning + entry.path
            if entry.is_directory:
                if len(path) > LONGEST and self._matches(path):
                    yield path, None
            elif stat.S_ISLNK(entry.about.st_mode):
                with _followed(entry.name, entry.within) as found:
                    if found is not None and _is_directory(found):
                        self._links.append(path)
                    elif self._matches(path):
                        yield path, self._readable(found)
            elif self._matches(path):
                yield path, _open_regular(entry) if stat.S_ISREG(entry.about.st_mode) else None
        for path in closed:
            if self._matches(beginning + path):
                yield beginning + path, None

    def _holds(self, found: int) -> bool:
        """True for the working directory itself, and for what lies below it."""
        return f"{_place(found)}/".startswith(f"{self._inside.rstrip('/')}/")

    def _lies_in(self, link: str, directory: int) -> bool:
        with _followed(os.path.dirname(link) or ".", self._root) as parent:  # noqa: PTH120
            above = parent is not None and f"{_place(parent)}/".startswith(f"{_place(directory)}/")
        return above and self._is_link(link)

    def _readable(self, found: int | None) -> int | None:
        """Open for reading what a link leads to."""
        if found is None or not stat.S_ISREG(os.fstat(found).st_mode) or not self._holds(found):
            return None
        return _open_found(found)

    def _is_link(self, path: str) -> bool:
        with suppress(OSError):
            return stat.S_ISLNK(os.stat(path or ".", dir_fd=self._root, follow_symlinks=False).st_mode)
        return False

    def _is_there(self, path: str) -> bool:
        with suppress(OSError):
            return bool(os.stat(path or ".", dir_fd=self._root, follow_symlinks=False))
        return False


@contextmanager
def _followed(name: str, within: int) -> Iterator[int | None]:
    """Yield a descriptor of what is there, behind a link too, which says what it is and opens nothing; None: nothing."""
    try:
        found = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=within)
    except OSError:
        yield None
        return
    try:
        yield found
    finally:
        os.close(found)


def _open_regular(entry: Entry) -> int | None:
    try:
        fd = os.open(entry.name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=entry.within)
    except PermissionError:
        try:
            place = os.open(entry.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=entry.within)
        except OSError:
            return None
        try:
            return _open_found(place) if stat.S_ISREG(os.fstat(place).st_mode) else None
        finally:
            os.close(place)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


def _open_found(place: int) -> int | None:
    """Open for reading what the descriptor stands for, whatever has its name by now."""
    for _ in range(2):
        with suppress(OSError):
            return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC)
        _open_up(place, stat.S_IRUSR | stat.S_IWUSR)
    return None


def _open_up(place: int, rights: int) -> None:
    """Give the owner of what the descriptor stands for these rights."""
    with suppress(OSError):
        if os.fstat(place).st_mode & rights != rights:
            Path(f"/proc/self/fd/{place}").chmod(rights)


def _is_directory(place: int) -> bool:
    return stat.S_ISDIR(os.fstat(place).st_mode)


def _identity(about: os.stat_result) -> tuple[int, int]:
    return about.st_dev, about.st_ino


def _place(fd: int) -> str:
    """Where it really is; "" for what no path leads to."""
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115
    return ""


def pattern_expression(parts: Sequence[str]) -> re.Pattern[str]:
    """Return the expression for a glob that was split at its slashes; what lies below a match matches too.

    Patterns and names are a user's, so a name that nearly matches must not take for ever: what lies between two stars is looked
    for once, at the first place where it is, which is enough, because the next star takes the rest.
    """
    sections: list[list[str]] = [[]]
    for part in parts:
        if part != "**":
            sections[-1].append(_name_expression(part))
        elif sections[-1] or len(sections) == 1:
            sections.append([])
    (first, *between), last = sections[:-1] or [[]], sections[-1]
    expression = "".join(f"{name}/" for name in first)
    expression += "".join(f"(?>(?:[^/]+/)*?{'/'.join(names)}/)" for names in between)
    if len(sections) > 1:
        expression += "(?:[^/]+/)*" if last else ".+"
    return re.compile(f"{expression}{'/'.join(last)}(?:/.*)?", re.DOTALL)


def _name_expression(part: str) -> str:
    """The expression for one name of a glob."""
    pieces = [""]
    for token in re.findall(r"\*+|\?|\[!?\]?[^\]/]*\]|.", part):
        if token.startswith("*"):
            pieces.append("")
        elif token == "?":
            pieces[-1] += "[^/]"
        elif len(token) > 2 and token.startswith("["):
            pieces[-1] += _character_class(token)
        else:
            pieces[-1] += re.escape(token)
    (first, *between), last = pieces[:-1] or [""], pieces[-1]
    return first + "".join(f"(?>[^/]*?{piece})" for piece in between) + ("[^/]*" if len(pieces) > 1 else "") + last


def _character_class(token: str) -> str:
    inside = token[1:-1].replace("\\", "\\\\").replace("[", "\\[")
    expression = f"[^/{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
    try:
        re.compile(expression)
    except re.error:  # such as [z-a]: then it means itself
        return re.escape(token)
    return expression
