"""What organisers do to make a challenge: keep drafts, publish them, score again, end it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from carrel.core.challenges.notices import changes
from carrel.core.domain.challenge import BoardChange, Challenge, ChallengeSpec, Rescore, RescoredLine, SubmissionState
from carrel.core.domain.challenge_notice import ChallengeNotice, NoticeKind, one_line
from carrel.core.domain.errors import Conflict, Invalid
from carrel.core.domain.launch import LaunchWalls
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, allowed
from carrel.lab.gateway.challenges import Challenges


@dataclass(slots=True, kw_only=True)
class Publishing:
    """Thread-safe; raises the errors of `carrel.core.domain.errors`."""

    challenges: Challenges
    #: What jobs of a user do not see of the machine; None: nothing keeps jobs apart.
    walls: Callable[[str], LaunchWalls | None]

    def keep(self, caller: Caller, snapshot: str) -> Challenge:
        """Keep a directory as the draft of the challenge that it describes; a challenge that there is not is made."""
        spec = self.challenges.programs.read(caller, snapshot)
        for subject in spec.organisers:
            self.challenges.lab.users.find(subject)
        with self.challenges.guard:
            known = self.challenges.challenges.get(spec.name)
            if known is None:
                allowed(caller, Action.ORGANISE).check()
            else:
                self.challenges.check_organiser(caller, known)
                self.challenges.check_open(known)
            made = known or Challenge(name=spec.name, organiser=caller.user.subject, made_at=self.challenges.lab.clock())
            self.challenges.lab.users.enroll_programs(made.programs)
            if self.walls(made.programs) is None:
                raise Conflict(
                    "Nothing keeps jobs apart in this lab: every submission could read the references.",
                    remedy='Write isolation = "kernel" into carrel.toml, and start the lab again.',
                )
            self.challenges.programs.keep(spec.name, snapshot)
            self.challenges.programs.check(made, snapshot)
            self.challenges.challenges.put(replace(made, draft=snapshot))
            self._begin_baselines(made, snapshot, spec, caller)
        return replace(made, draft=snapshot)

    def _begin_baselines(self, challenge: Challenge, version: str, spec: ChallengeSpec, caller: Caller) -> None:
        """Send each baseline to each phase, once for each version; what failed, by the lab maybe, once more."""
        there = self.challenges.baselines(challenge, version)
        for phase in spec.phases:
            for name in spec.baselines:
                last = there.get((phase.name, name))
                if last is None or last.state is SubmissionState.FAILED:
                    code = self.challenges.programs.baseline(challenge, version, name)
                    self.challenges.runs.send(challenge, version, phase, caller.user.subject, code, baseline=name)

    def publish(self, caller: Caller, name: str, *, reason: str = "", without_failed: bool = False) -> Challenge:
        """Show the draft to everybody. Raises `Conflict` unless all its baselines were scored.

        Where it changes dates, limits or rules of what was published, everybody is told so with the reason, and `Invalid` is
        raised where none is given. Where it scores otherwise, all that was scored before has to be scored by it first
        (`rescore`); `without_failed`: what could not be scored again loses its place.
        """
        with self.challenges.guard:
            challenge = self.challenges.organised(caller, name)
            self.challenges.check_open(challenge)
            if not challenge.draft:
                raise Conflict(f"The challenge {name} has no draft.", remedy=f"Send one: `carrel challenge check {name}/`.")
            for one in self.challenges.checks(caller, name).submissions:
                baseline = one.submission
                if baseline.state is not SubmissionState.COMPLETED:
                    raise Conflict(
                        f'The baseline "{baseline.baseline}" is {baseline.state} in the phase "{baseline.phase}".',
                        remedy="Wait for it." if not baseline.state.ended else f"`carrel challenge log {name} {baseline.id}`.",
                    )
            spec, draft = self.challenges.programs.spec(name, challenge.draft), challenge.draft
            sent = self.challenges.baselines(challenge, draft)
            if len(sent) < len(spec.phases) * len(spec.baselines):  # the lab was killed meanwhile
                raise Conflict("Not all baselines were sent.", remedy=f"Send it again: `carrel challenge check {name}/`.")
            self.challenges.rescoring.check_inputs(challenge)
            changed = self.challenges.rescoring.check_done(challenge, without_failed=without_failed)
            if changed and not reason.strip():
                raise Conflict(
                    f"Participants are told why the boards of {', '.join(changed)} change.",
                    remedy=f'Say it: `carrel challenge publish {name} --reason "…"`.',
                )
            self._tell_changes(caller, challenge, spec, reason)
            at = self.challenges.lab.clock()
            now = {phase: BoardChange(at=at, reason=one_line(reason)) for phase in changed}
            versions = tuple(dict.fromkeys((*challenge.versions, draft)))
            made = replace(challenge, version=draft, draft="", train=spec.copied, versions=versions)
            published = self.challenges.challenges.put(replace(made, rescored={**challenge.rescored, **now}))
            self.challenges.rescoring.catch_up(name)
        self.challenges.finals_changed()
        return published

    def rescore(self, caller: Caller, name: str, *, ask: bool = False) -> Rescore:
        """Old scores and ranks beside those by the draft, for organisers; with `ask`, score what is missing, and what failed."""
        challenge = self.challenges.organised(caller, name)
        challenge = replace(challenge, draft=challenge.draft or challenge.version)  # or what failed, and was published so
        if not challenge.version:
            raise Conflict(f"The challenge {name} is not published: nothing was scored.")
        if ask:
            self.challenges.check_open(challenge)
            self.challenges.rescoring.check_inputs(challenge)
            self.challenges.rescoring.ask(name, challenge.draft, retry=True)
        lines: list[RescoredLine] = []
        for phase in self.challenges.programs.spec(name, challenge.draft).phases:
            before, after = (
                self.challenges.places(challenge, version, phase.name) for version in (challenge.version, challenge.draft)
            )
            lines += self.challenges.rescoring.lines(challenge, phase.name, before, after)
        return Rescore(challenge=name, lines=tuple(lines))

    def _tell_changes(self, caller: Caller, challenge: Challenge, new: ChallengeSpec, reason: str) -> None:
        if not challenge.version:
            return
        old = self.challenges.spec(challenge)
        differ = self.challenges.rules_digest(challenge) != self.challenges.rules_digest(challenge, challenge.draft)
        found = changes(old, new, rules_differ=differ and bool(new.rules))
        told = [one for one in self.challenges.notices_of(challenge.name) if one.kind is NoticeKind.CHANGE]
        if not found or (told and told[-1].version == challenge.draft):  # the lab was killed after it had written this line
            return
        if not reason.strip():
            raise Invalid(f"It changes: {'; '.join(found)}.", remedy="Say why, to those who take part: --reason.")
        self.challenges.notices.put(
            ChallengeNotice(
                challenge=challenge.name,
                kind=NoticeKind.CHANGE,
                text=f"{'; '.join(found)}. Reason: {one_line(reason)}",
                by=caller.user.subject,
                made_at=self.challenges.lab.clock(),
                version=challenge.draft,
            )
        )

    def freeze(self, caller: Caller, name: str) -> Challenge:
        """End a challenge: it takes nothing any more, and its boards stay. Again changes nothing."""
        with self.challenges.guard:
            challenge = self.challenges.organised(caller, name)
            if challenge.frozen_at is not None:
                return challenge
            return self.challenges.challenges.put(replace(challenge, frozen_at=self.challenges.lab.clock()))
