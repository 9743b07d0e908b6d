"""Where a task's files are read from: a directory, or a snapshot that is read in place."""

from __future__ import annotations

import codecs
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from carrel.core.domain.errors import Invalid, NotFound
from carrel.core.domain.units import MIB, format_size

#: Bytes of one description or requirements file that are read.
TEXT_LIMIT = MIB
#: Bytes of a script: some hold data.
_SCRIPT_LIMIT = 32 * MIB
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
#: A first line that names a shell, with options; long ones (``--login``) are passed over.
_FIRST_LINE = re.compile(rb"#![ \t]*(?:\S*/)?(?:env[ \t]+(?:-S[ \t]*)?)?(?:\S*/)?(?:ba)?sh[ \t]+(?:--\S*[ \t]+)*(-\w[^\n]*)")


class ProjectFiles(Protocol):
    """The files of one project. Paths are relative to it and never reach out of what was packed, not even by links."""

    @property
    def name(self) -> str:
        """The directory's own name, or "" when it has none."""

    def kind(self, path: str) -> str | None:
        """Return "file" or "directory" for what is at `path`, or None."""

    def read(self, path: str, limit: int) -> bytes:
        """Return the bytes of a file; raise `NotFound`, or `Invalid` when it is too long or cannot be read."""

    def names(self) -> Iterator[str]:
        """Yield the names in the directory."""


@dataclass(frozen=True, slots=True)
class DirectoryFiles:
    """The files of a directory on this machine. `root` bounds what may be read; it is the directory itself by default."""

    directory: Path
    root: Path

    @classmethod
    def open(cls, directory: Path, root: Path | None = None) -> DirectoryFiles:
        """Return the files of `directory`; raise `Invalid` when it is none."""
        if not directory.is_dir():
            raise Invalid(f"{directory} is not a directory.", remedy="Name the directory of the task, or a script in it.")
        resolved = directory.resolve()
        return cls(resolved, root.resolve() if root else resolved)

    @property
    def name(self) -> str:
        """The directory's own name."""
        return self.directory.name

    def kind(self, path: str) -> str | None:
        """Return "file" or "directory" for what is at `path`, or None."""
        place = self._place(path)
        if place is None:
            return None
        return "directory" if place.is_dir() else "file" if place.is_file() else None

    def read(self, path: str, limit: int) -> bytes:
        """Return the bytes of a file; raise `NotFound`, or `Invalid` when it is too long or cannot be read."""
        place = self._place(path)
        if place is None or not place.is_file():
            raise NotFound(f"{path} does not exist.")
        try:
            with place.open("rb") as file:
                data = file.read(limit + 1)
        except OSError as error:
            raise Invalid(f"{path} cannot be read: {error.strerror}.", remedy="Correct its permissions.") from error
        if len(data) > limit:
            raise Invalid(
                f"{path} has more than {format_size(limit)}, which is the most that is read of such a file.",
                remedy="Move what makes it so long into files beside it.",
            )
        return data

    def names(self) -> Iterator[str]:
        """Yield the names in the directory."""
        for child in self.directory.iterdir():
            yield child.name

    def _place(self, path: str) -> Path | None:
        if "\0" in path or path.startswith("/"):
            return None
        try:
            place = (self.directory / path).resolve()
        except (OSError, RuntimeError):  # a loop of links
            return None
        return place if place == self.root or self.root in place.parents else None


def read_text(files: ProjectFiles, path: str, *, limit: int = TEXT_LIMIT) -> str:
    """Return the text of a file with newlines as ``\\n`` and no byte order mark; raise `Invalid` when it is not UTF-8.

    UTF-16 with its mark is read too: PowerShell's ``pip freeze > requirements.txt`` is, and pip takes it.
    """
    data = files.read(path, limit)
    try:
        text = data.decode("utf-16" if data.startswith(_UTF16) else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise Invalid(f"{path}, line {line}: not UTF-8 text.", remedy="Save the file as UTF-8.") from None
    return _unix_lines(text)


def read_python(files: ProjectFiles, path: str) -> str:
    """Return the text of a Python script, in the encoding that it declares (PEP 263); raise `Invalid` when it is in another."""
    import tokenize

    data = files.read(path, _SCRIPT_LIMIT)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError):
        raise Invalid(
            f"{path} is not in the encoding that it declares, or declares none and is not UTF-8.",
            remedy='Save the file as UTF-8, or declare its encoding in the first line: "# -*- coding: latin-1 -*-" (PEP 263).',
        ) from None
    return _unix_lines(text)


def shell_options(files: ProjectFiles, path: str) -> list[str]:
    """Return the options that the first line of a shell script gives its shell (``#!/bin/bash -eu``), those of a login left out.

    A login would set PATH anew, and so hide the task's environment. Raises `Invalid` for a script with the line ends or the
    byte order mark of DOS, which a shell takes for parts of its commands.
    """
    script = files.read(path, _SCRIPT_LIMIT)
    if b"\r\n" in script:
        raise Invalid(
            f"{path} has DOS line ends (\\r\\n), which a shell takes for parts of its commands.",
            remedy=f"Convert it: sed -i 's/\\r$//' {shlex.quote(path)}",
        )
    if script.startswith((codecs.BOM_UTF8, *_UTF16)):
        raise Invalid(
            f"{path} begins with a byte order mark, which a shell takes for a part of its first command.",
            remedy="Save the file as UTF-8 without one.",
        )
    said = _FIRST_LINE.match(script)
    if said is None:
        return []
    letters, *others = said[1].decode(errors="replace").split()
    kept = re.sub("[lis]", "", letters)
    return [kept, *others] if kept != "-" else others


def _unix_lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
