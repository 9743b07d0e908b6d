"""Large bodies go through files of the lab's, where it is on this machine. Standard library only: it travels with the workers."""

from __future__ import annotations

import hmac
import json
import mmap
import os
import socket
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union

#: Smallest body that is worth the way.
LEAST = 1024 * 1024
#: Smallest one that is mapped: each mapping holds a descriptor as long as the value lives, and a process has few of them.
_MAPPED = 64 * 1024 * 1024
#: Most buffers, and bytes, that are written at once: larger pieces were slower, smaller ones too.
_BUFFERS, _PIECE = 256, 256 * 1024
_SECONDS = 10.0

#: What `carrel.client.executor.pickling.load` reads. Writing to it changes no file.
Content = Union[bytearray, mmap.mmap]  # noqa: UP007 - workers have Python from 3.9 on


class NotHere(OSError):
    """The file cannot be had: the lab is on another machine, or was restarted."""


def read(offer: Mapping[str, Any]) -> Content:
    """Return the body for which the lab has made this offer. Raises `OSError`."""
    file, stream = _open(offer)
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_size != offer["size"]:
            raise NotHere("it is not the file that the lab has offered")
        if about.st_size >= _MAPPED:
            return mmap.mmap(file, about.st_size, access=mmap.ACCESS_COPY)
        content = bytearray(about.st_size)
        view, done = memoryview(content), 0
        while done < len(content):
            got = os.readv(file, [view[done:]])
            if not got:
                raise NotHere("the file is shorter than the lab has said")
            done += got
        return content
    finally:
        os.close(file)
        stream.close()


def write(offer: Mapping[str, Any], parts: Sequence[Any]) -> socket.socket:
    """Write a body to the file that the lab has offered. Raises `OSError`.

    The file is there until what is returned is closed: the lab has to be told before that it is whole.
    """
    file, stream = _open(offer)
    try:
        for portion in _portions(parts):
            while portion:
                done = os.writev(file, portion)
                while portion and done >= len(portion[0]):
                    done -= len(portion.pop(0))
                if done:
                    portion[0] = portion[0][done:]
    except BaseException:
        stream.close()
        raise
    finally:
        os.close(file)
    return stream


def _portions(parts: Sequence[Any]) -> Iterator[list[memoryview]]:
    """All bytes, in lists for writev(2): up to so many buffers, and about so many bytes, at once."""
    portion: list[memoryview] = []
    size = 0
    for part in parts:
        view = memoryview(part).cast("B")
        for start in range(0, len(view), _PIECE):
            piece = view[start : start + _PIECE]
            if len(portion) == _BUFFERS or size + len(piece) > _PIECE:
                yield portion
                portion, size = [], 0
            portion.append(piece)
            size += len(piece)
    if portion:
        yield portion


def _open(offer: Mapping[str, Any]) -> tuple[int, socket.socket]:
    if sys.platform != "linux":
        raise NotHere("the lab is on another machine")
    for name in offer["sockets"]:
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            stream.settimeout(_SECONDS)
            stream.connect("\0" + name[1:] if name.startswith("@") else name)
            stream.sendall(json.dumps({"ticket": offer["ticket"]}).encode() + b"\n")
            return _descriptor(stream, offer["proof"]), stream
        except OSError:
            stream.close()
    raise NotHere("no socket of the lab's is here")


def _descriptor(stream: socket.socket, proof: str) -> int:
    """The descriptor that comes, from nobody but the lab."""
    data, files, _, _ = socket.recv_fds(stream, 1024, 1, socket.MSG_CMSG_CLOEXEC)
    try:
        while data and not data.endswith(b"\n") and len(data) < 1024:
            more = stream.recv(1024)
            if not more:
                break
            data += more
        try:
            said = json.loads(data)["proof"]
        except (ValueError, KeyError, TypeError):
            said = ""
        if len(files) == 1 and hmac.compare_digest(str(said).encode(), proof.encode()):
            return files.pop()
        raise NotHere("who answers is not the lab")
    finally:
        for file in files:
            os.close(file)
