"""Who reads which notice, what a new version is told to change, what a quota gives; likeness and the report, as values."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace

import pytest

from carrel.core.challenges.likeness import Submitted, alike, fingerprints, lines, program
from carrel.core.challenges.limits import Extra, left
from carrel.core.challenges.notices import changes, extra, seen
from carrel.core.challenges.report import answers, days, failure_kind, failures, markdown, team_line
from carrel.core.domain.challenge import (
    Board,
    ChallengeSpec,
    ChallengeSubmission,
    Fault,
    Final,
    Limits,
    Phase,
    Split,
    SubmissionState,
    Team,
)
from carrel.core.domain.challenge_notice import LONGEST, ChallengeNotice, NoticeKind, one_line
from carrel.core.domain.challenge_report import ChallengeReport
from carrel.core.domain.errors import Invalid
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources

pytestmark = pytest.mark.quick

DAY = 86_400.0
NOW = 20_000 * DAY + 43_200
PHASE = Phase(name="one", begin=0, end=4e9, split="public", limits=Limits(per_day=2, total=3))
SPEC = ChallengeSpec(
    name="c",
    title="C",
    pages={},
    rules="rules.md",
    splits={"public": Split(input="i", reference="r")},
    ingestion="i",
    scoring="s",
    phases=(PHASE,),
    board=(),
)


def notice(kind: NoticeKind, **more: object) -> ChallengeNotice:
    return ChallengeNotice(id=1, challenge="c", kind=kind, text="text", by="ada", made_at=NOW, **more)  # type: ignore[arg-type]


def readers(one: ChallengeNotice) -> list[str]:
    people = {"organiser": ("olga", (), True), "member": ("ada", ("Waves", "Foam"), False), "other": ("bob", ("Owls",), False)}
    return [who for who, (subject, names, organises) in people.items() if seen(one, subject, names, organises=organises)]


def test_who_reads_a_notice() -> None:
    assert readers(notice(NoticeKind.ANNOUNCEMENT)) == ["organiser", "member", "other"]
    assert readers(notice(NoticeKind.CHANGE)) == ["organiser", "member", "other"]
    for name in ("Waves", "Foam"):  # which is a part of it now
        assert readers(notice(NoticeKind.QUOTA, team=name)) == ["organiser", "member"]
    assert readers(notice(NoticeKind.QUESTION)) == ["organiser", "member"]
    published = notice(NoticeKind.QUESTION, answer="so", published=True)
    assert readers(published) == ["organiser", "member", "other"]
    found = seen(published, "bob", ("Owls",), organises=False)
    assert found is not None
    assert found.by == ""  # everybody reads the question, and not whose it is


def test_the_line_of_a_change_is_read_once_the_change_is_there() -> None:
    line = notice(NoticeKind.CHANGE, version="sha256:b")
    for organises in (False, True):  # the lab was killed after it had written the line
        assert seen(line, "ada", ("Waves",), organises=organises, versions=("sha256:a",)) is None
    for organises, version in ((True, "sha256:b"), (False, "2")):  # the digest would confirm labels that somebody has guessed
        told = seen(line, "ada", ("Waves",), organises=organises, versions=("sha256:a", "sha256:b"))
        assert told == replace(line, version=version)


def test_a_quota_of_today_is_gone_tomorrow() -> None:
    more = notice(NoticeKind.QUOTA, team="Waves", phase="one", today=2, total=5)
    earlier = replace(more, made_at=NOW - DAY)
    others = [replace(more, team="Owls"), replace(more, phase="two"), replace(more, kind=NoticeKind.QUESTION)]
    assert given([more, earlier, *others], team("Waves")) == Extra(today=2, total=10)
    found = left(PHASE, (), now=NOW, zone="UTC", extra=Extra(today=2, total=-1))
    assert (found.today, found.total) == (4, 2)
    assert left(PHASE, (), now=NOW, zone="UTC", extra=Extra(today=-9)).today == 0


def team(name: str, *members: str, merged: tuple[str, ...] = ()) -> Team:
    return Team(challenge="c", name=name, members=members, merged=merged)


def given(notices: list[ChallengeNotice], to: Team) -> Extra:
    return extra(notices, to, "one", now=NOW, zone="UTC")


def test_what_was_taken_away_goes_with_the_people() -> None:
    """Who leaves a team keeps its fewer submissions, and none that it was given; corrections count."""
    less = notice(NoticeKind.QUOTA, team="Waves", phase="one", total=-5, members=("ada", "bob"))
    more = replace(less, total=3)
    assert given([less], team("Waves", "bob")) == given([less], team("New", "ada")) == Extra(total=-5)
    assert given([less], team("Owls", "cora")) == given([more], team("New", "ada")) == Extra()
    assert given([less, more], team("New", "ada")) == Extra(total=-2)
    assert given([less, replace(more, total=9)], team("New", "ada")) == Extra()


def test_two_teams_that_merge_are_not_given_twice() -> None:
    quotas = [
        notice(NoticeKind.QUOTA, team=name, phase="one", today=2, total=total) for name, total in (("A", 5), ("B", 3), ("C", -1))
    ]
    assert given(quotas, team("A", merged=("B", "C"))) == Extra(today=2, total=4)


def test_what_a_new_version_changes() -> None:
    later = replace(PHASE, end=4e9 + DAY, limits=Limits(per_day=5, total=3))
    assert changes(SPEC, SPEC, rules_differ=False) == []
    (told,) = changes(SPEC, replace(SPEC, phases=(later,)), rules_differ=False)
    assert told == "one: ends 2096-10-02 07:06 UTC → 2096-10-03 07:06 UTC, a day 2 → 5"
    hours = replace(PHASE, limits=replace(PHASE.limits, gpu_hours=2.5), board="hidden", final=Final(source="zero", number=2))
    assert changes(SPEC, replace(SPEC, phases=(hours,), merge_until=DAY), rules_differ=False) == [
        "one: takes what teams send → 2 of zero (best), the board is shown → hidden, GPU-hours without limit → 2.5",
        "teams merge until a final begins → 1970-01-02 00:00 UTC",
    ]
    found = changes(SPEC, replace(SPEC, phases=(replace(PHASE, name="two"),), zone="Europe/Berlin"), rules_differ=True)
    assert [text[:18] for text in found] == [  # one for each
        'the phase "one" is',
        'new phase "two", 1',
        "days are those of ",
        "the rules are othe",
    ]


PROGRAM = """
def read(place):
    with open(place) as file:  # by line
        return [float(line) for line in file if line.strip()]

def smooth(signal, width=5):
    total = sum(signal[:width])
    for at in range(width, len(signal)):
        total += signal[at] - signal[at - width]
        yield total / width

class Model:
    def __init__(self, limit):
        self.limit, self.seen = limit, {}

    def predict(self, number):
        if number not in self.seen and number > self.limit:
            self.seen[number] = number % 2 == 0 or not number
        return int(self.seen.get(number, False))
"""
RENAMED = {"read": "load", "place": "where", "smooth": "mean", "signal": "values", "total": "s", "at": "i", "limit": "top"}
OTHER = """
import numpy as np
from sklearn.svm import SVC
x, y = np.load("x.npy"), np.load("y.npy")
while True:
    try:
        best = max(SVC(C=c).fit(x, y).score(x, y) for c in (0.1, 1.0, 10.0))
    except ValueError as error:
        raise SystemExit(str(error)) from None
    else:
        assert best is not None, best
        break
"""


def test_code_is_alike_under_other_names_and_in_a_notebook() -> None:
    renamed = re.sub(r"\w+", lambda word: RENAMED.get(word[0], word[0]), PROGRAM).replace("# by line", "# another comment")
    cells = [{"cell_type": "code", "source": [renamed]}, {"cell_type": "markdown", "source": ["text"]}]
    notebook = program("n.ipynb", json.dumps({"cells": cells}).encode())
    own = fingerprints(PROGRAM)
    found = alike(
        "one",
        [
            Submitted(team=team, number=number, code=code, predictions={"p": lines(told)})
            for number, (team, code, told) in enumerate(
                [
                    ("ada", own, b"1\n0\n1\n1\n"),
                    ("bob", fingerprints(notebook), b"1\n0\n0\n0\n"),
                    ("eve", fingerprints(OTHER), b"1\n0\n1\n1\n"),
                ]
            )
        ],
    )
    assert renamed != PROGRAM
    assert [(pair.teams, pair.code >= 0.9, pair.predictions) for pair in found.pairs] == [
        (("ada", "bob"), True, 0.5),
        (("ada", "eve"), False, 1.0),
    ]


@pytest.mark.parametrize(
    "text", ['"' + '\\"' * 60_000, "'''" + '"' * 120_000, "#" * 120_000, "0x" * 60_000, "é" * 120_000, "\ud800 " * 60]
)
def test_a_hostile_program_takes_no_longer_than_another(text: str) -> None:
    """Seconds, where reading it again and again would take hours."""
    begun = time.monotonic()
    fingerprints(text)
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("data", [b"\xff", b"[" * 100_000, b'{"cells": 3}', b'{"cells": [{}]}', b"[]", b'{"cells": [null]}'])
def test_a_notebook_that_is_none_has_no_program(data: bytes) -> None:
    assert program("n.ipynb", data) == ""


def sent(number: int, team: str, state: SubmissionState, **more: object) -> ChallengeSubmission:
    made = NOW - (number % 2) * DAY
    return ChallengeSubmission(id=number, challenge="c", team=team, snapshot="", state=state, made_at=made, **more)  # type: ignore[arg-type]


SENT = (
    sent(1, "Waves", SubmissionState.FAILED, fault=Fault.TEAM, kind="code: ValueError"),
    sent(2, "Owls", SubmissionState.FAILED, fault=Fault.TEAM, kind="code: ValueError"),
    sent(3, "Waves", SubmissionState.FAILED, fault=Fault.LAB),
    sent(4, "Waves", SubmissionState.COMPLETED),
)


def test_failures_are_counted_by_kind_day_and_team() -> None:
    error, lab = failures(SENT, "UTC")
    assert (error.kind, error.count, error.newest) == ("code: ValueError", 2, 2)
    assert (error.days, error.teams) == ({"2024-10-03": 1, "2024-10-04": 1}, {"Waves": 1, "Owls": 1})
    assert (lab.kind, lab.count) == ("lab", 1)
    assert [(one.day, one.teams, one.scored, one.failed) for one in days(SENT, "UTC")] == [
        ("2024-10-03", 1, 0, 2),
        ("2024-10-04", 2, 1, 1),
    ]


def test_what_goes_on_to_a_final_was_sent_once() -> None:
    again = replace(SENT[3], id=9, phase="final", origin=4)
    assert days([*SENT, again], "UTC") == days(SENT, "UTC")


def test_who_changes_the_team_answers_once() -> None:
    asks = {"occupation": ("student", "other")}
    old, new = team("Old"), replace(team("New", "ada"), answers={"ada": {"occupation": "student"}})
    assert answers(asks, [replace(old, answers=new.answers), new]) == {"occupation": {"student": 1, "other": 0}}


def test_less_than_nothing_is_left_to_nobody() -> None:
    """Two teams that merged may have sent more today than one may."""
    ones = [replace(SENT[3], id=number, phase="one", made_at=NOW) for number in range(3)]
    line = team_line(team("Waves"), ones, 0, left(PHASE, ones, now=NOW, zone="UTC"))
    assert (line.today, line.total) == (0, 0)


def test_the_public_report_has_no_members_failures_or_rare_answers() -> None:
    waves = Team(challenge="c", name="Waves", members=("ada",), made_at=NOW)
    found = ChallengeReport(
        challenge="c",
        title="C",
        made_at=NOW,
        gpu_hours=1.5,
        days=days(SENT, "UTC"),
        teams=(team_line(waves, SENT, 1.5, None),),
        failures=failures([replace(SENT[0], kind="code: <script>|`x`_")], "UTC"),
        answers={"occupation": {"student": 12, "retired": 1}},
        boards=(),
    )
    own, public = markdown(found, public=False), markdown(found, public=True)
    assert "| code\\: \\<script\\>\\|\\`x\\`\\_ | 1 | Waves | 1 |" in own
    assert "| Waves | ada |" in own
    assert "| retired | fewer than 3 |" in public
    assert not [word for word in ("ada", "script", "Members") if word in public]
    hidden = Board(challenge="c", phase="one", columns=(), places=(), opens=NOW + DAY)
    assert "Teams do not see this board yet" in markdown(replace(found, boards=(hidden,)), public=False)


def test_an_exception_has_its_name() -> None:
    job = Job(
        id=1,
        kind=JobKind.TASK,
        owner="challenge:c",
        account="a",
        name="n",
        qos="q",
        resources=Resources(),
        state=JobState.FAILED,
        reason=Reason(code="NonZeroExitCode", message=""),
        submitted_at=0.0,
    )
    log = b"Traceback (most recent call last):\n  ...\nValueError: bad\nnumpy.linalg.LinAlgError: worse\n[carrel] it ended\n"
    assert failure_kind(job, Fault.TEAM, log) == "code: numpy.linalg.LinAlgError"
    assert failure_kind(job, Fault.TEAM, b"nothing") == "code"
    assert failure_kind(replace(job, state=JobState.TIMEOUT), Fault.TEAM, log) == "time limit"
    assert failure_kind(job, Fault.ORGANISER, log) == "programs: NonZeroExitCode"
    assert failure_kind(job, Fault.LAB, log) == "lab"


def test_a_text_is_one_line_and_is_refused_where_it_would_be_cut() -> None:
    assert one_line(" dates\n were  wrong ") == "dates were wrong"
    assert len(one_line("x" * LONGEST)) == LONGEST
    for text in ("x" * (LONGEST + 1), " \n "):
        with pytest.raises(Invalid, match="characters"):
            one_line(text)
