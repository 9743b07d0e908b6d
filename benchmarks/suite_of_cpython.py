"""CPython's own tests of executors, run against `carrel.Executor`: `python benchmarks/suite_of_cpython.py DIRECTORY [-v]`.

DIRECTORY is the one that has CPython's `test` package of this version (Debian has it in two packages:
libpython3.11-testsuite, and libpython3.11-stdlib for `test/support`).
All classes that say what an executor does are taken; what they say of threads and processes of `concurrent.futures` itself
(their names, numbers, pipes and locks) is left out.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import signal
import sys
import tempfile
import unittest
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

import carrel
from support.lab_process import start_lab

_BROKEN = "applies, and is otherwise on purpose: it wants a broken pool, and here the future has the error of its unpickling"
_PRIVATE = "names private attributes of a pool of processes"
_IMPORTS = "its program imports the executor by name from concurrent.futures; tests/executor has the same"
_CHILD = "an option of processes: here `idle_time` and `time` say how long a worker lives"
#: Class of CPython's -> its tests that are left out, with the reason.
CLASSES: dict[str, dict[str, str]] = {
    "WaitTests": {},
    "AsCompletedTests": {},
    "ExecutorTest": {},
    "ExecutorShutdownTest": {
        "test_interpreter_shutdown": _IMPORTS,
        "test_submit_after_interpreter_shutdown": _IMPORTS,
        "test_hang_gh83386": _IMPORTS,
    },
    "ExecutorDeadlockTest": {
        "test_shutdown_deadlock_pickle": _PRIVATE,
        "test_error_at_task_unpickle": _BROKEN,
        "test_error_during_result_unpickle_in_result_handler": _BROKEN,
    },
    "ProcessPoolExecutorTest": {
        "test_max_workers_too_large": "a limit of Windows",
        "test_traceback": "names a private class of concurrent.futures",
        "test_ressources_gced_in_workers": "a manager's proxies, which live in this process",
        "test_saturation": _PRIVATE,
        "test_idle_process_reuse_one": _PRIVATE,
        "test_idle_process_reuse_multiple": _PRIVATE,
        "test_max_tasks_per_child": _CHILD,
        "test_max_tasks_per_child_defaults_to_spawn_context": _CHILD,
        "test_max_tasks_early_shutdown": _CHILD,
        "test_killed_child": _PRIVATE,
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
        self.executor.submit(abs, 1).result()  # the first worker is there, as a process of a pool is at once
        super().setUp()  # type: ignore[misc]

    def tearDown(self) -> None:
        self.executor.shutdown(wait=True)
        super().tearDown()  # type: ignore[misc]


def modules(tests: ModuleType) -> list[ModuleType]:
    """The modules that the tests are in: one to CPython 3.11, those of a package since."""
    names = [one.name for one in pkgutil.iter_modules(getattr(tests, "__path__", []))]
    return [importlib.import_module(f"{tests.__name__}.{name}") for name in names] or [tests]


def suite(tests: list[ModuleType]) -> unittest.TestSuite:
    found = unittest.TestSuite()
    for name, left_out in CLASSES.items():
        theirs = next(getattr(one, name) for one in tests if hasattr(one, name))
        body = {"executor_type": Executor, "worker_count": 2, "timeout": 60}
        made = type(name, (Ours, theirs, unittest.TestCase), body)
        names = [test for test in unittest.TestLoader().getTestCaseNames(made) if test not in left_out]
        found.addTests(made(test) for test in names)
    return found


def main() -> int:
    sys.path.insert(0, sys.argv[1])
    sys.modules.pop("test", None)
    tests = modules(importlib.import_module("test.test_concurrent_futures"))
    for one in tests:
        cloudpickle.register_pickle_by_value(one)
    signal.alarm(900)
    with tempfile.TemporaryDirectory(prefix="carrel-suite-") as directory:
        lab = start_lab(Path(directory) / "home", "--cpus", "16", simulate_gpus=0)
        os.environ.update(CARREL_URL=lab.url, CARREL_TOKEN=lab.token)
        result = unittest.TextTestRunner(verbosity=2 if "-v" in sys.argv else 1).run(suite(tests))
        lab.end_jobs()
        lab.stop()
    bad = len(result.failures) + len(result.errors)
    otherwise = sum(reason == _BROKEN for left_out in CLASSES.values() for reason in left_out.values())
    print(f"{result.testsRun - bad} of {result.testsRun} passed; {otherwise} more apply, and are otherwise on purpose")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
