"""What a bare script takes along: the modules of its directory that it imports, and the files that its arguments name.

Only the text is read, nothing is run. What code names only in a string does not travel by itself: a string is not always the
name of a file, and a file in a directory that is no project is not always for others to see. It is named instead.
"""

from __future__ import annotations

import ast
import json
import os
import posixpath
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from carrel.core.snapshots import never_travels

#: Larger files are taken along, but not searched for imports.
_READABLE = 4 << 20
_SHELL_WORD = re.compile(r"[^\s'\"|&;<>()=,`]+")
_SHELL_MODULE = re.compile(r"\bpython[\d.]*\s+(?:-\w+\s+)*-m\s+([\w.]+)")
#: A line of a notebook such as ``%time``, ``!ls`` or ``files = !ls``.
_IPYTHON = re.compile(r"(?m)^([ \t]*)(?:[\w., \t]+=[ \t]*)?[!%?].*$")
#: Where a task leaves its results: what lies there is of an earlier run.
_OUTPUTS = "outputs"
_LONGEST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Companions:
    """What was found; all paths are relative to the script's directory."""

    #: What travels: the script, then the others in the order in which they were found.
    files: tuple[str, ...]
    #: Files and directories that are there and do not travel, with the file that names them.
    left: Mapping[str, str]
    #: Modules that are imported and are neither there nor in the standard library: packages have them.
    foreign: tuple[str, ...]


def find_companions(script: Path, words: Iterable[str]) -> Companions:
    """Return what travels with `script` when it is run with these arguments and values of parameters."""
    search = _Search(script.parent)
    search.take(script.name)
    for word in words:
        search.take_argument(word)
    return Companions(files=tuple(search.taken), left=search.left(), foreign=tuple(search.foreign()))


class _Search:
    def __init__(self, base: Path) -> None:
        self._base = base
        #: A dict for its order.
        self.taken: dict[str, None] = {}
        self._named: dict[str, str] = {}
        self._imported: dict[str, None] = {}

    def left(self) -> dict[str, str]:
        """Return what is named, exists, and neither travels nor holds what travels."""
        around = {above for path in self.taken for above in _above(path)}
        return {path: by for path, by in self._named.items() if path not in self.taken and path not in around}

    def foreign(self) -> Iterator[str]:
        """Yield the modules that are imported from packages."""
        here = {part.partition(".")[0] for path in self.taken for part in path.split("/")}
        yield from (name for name in self._imported if name not in here and name not in sys.stdlib_module_names)

    def take_argument(self, word: str) -> None:
        """A file that an argument names is sent (``data.csv``, ``--data=data.csv``); a directory is named to the user."""
        for text in dict.fromkeys((word, word.partition("=")[2])):
            path = _inside(text)
            if path is None:
                continue
            if self._is_file(path):
                self.take(path)
            elif (self._base / path).is_dir():
                self._named.setdefault(path, "An argument")

    def take(self, path: str, root: str | None = None) -> None:
        """Take a file along, with what it needs if it is code. `root`: where its modules lie, by default beside it."""
        if path in self.taken:
            return
        self.taken[path] = None
        if path.endswith((".py", ".ipynb")):
            self._read_python(path, posixpath.dirname(path) if root is None else root)
        elif path.endswith(".sh"):
            self._read_shell(path)

    def _read_python(self, path: str, root: str) -> None:
        text: bytes | str = self._text(path)
        try:
            text = _notebook_code(text) if path.endswith(".ipynb") else text
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # escapes in somebody else's strings
                tree = ast.parse(text)
        except (SyntaxError, ValueError, TypeError, KeyError, RecursionError, MemoryError):
            return  # Python will say it where the task runs
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                self._name(node.value, path)
        roots = [root, *(found for found in _search_path(tree) if (self._base / found).is_dir())]
        package = [part for part in posixpath.dirname(path).removeprefix(root).split("/") if part]
        for name in _imports(tree, package):
            self._imported[name.partition(".")[0]] = None
            for top in roots:
                self._take_module(name, top)

    def _read_shell(self, path: str) -> None:
        """The scripts that a shell script calls are its modules; it runs in the directory that everything is relative to."""
        text = "\n".join(
            line for line in self._text(path).decode(errors="replace").splitlines() if not line.lstrip().startswith("#")
        )
        for module in _SHELL_MODULE.findall(text):
            self._take_module(module, "")
        for word in dict.fromkeys(_SHELL_WORD.findall(text)):
            found = _inside(word)
            if found is not None and found.endswith((".py", ".sh")) and self._is_file(found):
                self.take(found)
            else:
                self._name(word, path)

    def _take_module(self, name: str, root: str) -> None:
        """Take what ``import name`` loads from `root`, as importlib.machinery.FileFinder looks for it."""
        place = root
        for depth, part in enumerate(name.split(".")):
            if not part.isidentifier() or (depth == 0 and part in sys.builtin_module_names):
                return
            here = posixpath.join(place, part)
            if self._is_file(f"{here}/__init__.py"):
                self._take_package(here, root)
            elif self._take_file_module(here, root) or not (self._base / here).is_dir():
                return
            place = here

    def _take_file_module(self, here: str, root: str) -> bool:
        if self._is_file(f"{here}.py"):
            self.take(f"{here}.py", root)
            return True
        folder, name = posixpath.split(here)
        found = [child for child in self._children(folder) if child.startswith(f"{name}.") and child.endswith(".so")]
        for child in found:
            self.take(posixpath.join(folder, child), root)
        return bool(found)

    def _take_package(self, package: str, root: str) -> None:
        """All modules of a package: which of them it loads itself is not always written where it can be read."""
        if f"{package}/__init__.py" in self.taken:
            return
        self.take(f"{package}/__init__.py", root)
        for child in self._children(package):
            path = f"{package}/{child}"
            if never_travels(child):
                continue
            if child.endswith((".py", ".so")) and self._is_file(path):
                self.take(path, root)
            elif self._is_file(f"{path}/__init__.py") and not (self._base / path).is_symlink():
                self._take_package(path, root)

    def _name(self, text: str, by: str) -> None:
        path = _inside(text)
        if (
            path is None
            or path == _OUTPUTS
            or path.startswith(f"{_OUTPUTS}/")
            or any(never_travels(part) for part in path.split("/"))
        ):
            return
        place = self._base / path
        if path not in self._named and (self._is_file(path) or place.is_dir()):
            self._named[path] = by

    def _text(self, path: str) -> bytes:
        try:
            with (self._base / path).open("rb") as file:
                text = file.read(_READABLE + 1)
        except OSError:
            return b""  # packing it will say what is wrong
        return text if len(text) <= _READABLE else b""

    def _is_file(self, path: str) -> bool:
        return os.path.isfile(self._base / path)  # noqa: PTH113 - a name that is none for the system is no file, and no error

    def _children(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self._base / folder))  # noqa: PTH208 - names only
        except OSError:
            return []


def _notebook_code(text: bytes | str) -> str:
    """Return the Python of a notebook (nbformat 4): its cells, without lines that IPython alone understands."""
    found = []
    for cell in json.loads(text)["cells"]:
        code = _IPYTHON.sub(r"\1pass", "".join(cell["source"])) if cell["cell_type"] == "code" else ""
        with suppress(SyntaxError):
            ast.parse(code)
            found.append(code)
    return "\n".join(found)


def _imports(tree: ast.Module, package: list[str]) -> Iterator[str]:
    """Yield the full names of the modules that code of `package` imports; the last part may be a name in a module instead."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            around = _absolute(node.module or "", node.level, package)
            if around is not None:
                yield from ([around] if around else [])
                yield from (f"{around}.{alias.name}".lstrip(".") for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.Call):
            name = _imported_by_call(node, package)
            if name:
                yield name


def _imported_by_call(node: ast.Call, package: list[str]) -> str | None:
    """Return the module of ``importlib.import_module("name")`` or ``__import__("name")``."""
    called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
    if called not in ("import_module", "__import__") or not node.args:
        return None
    name = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
    if not isinstance(name, str):
        return None
    level = len(name) - len(name.lstrip("."))
    given = [*node.args[1:2], *(keyword.value for keyword in node.keywords if keyword.arg == "package")]
    if level and called == "import_module" and given and isinstance(given[0], ast.Constant) and isinstance(given[0].value, str):
        package = given[0].value.split(".")
    return _absolute(name[level:], level, package)


def _absolute(name: str, level: int, package: list[str]) -> str | None:
    """Return a relative name in full; None for one that leads out of the outermost package."""
    if level == 0:
        return name
    if level > len(package):
        return None
    return ".".join([*package[: len(package) - level + 1], *([name] if name else [])])


def _search_path(tree: ast.Module) -> Iterator[str]:
    """Yield the directories beside the script that code adds to ``sys.path``."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("append", "insert")
            and isinstance(node.func.value, ast.Attribute)
            and node.func.value.attr == "path"
        ):
            for part in ast.walk(node):
                path = _inside(part.value) if isinstance(part, ast.Constant) and isinstance(part.value, str) else None
                if path is not None:
                    yield path


def _inside(text: str) -> str | None:
    """Return the path below the directory that `text` may be, or None."""
    if not text or len(text) > _LONGEST or text[0] in "/~-" or not text.isprintable():
        return None
    path = posixpath.normpath(text)
    return None if path == "." or path == ".." or path.startswith("../") else path


def _above(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
