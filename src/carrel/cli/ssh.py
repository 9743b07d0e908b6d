"""`carrel ssh`: OpenSSH into a running job, and what other programs that use OpenSSH need for it."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home, argument, flag, job_number, open_client
from carrel.cli.screen import print_json
from carrel.core.domain.errors import Unavailable

if TYPE_CHECKING:
    from carrel.client.ssh import SshFiles

#: Of the names by which ssh knows jobs: 12.carrel.
_SUFFIX = ".carrel"

Config = Annotated[bool, flag("--config", "Print lines for ~/.ssh/config, with which `ssh ID.carrel` works.")]
Sign = Annotated[bool, flag("--sign", "Only get a certificate (for Match exec).")]
Stdio = Annotated[bool, flag("--stdio", "Only carry a connection (for ProxyCommand).")]


def _job(text: str) -> int:
    return job_number(text.removesuffix(_SUFFIX))


def ssh_command(
    job_id: Annotated[int | None, argument("[ID]", "Number of a running job.", parser=_job)] = None,
    words: Annotated[list[str] | None, argument("[-- COMMAND...]", "What to run.  [a shell]")] = None,
    config: Config = False,
    sign: Sign = False,
    stdio: Stdio = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Open a shell in a running job or session of one's own, or run a command there.

    With --json it gets a certificate and prints it.
    """
    from carrel.client.ssh import SshFiles

    files = SshFiles()
    if config:
        lines = _config(files, home)
        print_json({"config": lines}) if as_json else print(lines)
        return OK
    if job_id is None:
        raise typer.BadParameter("Name a job: `carrel ssh 12`.")
    with open_client(home) as client:
        if stdio:
            client.carry_ssh(job_id, 0, 1)
            return OK
        entry = client.certify_ssh(job_id, files.public_key())
        files.keep(entry)
    if as_json:
        print_json(entry.model_dump(mode="json"))
    if sign or as_json:
        return OK
    options = [word for name, value in _options(files, home).items() for word in ("-o", f"{name}={value}")]
    try:
        os.execvp("ssh", ["ssh", *options, entry.host, *([] if not words else ["--", *words])])
    except OSError as error:
        raise Unavailable(f"ssh cannot be started: {error.strerror}.", remedy="Install OpenSSH's client.") from error


def _options(files: SshFiles, home: Path | None) -> dict[str, str]:
    """Lines for OpenSSH's configuration (ssh_config(5))."""
    return {
        "ProxyCommand": f"{_words(home, '--stdio')} %h",
        "IdentityFile": _quoted(files.key),
        "CertificateFile": _quoted(files.certificate("%h")),
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": _quoted(files.known_hosts),
        "StrictHostKeyChecking": "yes",
        # The job is the one that the lab leads to; what is in its user's name does not matter.
        "User": "carrel",
    }


def _config(files: SshFiles, home: Path | None) -> str:
    command = f"{_words(home, '--sign')} %h".replace('"', '\\"')
    lines = [f'Match host *{_SUFFIX} exec "{command}"', *(f"    {name} {value}" for name, value in _options(files, home).items())]
    return "\n".join(lines)


def _words(home: Path | None, option: str) -> str:
    """This very command, for a shell; in a configuration of ssh, % begins a token."""
    program = Path(sys.argv[0]).absolute()
    is_command = program.name == "carrel" and os.access(program, os.X_OK)
    own = [str(program)] if is_command else [sys.executable, "-m", "carrel.cli.main"]
    words = [*own, "ssh", *([] if home is None else ["--home", str(home.absolute())]), option]
    return shlex.join(words).replace("%", "%%")


def _quoted(path: Path) -> str:
    return f'"{path}"'
