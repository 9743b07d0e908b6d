"""Finding the files that code names: what it reads, what it writes, and what it merely mentions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

#: Calls that read the file that their first text names (their last name counts), besides ``read_*``.
_READERS = frozenset({
    "load", "loadtxt", "genfromtxt", "fromfile", "memmap", "imread", "loadmat", "open_dataset", "load_workbook",
    "load_svmlight_file", "load_from_disk", "load_model", "load_file", "safe_open", "read_text", "read_bytes", "ZipFile",
    "ImageFolder", "DatasetFolder", "listdir", "scandir", "iterdir", "walk", "load_checkpoint", "parse",
})  # fmt: skip
#: Calls that write the files that their texts name, besides ``write_*``.
_WRITERS = frozenset({
    "save", "savez", "savez_compressed", "savetxt", "savefig", "imsave", "imwrite", "save_model", "save_pretrained", "save_file",
    "save_weights", "save_to_disk", "dump", "export", "savemat", "to_disk", "to_csv", "to_parquet", "to_excel", "to_pickle",
    "to_hdf", "to_feather", "to_json", "to_html", "to_latex", "to_markdown", "to_netcdf", "to_zarr", "to_stata", "to_orc",
    "to_xml", "to_file", "to_video", "to_gif", "to_mp4", "to_wav",
})  # fmt: skip
_GLOBS = frozenset({"glob", "iglob", "rglob"})
_MAKERS = frozenset({"mkdir", "makedirs"})
#: Those among them whose argument is surely a file; where its name is computed, nobody can tell which.
_SURELY = frozenset(
    {"to_csv", "to_parquet", "to_excel", "to_pickle", "to_hdf", "to_feather", "savefig", "savez", "savetxt", "imsave"}
)
#: Methods of a path: what they are given is no place.
_OF_PATHS = frozenset({"write_text", "write_bytes", "read_text", "read_bytes", "iterdir"})
#: Arguments that name a file, besides those that sound like a place (`_PLACE_NAME`); ``bbox_inches="tight"`` is none.
_FILE_ARGUMENT = re.compile(r"(?i)(?:^|_)(?:file|filename|filepath|fname|fp|f|io|out|output|excel_writer|path_or_buf|buf|uri)$")
#: Writers whose first argument is the file.
_FILE_FIRST = frozenset({
    "savefig", "savez", "savez_compressed", "savetxt", "imsave", "imwrite", "savemat", "save_weights", "save_pretrained",
    "save_to_disk",
})  # fmt: skip
#: Calls that pass a place on.
_PLACES = frozenset({"Path", "PurePath", "PosixPath", "str", "fspath", "abspath", "expanduser"})
#: Commands whose patterns name no data.
_LISTERS = ("ls", "rm", "du", "find", "mkdir", "rmdir", "echo", "tree", "git", "grep", "sed", "awk")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
#: Names of variables and arguments that stand for places.
_PLACE_NAME = re.compile(r"(?i)(?:^|_)(?:dirs?|directory|paths?|root|folder|data|dataset)(?:$|_)|(?:dir|path|folder)$")
_SHELL_WORD = re.compile(r"[^\s'\"|&;<>()=,]+")
_LONGEST = 1000


class Role(StrEnum):
    """What code does with a file."""

    READ = "read"
    WRITE = "write"
    #: A directory that it makes.
    MAKE = "make"
    #: A string that may be the name of a file.
    MENTION = "mention"
    #: A pattern for the files that it reads.
    GLOB = "glob"
    #: A directory in which modules are looked for (``sys.path``).
    SEARCH = "search"
    #: A directory that becomes the current one.
    ENTER = "enter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """A file that code names."""

    #: As it is written; "" where only the running code knows it.
    path: str
    role: Role
    line: int
    #: True when `path` is a pattern (``outputs/model-*.pt``): it was put together while the code ran.
    pattern: bool = False
    #: True when it is used as a place (``Path("data")``, ``root="data"``), so that it may well be a directory.
    placed: bool = False
    #: True when one string of the code (or word of a command) is this path.
    literal: bool = True


def find_mentions(tree: ast.Module, known: dict[str, str]) -> list[Mention]:
    """Return the files that code names, in its order.

    `known` are names with the places that they stand for (``DATA = Path("data")``); those of this code are added to it.
    """
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
            place = _place(statement.value, known)
            if place is not None:
                known[statement.targets[0].id] = place
    finder = _Finder(known)
    finder.visit(tree)
    return finder.found


def find_words(command: str, line: int) -> list[Mention]:
    """Return the words of a shell command, each of which may be the name of a file."""
    words = [word for word in dict.fromkeys(_SHELL_WORD.findall(command)) if not word.startswith("-")]
    patterns = bool(words) and words[0] not in _LISTERS
    roles = {word: Role.GLOB if set(word) & set("*?[") else Role.MENTION for word in words}
    return [Mention(path=word, role=role, line=line) for word, role in roles.items() if role is not Role.GLOB or patterns]


def plain_strings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield the strings that are whole: not those in f-strings."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child
        elif not isinstance(child, ast.JoinedStr):
            yield from plain_strings(child)


def is_uri(text: str) -> bool:
    """Tell whether a text is an address (``https://…``, ``s3://…``)."""
    return _SCHEME.match(text) is not None


class _Finder(ast.NodeVisitor):
    def __init__(self, known: dict[str, str]) -> None:
        self.found: list[Mention] = []
        self._known = known
        self._taken: set[int] = set()

    def visit_Call(self, node: ast.Call) -> None:
        name = _last_name(node.func)
        if name in ("open", "File"):
            self._open(node)
        elif name in _GLOBS and node.args:
            self._glob(node, deep=name == "rglob")
        elif name in _MAKERS:
            self._take(node, Role.MAKE, first=True)
        elif name in ("append", "insert") and isinstance(node.func, ast.Attribute) and _last_name(node.func.value) == "path":
            for argument in node.args:
                self._add(argument, Role.SEARCH)
        elif name in ("chdir", "cd") and node.args:
            self._add(node.args[0], Role.ENTER)
        elif name.startswith("write_") or name in _WRITERS:
            taken = self._take(node, Role.WRITE, first=name not in ("save", "dump"))
            if not taken and name in _SURELY and node.args:
                self.found.append(Mention(path="", role=Role.WRITE, line=node.lineno))
        elif name.startswith("read_") or name in _READERS:
            self._take(node, Role.READ, first=True)
        elif id(node) not in self._taken:
            self._add(node, Role.MENTION)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if id(node) not in self._taken and isinstance(node.op, ast.Div):
            self._add(node, Role.MENTION)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.value, ast.Constant) and any(_PLACE_NAME.search(_last_name(target)) for target in node.targets):
            self._add(node.value, Role.MENTION)
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        if isinstance(node.value, ast.Constant) and id(node.value) not in self._taken and _PLACE_NAME.search(node.arg or ""):
            self._add(node.value, Role.MENTION)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if id(node) not in self._taken and isinstance(node.value, str):
            self._say(node.value, Role.MENTION, node.lineno)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                self.visit(value)

    def _open(self, node: ast.Call) -> None:
        mode = next((item.value for item in node.keywords if item.arg == "mode"), None)
        # pathlib's own method has the mode first.
        index = 0 if isinstance(node.func, ast.Attribute) and _place(node.func.value, self._known) is not None else 1
        if mode is None and len(node.args) > index:
            mode = node.args[index]
        said = mode.value if isinstance(mode, ast.Constant) and isinstance(mode.value, str) else "r"
        self._take(node, Role.WRITE if set(said) & set("wxa") else Role.READ, first=True)

    def _glob(self, node: ast.Call, *, deep: bool) -> None:
        """``glob("data/*.csv")``, or a path's own method."""
        pattern = _place(node.args[0], self._known)
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        path = _place(owner, self._known) if owner is not None else ""
        if pattern is None or (path is None and not (isinstance(owner, ast.Name) and owner.id == "glob")):
            return
        self._taken.update(
            id(child) for child in [*ast.walk(node.args[0]), *(ast.walk(owner) if path and owner is not None else ())]
        )
        whole = "/".join(part for part in (path, "**" if deep else "", pattern) if part)
        self._say(whole, Role.GLOB, node.lineno, placed=True)

    def _take(self, node: ast.Call, role: Role, *, first: bool) -> bool:
        """Take the texts that a call names: those among its arguments, or the path whose method it is."""
        if isinstance(node.func, ast.Attribute) and self._add(node.func.value, role):
            return True
        if _last_name(node.func) in _OF_PATHS:
            return False
        taken = False
        # What follows such a file is something else: `savefig(name, "tight")`.
        name = _last_name(node.func)
        places = node.args[:1] if role is Role.READ or name.startswith("to_") or name in _FILE_FIRST else node.args
        for argument in [*places, *(item.value for item in node.keywords if _names_a_file(item.arg or ""))]:
            taken = self._add(argument, role) or taken
            if taken and first:
                break
        return taken

    def _add(self, node: ast.expr, role: Role) -> bool:
        place = _place(node, self._known)
        pattern = _pattern(node, self._known) if place is None and role is Role.WRITE else None
        if place is None and pattern is None:
            return False
        self._taken.update(id(child) for child in ast.walk(node))
        literal = any(isinstance(child, ast.Constant) and child.value == place for child in ast.walk(node))
        self._say(place or pattern or "", role, node.lineno, pattern=place is None, placed=True, literal=literal)
        return True

    def _say(
        self, path: str, role: Role, line: int, *, pattern: bool = False, placed: bool = False, literal: bool = True
    ) -> None:
        if path and len(path) < _LONGEST and "\n" not in path and "\0" not in path:
            placed = placed or "/" in path
            self.found.append(Mention(path=path, role=role, line=line, pattern=pattern, placed=placed, literal=literal))


def _names_a_file(argument: str) -> bool:
    return _FILE_ARGUMENT.search(argument) is not None or _PLACE_NAME.search(argument) is not None


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _place(node: ast.expr, known: dict[str, str]) -> str | None:
    """Return the path that an expression stands for, where its text alone says so."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return known.get(name)
        case ast.BinOp(op=ast.Div(), left=left, right=right):
            return _join([_place(left, known), _place(right, known)])
        case ast.Call(func=function, args=arguments, keywords=[]) if arguments:
            name = _last_name(function)
            if name == "join" and isinstance(function, ast.Attribute) and _last_name(function.value) in ("path", "osp"):
                return _join([_place(argument, known) for argument in arguments])
            if name in _PLACES:
                return _join([_place(argument, known) for argument in arguments])
    return None


def _pattern(node: ast.expr, known: dict[str, str]) -> str | None:
    """Return a pattern for a path of which a part is computed (``f"model-{epoch}.pt"``)."""
    match node:
        case ast.JoinedStr(values=values):
            parts = [part.value if isinstance(part, ast.Constant) else "*" for part in values]
            text = re.sub(r"\*+", "*", "".join(str(part) for part in parts))
            return text if text.strip("*./") and not text.startswith("*") else None
        case ast.BinOp(op=ast.Div(), left=left, right=right):
            first = _place(left, known)
            second = _place(right, known) or _pattern(right, known)
            return _join([first, second])
    return None


def _join(parts: list[str | None]) -> str | None:
    if any(part is None for part in parts):
        return None
    whole = ""
    for part in parts:
        assert part is not None
        whole = part if part.startswith("/") or not whole else f"{whole.rstrip('/')}/{part}"
    return whole
