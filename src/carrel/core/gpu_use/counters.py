"""Counters of use in the text format of Prometheus (version 0.0.4). They only grow, and begin at 0 with the server. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from carrel.core.gpu_use.facts import AttemptFacts, LentFacts, WaitFacts
from carrel.core.gpu_use.groups import Grouping, Range
from carrel.core.gpu_use.sums import UseSums
from carrel.core.gpu_use.waits import Waits

_Labels = tuple[str, ...]
#: By name: what it is, and its labels. No names of users: those are in reports.
_FAMILIES: Mapping[str, tuple[str, _Labels]] = {
    "carrel_gpu_seconds_total": ("GPU-seconds that attempts of jobs held.", ("account", "qos", "kind")),
    "carrel_lent_gpu_seconds_total": (
        "GPU-seconds that cells and calls borrowed, once they are over.",
        ("account", "qos", "kind"),
    ),
    "carrel_lent_total": ("Cells and calls that had GPUs, once they are over.", ("account", "qos", "kind")),
    "carrel_wait_seconds_total": ("Seconds for which jobs waited, by the reason that their owners were told.", ("qos", "reason")),
}


class UseCounters:
    """`add` one stretch of time after the other; each adds to what was there, so a counter never falls."""

    def __init__(self, since: float, lease: int) -> None:
        #: Until when attempts and waits are counted, and the last of the cells and calls that are.
        self.until = since
        self.lease = lease
        self._values: dict[str, defaultdict[_Labels, float]] = {name: defaultdict(float) for name in _FAMILIES}

    def add(
        self,
        until: float,
        attempts: Iterable[AttemptFacts],
        lent: Iterable[LentFacts],
        last: int,
        waits: Iterable[WaitFacts],
    ) -> None:
        """Count what jobs had and waited for from `self.until` to `until`, and what was lent after `self.lease`, until `last`."""
        within, sums = Range(self.until, until), dict[_Labels, UseSums]()
        for facts in attempts:
            key: _Labels = (facts.account, facts.qos, facts.kind)
            (sums.get(key) or sums.setdefault(key, UseSums(Grouping.KIND, within, until))).add((facts,))
        told = Waits(within, until)
        told.add(waits)
        new = list(lent)
        # Nothing of it is counted before all of it was read.
        self.until, self.lease = until, last
        for key, one in sums.items():
            if held := one.total.all_held:
                self._values["carrel_gpu_seconds_total"][key] += held
        for cells in new:
            key = (cells.account, cells.qos, cells.kind)
            self._values["carrel_lent_gpu_seconds_total"][key] += max(0.0, cells.lent)
            self._values["carrel_lent_total"][key] += cells.cells
        for qos, by_reason in told.classes.items():
            for reason, seconds in by_reason.items():
                self._values["carrel_wait_seconds_total"][qos, reason] += seconds

    def text(self) -> str:
        """All of them."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        for name, (words, labels) in _FAMILIES.items():
            yield f"# HELP {name} {words}"
            yield f"# TYPE {name} counter"
            for values, amount in sorted(self._values[name].items()):
                named = ",".join(f'{label}="{_escaped(value)}"' for label, value in zip(labels, values, strict=True))
                yield f"{name}{{{named}}} {amount:.3f}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
