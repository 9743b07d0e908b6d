"""What code says of itself: who wrote it, what it is called, under which licence it is.

Only what is written down is taken. CITATION.cff (https://citation-file-format.github.io, 1.2.0) comes first, then the table
``[project]`` of pyproject.toml; a file LICENSE is the licence, whatever it says.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

CITATION = "CITATION.cff"
PYPROJECT = "pyproject.toml"
#: Names of files with the text of a licence, the likelier ones first.
LICENCES = ("LICENSE", "LICENCE", "LICENSE.txt", "LICENSE.md", "LICENCE.txt", "LICENCE.md", "COPYING")
#: All files that say something here, and the bytes that are read of one.
FILES = (CITATION, PYPROJECT, *LICENCES)
LONGEST = 256 * 1024
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MOST_AUTHORS = 500


@dataclass(frozen=True, slots=True)
class Author:
    """Somebody, or something, who wrote it."""

    #: Of a person; "" for an entity, which has its name under `family`.
    given: str
    family: str
    orcid: str = ""

    @property
    def name(self) -> str:
        """As it is written in a sentence."""
        return f"{self.given} {self.family}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What is known; "" and empty for what is not."""

    title: str = ""
    authors: tuple[Author, ...] = ()
    version: str = ""
    doi: str = ""
    url: str = ""
    #: An SPDX expression, or another word for it.
    licence: str = ""
    #: The file with its text, by its path in the code.
    licence_file: str = ""
    #: Why a file that is there was not taken, in a sentence each.
    notes: tuple[str, ...] = ()


def read_about(texts: Mapping[str, str]) -> About:
    """Return what these files say, by their paths in the code. A file that cannot be read says nothing, and is noted."""
    notes: list[str] = []
    by_name = {path.rpartition("/")[2]: (path, text) for path, text in texts.items()}
    cited = _table(by_name.get(CITATION), yaml_of, notes)
    project = _table(by_name.get(PYPROJECT), tomllib.loads, notes).get("project")
    project = project if isinstance(project, dict) else {}
    stated = cited.get("license") or project.get("license")
    file = next((by_name[name][0] for name in LICENCES if name in by_name), "")
    return About(
        title=_text(cited.get("title")) or _text(project.get("name")),
        authors=_authors(cited.get("authors")) or _of_project(project.get("authors")),
        version=_text(cited.get("version")) or _text(project.get("version")),
        doi=_text(cited.get("doi")),
        url=_text(cited.get("repository-code")) or _text(cited.get("url")),
        licence=" OR ".join(filter(None, map(_text, stated))) if isinstance(stated, list) else _text(stated),
        licence_file=file,
        notes=tuple(notes),
    )


def yaml_of(text: str) -> Any:
    """Read YAML of a stranger's. Raises `ValueError` for what is none."""
    try:
        return yaml.load(text, _LOADER)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error).partition("\n")[0]) from None


def _table(found: tuple[str, str] | None, read: Any, notes: list[str]) -> dict[Any, Any]:
    if found is None:
        return {}
    try:
        table = read(found[1])
    except (ValueError, RecursionError) as error:
        notes.append(f"{found[0]} cannot be read: {str(error)[:200]}.")
        return {}
    if not isinstance(table, dict):
        notes.append(f"{found[0]} has no keys.")
        return {}
    return table


def _text(value: Any) -> str:
    """One line of text; "" for what is none. A version such as 1.0 is a number in YAML."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return ""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in str(value)).split())[:1000]


def _authors(value: Any) -> tuple[Author, ...]:
    people = []
    for one in value[:_MOST_AUTHORS] if isinstance(value, list) else ():
        if not isinstance(one, dict):
            continue
        family = " ".join(filter(None, (_text(one.get("name-particle")), _text(one.get("family-names")))))
        author = Author(_text(one.get("given-names")), family or _text(one.get("name")), _text(one.get("orcid")))
        if author.name:
            people.append(author)
    return tuple(people)


def _of_project(value: Any) -> tuple[Author, ...]:
    """A name is taken whole: which part of it is the family's is not said there."""
    names = [_text(one.get("name")) for one in value[:_MOST_AUTHORS] if isinstance(one, dict)] if isinstance(value, list) else []
    return tuple(Author("", name) for name in names if name)
