"""Any trace file that we know how to read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from carrel.core.domain.errors import Invalid
from carrel.simulate.trace import Trace
from carrel.simulate.traces.cells import read_cells
from carrel.simulate.traces.muri import is_muri, read_muri, read_muri_iterations
from carrel.simulate.traces.openb import is_openb, read_openb
from carrel.simulate.traces.philly import is_philly, read_philly
from carrel.simulate.traces.philly_log import is_philly_log, read_philly_log
from carrel.simulate.traces.sacct import is_sacct, is_xdmod, read_sacct, read_xdmod
from carrel.simulate.traces.swf import is_swf, read_swf
from carrel.simulate.traces.tiresias import is_tiresias, read_tiresias


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A format of trace files."""

    #: One line: what such a file is.
    description: str
    read: Callable[[Path], Trace]
    #: True for a file that begins like one of this form; None when no beginning can tell.
    recognise: Callable[[Path], bool] | None = None


#: By name; files are recognised in this order.
FORMS: Mapping[str, Form] = MappingProxyType(
    {
        "muri": Form(description="Muri, run times from durations", read=read_muri, recognise=is_muri),
        "muri-iterations": Form(description="Muri, run times from iterations", read=read_muri_iterations),
        "tiresias": Form(description="Tiresias", read=read_tiresias, recognise=is_tiresias),
        "philly": Form(description="Philly, one virtual cluster", read=read_philly, recognise=is_philly),
        "philly-log": Form(
            description="Philly, the job log of all virtual clusters", read=read_philly_log, recognise=is_philly_log
        ),
        "openb": Form(description="Alibaba's GPU cluster of 2023", read=read_openb, recognise=is_openb),
        "sacct": Form(description="Slurm's accounting (sacct --parsable2)", read=read_sacct, recognise=is_sacct),
        "xdmod": Form(
            description="Slurm's accounting without a header, as Open XDMoD reads it", read=read_xdmod, recognise=is_xdmod
        ),
        "cells": Form(description="GPU cells of notebooks, in the columns of Tiresias", read=read_cells),
        "swf": Form(description="Standard Workload Format, also gzip'ed", read=read_swf, recognise=is_swf),
    }
)


def read_trace(path: Path, *, form: str | None = None) -> Trace:
    """Read a trace of the named form of `FORMS`, or of the form that its beginning shows.

    A file of notebook cells looks like one of Tiresias and is taken for one unless `form` says otherwise. Raises `Invalid`, with
    file, line and value, for anything that cannot be read.
    """
    names = ", ".join(FORMS)
    if form is not None:
        if form not in FORMS:
            raise Invalid(f"There is no form of traces named {form!r}.", remedy=f"Name one of: {names}.")
        return FORMS[form].read(path)
    for known in FORMS.values():
        if known.recognise is not None and known.recognise(path):
            return known.read(path)
    raise Invalid(f"{path} does not begin like any trace that can be read.", remedy=f"Name its form, one of: {names}.")
