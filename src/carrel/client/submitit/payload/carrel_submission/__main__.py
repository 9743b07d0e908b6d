"""Carries out a submission: ``python -m carrel_submission PYTHON CLUSTER [--one-stream] [--for-submitit]``.

PYTHON is the version of the caller's Python. The submission lies in ``submissions/`` beside this package, by the index in the
array; the result goes to ``submitit/RANK_result.pkl`` of the job's outputs, with what the process printed. A checkpoint lies in
the job's checkpoint directory, where the next attempt finds it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from carrel_submission import streams

#: Exit code of a process that has written a checkpoint, and wants to go on: that of SIGTERM, as shells have it.
GOES_ON = 143
#: What `torch.distributed` reads. submitit's own `export` sets it, and refuses when it is set.
_OF_GROUPS = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
_HERE = Path(__file__).resolve().parents[1]


class GoesOn(BaseException):
    """The checkpoint is written; nothing else is to be done."""


class Task:
    """One process of the job."""

    def __init__(self) -> None:
        self._rank = int(os.environ.get("RANK", "0"))
        self._outputs = Path(os.environ["CARREL_OUTPUT_DIR"]) / "submitit"
        self._checkpoint = Path(os.environ["CARREL_CHECKPOINT_DIR"])
        self._saved = self._checkpoint / "submission.pkl"
        self._submission: Any = None

    def carry_out(self, *, one_stream: bool) -> int:
        """Return the exit code."""
        self._outputs.mkdir(parents=True, exist_ok=True)
        logs = [self._outputs / "{}_log.{}".format(self._rank, end) for end in ("out", "err")]
        if self._saved.exists():
            for log in logs:
                if (self._checkpoint / log.name).exists():
                    shutil.copyfile(str(self._checkpoint / log.name), str(log))
        end = streams.split(str(logs[0]), None if one_stream else str(logs[1]))
        if end is None:
            return self._work()
        if end == GOES_ON:
            for log in logs:
                if log.exists():
                    shutil.copyfile(str(log), str(self._checkpoint / log.name))
        if end < 0:  # end as the work did
            signal.signal(-end, signal.SIG_DFL)
            os.kill(os.getpid(), -end)
        return end if end >= 0 else 128 - end

    def _work(self) -> int:
        try:
            _go_where_it_was_submitted()
            self._submission = self._load()
            self._mind_the_end()
            result: Any = "success", self._submission.result()
        except GoesOn:
            return GOES_ON
        except BaseException:
            traceback.print_exc()
            result = "error", traceback.format_exc()
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return self._tell(result)

    def _load(self) -> Any:
        from carrel.client.submitit.submission import DelayedSubmission

        first = _HERE / "submissions" / (os.environ.get("CARREL_ARRAY_TASK_ID", "0") + ".pkl")
        return DelayedSubmission.load(self._saved if self._saved.exists() else first)

    def _mind_the_end(self) -> None:
        from carrel.client.submitit.submission import checkpoint_method

        if checkpoint_method(self._submission.function) is not None:
            # The first process speaks for all; the others go on until it has ended.
            signal.signal(signal.SIGTERM, self._go_on if self._rank == 0 else signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    def _go_on(self, *_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("carrel: the job's time here is over. Its checkpoint is taken.", flush=True)
        following = self._submission.checkpoint()
        if following is None:
            following = _over("The job does not go on: its checkpoint() returned None.")
        following.dump(self._saved)
        raise GoesOn

    def _tell(self, result: Any) -> int:
        from carrel.client.submitit.submission import write_pickle

        path = self._outputs / "{}_result.pkl".format(self._rank)
        try:
            write_pickle(result, path)
        except Exception:
            print("carrel: what the function returned cannot be pickled.", file=sys.stderr)
            traceback.print_exc()
            result = "error", traceback.format_exc()
            write_pickle(result, path)
        return 0 if result[0] == "success" else 1


def _go_where_it_was_submitted() -> None:
    """Work in the caller's directory, where that is here: functions open files by names that are relative to it."""
    try:
        os.chdir((_HERE / "directory").read_text())
    except OSError:
        pass  # another machine, or behind walls: the job's own directory


def _over(message: str) -> Any:
    from carrel.client.submitit.submission import DelayedSubmission, give_up

    return DelayedSubmission(give_up, message)


def main() -> int:
    """Run the submission of this job."""
    sys.path.insert(1, str(_HERE / "modules"))
    sys.path.append(str(_HERE / "face"))  # an environment that has Carrel has more of it
    own = "{}.{}".format(*sys.version_info[:2])
    if own != sys.argv[1]:
        print("carrel: this is Python {}, and the submission is of Python {}.".format(own, sys.argv[1]))
        return 1
    os.environ["SUBMITIT_EXECUTOR"] = sys.argv[2]
    task = Task()
    if "--for-submitit" in sys.argv[3:]:
        for name in _OF_GROUPS:
            if name in os.environ:
                os.environ["SUBMITIT_" + name] = os.environ.pop(name)
    return task.carry_out(one_stream="--one-stream" in sys.argv[3:])


if __name__ == "__main__":
    sys.exit(main())
