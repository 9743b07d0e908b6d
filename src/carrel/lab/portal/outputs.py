"""Outputs of a job in the browser: pictures, texts, tables and notebooks, shown in their place.

They are a stranger's files. What is shown as itself (pictures, HTML) comes with a policy that lets nothing of it run and puts it
in an origin of its own (CSP ``sandbox``); all else is read here and written into the page as text.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

from carrel.core.domain.errors import NotFound
from carrel.core.domain.units import KIB, MIB
from carrel.lab.gateway.boundary import PAGES_POLICY
from carrel.lab.gateway.context import Gateway
from carrel.lab.portal.metric_plots import plots_of
from carrel.lab.portal.requests import caller_of, job_id_of
from carrel.lab.portal.templating import Templates
from carrel.lab.portal.words import plain

#: What a browser shows by itself, by the end of the name.
PICTURES: Mapping[str, str] = {
    **{".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp"},
    **{".svg": "image/svg+xml", ".avif": "image/avif", ".bmp": "image/bmp"},
}
_HTML = (".html", ".htm")
_TABLES = {".csv": ",", ".tsv": "\t"}
#: Bytes of a text, a picture and a notebook that are shown, rows and columns of a table, and cells of a notebook.
_TEXT, _PICTURE, _NOTEBOOK, _ROWS, _COLUMNS, _CELLS = 256 * KIB, 32 * MIB, 16 * MIB, 200, 40, 300
#: What is shown of a notebook's cells at most, and values in its JSON: an empty list takes thirty times its two bytes.
_PIECES, _VALUES = 2000, 500_000
#: A file that is shown as itself: nothing in it runs, nothing is fetched for it, and only the lab's pages put it into a frame.
_AS_ITSELF = {
    "Content-Security-Policy": "default-src 'none'; img-src data:; font-src data:; media-src data:; style-src 'unsafe-inline'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'self'; sandbox",
    "X-Frame-Options": "SAMEORIGIN",
    "Content-Disposition": "inline",
}
#: The page around such a file.
_AROUND = {"Content-Security-Policy": PAGES_POLICY.replace("default-src 'none'", "default-src 'none'; frame-src 'self'", 1)}
#: Pictures in notebooks that are put into the page, by their types.
_DATA = re.compile(r"[A-Za-z0-9+/=\s]+")
_RASTER = ("image/png", "image/jpeg", "image/gif", "image/webp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Something that stands on the page under something else."""

    #: "code", "text", "error", "picture", "prose" or "left".
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """An output as the page has it."""

    #: "picture", "frame", "text", "table", "notebook" or "none".
    how: str
    text: str = ""
    rows: Sequence[Sequence[str]] = ()
    pieces: Sequence[Piece] = ()
    #: What of it is not shown, in words; "": all is.
    left: str = ""


def how_shown(path: str) -> str:
    """Return how an output of this name is shown; "none" for what can only be saved."""
    suffix = Path(path).suffix.lower()
    if suffix in PICTURES:
        return "picture"
    if suffix in _HTML:
        return "frame"
    return "notebook" if suffix == ".ipynb" else "table" if suffix in _TABLES else "text"


class OutputPages:
    """``/jobs/{id}/outputs/PATH`` in a page, as itself, and the plots of its metrics."""

    def __init__(self, gateway: Gateway, look: Templates) -> None:
        self._gateway = gateway
        self._lab = gateway.lab
        self._look = look

    def routes(self) -> list[BaseRoute]:
        """The routes of these pages."""
        job = "/jobs/{job_id}"
        return [
            Route(f"{job}/view/{{path:file}}", self.view, methods=["GET"]),
            Route(f"{job}/shown/{{path:file}}", self.as_itself, methods=["GET"]),
            Route(f"{job}/metrics", self.metrics, methods=["GET"]),
        ]

    def view(self, request: Request) -> Response:
        """One output in a page, with those before and after it."""
        caller, job_id, path = caller_of(request), job_id_of(request), request.path_params["path"]
        blob = self._lab.produced.blob_path(caller, job_id, path)
        files = [file for file in self._lab.produced.outputs(caller, job_id) if file.removed_at is None]
        at = next(index for index, file in enumerate(files) if file.path == path)
        answer = self._look.page(
            request,
            "output.html",
            job=self._gateway.show(self._lab.job(caller, job_id), ""),
            file=files[at],
            before=files[at - 1].path if at else None,
            after=files[at + 1].path if at + 1 < len(files) else None,
            shown=shown(blob, path),
        )
        answer.headers.update(_AROUND)
        return answer

    def as_itself(self, request: Request) -> Response:
        """A picture or a page of HTML, which nothing of the lab's can be reached from."""
        path = request.path_params["path"]
        blob = self._lab.produced.blob_path(caller_of(request), job_id_of(request), path)
        suffix = Path(path).suffix.lower()
        kind = "text/html; charset=utf-8" if suffix in _HTML else PICTURES.get(suffix)
        if kind is None or not blob.is_file():
            raise NotFound(f'"{path[:200]}" is not shown.', remedy="Save it instead.")
        return FileResponse(blob, media_type=kind, headers=_AS_ITSELF)

    async def metrics(self, request: Request) -> Response:
        """The metrics of the job's run as plots. The tracking server is asked, which may take a moment."""

        def page() -> Response:
            caller, job_id = caller_of(request), job_id_of(request)
            part = request.query_params.get("part") == "live"
            job = self._gateway.show(self._lab.job(caller, job_id), "")
            found = self._gateway.comparing.of_run(caller, job_id)
            template = "metrics_live.html" if part else "metrics.html"
            return self._look.page(request, template, job=job, found=found, plots=plots_of(found))

        return await to_thread.run_sync(page)


def shown(blob: Path, path: str) -> Shown:
    """Read what is shown of an output."""
    if not blob.is_file():
        return Shown(how="none", left="Its content is not stored any more.")
    how, size = how_shown(path), blob.stat().st_size
    if how in ("picture", "frame"):
        return Shown(how=how) if size <= _PICTURE else Shown(how="none", left="It is too large to be shown; save it instead.")
    if how == "notebook" and size <= _NOTEBOOK:
        try:
            return _notebook(_document(blob.read_bytes()))
        except (ValueError, RecursionError, AttributeError, TypeError, KeyError):
            how = "text"
    with blob.open("rb") as file:
        data = file.read(_TEXT)
    if b"\0" in data[: 8 * KIB]:
        return Shown(how="none", left="It is no text; save it to look at it.")
    text = data.decode("utf-8", "replace")
    left = f"These are its first {_TEXT // KIB} KiB." if size > _TEXT else ""
    if how == "table":
        rows = list(_rows(text, _TABLES[Path(path).suffix.lower()]))
        if rows:
            more = len(rows) > _ROWS or any(len(row) > _COLUMNS for row in rows) or bool(left)
            cut = [row[:_COLUMNS] for row in rows[:_ROWS]]
            return Shown(how="table", rows=cut, left=f"At most {_ROWS} rows and {_COLUMNS} columns are shown." if more else "")
    return Shown(how="text", text=plain(text), left=left)


def _rows(text: str, delimiter: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader(io.StringIO(text), delimiter=delimiter)
    except csv.Error:  # what came before is shown
        return


def _document(data: bytes) -> Any:
    if sum(data.count(sign) for sign in (b",", b"[", b"{")) > _VALUES:
        raise ValueError("too many values")
    return json.loads(data)


def _notebook(document: Mapping[str, Any]) -> Shown:
    """The cells of a notebook with what they printed and drew. Its HTML is left out: it has the same as text, in most cases."""
    cells = document["cells"]
    pieces = list(itertools.islice((piece for cell in cells[:_CELLS] for piece in _cell(cell)), _PIECES + 1))
    left = f"These are its first {_CELLS} cells." if len(cells) > _CELLS else ""
    if len(pieces) > _PIECES:
        left = f"These are its first {_PIECES} cells and outputs."
    return Shown(how="notebook", pieces=pieces[:_PIECES], left=left)


def _cell(cell: Mapping[str, Any]) -> Iterator[Piece]:
    yield Piece(kind="code" if cell.get("cell_type") == "code" else "prose", text=_joined(cell.get("source", "")))
    for output in cell.get("outputs", ()):
        yield from _output(output)


def _output(output: Mapping[str, Any]) -> Iterator[Piece]:
    if output.get("output_type") == "stream":
        yield Piece(kind="text", text=plain(_joined(output.get("text", ""))))
        return
    if output.get("output_type") == "error":
        yield Piece(kind="error", text=plain("\n".join(map(str, output.get("traceback", ())))))
        return
    data = output.get("data", {})
    for kind in _RASTER:
        picture = _joined(data.get(kind, ""))
        if picture and _DATA.fullmatch(picture):
            yield Piece(kind="picture", text=f"data:{kind};base64,{''.join(picture.split())}")
            return
    if text := _joined(data.get("text/plain", "")):
        yield Piece(kind="text", text=plain(text))
    elif data:
        yield Piece(kind="left", text=", ".join(sorted(map(str, data))))


def _joined(text: Any) -> str:
    joined = "".join(map(str, text)) if isinstance(text, list) else str(text)
    return joined.encode("utf-8", "replace").decode()  # half of a character (UTF-16) can be written in JSON, and not on a page
