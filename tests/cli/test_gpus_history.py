"""What `carrel gpus` draws with characters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from carrel.cli.gpus import _print_memory
from carrel.cli.gpus_history import hour_lines, hour_sums, memory_bar
from carrel.cli.main import main
from carrel.core.domain.units import GIB
from carrel.wire.v1 import LendingView
from carrel.wire.v1.sessions import HostView

NOW = 10_000.0


def lending(**device: Any) -> LendingView:
    def row(what: str, since: float, until: float | None, job: int | None, role: str = "kernel") -> dict[str, Any]:
        mine = job is not None
        about = {"job": job, "owner": "ada" if mine else "", "label": "", "role": role, "mine": mine}
        length = (until if until is not None else 0.0) - since
        return {"device": "G", "what": what, "since": NOW + 60 * since, "until": None if until is None else NOW + 60 * until,
                "seconds": 60 * length if until is not None else 0.0, **about}  # fmt: skip

    hour = [
        row("computes", -70.0, -40.0, 1, "runner"),
        row("paused", -40.0, -20.0, 1, "runner"),
        row("computes", -40.0, -25.0, None),
        row("leaves", -20.5, -20.0, 2),
        row("computes", -5.0, None, 2),
    ]
    shown = {"uuid": "G", "index": 3, "name": "a GPU", "memory": 16 * GIB, "simulated": True, "known_since": 0.0, **device}
    tenants = [{"id": "a", "job": 2, "owner": "ada", "state": "resident", "mine": True}]
    return LendingView.model_validate({"available": True, "devices": [shown], "hour": hour, "tenants": tenants})


@pytest.mark.gate
def test_each_minute_of_the_hour_has_a_sign_and_each_owner_a_sum() -> None:
    found = lending()
    has, beside = hour_lines(found, found.devices[0], NOW)
    assert has == "=" * 20 + "#" * 15 + "." * 20 + "#" * 5
    assert beside == " " * 20 + "p" * 19 + "p"
    assert hour_sums(found, NOW) == [
        ("3", "job 1 (ada)", "20 min", "", "20 min", ""),
        ("3", "somebody else", "15 min", "", "", ""),
        ("3", "job 2 (ada)", "5 min", "", "", "30 s"),
    ]


def test_what_is_not_known_is_not_called_idle() -> None:
    found = lending(known_since=NOW - 600.0)
    has, _ = hour_lines(found.model_copy(update={"hour": []}), found.devices[0], NOW)
    assert has == "?" * 50 + "." * 10


def test_memory_by_owner_is_a_bar_and_words() -> None:
    by = [{"tenant": "a", "bytes": 8 * GIB, "cached": 2 * GIB}, {"tenant": "z", "bytes": GIB, "cached": 0}]
    found = lending(used=10 * GIB, by=by)
    bar, words = memory_bar(found, found.devices[0], lambda tenant: f"job {tenant.job}")
    assert bar == "[" + "#" * 10 + "+" * 4 + "o" + "." * 9 + "]"
    assert words == "job 2 8G (2G cache), somebody else 1G, other 1G, free 6G"


def test_a_disk_that_no_state_can_go_to_is_named_with_its_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    said = "There is no place for the key of GPU states on the disk: /dev/shm is not in memory. Give the lab's user a tmpfs."
    found = lending().model_copy(update={"host": HostView(states=0, disk_problem=said)})
    _print_memory(found)
    assert f"No GPU state goes to the disk (state_disk): {said}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (("--no-names",), "--no-names is about recorded cells."),
        (("--last", "1d"), "--last is about recorded cells."),
        (("--cells", "--watch"), "--watch is about what GPUs do now, and --cells is about what is over."),
        (("--cells", "--history"), "--history is about what GPUs do now, and --cells is about what is over."),
        (("--cells", "--no-names", "--json"), "--json has all that the lab knows of cells, names too."),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    words: tuple[str, ...], fact: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gpus", *words, "--home", str(tmp_path)]) == 2
    assert fact in capsys.readouterr().err
