"""A job as an RO-Crate: one file with its record, code, lock, metrics and outputs, for other labs and other people.

RO-Crate 1.1 (https://w3id.org/ro/crate/1.1) with the profile Process Run Crate 0.5 (https://w3id.org/ro/wfrun/process/0.5). The
record is what a lab repeats the job by; the metadata says the same in words that other programs know.
"""

from typing import TYPE_CHECKING

from carrel.core.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from carrel.core.crates.about import About, Author, read_about
    from carrel.core.crates.citation import Citation, citation_of
    from carrel.core.crates.content import Content, OutputFile
    from carrel.core.crates.metadata import describe_crate
    from carrel.core.crates.reading import Crate, open_crate
    from carrel.core.crates.writing import write_crate
else:
    __getattr__, __dir__ = lazy_imports(__name__)
