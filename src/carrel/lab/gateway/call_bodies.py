"""Frames of calls as they come in and go out: what is small stays in memory, what is large goes through a file."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyio import to_thread
from starlette.requests import Request

from carrel.core.domain.call import INLINE, Body
from carrel.core.domain.errors import Invalid, StorageFull, TooMany
from carrel.core.snapshots.extraction import write_all
from carrel.core.spool.disk import full_at
from carrel.core.transport.message_room import MessageRoom, Place
from carrel.wire.frames import Decoder, Malformed

#: Bytes of headers and small bodies that the requests of one user hold: some of the largest requests of a client.
_ROOM = 1024 * 1024 * 1024
#: Bytes that are read from a file at once.
_PIECE = 1024 * 1024
#: What a frame takes in memory beside its body, about.
_HEADER = 1024
_FEWER = "Wait until some of them are answered, and send fewer calls at once."


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What came: a header, and its body."""

    header: dict[str, Any]
    body: Body


class CallBodies:
    """Files of bodies below one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._room = MessageRoom(_ROOM)

    async def receive(self, request: Request, *, most: int) -> AsyncIterator[Frame]:
        """Each frame of a request, whole. Raises `Invalid` for what is none, and for a body of more than `most` bytes.

        What is not in a file counts until all frames are there, and `TooMany` is raised where that is too much.
        """
        place = Place(self._room, request.scope["state"]["caller"].user.subject)
        decoder, draft = Decoder(), _Draft(self._new_file)
        header: dict[str, Any] = {}
        try:
            async for part in request.stream():
                for kind, value in decoder.feed(part):
                    if kind == "frame":
                        header = value
                        if header["size"] > most:
                            raise Invalid(f"A body of {header['size']} bytes; this takes up to {most}.")
                        draft = _Draft(self._new_file, large=header["size"] > INLINE)
                        if not place.came(_HEADER if draft.large else _HEADER + header["size"]):
                            raise TooMany(
                                "Your requests with calls are too large for so many at once.", remedy=_FEWER, retry_after=2
                            )
                    elif kind == "data":
                        if draft.add(value):
                            await to_thread.run_sync(draft.write)
                    else:
                        if draft.large:
                            await to_thread.run_sync(draft.write)
                        yield Frame(header=header, body=draft.finish())
        except Malformed as error:
            raise Invalid(f"The request is no row of frames: {error}") from None
        finally:
            draft.give_up()
            place.holds(0)
        if not decoder.between:
            raise Invalid("The request ends within a frame.")

    def pieces(self, body: Body) -> Iterator[bytes]:
        """The content of a body, piece by piece."""
        if body.path is None:
            yield body.data or b""
            return
        with open(body.path, "rb") as file:
            while piece := file.read(_PIECE):
                yield piece

    @staticmethod
    def discard(body: Body) -> None:
        """Remove the file of a body that nobody needs."""
        if body.path is not None:
            Path(body.path).unlink(missing_ok=True)

    @staticmethod
    def share(body: Body) -> Body | None:
        """The same content for a second owner, who may remove their name of it; None when it is not there any more."""
        if body.path is None:
            return body
        name = Path(body.path).with_name(secrets.token_hex(16))
        try:
            os.link(body.path, name)
        except FileNotFoundError:
            return None
        except OSError:  # a file system without second names
            try:
                shutil.copyfile(body.path, name)
            except OSError:
                name.unlink(missing_ok=True)
                return None
        return Body(size=body.size, path=str(name))

    def _new_file(self) -> Path:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._directory / secrets.token_hex(16)


class _Draft:
    """A body that is coming."""

    def __init__(self, new_file: Callable[[], Path], *, large: bool = False) -> None:
        self.large = large
        self._new_file = new_file
        self._size = 0
        self._waiting: list[bytes] = []
        self._unwritten = 0
        self._path: Path | None = None
        self._file: Any = None

    def add(self, data: bytes) -> bool:
        """The next piece; True when it is time to write."""
        self._size += len(data)
        self._unwritten += len(data)
        self._waiting.append(data)
        return self.large and self._unwritten >= _PIECE

    def write(self) -> None:
        """Write what waits. Raises `StorageFull`."""
        if self._file is None:
            self._path = self._new_file()
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            self._file = os.fdopen(descriptor, "wb", buffering=0)
        waiting, self._waiting, self._unwritten = b"".join(self._waiting), [], 0
        try:
            write_all(self._file, waiting)
        except OSError as error:
            where = full_at(self._path) if self._path is not None else ""
            raise StorageFull(f"The lab has no room for this. {where}", remedy="Free space.") from error

    def finish(self) -> Body:
        """The body, which is the caller's now."""
        if self._file is None:
            return Body(size=self._size, data=b"".join(self._waiting))
        self._file.close()
        path, self._path, self._file = self._path, None, None
        return Body(size=self._size, path=str(path))

    def give_up(self) -> None:
        """Leave nothing of a body that has not come whole."""
        if self._file is not None:
            self._file.close()
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
