"""How jobs are cited: by what the code says, and by nothing that it does not say."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from small_crates import make_record

from carrel.core.crates import About, Author, Citation, citation_of, read_about

CODE = "sha256:" + "0" * 64
CFF = """
cff-version: 1.2.0
message: Cite it.
title: Digits & co
version: 1.0
doi: 10.5281/zenodo.1234567
license: [MIT, Apache-2.0]
repository-code: https://example.org/digits
authors:
  - given-names: Ada
    family-names: King
    name-particle: von
    orcid: https://orcid.org/0000-0001-2345-6789
  - name: The Digits team
  - 5
"""


def cited(texts: dict[str, str], **task: Any) -> Citation:
    return citation_of(make_record(CODE, **task), read_about(texts))


def test_what_the_code_says_is_cited() -> None:
    found = cited({"sub/CITATION.cff": CFF, "sub/pyproject.toml": '[project]\nname = "other"\nversion = "2"'})
    assert found.text == (
        "Ada von King and The Digits team. Digits & co, version 1.0. Job 12 of the lab 2d23d8fa769d, 2026-11-27; code "
        f"{'c' * 40} with changes that were not committed ({CODE}). https://example.org/lab/code. "
        "https://doi.org/10.5281/zenodo.1234567."
    )
    assert "  author = {von King, Ada and {The Digits team}},\n" in found.bibtex
    assert "  title = {{Digits \\& co}},\n" in found.bibtex
    assert found.bibtex.startswith("@software{carrel-2d23d8fa769d-12,\n")
    again = yaml.safe_load(found.cff)
    assert again["authors"][0] == {
        "given-names": "Ada", "family-names": "von King", "orcid": "https://orcid.org/0000-0001-2345-6789"
    }  # fmt: skip
    assert (again["title"], again["commit"], str(again["date-released"])) == ("Digits & co", "c" * 40, "2026-11-27")


@pytest.mark.parametrize("texts", [{}, {"CITATION.cff": "authors: 5"}, {"pyproject.toml": '[project]\nname = "digits"'}])
def test_nobody_is_made_an_author(texts: dict[str, str]) -> None:
    found = cited(texts, git=None)
    assert found.authors == ()
    assert found.text == f"digits. Job 12 of the lab 2d23d8fa769d, 2026-11-27; code {CODE}."
    assert "author" not in found.bibtex
    assert "authors" not in yaml.safe_load(found.cff)
    assert "ada" not in (found.text + found.bibtex + found.cff)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("CITATION.cff", "title: ["),
        ("CITATION.cff", "- a"),
        ("CITATION.cff", "[" * 5000),
        ("CITATION.cff", "title: &a [*a]"),
        ("pyproject.toml", "x"),
        ("pyproject.toml", "project = 5"),
        ("pyproject.toml", "[project]\nauthors = [1, {email = 'x'}]\nversion = true"),
    ],
)
def test_files_that_say_nothing(file: str, text: str) -> None:
    about = read_about({file: text})
    assert (about.title, about.authors, about.version) == ("", (), "")


def test_authors_of_a_project() -> None:
    text = '[project]\nname = "x"\nauthors = [{name = "Ada King", email = "ada@example.org"}]\nlicense = "MIT"'
    tomllib.loads(text)
    assert read_about({"pyproject.toml": text}) == About(title="x", authors=(Author("", "Ada King"),), licence="MIT")


WORDS = st.text(max_size=30)


@given(WORDS, WORDS, WORDS, WORDS)
def test_any_text_keeps_its_place(title: str, given_name: str, family: str, url: str) -> None:
    text = yaml.safe_dump({"title": title, "authors": [{"given-names": given_name, "family-names": family}], "url": url})
    found = cited({"CITATION.cff": text}, git=None)
    again = yaml.safe_load(found.cff)
    assert again["type"] == "software"
    assert len(again.get("authors", ())) == len(found.authors)
    depth = 0
    for sign in found.bibtex.replace("\\{", "").replace("\\}", ""):
        depth += {"{": 1, "}": -1}.get(sign, 0)
        assert depth >= 0
    assert depth == 0


@pytest.mark.parametrize(
    "hostile", ["10.1/x},note={y", r"10.1234/\input{/etc/passwd}", r"10.1234/\immediate\write18{id}", "10.1234/x}", "10.1234/{x"]
)
def test_what_the_code_says_ends_no_field_of_bibtex_and_begins_no_command(hostile: str) -> None:
    about = About(title="x", doi=hostile, url=f"https://example.org/{hostile}")
    text = citation_of(make_record(CODE, git=None), about).bibtex
    assert hostile not in text
    assert "\n  doi = " not in text
    assert "\n  url = " not in text
    plain = replace(about, doi="10.1234/a_b%c#d", url="https://example.org/a_b%20c#d")
    text = citation_of(make_record(CODE, git=None), plain).bibtex
    assert "{10.1234/a_b%c#d}" in text
    assert "{https://example.org/a_b%20c#d}" in text
