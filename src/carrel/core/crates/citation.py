"""How to cite a job: in BibTeX, as CITATION.cff, in a sentence. Pure.

Who wrote the code is what the code says; where it says nothing, nobody is named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from carrel.core.crates.about import About, Author

#: What BibTeX and LaTeX read as something else.
_SPECIAL = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    }
)
_HTTPS = re.compile(r"https://\S+")
_ORCID = re.compile(r"https://orcid\.org/[0-9X-]{19}")
_DOI = re.compile(r"10\.[0-9]{4,9}/\S+")
#: What stands in a field that is read as it is written: with these a field ends, or a command begins.
_NOT_VERBATIM = re.compile(r"[\s{}\\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """All that is known of a job that is worth citing."""

    title: str
    authors: tuple[Author, ...]
    #: Day on which it ended: "2026-11-27".
    date: str
    lab: str
    job: int
    #: Digest of the code, and the commit that it came from; "" where there is none.
    code: str
    commit: str
    #: True: what ran was not what was committed.
    changed: bool
    url: str
    doi: str
    version: str
    licence: str

    @property
    def text(self) -> str:
        """A sentence or two."""
        names = _and([author.name for author in self.authors])
        who = f"{names}. " if names else ""
        version = f", version {self.version}" if self.version else ""
        places = [self.url, f"https://doi.org/{self.doi}" if self.doi else ""]
        where = "".join(f" {place}." for place in places if place)
        return f"{who}{self.title}{version}. Job {self.job} of the lab {self.lab}, {self.date}; {self._code}.{where}"

    @property
    def bibtex(self) -> str:
        """An entry ``@software`` of biblatex, which BibTeX takes for ``@misc``."""
        names = " and ".join(_bibtex_name(author) for author in self.authors)
        fields = {
            "author": names,
            "title": f"{{{_escaped(self.title)}}}",
            "date": self.date,
            "year": self.date[:4],
            "version": _escaped(self.version),
            "doi": _verbatim(self.doi, _DOI),
            "url": _verbatim(self.url, _HTTPS),
            "note": _escaped(f"Job {self.job} of the lab {self.lab}; {self._code}"),
        }
        lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value and value != "{}"]
        return "\n".join([f"@software{{carrel-{self.lab}-{self.job},", *lines, "}"])

    @property
    def cff(self) -> str:
        """CITATION.cff (1.2.0). The format wants an author: where the code names none, a comment says so."""
        return "\n".join(self._cff())

    def _cff(self) -> Iterator[str]:
        yield "cff-version: 1.2.0"
        yield "message: If you use these results, please cite them as below."
        yield "type: software"
        yield f"title: {_quoted(self.title)}"
        yield "authors:" if self.authors else "# authors: its code names nobody, and the format wants somebody. Write them here."
        for author in self.authors:
            first, name = ("given-names", author.given) if author.given else ("name", author.family)
            yield f"  - {first}: {_quoted(name)}"
            if author.given and author.family:
                yield f"    family-names: {_quoted(author.family)}"
            if _ORCID.fullmatch(author.orcid):
                yield f"    orcid: {author.orcid}"
        yield f"date-released: {self.date}"
        if self.version:
            yield f"version: {_quoted(self.version)}"
        if self.commit:
            yield f"commit: {_quoted(self.commit)}"
        if _HTTPS.fullmatch(self.url):
            yield f"repository-code: {_quoted(self.url)}"
        if _DOI.fullmatch(self.doi):
            yield f"doi: {_quoted(self.doi)}"
        if self.licence:
            yield f"license: {_quoted(self.licence)}"
        yield "identifiers:"
        yield "  - type: other"
        yield f"    value: {_quoted(self.code)}"
        yield f"    description: {_quoted(f'Code of job {self.job} of the lab {self.lab}')}"

    @property
    def _code(self) -> str:
        changed = " with changes that were not committed" if self.changed else ""
        return f"code {self.commit}{changed} ({self.code})" if self.commit else f"code {self.code}"


def citation_of(record: Mapping[str, Any], about: About) -> Citation:
    """Return how the job of a record is cited; `about` is what its code says of itself."""
    job, task = record["job"], record["task"]
    git = task.get("git") or {}
    when = job.get("ended_at") or job["submitted_at"]
    return Citation(
        title=about.title or job["name"],
        authors=about.authors,
        date=datetime.fromtimestamp(when, UTC).date().isoformat(),
        lab=record["lab"],
        job=job["id"],
        code=task["snapshot"],
        commit=git.get("commit") or "",
        changed=bool(git.get("dirty")),
        url=_web(git.get("remote") or "") or about.url,
        doi=about.doi,
        version=about.version,
        licence=about.licence,
    )


def _web(remote: str) -> str:
    """The page of a repository that git reaches through SSH, as the large forges have it; other addresses as they are."""
    match = re.fullmatch(r"(?:ssh://)?git@([A-Za-z0-9.-]+)[:/](\S+?)(?:\.git)?", remote)
    return f"https://{match[1]}/{match[2]}" if match else remote


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


def _bibtex_name(author: Author) -> str:
    if not author.given:
        return f"{{{_escaped(author.family)}}}"
    return f"{_escaped(author.family)}, {_escaped(author.given)}" if author.family else f"{{{_escaped(author.given)}}}"


def _escaped(text: str) -> str:
    return text.translate(_SPECIAL)


def _verbatim(text: str, form: re.Pattern[str]) -> str:
    """The text where it has the form and can stand in a verbatim field of BibTeX, else nothing."""
    return text if form.fullmatch(text) and not _NOT_VERBATIM.search(text) else ""


def _quoted(text: str) -> str:
    """A scalar of YAML, which has JSON's strings."""
    return json.dumps("".join(filter(str.isprintable, text)), ensure_ascii=False)
