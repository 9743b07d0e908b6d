"""Limits, teams and finals of challenges in a lab whose clock and whose jobs a test moves: no order of steps passes a limit."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from itertools import count
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from gateway_lab import Rig, a_lab
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.core.domain.challenge import (
    Challenge,
    ChallengeSubmission,
    Fault,
    Limits,
    SubmissionState,
    Team,
    TeamView,
)
from carrel.core.domain.errors import CarrelError, Conflict, Invalid, NotFound
from carrel.core.domain.nouns import CHALLENGE_SAMPLES, CHALLENGES, SUBMISSIONS, TEAMS
from carrel.core.domain.user import Caller, User
from carrel.lab.gateway.challenge_finals import ChallengeFinals
from carrel.lab.gateway.challenge_participating import Participating
from carrel.lab.gateway.challenges import Challenges

PEOPLE = ("ada", "bob", "cora", "dan")
ZONE = ZoneInfo("Europe/Berlin")
#: The first hour of the development phase; the final begins 30 days later.
BEGIN = datetime(2026, 3, 20, 1, tzinfo=ZONE).timestamp()
FINAL = datetime(2026, 4, 19, tzinfo=ZONE).timestamp()
DAY = 86400.0
YAML = """\
name: {name}
title: T
pages: {{A: a.md}}
data: {{one: {{input: i, reference: r}}, two: {{input: i2, reference: r2}}}}
ingestion: p
scoring: s
phases:
  - {{name: development, begin: 2026-03-20, end: 2026-04-18, split: one}}
  - {{name: final, begin: 2026-04-19, end: 2026-04-20, split: two, final: {{from: development, choose: team, number: 2}}}}
board: [{{column: a}}]
limits: {limits}
teams: {{largest: 3, merge_until: 2026-04-10}}
zone: Europe/Berlin
"""
LIMITS = Limits(per_day=2, total=7, at_once=2, failures_per_day=2, gpu_hours=3)
#: So few that random steps meet them.
TIGHT = Limits(per_day=2, total=3, at_once=2, failures_per_day=1, gpu_hours=1.3)
PROGRAM = "name: p\nentry_points: {main: {command: 'true'}}\ncarrel: {resources: {gpus: 2, time: 9m}}\n"


def yaml(name: str, limits: Limits = LIMITS) -> str:
    return YAML.format(name=name, limits=json.dumps(asdict(limits)))


@dataclass
class World:
    """A lab with one challenge after the other."""

    rig: Rig
    challenges: Challenges
    now: float = BEGIN
    made: int = 0
    name: str = ""
    callers: dict[str, Caller] = field(default_factory=dict)
    codes: Iterator[int] = field(default_factory=count)

    @property
    def participating(self) -> Participating:
        return Participating(challenges=self.challenges, samples=self.rig.store.of(CHALLENGE_SAMPLES), files=Path())

    def challenge(self, limits: Limits = LIMITS) -> str:
        """A new challenge, from the beginning of its first phase."""
        self.made += 1
        self.name, self.now = f"c{self.made}", BEGIN
        files = {"challenge.yaml": yaml(self.name, limits), "p/MLproject": PROGRAM, "s/MLproject": PROGRAM}
        version = self.rig.upload("root", {**files, **dict.fromkeys(("a.md", "i/x", "r/x", "i2/x", "r2/x"), "x")})
        self.challenges.programs.keep(self.name, version)
        made = self.rig.store.of(CHALLENGES).put(Challenge(name=self.name, organiser="root", version=version))
        self.rig.lab.users.enroll_programs(made.programs)
        return self.name

    def sent(self) -> Sequence[ChallengeSubmission]:
        return [one for one in self.rig.store.of(SUBMISSIONS).all() if one.challenge == self.name]

    def teams(self) -> Sequence[Team]:
        return [one for one in self.rig.store.of(TEAMS).all() if one.challenge == self.name]

    def end(self, one: ChallengeSubmission, fault: Fault | None = None, score: float = 0.5, part: float = 0.5) -> None:
        """What the lab writes down of one that has ended."""
        state = SubmissionState.COMPLETED if fault is None else SubmissionState.FAILED
        hours = 0.0 if fault is Fault.LAB else one.gpu_hours * part
        scores = {"a": score} if fault is None else {}
        self.challenges.submissions.put(replace(one, state=state, fault=fault, scores=scores, gpu_hours=hours, ended_at=self.now))

    def join(self, who: str, team: str = "", code: str = "") -> TeamView:
        return self.participating.join(self.callers[who], self.name, team=team, code=code, accepts=True)

    def submit(self, who: str) -> ChallengeSubmission:
        """Send code that was not sent before: the same again would be the same submission."""
        code = self.rig.upload(who, {"model.py": str(next(self.codes))})
        return self.participating.submit(self.callers[who], self.name, code).submission

    def scored(self, who: str, score: float = 0.5) -> int:
        """A submission that was scored at once."""
        one = self.submit(who)
        self.end(next(kept for kept in self.sent() if kept.id == one.id), score=score)
        return one.id

    def kill(self) -> None:
        """All that is not written down is gone."""
        self.challenges = replace(self.challenges, guard=threading.RLock())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made: World | None = None

    def clock() -> float:
        return made.now if made else BEGIN

    with a_lab(tmp_path_factory.mktemp("rules"), clock=clock, gpus=2) as rig:
        made = World(rig=rig, challenges=rig.app.state.gateway.challenges)
        for name in PEOPLE:
            if rig.lab.people.get(name) is None:
                rig.lab.people.add(User(subject=name, name=name), now=BEGIN)
            made.callers[name] = Caller(user=User(subject=name, name=name))
            token = rig.lab.tokens.hand_out(name, name="of a test", by="root")[1]
            rig.tokens = {**rig.tokens, name: token}
        yield made


def check_limits(world: World, limits: Limits = LIMITS) -> None:
    """Nobody, and no team, has sent more than a limit, wherever they went meanwhile."""
    sent = world.sent()
    groups = [[one for one in sent if who in one.members] for who in PEOPLE]
    groups += [[one for one in sent if one.team in team.names] for team in world.challenges.present(world.name)]
    for number, mine in enumerate(groups):
        counted = [one for one in mine if one.state is not SubmissionState.FAILED]
        failed = [one for one in mine if one.state is SubmissionState.FAILED and one.fault is not Fault.LAB]
        assert len(counted) <= limits.total
        assert sum(one.gpu_hours for one in mine) <= limits.gpu_hours + 1e-9
        if number < len(PEOPLE):  # two teams that merge may both have sent on that day
            assert sum(not one.state.ended for one in mine) <= limits.at_once
            for some, most in ((counted, limits.per_day), (failed, limits.failures_per_day)):
                days = [datetime.fromtimestamp(one.made_at, ZONE).date() for one in some]
                assert all(days.count(day) <= most for day in days)


#: What may happen, and how often beside the others.
STEPS = {"submit": 9, "end": 3, "fail": 4, "lose": 1, "leave": 1, "move": 2, "new": 2, "ask and agree": 2, "day": 1, "kill": 1}


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_no_order_of_steps_passes_a_limit(world: World, seed: int) -> None:
    """Submit, end, fail, be lost, leave, join, merge, be killed, and let a day pass."""
    chance = random.Random(seed)
    world.challenge(TIGHT)
    for who in PEOPLE:
        world.join(who)
    for step in chance.choices(list(STEPS), list(STEPS.values()), k=60):
        first, second = chance.randrange(4), chance.randrange(4)
        one, other = PEOPLE[first], PEOPLE[second]
        teams = world.challenges.present(world.name)
        team = teams[second % len(teams)]
        under_way = [sent for sent in world.sent() if not sent.state.ended]
        try:
            match step:
                case "submit":
                    world.submit(one)
                case "end" | "fail" | "lose" if under_way:
                    fault = {"end": None, "fail": Fault.TEAM, "lose": Fault.LAB}[step]
                    world.end(under_way[second % len(under_way)], fault, part=(first + 1) / 4)
                case "leave":
                    world.participating.leave(world.callers[one], world.name)
                case "new":
                    world.join(one, team=f"{one}{len(world.teams())}")
                case "move":
                    world.participating.leave(world.callers[one], world.name)
                    world.join(one, code=team.code)
                case "ask and agree":
                    mine = world.participating.merge(world.callers[one], world.name, code=team.code).name
                    world.kill()
                    world.participating.merge(world.callers[other], world.name, team=mine)
                case "day":
                    world.now += DAY * (1 + second) / 2
                case "kill":
                    world.kill()
        except (Conflict, NotFound):
            continue
        check_limits(world, TIGHT)
        members = [name for team in world.challenges.present(world.name) for name in team.members]
        assert len(members) == len(set(members)), "a person is in one team"
        assert all(len(team.members) <= 3 for team in world.challenges.present(world.name))


@pytest.mark.gate
def test_two_members_who_submit_at_once_pass_no_limit(world: World) -> None:
    world.challenge()
    world.join("bob", code=world.join("ada").code)

    def submit(who: str) -> bool:
        try:
            world.submit(who)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(submit, ["ada", "bob"] * 8)) == 2
    check_limits(world)


@pytest.mark.gate
def test_who_leaves_takes_along_what_was_sent_and_sees_nothing_any_more(world: World) -> None:
    world.challenge()
    team = world.join("ada", "Waves")
    world.join("bob", code=team.code)
    first = world.scored("ada")
    world.participating.leave(world.callers["ada"], world.name)
    with pytest.raises(Conflict, match="do not take part"):
        world.challenges.sent(world.callers["ada"], world.name)
    with pytest.raises(NotFound):
        world.challenges.submission(world.callers["ada"], world.name, first)
    with pytest.raises(NotFound, match="No team has this code"):
        world.join("ada", code=team.code)
    world.join("ada", "Alone")
    view = world.challenges.view(world.callers["ada"], world.name)
    assert (view.phases[0].today, view.phases[0].total) == (1, 6)
    assert not world.challenges.sent(world.callers["ada"], world.name).submissions
    # Who was not there when it was sent has all of it.
    assert [place.team for place in world.challenges.board(world.callers["ada"], world.name).places] == ["Waves"]

    world.participating.leave(world.callers["bob"], world.name)
    world.join("dan", "Fresh")
    assert world.challenges.view(world.callers["dan"], world.name).phases[0].total == 7
    assert [place.team for place in world.challenges.board(world.callers["dan"], world.name).places] == ["Waves"]


def test_who_has_sent_too_much_elsewhere_does_not_join(world: World) -> None:
    """They would use up what the team has."""
    world.challenge()
    team = world.join("ada", "A")
    world.join("bob", "B")
    for who in ("ada", "bob", "bob"):
        world.scored(who)
    world.participating.leave(world.callers["bob"], world.name)
    with pytest.raises(Conflict, match="Together you have sent 3"):
        world.join("bob", code=team.code)
    world.now += DAY
    world.join("bob", code=team.code)
    assert world.challenges.view(world.callers["ada"], world.name).phases[0].total == 4


def test_a_team_that_sent_nothing_ends_with_its_last_member(world: World) -> None:
    world.challenge()
    world.join("ada", "A")
    world.participating.leave(world.callers["ada"], world.name)
    assert not world.teams()
    code = world.join("bob", "A").code
    world.join("ada", "B")
    world.participating.merge(world.callers["ada"], world.name, code=code)
    world.participating.merge(world.callers["bob"], world.name, team="B")
    world.participating.leave(world.callers["ada"], world.name)
    with pytest.raises(Conflict, match='There is a team "B"'):
        world.join("ada", "B")  # what has that name is a part of A


def test_a_new_code_makes_the_old_one_void(world: World) -> None:
    world.challenge()
    old = world.join("ada").code
    new = world.participating.invite(world.callers["ada"], world.name).code
    with pytest.raises(NotFound, match="No team has this code"):
        world.join("bob", code=old)
    assert world.join("bob", code=new).members == ("ada", "bob")


def test_submissions_come_page_by_page(world: World) -> None:
    """Newest first, each once, for a team and for organisers."""
    world.challenge()
    world.join("ada", "A")
    world.join("bob", "B")
    for who in ("ada", "bob", "ada", "bob"):
        world.scored(who)
    for caller, sent in ((world.callers["ada"], 2), (world.rig.caller("root"), 4)):
        whole = world.challenges.sent(caller, world.name)
        pages = [world.challenges.sent(caller, world.name, limit=1)]
        while pages[-1].next is not None:
            pages.append(world.challenges.sent(caller, world.name, limit=1, before=pages[-1].next))
        assert (len(pages), whole.next) == (sent, None)
        assert tuple(one for page in pages for one in page.submissions) == whole.submissions
        assert {page.phase for page in pages} == {whole.phase}


@pytest.mark.gate
def test_teams_merge_where_they_have_sent_no_more_than_one_could_have(world: World) -> None:
    world.challenge()
    ada, bob = world.join("ada", "A"), world.join("bob", "B")
    for who in ("ada", "ada", "bob"):
        world.scored(who)
    merge = world.participating.merge
    with pytest.raises(Conflict, match=r"sent 3 submissions .* could have sent 2: 2 on each of 1 days, 7 in all") as caught:
        merge(world.callers["ada"], world.name, code=bob.code)
    assert "From 00:00 on 21 March 2026 (Europe/Berlin)" in str(caught.value.remedy)
    world.now += DAY
    with pytest.raises(NotFound, match="asks to merge"):
        merge(world.callers["bob"], world.name, team="A")  # A has not asked
    assert merge(world.callers["ada"], world.name, code=bob.code).asked == "B"
    assert world.challenges.view(world.callers["bob"], world.name).team.asked_by == ("A",)  # type: ignore[union-attr]
    both = merge(world.callers["bob"], world.name, team="A")
    assert (both.name, both.members, both.asked_by) == ("B", ("bob", "ada"), ())
    world.kill()
    assert len(world.challenges.sent(world.callers["ada"], world.name).submissions) == 3
    view = world.challenges.view(world.callers["ada"], world.name)
    assert (view.teams, view.phases[0].total) == (1, 4)
    (place,) = world.challenges.board(world.callers["ada"], world.name).places
    assert (place.team, place.entries) == ("B", 3)
    with pytest.raises(Conflict, match='There is a team "a"'):
        world.join("cora", "a")  # its name stays taken
    with pytest.raises(NotFound):
        world.join("cora", code=ada.code)
    world.participating.leave(world.callers["ada"], world.name)
    assert not any("ada" in team.members for team in world.teams())


def test_teams_that_are_too_large_or_too_late_do_not_merge(world: World) -> None:
    world.challenge()
    ada, cora = world.join("ada"), world.join("cora")
    world.join("bob", code=ada.code)
    world.join("dan", code=cora.code)
    with pytest.raises(Conflict, match="would have 4: a team has 3 at most"):
        world.participating.merge(world.callers["ada"], world.name, code=cora.code)
    world.now = datetime(2026, 4, 10, tzinfo=ZONE).timestamp()
    with pytest.raises(Conflict, match=r"until 00:00 on 10 April 2026"):
        world.participating.merge(world.callers["ada"], world.name, code=cora.code)


def test_a_submission_costs_its_worst_case_until_it_has_ended(world: World) -> None:
    """Each takes 0.6 GPU-hours at most: 2 GPUs, twice 9 minutes."""
    world.challenge()
    world.join("ada")
    view = world.challenges.view(world.callers["ada"], world.name)
    assert view.cost is not None
    assert view.cost.words == "2 GPUs, 1 processor, 18 min (0.6 GPU-hours)"
    for _ in range(4):
        for one in (world.submit("ada"), world.submit("ada")):
            world.end(next(kept for kept in world.sent() if kept.id == one.id), Fault.ORGANISER)  # these count too
        world.now += DAY
    assert world.challenges.view(world.callers["ada"], world.name).phases[0].gpu_hours == 0.6
    world.submit("ada")
    refused = world.challenges.view(world.callers["ada"], world.name).phases[0].refusal
    with pytest.raises(Conflict, match=r"may take 0.6 GPU-hours, and 0 of the 3 of the phase") as caught:
        world.submit("ada")
    assert refused == f"{caught.value.message} {caught.value.remedy}"
    assert "look again when it has" in refused


def finals(world: World) -> list[tuple[str, int]]:
    """Have the finals looked after by a server that has just begun; what there is of them."""
    world.kill()
    ChallengeFinals(world.challenges).start_missing()
    return sorted((one.team, one.origin) for one in world.sent() if one.phase == "final")


@pytest.mark.gate
def test_what_a_team_chose_is_sent_to_the_final_once(world: World) -> None:
    """And its best ones where it chose too little; whatever is lost on the way is sent again."""
    world.challenge()
    world.join("ada", "A")
    world.join("bob", "B")
    numbers = [world.scored("ada", score) for score in (0.9, 0.1)]
    world.now += DAY
    numbers.append(world.scored("ada", 0.5))
    failed, late = world.submit("ada"), world.scored("bob", 0.3)
    world.end(next(one for one in world.sent() if one.id == failed.id), Fault.TEAM)
    choose = world.participating.choose
    assert choose(world.callers["ada"], world.name, [numbers[1]]).chosen == (numbers[1],)
    for wrong, error in (([failed.id], Conflict), ([late], NotFound), (numbers, Invalid)):
        with pytest.raises(error):
            choose(world.callers["ada"], world.name, wrong)
    assert finals(world) == []
    world.now = FINAL
    expected = [("A", numbers[0]), ("A", numbers[1]), ("B", late)]
    assert finals(world) == expected
    assert finals(world) == expected
    with pytest.raises(Conflict, match="nothing to choose"):
        choose(world.callers["ada"], world.name, [numbers[0]])
    with pytest.raises(Conflict, match="takes no submissions"):
        world.submit("ada")
    with pytest.raises(Conflict, match="could merge until"):
        world.participating.merge(world.callers["ada"], world.name, code=world.join("bob").code)

    of_a, _, of_b = (one for one in world.sent() if one.phase == "final")
    world.end(of_a, Fault.LAB)
    world.end(of_b, Fault.TEAM)
    assert finals(world) == sorted([*expected, ("A", of_a.origin)])
    for one in world.sent():
        if one.phase == "final" and not one.state.ended:
            world.end(one, score=0.4)
    assert len(finals(world)) == 4
    places = world.challenges.board(world.callers["ada"], world.name).places
    # Of equal ones that counts which the team sent first.
    assert [(one.team, one.made_at) for one in places] == [("A", min(one.made_at for one in world.sent()))]
    assert len(finals(world)) == 4


def test_a_final_waits_for_what_has_not_ended(world: World) -> None:
    world.challenge()
    world.join("ada", "A")
    world.scored("ada", 0.1)
    last = world.submit("ada")
    world.now = FINAL
    assert finals(world) == []
    world.end(next(one for one in world.sent() if one.id == last.id), score=0.9)
    assert len(finals(world)) == 2


def test_code_is_kept_as_long_as_its_submission(world: World) -> None:
    """No job names it, and a final needs it."""
    world.challenge()
    world.join("ada", "A")
    number = world.scored("ada")
    (code,) = (one.snapshot for one in world.sent() if one.id == number)
    assert code in world.rig.store.retention.named()


def test_what_the_lab_cannot_carry_out_is_not_sent_for_ever(world: World) -> None:
    world.challenge()
    world.join("ada", "A")
    world.scored("ada")
    world.now = FINAL
    for number in range(8):
        assert len(finals(world)) == min(5, number + 1)
        for one in world.sent():
            if one.phase == "final" and not one.state.ended:
                world.end(one, Fault.LAB)


def test_what_the_organisers_programs_failed_on_is_sent_again_in_a_new_version(world: World) -> None:
    name = world.challenge()
    world.join("ada", "A")
    world.scored("ada")
    world.now = FINAL
    finals(world)
    (one,) = (one for one in world.sent() if one.phase == "final")
    world.end(one, Fault.ORGANISER)
    assert len(finals(world)) == 1
    challenge = world.rig.store.of(CHALLENGES).get(name)
    assert challenge is not None
    files = {"challenge.yaml": yaml(name), "p/MLproject": PROGRAM + "# mended\n", "s/MLproject": PROGRAM}
    version = world.rig.upload("root", {**files, **dict.fromkeys(("a.md", "i/x", "r/x", "i2/x", "r2/x"), "x")})
    world.challenges.programs.keep(name, version)
    world.rig.store.of(CHALLENGES).put(replace(challenge, version=version))
    assert len(finals(world)) == 2


def test_errors_are_errors_of_the_lab(world: World) -> None:
    """Who is in no team is told so by each."""
    world.challenge()
    for act in (world.participating.invite, world.participating.leave):
        with pytest.raises(CarrelError, match="do not take part"):
            act(world.callers["ada"], world.name)
