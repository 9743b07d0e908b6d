"""The program git: runs it with a configuration that nobody else has a say in, and reads what it says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO, cast

from carrel.core.domain.errors import StorageFull
from carrel.core.domain.units import format_duration
from carrel.core.spool.disk import full_at
from carrel.node.staging.download import News
from carrel.node.staging.failed import InputFailed
from carrel.node.staging.git_address import Repository

_RECEIVED = re.compile(r"Receiving objects: .*?, ([0-9.]+) (bytes|KiB|MiB|GiB)")
_UNITS = {"bytes": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
#: What git says of a connection that broke, and how often it is tried then.
_CUT = re.compile(
    r"early EOF|RPC failed|hung up|unexpected disconnect|timed out|reset by peer|Could not resolve|Failed to connect"
)
_TRIES = 3
#: Variables that git may have: the way to the network, and whom to trust. Nothing that names a program or a configuration.
_PASSED = (
    *("PATH", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"),
    *("http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
    *("GIT_USERNAME", "GIT_PASSWORD", "SSH_AUTH_SOCK"),
)
#: Says what the owner's secrets say, for the host of the address alone. The values are in variables, not in its text.
_HELPER = '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" "${GIT_USERNAME:-git}" "$GIT_PASSWORD"; }; f'


class Git:
    """Runs git with nobody's configuration but the machine's, without questions, and in a process group that ends with us."""

    def __init__(self, wanted: Repository, repository: Path, home: Path, news: News) -> None:
        self.repository, self.news, self._url = repository, news, wanted.url
        self._environment = {
            **{name: os.environ[name] for name in _PASSED if name in os.environ},
            # ~/.netrc and ~/.gitconfig are those of the user who runs this, who need not be the owner of the job.
            **{"HOME": str(home), "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
            **{"GIT_ALLOW_PROTOCOL": "http:https" if wanted.scheme == "http" else wanted.scheme, "GIT_LITERAL_PATHSPECS": "1"},
            **{"GIT_SSH_COMMAND": "ssh -oBatchMode=yes", "GIT_NO_LAZY_FETCH": "1"},
        }
        self._options = ["-c", "core.hooksPath=/dev/null", "-c", "credential.helper=", "-c", "fetch.unpackLimit=1"]
        self._options += ["-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime=60", "-c", "gc.auto=0", "-c", "core.askPass="]
        self._end = time.monotonic() + news.most.seconds if news.most.seconds else None
        if news.most.pinned is not None:
            self._options += ["-c", "http.followRedirects=false", "-c", f"http.curloptResolve={news.most.pinned}"]
        if wanted.scheme in ("https", "http") and "GIT_PASSWORD" in os.environ:
            host = "/".join(wanted.url.split("/")[:3])
            self._options += ["-c", f"credential.{host}.helper={_HELPER}"]

    def fetch(self, *arguments: str) -> None:
        """Run git-fetch(1), tell how far it is, and again where the connection was cut."""
        for last in (*[False] * (_TRIES - 1), True):
            try:
                self.say("fetch", "--progress", "--no-tags", "--no-recurse-submodules", "--no-auto-maintenance", *arguments)
                self.news.at(0, None)  # what came is not the input itself
                return
            except InputFailed as error:
                if last or not _CUT.search(error.message):
                    raise

    def say(self, *arguments: str, at: bool = True) -> bytes:
        """Run one command and return what it says; raise `InputFailed` with its own words."""
        with self._start(arguments, at=at) as process, self._in_time(process):
            try:
                assert process.stdout is not None
                assert process.stderr is not None
                words = self._listen(process.stderr) if arguments[0] == "fetch" else ""
                said, more = process.communicate()
            except BaseException:
                _kill(process)
                raise
        if process.returncode:
            lines = [line for line in f"{words}\n{more.decode(errors='replace')}".splitlines() if line.strip()]
            if any("No space left on device" in line or "Disk quota exceeded" in line for line in lines):
                raise StorageFull(f"The repository {self._url} does not fit. {full_at(self.repository, OSError(28, ''))}")
            told = next(
                (line for line in reversed(lines) if line.startswith(("fatal:", "error:", "ERROR:"))), "".join(lines[-1:])
            )
            raise InputFailed(
                f"The repository {self._url} could not be read: git {arguments[0]}: {told or f'exit code {process.returncode}'}",
                remedy="Look at the address. A private one needs the secrets GIT_USERNAME and GIT_PASSWORD (a token).",
            )
        return said

    @contextmanager
    def _in_time(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """End git, and what it has started, when its time is over."""
        if self._end is None:
            yield
            return
        late = threading.Event()

        def end() -> None:
            late.set()
            _kill(process)

        timer = threading.Timer(max(0.0, self._end - time.monotonic()), end)
        timer.daemon = True
        timer.start()
        try:
            yield
        except InputFailed:
            if not late.is_set():
                raise
        finally:
            timer.cancel()
        if late.is_set():
            raise InputFailed(
                f"The repository {self._url} was not here after {format_duration(self.news.most.seconds)}.",
                remedy="Try again, or upload it as a .zip.",
            )

    def _listen(self, stream: IO[bytes]) -> str:
        """Read what git says of its progress; a line of it ends with a carriage return."""
        words, line = "", b""
        while piece := os.read(stream.fileno(), 4096):
            *lines, line = re.split(rb"[\r\n]", line + piece)
            for one in lines:
                told = one.decode(errors="replace")
                if found := _RECEIVED.search(told):
                    self.news.at(int(float(found[1]) * _UNITS[found[2]]), None)
                elif "%" not in told:
                    words = f"{words}\n{told}"[-4000:]
        return words + "\n" + line.decode(errors="replace")

    def objects(self) -> _Objects:
        """Starts git-cat-file(1), which answers names with contents."""
        return _Objects(self._start(("cat-file", "--batch"), stdin=subprocess.PIPE))

    def _start(self, arguments: Sequence[str], *, at: bool = True, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        where = [f"--git-dir={self.repository}"] if at else []
        return subprocess.Popen(
            ["git", *where, *self._options, *arguments],
            cwd=self.repository.parent,
            env=self._environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )


class _Objects:
    """A running git-cat-file(1)."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def __enter__(self) -> tuple[BinaryIO, BinaryIO]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)

    def __exit__(self, *_error: object) -> None:
        _kill(self._process)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self._process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End it and what it has started for the network."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
