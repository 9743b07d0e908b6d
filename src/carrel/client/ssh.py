"""Ssh into running jobs, for a client: a key of the user's, certificates of the lab's, and the way of the bytes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from carrel.client.nouns import NounCalls
from carrel.client.stored_tokens import alone, directory
from carrel.core.domain.errors import Unavailable, in_words
from carrel.wire import v1


class SshCalls(NounCalls):
    """The part of a `carrel.Client` that is about ssh."""

    def certify_ssh(self, job_id: int, public_key: str) -> v1.SshView:
        """A certificate for this key (OpenSSH's format), with which a running job of one's own is entered within five minutes."""
        return self._http.post(v1.SshView, f"/jobs/{job_id}/ssh", v1.SshRequest(public_key=public_key))

    def carry_ssh(self, job_id: int, read: int, write: int) -> None:
        """Carry the bytes of one ssh connection between two descriptors and the job, as a ProxyCommand does (ssh_config(5))."""
        self._http.tunnel(f"/jobs/{job_id}/ssh/stream", read, write)


class SshFiles:
    """Files for OpenSSH, in a directory of this user's: a key, which stays here, and what the lab says of the jobs."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self.directory = directory(environment) / "ssh"
        self.key = self.directory / "id_ed25519"
        self.known_hosts = self.directory / "known_hosts"

    def certificate(self, host: str) -> Path:
        """Path of the certificate for one job; `host` may be "%h" (ssh_config(5), TOKENS)."""
        return self.directory / f"{host}-cert.pub"

    def public_key(self) -> str:
        """The public key, which is made with its private one if it is not there. Raises `Unavailable`."""
        public = self.key.with_suffix(".pub")
        try:
            with alone("ssh", self._environment):
                self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                if not public.exists():
                    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "carrel", "-f", str(self.key)]
                    subprocess.run(words, check=True, stdin=subprocess.DEVNULL, capture_output=True)
                return public.read_text()
        except FileNotFoundError:
            raise Unavailable("There is no ssh here.", remedy="Install OpenSSH's client (Debian: openssh-client).") from None
        except (OSError, subprocess.CalledProcessError) as error:
            why = in_words(error) if isinstance(error, OSError) else error.stderr.decode(errors="replace").strip()
            raise Unavailable(f"The key {self.key} cannot be made or read: {why}.", remedy="Remove it, and try again.") from error

    def keep(self, entry: v1.SshView) -> None:
        """Keep a certificate, and who signs those of the jobs. Raises `Unavailable`."""
        try:
            self._write(self.certificate(entry.host), f"{entry.certificate}\n")
            self._write(self.known_hosts, f"@cert-authority *.carrel {entry.authority}\n")
        except OSError as error:
            raise Unavailable(f"{self.directory} cannot be written: {in_words(error)}.", remedy="Make room.") from error

    def _write(self, path: Path, text: str) -> None:
        # All at once: another connection may be reading it.
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(text)
        draft.replace(path)
