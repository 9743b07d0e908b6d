"""What the brokers of a cluster's nodes have said: who has which GPU there, and what cells have borrowed.

They say it in files of the lab's home (`carrel.node.leases.report`), which wait for a lab that is away. A thread reads what is
new.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from carrel.core.control.sessions import NodeReport
from carrel.core.domain.ports import Clock
from carrel.lab.server.lending import charges_of
from carrel.node.leases.report import LONGEST, Report, read_report, report_key

_log = logging.getLogger(__name__)

#: After so many looks the charges are reported again: the database may not have answered.
_TELL_LOOKS = 15
#: Seconds after which what a broker said is not what is: it says something every ten, and a file system of several machines may
#: show a new file half a minute late.
STALE_SECONDS = 60.0
#: Seconds for which the last word of a broker is shown, and for which it is kept (what it charges was written down long before).
_SHOWN_SECONDS, _KEPT_SECONDS = 86_400.0, 30 * 86_400.0

Charges = Mapping[tuple[int, int], float]
#: What tells one content of a file from another: inode, time of change, size.
_Look = tuple[int, int, int]


class NodeReports:
    """The brokers' reports. Thread-safe."""

    def __init__(self, directory: Path, *, secret: bytes, clock: Clock, look_time: float = 1.0) -> None:
        """`look_time` are the seconds between two looks at the directory."""
        self._directory = directory
        self._key = report_key(secret)
        self._clock = clock
        self._look_time = look_time
        self._looks: dict[str, _Look] = {}
        #: By broker; replaced as a whole. With the moment at which the lab heard it.
        self._heard: Mapping[str, tuple[Report, float]] = {}
        self._charge: Callable[[Charges], None] = lambda _charges: None
        #: True while something was heard that `charge` was not told.
        self._untold = False
        self._trouble = ""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="node reports", daemon=True)

    def start(self, charge: Callable[[Charges], None]) -> None:
        """Begin to read. `charge` gets, from a thread, what cells have borrowed: devices × seconds by job and attempt."""
        self._charge = charge
        self._thread.start()

    def close(self) -> None:
        """Read no more."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=5)

    def nodes(self) -> Sequence[NodeReport]:
        """What is known of each node: the word of the broker that was heard there last, by name of the node."""
        now = self._clock()
        latest: dict[str, NodeReport] = {}
        for report, heard in self._heard.values():
            # Neither a clock of the node's that is wrong nor a file that comes late makes old news young.
            age = max(0.0, now - report.at, now - heard)
            before = latest.get(report.node)
            if age < _SHOWN_SECONDS and (before is None or age < before.age):
                current = age < STALE_SECONDS and not report.ended
                latest[report.node] = NodeReport(
                    node=report.node, age=age, current=current, ended=report.ended, status=report.status
                )
        return [latest[name] for name in sorted(latest)]

    def _run(self) -> None:
        for looks in itertools.count(1):
            try:
                # With half of the sums in hand, the other half would be charged again when it comes.
                if self._look() and (self._untold or looks % _TELL_LOOKS == 0):
                    self._charge(self._charges())
                    self._untold = False
            except Exception:  # noqa: BLE001 - the next look may go well, and reports say it again
                _log.exception("What the brokers of the cluster's nodes say could not be taken.")
            if self._closing.wait(self._look_time):
                return

    def _charges(self) -> Charges:
        """What each attempt has borrowed. Brokers count for themselves: one that lost its journal is another one from then on."""
        found: dict[tuple[int, int], float] = {}
        for report, _ in self._heard.values():
            for of, seconds in charges_of(report.status).items():
                found[of] = found.get(of, 0.0) + seconds
        return found

    def _look(self) -> bool:
        """Read what is new; False when something is there that cannot be read now."""
        heard, looks, whole = dict(self._heard), {}, True
        try:
            names = sorted(path.name for path in self._directory.iterdir())
        except FileNotFoundError:
            return True
        now = self._clock()
        for name in names:
            path = self._directory / name
            try:
                about = path.lstat()
                if now - about.st_mtime > (_SHOWN_SECONDS if name.startswith(".") else _KEPT_SECONDS):
                    path.unlink()
                elif not name.startswith("."):
                    looks[name] = (about.st_ino, about.st_mtime_ns, about.st_size)
                    if looks[name] != self._looks.get(name):
                        report = self._understood(path, _read(path))
                        before = None if report is None else heard.get(report.broker)
                        # An older one that was put back changes nothing.
                        if report is not None and (before is None or report.number > before[0].number):
                            heard[report.broker] = report, now
                            self._untold = True
            except FileNotFoundError:
                continue  # what a broker is writing
            except OSError as error:
                whole = False
                looks.pop(name, None)
                if str(error) != self._trouble:
                    _log.warning("%s cannot be read: %s. It is tried again.", path, error)
                self._trouble = str(error)
        self._looks = looks
        here = {f"{broker}.json" for broker in heard} & set(names)
        self._heard = {broker: found for broker, found in heard.items() if found[0].file in here}
        return whole

    def _understood(self, path: Path, data: bytes | None) -> Report | None:
        if data is None:
            _log.warning("%s is no plain file of the lab's own", path)
            return None
        try:
            report = read_report(data, self._key)
            charges_of(report.status)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("%s is no report of a broker: %s", path, error)
            return None
        if path.name != report.file:
            _log.warning("%s is the report of another broker, %s", path, report.broker)
            return None
        return report


def _read(path: Path) -> bytes | None:
    """The content of a plain file; None where something else has its name, or it is not for us. Raises `OSError`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.ELOOP, errno.ENXIO):
            return None
        raise
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read(LONGEST + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
