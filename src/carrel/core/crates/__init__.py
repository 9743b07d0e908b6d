"""A job as an RO-Crate: one file with its record, code, lock, metrics and outputs, for other labs and other people.

RO-Crate 1.1 (https://w3id.org/ro/crate/1.1) with the profile Process Run Crate 0.5 (https://w3id.org/ro/wfrun/process/0.5). The
record is what a lab repeats the job by; the metadata says the same in words that other programs know.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from carrel.core.crates.about import About, Author, read_about
    from carrel.core.crates.citation import Citation, citation_of
    from carrel.core.crates.content import Content, OutputFile
    from carrel.core.crates.metadata import describe_crate
    from carrel.core.crates.reading import Crate, open_crate
    from carrel.core.crates.writing import write_crate

__all__ = [
    "About",
    "Author",
    "Citation",
    "Content",
    "Crate",
    "OutputFile",
    "citation_of",
    "describe_crate",
    "open_crate",
    "read_about",
    "write_crate",
]

_FROM = {
    "About": "about",
    "Author": "about",
    "read_about": "about",
    "Citation": "citation",
    "citation_of": "citation",
    "Content": "content",
    "OutputFile": "content",
    "describe_crate": "metadata",
    "Crate": "reading",
    "open_crate": "reading",
    "write_crate": "writing",
}


def __getattr__(name: str) -> Any:
    if name in _FROM:
        return getattr(import_module(f"carrel.core.crates.{_FROM[name]}"), name)
    raise AttributeError(f"module 'carrel.core.crates' has no attribute {name!r}")
