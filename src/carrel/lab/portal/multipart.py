"""Reads forms that carry files (multipart/form-data, RFC 7578): fields into memory, files to the disk, as they come."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from anyio import CancelScope, to_thread
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from carrel.core.domain.errors import Conflict, Invalid
from carrel.core.domain.units import MIB
from carrel.core.domain.user import Caller
from carrel.core.snapshots.packing import LIMIT_FILES

#: Bytes of all fields and names together; a pasted script is one field.
_FIELDS = 2 * MIB
#: What a part counts beside its bytes: it costs some memory also where it is empty.
_PART = 64
#: Forms of one user that are sent or looked at, at once.
_OF_ONE = 3
#: Bytes that a thread writes at a time.
_PIECE = MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedFile:
    """One file of a form."""

    field: str
    #: As the browser calls it; of a folder with the path in it. Nothing about it is checked.
    name: str
    #: Where its content lies.
    path: Path


@dataclass(slots=True)
class _Parts:
    """Takes the parts of one form as the parser tells of them."""

    directory: Path
    fields: dict[str, str] = field(default_factory=dict)
    files: list[UploadedFile] = field(default_factory=list)
    _headers: dict[bytes, bytes] = field(default_factory=dict)
    _header: tuple[bytes, bytes] = (b"", b"")
    _name: str = ""
    _text: bytearray | None = None
    _file: BinaryIO | None = None
    _size: int = 0

    def on_part_begin(self) -> None:
        self._headers = {}

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header = (self._header[0] + data[start:end], self._header[1])

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header = (self._header[0], self._header[1] + data[start:end])

    def on_header_end(self) -> None:
        self._headers[self._header[0].lower()] = self._header[1]
        self._header = (b"", b"")

    def on_headers_finished(self) -> None:
        _, said = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name = said.get(b"name", b"").decode("utf-8", "replace")
        self._text, self._file = None, None
        self._count(_PART + len(self._name))
        if b"filename" not in said:
            self._text = bytearray()
        elif name := said[b"filename"].decode("utf-8", "replace"):  # "": nothing was chosen
            if len(self.files) >= LIMIT_FILES:
                raise Invalid(f"More than {LIMIT_FILES:,} files.", remedy="Send the code alone: leave data and environments out.")
            path = self.directory / str(len(self.files))
            self.files.append(UploadedFile(field=self._name, name=name, path=path))
            self._file = path.open("xb")

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._file is not None:
            self._file.write(data[start:end])
        elif self._text is not None:
            self._count(end - start)
            self._text += data[start:end]

    def on_part_end(self) -> None:
        if self._text is not None:
            self.fields[self._name] = self._text.decode("utf-8", "replace")
        self.close()

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > _FIELDS:
            raise Invalid("The form is too long.", remedy="Choose the script as a file instead of pasting it.")

    def close(self) -> None:
        """Close the file that is being written, if one is."""
        if self._file is not None:
            self._file.close()
        self._text, self._file = None, None


async def read_upload(request: Request, directory: Path) -> tuple[dict[str, str], list[UploadedFile]]:
    """Return the fields of a form (of a repeated one the last) and its files, whose contents are put into `directory`.

    Raises `Invalid` for what is no such form, and for more than it may hold. The size of the whole is bounded by the gateway.
    """
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data" or b"boundary" not in options:
        raise Invalid("The form cannot be read.", remedy="Use the lab's own pages.")
    parts = _Parts(directory)
    names = [name for name in dir(parts) if name.startswith("on_")]
    try:
        parser = MultipartParser(options[b"boundary"], {name: getattr(parts, name) for name in names})  # type: ignore[arg-type]
        pending = bytearray()
        async for piece in request.stream():
            pending += piece
            if len(pending) >= _PIECE:
                await to_thread.run_sync(parser.write, bytes(pending))
                pending.clear()
        await to_thread.run_sync(parser.write, bytes(pending))
        parser.finalize()
    except FormParserError as error:
        raise Invalid("The form cannot be read: it ends too early, or is malformed.", remedy="Send it again.") from error
    finally:
        parts.close()
    return parts.fields, parts.files


@asynccontextmanager
async def in_threads(directory: AbstractContextManager[Path]) -> AsyncIterator[Path]:
    """Make and remove a directory away from the loop: thousands of files take a while to remove."""
    place = await to_thread.run_sync(directory.__enter__)
    try:
        yield place
    except BaseException as error:
        with CancelScope(shield=True):
            if not await to_thread.run_sync(directory.__exit__, type(error), error, error.__traceback__):
                raise
    else:
        await to_thread.run_sync(directory.__exit__, None, None, None)


class FewAtOnce:
    """Keeps one user's forms from taking all places, and the disk."""

    def __init__(self) -> None:
        self._under_way: Counter[str] = Counter()

    @asynccontextmanager
    async def one(self, caller: Caller) -> AsyncIterator[None]:
        """Be one of them meanwhile. Raises `Conflict` where there are as many as may be."""
        me = caller.user.subject
        if self._under_way[me] >= _OF_ONE:
            raise Conflict(f"{_OF_ONE} forms of yours are being sent.", remedy="Wait until one of them is here.")
        self._under_way[me] += 1
        try:
            yield
        finally:
            self._under_way[me] -= 1
            self._under_way += Counter()  # without those who have none
