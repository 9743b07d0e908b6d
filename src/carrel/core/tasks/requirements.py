"""Reading requirements as pip writes them, into lines that mean the same for every writer.

Source: pip's "Requirements File Format" and PEP 508. Nothing is resolved and nothing fetched. Order, blanks, comments,
case and quotes do not matter afterwards: equal meaning gives equal lines.
"""

from __future__ import annotations

import posixpath
import re
import urllib.parse
from dataclasses import dataclass, field

from carrel.core.domain.errors import Invalid, NotFound
from carrel.core.domain.suggest import suggest
from carrel.core.tasks.files import ProjectFiles, read_text

_COMMENT = re.compile(r"(^|\s+)#.*$")
_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[(?P<extras>[^\]]*)\])?\s*"
    r"(?:@\s*(?P<url>[^\s;]+(?:\s+(?=;)|$)?)|\(?(?P<spec>[^;()@]*)\)?)\s*(?:;(?P<marker>.*))?"
)
_SPECIFIER = re.compile(r"(?:~=|===?|!=|<=?|>=?)\s*[A-Za-z0-9.*+!_-]+")
_MARKER = re.compile(r"[\w\s.'\"()<>=!~,*+-]+")
_HASH = re.compile(r"\s--hash[= ](\S+)")
_ARCHIVE = (".whl", ".tar.gz", ".zip")
#: Options of a line, by their long name; the value says whether they take an argument.
_OPTIONS = {
    "--requirement": True,
    "--constraint": True,
    "--editable": True,
    "--index-url": True,
    "--extra-index-url": True,
    "--find-links": True,
    "--no-index": False,
    "--no-binary": True,
    "--only-binary": True,
    "--pre": False,
    "--prefer-binary": False,
    "--require-hashes": False,
}
_SHORT = {"-r": "--requirement", "-c": "--constraint", "-e": "--editable", "-i": "--index-url", "-f": "--find-links"}
#: Files that include each other.
_MAX_DEPTH = 10


@dataclass(slots=True)
class Requirements:
    """What has been read so far; `add` reads more."""

    files: ProjectFiles
    _options: list[str] = field(default_factory=list)
    _plain: set[str] = field(default_factory=set)
    #: Texts of constraint files by path.
    constraints: dict[str, str] = field(default_factory=dict)
    #: True when a line points into the project.
    local: bool = False

    def lines(self) -> tuple[str, ...]:
        """Return the lines: options in their order, then requirements sorted."""
        return (*dict.fromkeys(self._options), *sorted(self._plain))

    def add_file(self, path: str, depth: int = 0, *, local_base: str = "") -> None:
        """Read a requirements file of the project and what it includes."""
        if depth > _MAX_DEPTH:
            raise Invalid(
                f"{path}: requirements files include each other more than {_MAX_DEPTH} deep.", remedy="Take the circle out."
            )
        try:
            text = read_text(self.files, path)
        except NotFound as error:
            raise Invalid(f"{error.message}", remedy="A requirements file is named relative to the file that names it.") from None
        for number, line in _logical_lines(text):
            self.add(line, f"{path}, line {number}", base=posixpath.dirname(path), local_base=local_base, depth=depth)

    def add(self, line: str, where: str, *, base: str = "", local_base: str = "", depth: int = 0) -> None:
        """Read one line; `where` is for messages.

        Files that the line includes are named relative to `base`, the directory of the file that holds it; packages of the
        project relative to `local_base`, the directory in which pip would run. Both are relative to the project.
        """
        line = _COMMENT.sub("", line).strip()
        if not line:
            return
        if line.startswith("-"):
            self._add_option(line, where, base, local_base, depth)
        else:
            self._plain.add(self._requirement(line, where, local_base))

    def _add_option(self, line: str, where: str, base: str, local_base: str, depth: int) -> None:
        name, value = _split_option(line)
        if name not in _OPTIONS:
            raise Invalid(f'{where}: the option "{name}" is not understood.', remedy=suggest(name, _OPTIONS, what="Options"))
        if _OPTIONS[name] != bool(value):
            raise Invalid(f'{where}: the option "{name}" takes {"a" if _OPTIONS[name] else "no"} value.')
        if name == "--requirement":
            self.add_file(posixpath.normpath(posixpath.join(base, value)), depth + 1, local_base=local_base)
        elif name == "--constraint":
            self._add_constraint(posixpath.normpath(posixpath.join(base, value)), where)
        elif name == "--editable":
            self._plain.add(f"-e {self._requirement(value, where, local_base, editable=True)}")
        else:
            if name == "--find-links" and "://" not in value and not value.startswith("/"):
                value = posixpath.join(local_base, value)
                self._inside(value, where)
            _refuse_secret(value, where)
            self._options.append(f"{name} {value}".strip())

    def _add_constraint(self, path: str, where: str) -> None:
        try:
            text = read_text(self.files, path)
        except NotFound as error:
            raise Invalid(
                f"{where}: {error.message}", remedy="A constraints file is named relative to the file that names it."
            ) from None
        inner = Requirements(self.files)
        for number, line in _logical_lines(text):
            if line.startswith("-"):
                raise Invalid(
                    f"{path}, line {number}: a constraints file holds only name and version.", remedy=f'Take "{line}" out.'
                )
            inner.add(line, f"{path}, line {number}")
        self.constraints[path] = "".join(f"{line}\n" for line in inner.lines())
        self._options.append(f"-c {path}")

    def _requirement(self, line: str, where: str, local_base: str, *, editable: bool = False) -> str:
        _refuse_secret(line, where)
        hashes = sorted(_HASH.findall(line))
        line = _HASH.sub("", line).strip()
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", line) and not line.startswith("file:"):
            return line
        if line.startswith("file:"):
            raise Invalid(f'{where}: "{line}" is a place on one machine.', remedy="Name it relative to the project (./package).")
        path = line.partition(";")[0].partition("[")[0].strip()
        if editable or path.startswith((".", "/", "~")) or ("@" not in path and (path.endswith(_ARCHIVE) or "/" in path)):
            line = posixpath.normpath(posixpath.join(local_base, path)) + line[len(path) :] if local_base else line
            self._inside(posixpath.join(local_base, path), where)
            return line if line.startswith(".") else f"./{line}"
        match = _REQUIREMENT.fullmatch(line)
        if match is None:
            raise Invalid(f'{where}: "{line}" is not a requirement.', remedy='Write it like "numpy>=2,<3" (PEP 508).')
        return _normal(match, where, line) + "".join(f" --hash={value}" for value in hashes)

    def _inside(self, path: str, where: str) -> None:
        if path.startswith(("/", "~")) or self.files.kind(path) is None:
            raise Invalid(
                f'{where}: "{path}" is not in the project.', remedy="Name what is, relative to the project, or what an index has."
            )
        self.local = True


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Return (line number, line) without comments, blank lines and backslashes that go on."""
    lines: list[tuple[int, str]] = []
    pending, started = "", 0
    for number, raw in enumerate(text.split("\n"), start=1):
        started = started or number
        if raw.endswith("\\") and not raw.lstrip().startswith("#"):
            pending += raw[:-1] + " "
            continue
        line = _COMMENT.sub("", pending + raw).strip()
        if line:
            lines.append((started, line))
        pending, started = "", 0
    if pending.strip():
        lines.append((started, _COMMENT.sub("", pending).strip()))
    return lines


def _split_option(line: str) -> tuple[str, str]:
    if not line.startswith("--"):
        return _SHORT.get(line[:2], line[:2]), line[2:].lstrip("= ").strip().strip("\"'")
    name, _, value = re.sub(r"[=\s]", "\0", line, count=1).partition("\0")
    return name, value.strip().strip("\"'")


def _normal(match: re.Match[str], where: str, line: str) -> str:
    name = re.sub(r"[-_.]+", "-", match["name"]).lower()
    extras = sorted(
        {re.sub(r"[-_.]+", "-", extra.strip()).lower() for extra in (match["extras"] or "").split(",") if extra.strip()}
    )
    text = name + (f"[{','.join(extras)}]" if extras else "")
    if match["url"]:
        if match["url"].startswith("file:"):
            raise Invalid(f'{where}: "{line}" is a place on one machine.', remedy="Name it relative to the project (./package).")
        text += f" @ {match['url'].strip()}"
    else:
        specifiers = [part.strip() for part in (match["spec"] or "").split(",") if part.strip()]
        for part in specifiers:
            if not _SPECIFIER.fullmatch(part):
                raise Invalid(
                    f'{where}: "{part}" in "{line}" is not a version specifier.', remedy='Write it like ">=2,<3" or "==1.7.*".'
                )
        text += ",".join(sorted(re.sub(r"\s+", "", part) for part in specifiers))
    if match["marker"] and not _MARKER.fullmatch(match["marker"]):
        raise Invalid(f'{where}: the marker in "{line}" is not one.', remedy='Write it like ; python_version < "3.13" (PEP 508).')
    marker = " ".join((match["marker"] or "").replace("'", '"').split())
    return f"{text} ; {marker}" if marker else text


def _refuse_secret(text: str, where: str) -> None:
    for word in text.split():
        address = word[word.find("+") + 1 :] if "+" in word.partition("://")[0] else word
        if "://" not in address:
            continue
        try:
            secret = urllib.parse.urlsplit(address).password
        except ValueError:
            secret = None
        if secret is not None and not secret.startswith("${"):
            raise Invalid(
                f"{where}: an address with a password in it.", remedy="Leave it out; let the lab's index configuration hold it."
            )
