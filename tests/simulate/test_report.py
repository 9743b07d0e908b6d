"""The report says what was measured, is one file that asks nobody for anything, and believes no name."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.core.domain.errors import Invalid
from carrel.simulate.baselines import Piece, simulate_baseline
from carrel.simulate.measures import measure
from carrel.simulate.notebooks.forming import NotebookCell, NotebookSession
from carrel.simulate.notebooks.modes import EAGER, LAZY, RESERVATION, cull, simulate
from carrel.simulate.outcome import Outcome, Run
from carrel.simulate.report import (
    Comparison,
    NotebookRow,
    Table,
    as_json,
    compare,
    notebooks_table,
    page,
    policies_table,
    write_report,
)
from carrel.simulate.report.axes import Axis, durations, even_durations, numbers
from carrel.simulate.trace import Cluster, Trace, TraceJob
from carrel.simulate.traces import read_trace
from carrel.testing.chromium import a_chromium
from carrel.testing.examples import examples

TRACE3 = Path(__file__).parents[1] / "data" / "traces" / "muri" / "trace3.csv"
MURI = Cluster(nodes=8, gpus_per_node=8)
#: Elements of HTML and SVG that have no end tag in the page.
VOID = {"meta", "link"}
NASTY = "<script>alert(1)</script>\"'&\x00\x1b[31m\udc80\u202e"


class Reader(HTMLParser):
    """Checks that every element ends where it must, and keeps what was seen."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.references: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), f"{tag} has {name}"
            if name in ("href", "src", "xlink:href", "srcset", "action", "data", "poster"):
                self.references.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += " " + data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def check_self_contained(html: str) -> Reader:
    reader = read(html)
    assert all(reference.startswith(("data:", "#")) for reference in reader.references)
    assert not {"script", "iframe", "object", "embed", "img", "base", "form"} & reader.tags
    style = html[html.index("<style>") : html.index("</style>")]
    assert not re.search(r"url\(|@import|https?:", style)
    assert len(set(reader.ids)) == len(reader.ids)
    html.encode()
    return reader


def recorded() -> Trace:
    return read_trace(TRACE3)


def of_policies(trace: Trace, *policies: str, facts: Mapping[str, str] | None = None) -> Comparison:
    pieces: dict[str, list[Piece]] = {policy: [] for policy in policies}
    outcomes = [simulate_baseline(policy, trace, MURI, pieces=pieces[policy].append) for policy in policies]
    return Comparison(title="Policies", trace=trace, cluster_gpus=64, outcomes=outcomes, facts=facts or {}, pieces=pieces)


def some_notebooks() -> Sequence[NotebookRow]:
    def session(number: int, *cells: tuple[float, float]) -> NotebookSession:
        members = [NotebookCell(id=at, submitted=begin, duration=length) for at, (begin, length) in enumerate(cells)]
        return NotebookSession(id=number, gpus=1, cells=members)

    sessions = [session(0, (0, 100), (200, 100)), session(1, (50, 100), (400, 100)), session(2, (60, 4000))]
    return [
        NotebookRow(result=simulate(sessions, mode, 2), gpus_without_waits=3, gpus_for_a_minute=2)
        for mode in (RESERVATION, cull(1), EAGER, LAZY)
    ]


def random_outcome(seed: int, *, jobs: int, users: int) -> tuple[Trace, Outcome]:
    """Jobs that wait and run for about as long as in a lab, whether or not they fit."""
    dice = random.Random(seed)
    runs = []
    for id in range(jobs):
        submitted, ran = dice.random() * 1e7, dice.lognormvariate(7, 2)
        start = submitted + dice.expovariate(1 / 3000)
        runs.append(Run(id, f"user-{dice.randrange(users)}", dice.choice([1, 2, 4, 8]), submitted, start, start + ran, ran))
    runs.sort(key=lambda run: run.submitted)
    members = [TraceJob(id=run.id, submitted=run.submitted, duration=run.ran, gpus=run.gpus, user=run.user) for run in runs]
    return Trace(name="random", jobs=members), Outcome(policy="any", trace="random", gpus=512, runs=runs)


def test_the_page_says_what_was_simulated_and_how_it_went(tmp_path: Path) -> None:
    comparison = of_policies(recorded(), "fifo", "first-fit", "tiresias", facts={"Seed": "7", "Version": "1.2"})
    write_report(tmp_path / "report.html", comparison)
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    text = check_self_contained(html).text
    assert "992 jobs of 1 user, submitted within 94 d 12 h, which need 116,690 GPU-hours, on 64 GPUs." in text
    assert "Simulated under 3 policies: fifo; first-fit; tiresias." in text
    for said in ("trace3.csv", "Run times are the file&#x27;s durations.", "Seed", "1.2", "10 d 22 h", "944,350.8", "80.3 %"):
        assert said in html
    for plot in ("Waits", "JCT", "GPU-hours", "Jobs stopped before their end", "GPUs in use over time"):
        assert f"<h3>{plot}</h3>" in html
    assert "All jobs are of one user" in text
    assert "estimated" not in text


def test_every_plot_has_a_name_and_a_description_for_those_who_do_not_see_it() -> None:
    html = page(replace(of_policies(recorded(), "fifo", "srtf"), notebooks=some_notebooks()))
    plots = re.findall(r"<svg [^>]*role=\"img\"[^>]*>", html)
    assert len(plots) == html.count("<figure>")
    for plot in plots:
        ids = re.findall(r'aria-(?:labelledby|describedby)="([^"]+)"', plot)
        assert len(ids) == 2
        assert all(f'id="{id}"' in html for id in ids)
    assert "fifo: half at most 12 d 20 h, 95 of 100 at most 16 d 16 h" in html


def test_use_that_is_not_known_exactly_is_called_an_estimate() -> None:
    comparison = of_policies(recorded(), "fifo", "srtf")
    html = page(replace(comparison, pieces={}))
    assert "srtf (estimated)" in html
    assert "fifo (estimated)" not in html


def test_the_same_input_gives_the_same_page() -> None:
    comparison = replace(of_policies(recorded(), "fifo", "srsf"), notebooks=some_notebooks())
    assert page(comparison) == page(replace(of_policies(recorded(), "fifo", "srsf"), notebooks=some_notebooks()))


def test_whatever_comes_from_a_file_is_only_ever_text() -> None:
    job = TraceJob(id=0, submitted=0, duration=60, gpus=1, user=NASTY, name=NASTY)
    other = TraceJob(id=1, submitted=0, duration=60, gpus=1, user="b")
    trace = Trace(name=NASTY, jobs=[job, other], notes=[NASTY])
    run = simulate_baseline("fifo", trace, Cluster(nodes=1, gpus_per_node=1))
    outcome = replace(run, policy=NASTY, trace=NASTY, refused=[(3, NASTY)])
    rows = [replace(row, result=replace(row.result, mode=NASTY)) for row in some_notebooks()[:1]]
    html = page(Comparison(title=NASTY, trace=trace, cluster_gpus=1, outcomes=[outcome], notebooks=rows, facts={NASTY: NASTY}))
    reader = check_self_contained(html)
    assert "<script" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "alert(1)" in reader.text
    assert not re.search("[\x00\x1b\u202e]", html)


@settings(max_examples=examples(30), deadline=None)
@given(st.text(), st.text(), st.lists(st.text(), max_size=3), st.dictionaries(st.text(), st.text(), max_size=3))
def test_no_text_breaks_the_page(user: str, title: str, notes: list[str], facts: dict[str, str]) -> None:
    runs = [Run(0, user, 1, 0, 0, 60, 60), Run(1, user + "b", 1, 0, 60, 7200, 7140)]
    jobs = [TraceJob(id=run.id, submitted=run.submitted, duration=run.ran, gpus=1, user=run.user) for run in runs]
    trace = Trace(name=title, jobs=jobs, notes=notes)
    outcome = Outcome(policy=title, trace=title, gpus=1, runs=runs)
    check_self_contained(page(Comparison(title=title, trace=trace, cluster_gpus=1, outcomes=[outcome], facts=facts)))


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e8), st.floats(0, 1e8), st.floats(0, 1e8), st.integers(0, 64)), max_size=8))
def test_no_numbers_break_the_page(numbers: list[tuple[float, float, float, int]]) -> None:
    runs = [Run(id, str(id), gpus, at, at + wait, at + wait + ran, ran) for id, (at, wait, ran, gpus) in enumerate(numbers)]
    outcome = Outcome(policy="any", trace="any", gpus=64, runs=runs)
    trace = Trace(
        name="any", jobs=[TraceJob(id=run.id, submitted=run.submitted, duration=run.ran, gpus=run.gpus) for run in runs]
    )
    html = page(Comparison(title="any", trace=trace, cluster_gpus=64, outcomes=[outcome]))
    check_self_contained(html)
    assert not re.search(r"\b(nan|inf)\b", html)


def test_at_most_30_users_are_told_apart_and_the_others_are_not_forgotten() -> None:
    trace, outcome = random_outcome(1, jobs=500, users=45)
    html = page(Comparison(title="Users", trace=trace, cluster_gpus=512, outcomes=[outcome]))
    assert "15 others" in html
    assert "The 30 users with the most are shown, the others in one row together." in html
    users = {user.user for user in measure(outcome).users}
    assert sum(f">{user}<" in html for user in users) == 30


@pytest.mark.slow
def test_a_hundred_thousand_jobs_fit_in_a_megabyte() -> None:
    trace, outcome = random_outcome(2, jobs=100_000, users=200)
    outcomes = [replace(outcome, policy=f"policy {number}") for number in range(2)]
    html = page(Comparison(title="Large", trace=trace, cluster_gpus=512, outcomes=outcomes))
    assert len(html.encode()) < 300_000


def test_notebooks_alone_make_a_report() -> None:
    rows = some_notebooks()
    html = page(Comparison(title="Notebooks", trace=Trace(name="a week", jobs=[]), cluster_gpus=2, notebooks=rows))
    text = check_self_contained(html).text
    assert "a week, on 2 GPUs. Notebooks in 4 modes: reservation; cull after 1 min; lease per cell, eager" in text
    for plot in ("GPUs needed", "GPU-hours held", "Waits of requests", "States lost and moved"):
        assert f"<h3>{plot}</h3>" in html
    assert "<h2>Policies</h2>" not in html


def test_what_was_refused_is_said_with_its_reason() -> None:
    refused = [(id, "needs 80 GPUs; the cluster has 64") for id in range(3)] + [(9, "not admitted")]
    outcome = Outcome(policy="fifo", trace="t", gpus=64, runs=[], refused=refused)
    html = page(Comparison(title="None", trace=Trace(name="t", jobs=[]), cluster_gpus=64, outcomes=[outcome]))
    expected = "fifo refused 4 jobs: needs 80 GPUs; the cluster has 64 (job 0 and 2 more); not admitted (job 9)."
    assert expected in check_self_contained(html).text
    assert "No job ran, so there is nothing to draw." in html


def test_a_report_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    comparison = Comparison(title="None", trace=Trace(name="t", jobs=[]), cluster_gpus=2, notebooks=some_notebooks())
    with pytest.raises(Invalid, match=r"cannot be written: No such file or directory\. Name a file"):
        write_report(tmp_path / "missing" / "report.html", comparison)


def test_a_comparison_of_nothing_or_of_two_with_one_name_is_refused() -> None:
    trace = Trace(name="t", jobs=[])
    outcome = Outcome(policy="fifo", trace="t", gpus=1, runs=[])
    with pytest.raises(Invalid, match="nothing to report"):
        Comparison(title="None", trace=trace, cluster_gpus=1)
    with pytest.raises(Invalid, match="2 outcomes of the policy 'fifo'"):
        Comparison(title="Twice", trace=trace, cluster_gpus=1, outcomes=[outcome, outcome])
    with pytest.raises(Invalid, match="2 outcomes of the notebook mode 'reservation'"):
        Comparison(title="Twice", trace=trace, cluster_gpus=1, notebooks=[some_notebooks()[0]] * 2)
    with pytest.raises(Invalid, match="pieces of 'srtf' and no outcome"):
        Comparison(title="Pieces", trace=trace, cluster_gpus=1, outcomes=[outcome], pieces={"srtf": []})


def test_the_table_has_a_row_for_each_policy_and_leaves_out_what_has_nothing_to_tell() -> None:
    assert str(policies_table(of_policies(recorded(), "fifo", "first-fit").measures())).splitlines() == [
        "Policy     Jobs  Mean wait  Median wait   p95 wait   Mean JCT   p95 JCT  Slowdown    Used",
        "fifo        992  10 d 22 h    12 d 20 h  16 d 16 h  11 d 11 h  17 d 3 h     5,025  80.3 %",
        "first-fit   992    5 d 1 h      4 d 1 h  10 d 13 h   5 d 14 h  13 d 3 h     2,342  80.3 %",
    ]


def test_a_what_if_shows_both_and_the_change() -> None:
    trace = recorded()
    before, after = (measure(simulate_baseline("fifo", trace, Cluster(nodes=nodes, gpus_per_node=8)), trace) for nodes in (8, 10))
    rows = {row[0]: list(row[1:]) for row in compare(before, after, ("8 nodes", "10 nodes")).rows}
    assert compare(before, after, ("8 nodes", "10 nodes")).heads == ["", "8 nodes", "10 nodes", "Change"]
    assert rows["GPUs"] == ["64", "80", "+25.0 %"]
    assert rows["Jobs"] == ["992", "992", "0 %"]
    assert rows["Wait, mean"][0] == "10 d 22 h"
    assert rows["Wait, mean"][2].startswith("-")
    assert rows["GPUs in use"][2].endswith(" points")
    assert rows["Times stopped"] == ["0", "0", ""]


def test_policies_on_different_numbers_of_gpus_show_them() -> None:
    trace = recorded()
    results = [measure(simulate_baseline("fifo", trace, Cluster(nodes=nodes, gpus_per_node=8)), trace) for nodes in (8, 10)]
    assert policies_table(results).heads[:2] == ["Policy", "GPUs"]


def test_tables_for_terminals_do_not_obey_names() -> None:
    assert str(Table(["Policy", "n"], [["a\x1b[31m\nb", "1"]])) == "Policy    n\na�[31m b  1"


def test_notebook_modes_are_told_in_one_table() -> None:
    table = notebooks_table(some_notebooks())
    assert [row[0] for row in table.rows] == ["reservation", "cull after 1 min", "lease per cell, eager", "lease per cell, lazy"]
    assert dict(zip(table.heads, table.rows[1], strict=True))["GPUs for ≤ 1 min"] == "2"


def test_data_of_a_comparison_can_be_read_by_programs() -> None:
    comparison = replace(of_policies(recorded(), "fifo"), notebooks=some_notebooks())
    data = json.loads(json.dumps(as_json(comparison), allow_nan=False))
    assert data["trace"] == {"name": "trace3.csv", "jobs": 992, "notes": ["Run times are the file's durations."]}
    assert data["policies"][0]["wait_seconds"]["mean"] == pytest.approx(944_350.80, abs=0.006)
    assert data["notebooks"][0]["gpus_for_p95_wait_of_60_seconds"] == 2


@given(st.lists(st.floats(0, 1e9), min_size=1))
def test_an_axis_for_durations_holds_every_value(values: list[float]) -> None:
    check_axis(durations(values), values)


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_an_even_axis_has_a_few_marks(one: float, other: float) -> None:
    low, high = sorted((one, other))
    check_axis(even_durations(high, low), [low, high])
    check_axis(numbers(high), [high])


def check_axis(axis: Axis, values: Sequence[float]) -> None:
    assert axis.low < axis.high
    assert all(0 <= axis.at(value) <= 1 for value in values)
    assert max(values) <= axis.high
    marks = [value for value, _ in axis.marks]
    assert marks == sorted(set(marks))
    assert len(marks) <= 12
    assert all(axis.low <= mark <= axis.high for mark in marks)


@pytest.mark.browser
@pytest.mark.parametrize("width", [400, 1280])
def test_a_browser_shows_the_page_without_scrolling_sideways(tmp_path: Path, width: int) -> None:
    path = tmp_path / "report.html"
    write_report(path, replace(of_policies(recorded(), "fifo", "srtf"), notebooks=some_notebooks()))
    with a_chromium() as browser:
        tab = browser.new_page(viewport={"width": width, "height": 900})
        said: list[str] = []
        asked: list[str] = []
        tab.on("console", lambda message: said.append(message.text))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(path.as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
        assert said == []
        assert tab.get_by_role("img", name="GPUs in use over time").is_visible()
