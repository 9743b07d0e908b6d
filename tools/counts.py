"""`make counts`: how wide the code is, now and at other commits.

    python tools/counts.py [COMMIT...]

Each row is a count that should become smaller, or stay.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

#: Paths below the root and their text.
Tree = Mapping[str, str]

LONG = 400
CLUSTER = re.compile(r"\.slurm\b|\bon_cluster\b")
WAITERS = re.compile(r"\bselectors\.|\bselect\.(?:poll|epoll|select)\(|\bsocketpair\(|\bos\.pipe2?\(|\beventfd\(")
DIALECT = re.compile(
    r"\b(?:whoever|nobody who|gives? way|is told|Desk|Takings|Lookout|Realm|Dues)\b",
)


def python_files(tree: Tree) -> Tree:
    """Return the package's own files."""
    return {path: text for path, text in tree.items() if path.startswith("src/") and path.endswith(".py")}


def with_match(tree: Tree, pattern: re.Pattern[str], *, outside: str) -> int:
    """Return how many files of the package match, but for those below a directory called `outside`."""
    return sum(bool(pattern.search(text)) for path, text in python_files(tree).items() if f"/{outside}/" not in path)


COUNTS: Mapping[str, Callable[[Tree], int]] = {
    "files in src": lambda tree: len(python_files(tree)),
    "lines in src": lambda tree: sum(text.count("\n") for text in python_files(tree).values()),
    f"files of more than {LONG} lines": lambda tree: sum(text.count("\n") > LONG for text in python_files(tree).values()),
    "files outside engines that know .slurm or on_cluster": lambda tree: with_match(tree, CLUSTER, outside="engines"),
    "files that name the key requeue of a task": lambda tree: with_match(tree, re.compile(r"\brequeue\b"), outside="testing"),
    "files outside transport with a selector or a pipe": lambda tree: with_match(tree, WAITERS, outside="transport"),
    "words of the old dialect in src and docs": lambda tree: sum(
        len(DIALECT.findall(text)) for path, text in tree.items() if not path.startswith("docs/decisions/")
    ),
}


def tree_at(commit: str) -> Tree:
    """Return the files of a commit; of the working tree for ""."""
    if not commit:
        listed = subprocess.run(["git", "ls-files", "-z", "src", "docs"], stdout=subprocess.PIPE, check=True).stdout
        paths = [Path(name) for name in listed.decode().split("\0") if name.endswith((".py", ".md"))]
        return {str(path): path.read_text() for path in paths if path.exists()}
    packed = subprocess.run(["git", "archive", commit, "src", "docs"], stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        members = [member for member in archive if member.isfile() and member.name.endswith((".py", ".md"))]
        return {member.name: archive.extractfile(member).read().decode() for member in members}  # type: ignore[union-attr]


def main() -> None:
    """Print a column for each commit, and the last for the working tree."""
    commits = [*sys.argv[1:], ""]
    trees = [tree_at(commit) for commit in commits]
    width = max(map(len, COUNTS))
    print(" " * width, *(f"{commit[:10] or 'now':>10}" for commit in commits))
    for name, count in COUNTS.items():
        print(f"{name:{width}}", *(f"{count(tree):>10}" for tree in trees))


if __name__ == "__main__":
    main()
