"""`carrel cite`: how to name a job in a paper."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home, JobId, find_job, open_client
from carrel.cli.screen import clean, print_json


class Format(StrEnum):
    """As what it is written."""

    TEXT = "text"
    BIBTEX = "bibtex"
    CFF = "cff"


def cite_command(
    job_id: JobId,
    form: Annotated[Format, typer.Option("--format", "-f", help="text, bibtex, or cff (CITATION.cff).")] = Format.TEXT,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Print how to cite a job: by its code, commit, lab and day, and by the authors that its code names.

    They come from CITATION.cff or pyproject.toml. Where neither names any, nobody is named.
    """
    from carrel.core.crates import citation_of, read_about

    with open_client(home) as client:
        record, said = client.said_of_code(find_job(client, job_id))
    about = read_about(said)
    found = citation_of(record, about)
    if as_json:
        return print_json({"text": found.text, "bibtex": found.bibtex, "cff": found.cff, "notes": list(about.notes)})
    for note in about.notes:
        print(clean(note), file=sys.stderr)
    written = {Format.TEXT: found.text, Format.BIBTEX: found.bibtex, Format.CFF: found.cff}[form]
    for line in written.split("\n"):
        print(clean(line))
    if not found.authors:
        print("The code names no authors: a CITATION.cff beside it would.", file=sys.stderr)
    return OK
