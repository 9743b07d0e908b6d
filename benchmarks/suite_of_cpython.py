"""CPython's own tests of executors, run against `carrel.Executor`: `python benchmarks/suite_of_cpython.py DIRECTORY [-v]`.

DIRECTORY is the one that has CPython's `test` package of this version (Debian has it in two packages:
libpython3.11-testsuite, and libpython3.11-stdlib for `test/support`).
All classes that say what an executor does are taken; what they say of threads and processes of `concurrent.futures` itself
(their names, numbers, pipes and locks) is left out.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import cloudpickle

import carrel
from support.lab_process import start_lab

#: Class of CPython's -> its tests that are left out, with the reason.
CLASSES: dict[str, dict[str, str]] = {
    "WaitTests": {},
    "AsCompletedTests": {},
    "ExecutorTest": {},
    "ExecutorShutdownTest": {
        "test_interpreter_shutdown": "starts an interpreter with an executor of its own",
        "test_submit_after_interpreter_shutdown": "the same",
        "test_hang_gh83386": "the same",
        "test_cancel_futures": "wants some of 50 calls to be done; the first worker is still starting, so all are cancelled",
    },
    "ExecutorDeadlockTest": {
        "test_shutdown_deadlock": "makes executors of its own",
        "test_shutdown_deadlock_pickle": "the same",
        "test_error_at_task_unpickle": "wants the pool to be broken; here the future has the error, and the worker goes on",
        "test_exit_at_task_unpickle": "the same",
        "test_exit_during_func_exec_on_worker": "the same, of sys.exit()",
        "test_exit_during_result_pickle_on_worker": "the same",
        "test_error_during_result_unpickle_in_result_handler": "the same, in this process",
        "test_exit_during_result_unpickle_in_result_handler": "the same",
    },
    "ProcessPoolExecutorTest": {
        "test_max_workers_too_large": "a limit of Windows",
        "test_traceback": "pickles its own class, and so the executor",
        "test_ressources_gced_in_workers": "a manager's proxies, which live in this process",
        "test_saturation": "looks at semaphores",
        "test_idle_process_reuse_one": "counts processes",
        "test_idle_process_reuse_multiple": "the same",
        "test_max_tasks_per_child": "an option that is not here",
        "test_max_tasks_per_child_defaults_to_spawn_context": "the same",
        "test_max_tasks_early_shutdown": "the same",
        "test_killed_child": "kills a process by an attribute of the executor",
    },
}


class Executor(carrel.Executor):
    """What tests make: as the documentation says, without a client; a context of multiprocessing means nothing here."""

    def __init__(self, max_workers: int | None = None, mp_context: object = None, **options: Any) -> None:  # noqa: ARG002
        super().__init__(max_workers, requirements=[], modules=[], memory="256M", **options)


class Ours:
    """What an executor of the tests is."""

    def get_context(self) -> None:
        return None

    def setUp(self) -> None:
        self.executor = Executor(2)
        super().setUp()  # type: ignore[misc]

    def tearDown(self) -> None:
        self.executor.shutdown(wait=True)
        super().tearDown()  # type: ignore[misc]


def suite(tests: Any) -> unittest.TestSuite:
    found = unittest.TestSuite()
    for name, left_out in CLASSES.items():
        theirs = getattr(tests, name)
        body = {"executor_type": Executor, "worker_count": 2, "timeout": 60}
        made = type(name, (Ours, theirs, unittest.TestCase), body)
        names = [test for test in unittest.TestLoader().getTestCaseNames(made) if test not in left_out]
        found.addTests(made(test) for test in names)
    return found


def main() -> int:
    sys.path.insert(0, sys.argv[1])
    sys.modules.pop("test", None)
    tests = importlib.import_module("test.test_concurrent_futures")
    cloudpickle.register_pickle_by_value(tests)
    signal.alarm(900)
    with tempfile.TemporaryDirectory(prefix="carrel-suite-") as directory:
        lab = start_lab(Path(directory) / "home", "--cpus", "16", simulate_gpus=0)
        os.environ.update(CARREL_URL=lab.url, CARREL_TOKEN=lab.token)
        result = unittest.TextTestRunner(verbosity=2 if "-v" in sys.argv else 1).run(suite(tests))
        lab.end_jobs()
        lab.stop()
    bad = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - bad} of {result.testsRun} passed")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
