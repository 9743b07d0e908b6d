"""Readers of recorded jobs, by the form of the file. They are strict: what cannot be read is an error with its line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from carrel.core.domain.errors import Invalid
from carrel.simulate.trace import Trace
from carrel.simulate.traces.sacct import is_sacct, is_xdmod, read_sacct, read_xdmod
from carrel.simulate.traces.swf import is_swf, read_swf

#: By name: what reads a file of this form, and whether a file begins like one.
Forms = Mapping[str, tuple[Callable[[Path], Trace], Callable[[Path], bool]]]
#: Files are recognised in this order.
FORMS: Forms = MappingProxyType({"sacct": (read_sacct, is_sacct), "xdmod": (read_xdmod, is_xdmod), "swf": (read_swf, is_swf)})


def read_trace(path: Path, *, form: str | None = None, forms: Forms = FORMS) -> Trace:
    """Read a trace of the named form, or of the form that its beginning shows.

    Raises `Invalid`, with file, line and value, for anything that cannot be read.
    """
    names = ", ".join(forms)
    if form is not None:
        if form not in forms:
            raise Invalid(f"There is no form of traces named {form!r}.", remedy=f"Name one of: {names}.")
        return forms[form][0](path)
    for read, recognise in forms.values():
        if recognise(path):
            return read(path)
    raise Invalid(f"{path} does not begin like any trace that can be read.", remedy=f"Name its form, one of: {names}.")
