"""A second look at tests that fail: `pytest --second-look` runs up to three of them once more, alone, after all the others.

A test that passes then is *unsteady*. The run is green, and its last lines name the test: it is to be mended, or to be moved to
another tier (tests/tiers.py).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator, Sequence

import pytest

#: More failures than this are no accident, and are not looked at.
MOST = 3


class SecondLook:
    """The plugin; it sees the reports of all workers, and acts when they have ended."""

    def __init__(self) -> None:
        #: Names of the tests that failed, in their order.
        self._failed: dict[str, None] = {}
        #: Names of those that were run.
        self._run: set[str] = set()
        self._collected = True

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Files that cannot be collected fail for good."""
        self._collected = self._collected and not report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that was run, and whether it failed."""
        self._run.add(report.nodeid)
        if report.failed:
            self._failed[_without_group(report.nodeid)] = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """After all else, and after the summary: run again what failed."""
        yield
        # Of a run that was stopped nobody knows what the other tests would have said.
        complete = self._collected and len(self._run) >= session.testscollected
        if complete and self._failed and session.exitstatus == pytest.ExitCode.TESTS_FAILED:
            session.exitstatus = look(session.config, list(self._failed))


def look(config: pytest.Config, failed: Sequence[str]) -> pytest.ExitCode:
    """Run the tests once more, in a process of their own; return what comes of the whole run."""
    if len(failed) > MOST:
        _say(config, f"{len(failed)} tests failed. Up to {MOST} would be run once more.")
        return pytest.ExitCode.TESTS_FAILED
    _say(config, f"Once more, alone: {', '.join(failed)}")
    words = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", *failed]
    if subprocess.run(words, cwd=config.invocation_params.dir, check=False).returncode:
        _say(config, "red: a test failed twice.")
        return pytest.ExitCode.TESTS_FAILED
    for name in failed:
        _say(config, f"unsteady: {name} failed beside others and passed alone. Mend it, or move it to `make test-all`.")
    return pytest.ExitCode.OK


def _without_group(nodeid: str) -> str:
    """Return the name of a test without the group that pytest-xdist has put behind it."""
    at = nodeid.rfind("@")
    return nodeid[:at] if at > nodeid.rfind("]") and at > nodeid.rfind("::") else nodeid


def _say(config: pytest.Config, text: str) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    assert reporter is not None
    reporter.write_line(text)
    sys.stdout.flush()
