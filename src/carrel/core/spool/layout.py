"""Names of files and directories in the spool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: Name of the socket in a session's temporary directory on which its Jupyter server listens.
SESSION_SOCKET = "jupyter.sock"
#: Where the directories for temporary files are whose own paths would be too long, and how their names begin.
SHORT_PLACE, SHORT_NAME = "/tmp", "carrel-"


@dataclass(frozen=True, slots=True)
class AttemptDirectory:
    """One attempt of one job on disk: ``<spool>/<job>/<attempt>/``, mode 0700."""

    path: Path

    @property
    def launch(self) -> Path:
        """The `Launch`, as JSON; there before the runner starts."""
        return self.path / "launch.json"

    @property
    def order(self) -> Path:
        """What the lab has signed of it (`carrel.core.spool.seal`), where the attempt is run by what the lab did not start
        itself."""
        return self.path / "order.json"

    @property
    def token(self) -> Path:
        """The job's own token, mode 0600."""
        return self.path / "token"

    @property
    def claim(self) -> Path:
        """Created exclusively by the one runner that owns the attempt, which holds a lock on it as long as it lives."""
        return self.path / "claim"

    @property
    def journal(self) -> Path:
        """What happened, one JSON object per line; appended by the runner alone."""
        return self.path / "journal.jsonl"

    @property
    def log(self) -> Path:
        """Standard output and standard error of the command, in the order of writing."""
        return self.path / "log"

    @property
    def cancel(self) -> Path:
        """Written by the engine before it signals the runner: who asked for the end (one line)."""
        return self.path / "cancel"

    @property
    def preempt(self) -> Path:
        """Written by the engine before it signals the runner: how it is preempted; removed when it may go on."""
        return self.path / "preempt"

    @property
    def checkpoint(self) -> Path:
        """Where the command keeps what the next attempt of its job shall find; gone when the job is over."""
        return self.path.parent / "checkpoint"

    @property
    def checkpoint_before(self) -> Path:
        """What `checkpoint` was like before the command started, where somebody will ask whether the attempt has got on."""
        return self.path / "checkpoint.before"

    @property
    def work(self) -> Path:
        """The working directory: a copy of the code, the inputs, what the command makes."""
        return self.path / "work"

    @property
    def temporary(self) -> Path:
        """TMPDIR of the command, or a link to it where this path would be too long for sockets; gone after the end."""
        return self.path / "tmp"

    @property
    def temporary_place(self) -> Path:
        """The directory for temporary files itself: `temporary`, or what its link leads to, if a runner has made that."""
        try:
            target = self.temporary.readlink()
        except OSError:
            return self.temporary
        is_ours = target.parent == Path(SHORT_PLACE) and target.name.startswith(SHORT_NAME)
        return target if is_ours else self.temporary

    @property
    def private_places(self) -> tuple[Path, Path]:
        """What /tmp is behind the walls, for the command and for what brings its inputs; gone after the end."""
        return self.path / "private-tmp", self.path / "staging-tmp"

    @property
    def group(self) -> Path:
        """How a command of several processes is started, mode 0600; what came of it lies beside, in a directory of their own."""
        return self.path / "group" / "plan.json"

    @property
    def session_socket(self) -> Path:
        """Where a session's Jupyter server listens, or whatever the session has put there: `foreign.socket_at` looks at it."""
        return self.temporary_place / SESSION_SOCKET

    @property
    def ssh_socket(self) -> Path:
        """The socket of the lab's ssh connections while the command runs, on the lab's own machine; gone after the end."""
        return self.path / "ssh.sock"

    @property
    def session_address(self) -> Path:
        """Where a session on another machine takes the lab's connections, and with which key; mode 0600, gone after the end."""
        return self.path / "session.json"

    @property
    def environment_log(self) -> Path:
        """What the tools said that built the environment; apart from the log, which is the command's alone."""
        return self.path / "environment.log"

    @property
    def cgroup(self) -> Path:
        """Names the memory cgroup of the command, where there is one."""
        return self.path / "cgroup"

    @property
    def runner_log(self) -> Path:
        """What went wrong in the runner itself, with its traceback; for maintainers of Carrel."""
        return self.path / "runner.log"


@dataclass(frozen=True, slots=True)
class Spool:
    """The spool directory of a lab on one node."""

    root: Path

    def attempt(self, job_id: int, attempt: int) -> AttemptDirectory:
        """The directory of one attempt; nothing is created."""
        return AttemptDirectory(self.root / str(job_id) / str(attempt))
