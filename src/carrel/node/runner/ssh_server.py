"""An SSH server for one connection, which is its standard input: a part of the job that it is started in, and no more than that.

It has the rights of the job's own processes, and ends with the job. The lab says first, in one message, which key the server
shows and which certificates it takes: those that the lab has signed for this attempt, and no others. OpenSSH's own server would
need root's rights, or an account whose shell is one (sshd(8)); the lab's Unix user has neither.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import select
import socket
import struct
import termios
from contextlib import suppress
from typing import Any

import asyncssh

#: What comes before the first byte of SSH: the length of the message, and the message (JSON).
HEAD = struct.Struct("!I")
LONGEST = 65_536
#: Seconds for the lab's message.
_PATIENCE = 30.0
#: Seconds between two looks whether a terminal has been read out.
_PAUSE = 0.02
#: What a client may set (as Debian's sshd_config(5)).
_LANGUAGE = ("LANG", "LC_")


class _Server(asyncssh.SSHServer):
    """Leads connections on to where a process of the job gets, too; it listens nowhere."""

    def connection_requested(self, *_address: Any) -> bool:
        """Any address that is reached from in here."""
        return True

    def unix_connection_requested(self, _path: str) -> bool:
        """Any socket that is seen from in here."""
        return True


class _Files(asyncssh.SFTPServer):
    """Reads and writes files as a process of the job does. OpenSSH's scp wants to be told that all went well."""

    def exit(self) -> None:
        """The client is done."""
        self.channel.exit(0)


def main() -> None:
    """Serve; the interpreter that the runner starts calls it."""
    connection = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with suppress(asyncssh.Error, OSError, ValueError, KeyError):  # the other side has gone, or is not the lab
        connection.settimeout(_PATIENCE)
        said = _read_message(connection)
        connection.setblocking(False)
        asyncio.run(_serve(connection, said))


def _read_message(connection: socket.socket) -> dict[str, str]:
    (length,) = HEAD.unpack(_read(connection, HEAD.size))
    if length > LONGEST:
        raise ValueError("longer than the lab's message")
    return dict(json.loads(_read(connection, length)))


def _read(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = connection.recv(size - len(found))
        if not piece:
            raise OSError("it ended")
        found += piece
    return found


async def _serve(connection: socket.socket, said: dict[str, str]) -> None:
    key = asyncssh.import_private_key(said["key"])
    trusted = f'cert-authority,principals="{said["principal"]}" {said["authority"]}'
    served = await asyncssh.run_server(
        connection,
        server_factory=_Server,
        server_host_keys=[(key, asyncssh.import_certificate(said["certificate"]))],
        authorized_client_keys=asyncssh.import_authorized_keys(trusted),
        process_factory=_run,
        sftp_factory=_Files,
        allow_scp=True,
        encoding=None,
        line_editor=False,
        agent_forwarding=False,
        gss_host=None,
        x509_trusted_certs=None,
        config=None,
    )
    await served.wait_closed()


async def _run(request: asyncssh.SSHServerProcess[bytes]) -> None:
    """Run what is asked for: a shell, or a command in one."""
    shell = next((one for one in ("/bin/bash", "/usr/bin/bash") if os.access(one, os.X_OK)), "/bin/sh")
    words = [shell] if request.command is None else [shell, "-c", request.command]
    variables = {**os.environ, "SHELL": shell}
    variables |= {name: value for name, value in request.env.items() if name.startswith(_LANGUAGE)}
    terminal: int | None = None
    if request.term_type is None:
        # Descriptors: asyncssh reads a stream of asyncio's twice at once where the client is slow, and gives up.
        (its_input, stdin), (stdout, its_output), (stderr, its_errors) = os.pipe(), os.pipe(), os.pipe()
        process = await asyncio.create_subprocess_exec(
            *words, env=variables, stdin=its_input, stdout=its_output, stderr=its_errors, start_new_session=True
        )
        for its in (its_input, its_output, its_errors):
            os.close(its)
        request.set_redirect_pid(process.pid)
        # Of two outputs, the first that ends does not end the other.
        await request.redirect(stdin=stdin, stdout=stdout, stderr=stderr, send_eof=False)
    else:
        ours, theirs = pty.openpty()
        columns, rows, *_pixels = request.term_size
        termios.tcsetwinsize(theirs, (rows, columns))
        process = await asyncio.create_subprocess_exec(
            *words,
            env={**variables, "TERM": request.term_type},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(theirs)
        terminal = os.dup(ours)
        await request.redirect(stdin=os.dup(ours), stdout=ours)
    status = await process.wait()
    if terminal is None:
        await request.stdout.drain()
        await request.stderr.drain()
    else:
        await _read_out(terminal)
    request.exit(status if status >= 0 else 128 - status)


async def _read_out(terminal: int) -> None:
    """Return when all that was written to a terminal has been read. What the shell leaves in the background may keep it open."""
    poll = select.poll()
    poll.register(terminal, select.POLLIN)
    while any(event & select.POLLIN for _, event in poll.poll(0)):
        await asyncio.sleep(_PAUSE)
    os.close(terminal)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
