"""`carrel calibrate`: what moved since the baselines were set?"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

from carrel.cli.baseline import find_baseline, moved_text, name_of
from carrel.cli.endings import INTERRUPTED, OK, OTHER
from carrel.cli.options import AsJson, Home, argument, flag, open_client
from carrel.cli.screen import StatusLine, clean, paint, print_json
from carrel.core.domain.errors import Conflict, Denied, Invalid, NotFound

if TYPE_CHECKING:
    from carrel.cli.screen import StatusLine
    from carrel.client import Client
    from carrel.wire.v1 import BaselineView, CalibrationView

_STYLES = {"moved": "red", "same": "green", "not known": "yellow"}


def calibrate_command(
    names: Annotated[
        list[str] | None, argument("NAME", 'Projects that have a baseline; "USER/NAME" for those of another user.')
    ] = None,
    everything: Annotated[bool, flag("--all", "All your baselines; everybody's, for administrators.")] = False,
    fresh: Annotated[bool, flag("--fresh", "Resolve their environments anew: what did packages change?")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Run baselines again and say what moved: after an upgrade of the driver, of the machine, or of packages.

    They run as jobs of yours, with the lock of each baseline; --fresh resolves environments anew. Asked again after Ctrl-C it
    goes on with the same jobs. The exit code is 0 when nothing moved, 1 when something did, or when too little is known.
    """
    if bool(names) == everything:
        raise Invalid(
            "Names of baselines and --all are given." if names else "No baseline is named.",
            remedy="Name some, or say --all: `carrel baseline list` lists yours.",
        )
    line = StatusLine()
    with open_client(home) as client:
        # The order in which they were named, each once.
        found = _all(client) if everything else [find_baseline(client, name) for name in names or ()]
        chosen = list({one.id: one for one in found}.values())
        mine = client.lab().caller.subject
        round_ = _Round(client, mine, line, fresh=fresh, quiet=as_json)
        try:
            round_.begin(chosen)
            round_.wait()
        except KeyboardInterrupt:
            words = [*(["--all"] if everything else names or ()), *(["--fresh"] if fresh else ())]
            line.note(f"The jobs go on. Go on with: carrel calibrate {shlex.join(words)}")
            return INTERRUPTED
    if as_json:
        print_json({"calibrations": round_.told})
    elif not chosen:
        print("There are no baselines.")
    return OK if round_.nothing_moved else OTHER


class _Round:
    """Baselines that are run again together."""

    def __init__(self, client: Client, mine: str, line: StatusLine, *, fresh: bool, quiet: bool) -> None:
        self._client, self._mine, self._line, self._fresh, self._quiet = client, mine, line, fresh, quiet
        self._begun: list[tuple[BaselineView, CalibrationView]] = []
        self.nothing_moved = True
        #: For programs, in the order in which it became known.
        self.told: list[dict[str, object]] = []

    def begin(self, chosen: list[BaselineView]) -> None:
        """Submit what is not there yet. What cannot be run again is told, and the others go on."""
        for one in chosen:
            try:
                self._begun.append((one, self._client.calibrate(one.id, fresh=self._fresh)))
            except (Conflict, Denied, Invalid, NotFound) as error:
                self.nothing_moved = False
                self._tell(one, "not known", f"It cannot be run again. {error}", {"outcome": "not known", "told": str(error)})
        if self._begun:
            jobs = ", ".join(f"job {found.job}" for _, found in self._begun[:5]) + (" …" if len(self._begun) > 5 else "")
            count = f"{len(self._begun)} {'baseline' if len(self._begun) == 1 else 'baselines'}"
            self._line.note(f"Running {count} again ({jobs})")

    def wait(self) -> None:
        """Wait for all of them, and say of each what moved."""
        from carrel.cli.follow import wait_shown

        for one, begun in self._begun:
            wait_shown(self._client, begun.job, self._line)
            found = self._client.calibration(one.id, begun.job)
            self.nothing_moved &= found.outcome == "same"
            short = found.told if found.drift is None else found.drift.words
            self._tell(one, found.outcome or "not known", f"{short} (job {found.job})", found.model_dump(mode="json"))
            if not self._quiet:
                self._tell_why(one, found)

    def _tell(self, one: BaselineView, outcome: str, text: str, whole: dict[str, object]) -> None:
        self.told.append({"owner": one.owner, "project": one.project, "baseline": one.job, **whole})
        if not self._quiet:
            name = name_of(one, one.owner != self._mine)
            print(f"{clean(name)}: {paint(outcome, _STYLES.get(outcome, ''))}: {clean(text)}", flush=True)

    def _tell_why(self, one: BaselineView, found: CalibrationView) -> None:
        if found.drift is None:
            return
        for sentence in found.drift.not_known:
            print(clean(f"  {sentence}"))
        if found.outcome != "moved":
            return
        for path in found.drift.moved_outputs:
            print(clean(f"  output {path}"))
        for moved in [*found.drift.moved_metrics, *found.drift.packages, *found.drift.others]:
            before_after = f": {moved.before} -> {moved.after}" if moved.relative is not None else ""
            print(clean(f"  {moved_text(moved)}{before_after}"))
        if not (found.drift.packages or found.drift.others):
            print("  Nothing differs beside results that is known.")
        verified = self._client.job(one.job).verified or "not known"
        if verified.startswith("not known"):
            print(f"  It may be chance: whether job {one.job} repeats itself is not known. Find out: carrel verify {one.job}")
        elif verified.startswith("different"):
            print(clean(f"  It may be chance: job {one.job} was {verified}."))


def _all(client: Client) -> list[BaselineView]:
    try:
        return client.baselines(everybody=True)
    except Denied:
        return client.baselines()
